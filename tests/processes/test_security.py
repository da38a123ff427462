"""Nothing of a config is code, no secret ends in a file that people pass on, and a hostile trainer
neither stops its supervisor nor speaks in its voice."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forked import forked
from tests.running import Result, Start, command_config
from tests.secret_store import SecretStore

Supervise = Callable[..., Result]

INHERITED = "inherited-wandb-value"
GIVEN = "given-database-value"
FLAG = "flag-value-of-service"
TOKEN = "hf_" + "aZ09" * 8


def program(model_dir: Path, source: str, *arguments: str, **command: Any) -> dict[str, Any]:
    """A config whose trainer is a Python program."""
    config = command_config(model_dir, **command)
    config["trainer"]["command"]["argv"] = [sys.executable, "-c", source, *arguments]
    return config


def test_nothing_passes_through_a_shell(supervise: Supervise, model_dir: Path) -> None:
    nasty = "$(touch {model_dir}/a) `touch {model_dir}/b`; touch {model_dir}/c | * \n && x"
    source = "import os, sys; print(sys.argv[1:], os.environ['NASTY'] == sys.argv[1])"
    result = supervise(program(model_dir, source, nasty, env={"NASTY": nasty}))
    assert result.code == 0
    expanded = nasty.replace("{model_dir}", str(model_dir))
    assert result.rank_log(1).decode() == f"{[expanded]!r} True\n"
    assert [path.name for path in model_dir.iterdir() if len(path.name) == 1] == []


def test_yaml_makes_no_objects(supervise: Supervise, model_dir: Path) -> None:
    pwned = model_dir.parent / "pwned"
    result = supervise(f'trainer: !!python/object/apply:os.system ["touch {pwned}"]')
    assert result.code == 78
    assert not pwned.exists()


LEAKY = """
import os, sys
from supervisor.protocol.failure_record import write_failure_record
secrets = [os.environ["WANDB_API_KEY"], os.environ["DB_PASSWORD"], sys.argv[1], sys.argv[-1]]
error = RuntimeError("refused: " + " and ".join(secrets))
write_failure_record(error, stage=None, step=None)
raise error
"""


def test_secrets_are_in_none_of_our_files(supervise: Supervise, model_dir: Path) -> None:
    def run(given: str, seed: str) -> Result:
        environment = {"DB_PASSWORD": given, "SEED": seed}
        flags = (TOKEN, f"--api-key={FLAG}", "--secret", FLAG)
        config = program(model_dir, LEAKY, *flags, env=environment)
        return supervise(config, env={"WANDB_API_KEY": INHERITED})

    assert run(GIVEN, "1").code == 70, "the same failure twice"
    result = run(GIVEN + "-changed", "2")
    assert result.code == 70
    raw = [path for path in model_dir.rglob("rank0.*") if GIVEN.encode() in path.read_bytes()]
    assert raw, "the trainer had them, and what it writes itself is its own"
    ours = [path for path in model_dir.rglob("*") if path.is_file() and path not in raw]
    assert {"journal.jsonl", "run.log", "params.yaml", "summary.json"} <= {p.name for p in ours}
    for path in ours:
        text = path.read_text()
        assert [s for s in (INHERITED, GIVEN, FLAG, TOKEN) if s in text] == [], path
    failed = result.events("attempt-failed")[-1]
    assert "refused: [redacted] and [redacted]" in failed["root_cause"]
    assert "refused: [redacted]" in result.summary["attempts"][-1]["failure"]["traceback"]
    changed = [told["changed"] for told in result.events("config-changed")]
    assert [each for each in changed if "DB_PASSWORD" in each] == [], "they do not differ, redacted"
    assert any(each.endswith('command.env.SEED: "1" -> "2"') for each in changed)


BROKEN = "first-half\rlast-half"
BREAKING = """
import os, sys
os.write(1, b"using " + os.environb[b"DB_PASSWORD"] + b" now\\n")
if len(sys.argv) > 1:
    raise ValueError("refused: " + os.environ["DB_PASSWORD"] + " is wrong")
sys.exit(3)
"""


@pytest.mark.parametrize("words", [(), ("raise",)])
def test_of_a_secret_with_a_carriage_return_no_half_is_told(
    supervise: Supervise, model_dir: Path, words: tuple[str, ...]
) -> None:
    """A progress bar ends its lines so, and lines are what is told of an output."""
    result = supervise(program(model_dir, BREAKING, *words, env={"DB_PASSWORD": BROKEN}))
    assert result.code in (70, 76)
    raw = [*model_dir.rglob("rank0.*")]
    told = [path.read_text() for path in model_dir.rglob("*") if path.is_file() and path not in raw]
    log = next(path for path in raw if path.suffix == ".log")
    for argv in (["status", model_dir], ["classify", "--explain", "--exit-code", "1", log]):
        command = [sys.executable, "-m", "supervisor", *map(str, argv)]
        environment = {**os.environ, "DB_PASSWORD": BROKEN}
        told.append(subprocess.run(command, capture_output=True, text=True, env=environment).stdout)
    assert len(told) > 5
    assert [text for text in told if "first-half" in text or "last-half" in text] == []
    assert "[redacted]" in told[-1]


@pytest.mark.parametrize("wrong", [False, True])
def test_validate_shows_no_secrets(tmp_path: Path, model_dir: Path, wrong: bool) -> None:
    config = program(model_dir, "pass", f"--key={FLAG}", env={"MY_TOKEN": GIVEN})
    if wrong:
        config["trainer"]["hub"] = TOKEN
    path = tmp_path / "trainer.yaml"
    path.write_text(json.dumps(config))
    done = forked("validate", path)
    assert done.returncode == (78 if wrong else 0)
    assert "[redacted]" in done.stdout + done.stderr
    assert [s for s in (FLAG, GIVEN, TOKEN) if s in done.stdout + done.stderr] == []


NAMES = ["DB_PASS", "MYSQL_PWD", "PGPASS", "AUTH", "COOKIE", "DATABASE_URL", "SENTRY_DSN"]
SAYINGS = [
    "AccountKey=the-value-0123",
    "git+https://the-value-0123@host/x",
    "https://h/x?X-Amz-Signature=the-value-0123",
    "https://h/x?X-Goog-Signature=the-value-0123",
    "https://h/x?sig=the-value-0123",
    "Authorization: Basic the-value-0123",
    "password=the-value-0123",
    "api_key=the-value-0123",
    '{"client_secret": "the-value-0123"}',
    "https://hooks.slack.com/services/the-value-0123",
    "postgres://u:pa,the-value-0123@h",
]
TELL = """
import os, sys
from supervisor.protocol.failure_record import write_failure_record
error = RuntimeError(" ".join([*sys.argv[1:], *(os.environ[n] for n in os.environ["N"].split())]))
write_failure_record(error, stage=None, step=None)
raise error
"""


def test_each_kind_of_secret_is_in_none_of_our_files(supervise: Supervise, model_dir: Path) -> None:
    """In the environment, in the config, on the command line, in an error of the program."""
    given = {name: f"the-value-{name}" for name in NAMES}
    config = program(model_dir, TELL, *SAYINGS, env={**given, "N": " ".join(NAMES)})
    config["trainer"]["init"]["autorestart"]["max_num_restarts"] = 0
    result = supervise(config, env={f"OUTER_{name}": f"outer-value-{name}" for name in NAMES})
    assert result.code == 76
    ours = [p for p in model_dir.rglob("*") if p.is_file() and not p.name.startswith("rank0.")]
    assert {"journal.jsonl", "run.log", "params.yaml", "summary.json"} <= {p.name for p in ours}
    for path in ours:
        assert re.findall(r"the-value|outer-value", path.read_text()) == [], path
    assert "RuntimeError: AccountKey=[redacted]" in result.event("attempt-failed")["root_cause"]


def test_a_complaint_about_a_secret_does_not_show_it(tmp_path: Path, model_dir: Path) -> None:
    path = tmp_path / "trainer.yaml"
    path.write_text(json.dumps(program(model_dir, "pass", env={"X": 731731731})))
    options = ["--set", "trainer.command.env.DB_PASS=842842842"]
    done = forked("run", path, *options)
    assert done.returncode == 78
    assert len(done.stderr.splitlines()) == 2
    assert re.findall("731731731|842842842", done.stderr) == []
    assert "trainer.command.env.X: " in done.stderr


def test_an_error_of_our_own_does_not_show_secrets() -> None:
    source = (
        "import threading\n"
        "from supervisor.adapters.telling.tracebacks import redact_tracebacks\n"
        "from supervisor.diagnosis.redaction import Redactor\n"
        "redact_tracebacks(Redactor({'X_TOKEN': 'the-known-value'}).text)\n"
        "def fail(): raise OSError('GET https://h/?sig=0123 the-known-' + 'value')\n"
        "thread = threading.Thread(target=fail)\n"
        "thread.start()\n"
        "thread.join()\n"
        "fail()\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("OSError: GET https://h/?sig=[redacted] [redacted]") == 2
    assert "the-known-value" not in done.stderr


def test_no_error_of_our_own_shows_what_the_config_holds(model_dir: Path, tmp_path: Path) -> None:
    """Not even one while secrets are fetched."""
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps(program(model_dir, "pass", env={"X_TOKEN": "the-known-value"})))
    source = (
        "import sys\n"
        "from supervisor.cli import main, run\n"
        "def fail(prepared): raise RuntimeError('the-known-' + 'value')\n"
        "run.with_secrets = fail\n"
        "main.main(['run', sys.argv[1]])\n"
    )
    command = [sys.executable, "-c", source, str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "RuntimeError: [redacted]" in done.stderr
    assert "the-known-value" not in done.stderr


GIVEN_TO_IT = """
import os
from supervisor.protocol.failure_record import write_failure_record
names = ("FROM_FILE", "FROM_STORE", "IN_ALL", "IN_TWO", "INHERITED")
error = RuntimeError(" ".join(name + " is " + os.environ[name] for name in names))
write_failure_record(error, stage=None, step=None)
raise error
"""
VERSION = "projects/p/secrets/s/versions/1"


def test_what_a_program_is_given_in_secret_is_nowhere(
    supervise: Supervise, model_dir: Path, tmp_path: Path
) -> None:
    """By a file and by a secret store, whatever the names. The config goes before both of them,
    the store before the file, and that before what is inherited."""
    file = tmp_path / "secrets.env"
    file.write_text("FROM_FILE=file-value-1\nIN_ALL=file-value-2\nIN_TWO=file-value-3\n")
    file.chmod(0o600)
    secrets = {"FROM_STORE": VERSION, "IN_TWO": VERSION}
    command = {"env_file": str(file), "env_secrets": secrets, "env": {"IN_ALL": "from-the-config"}}
    config = program(model_dir, GIVEN_TO_IT, **command)
    config["trainer"]["init"]["autorestart"]["max_num_restarts"] = 0
    with SecretStore({VERSION: b"store-value-1\n"}).serving() as environ:
        inherited = {"INHERITED": "inherited", "IN_ALL": "inherited", "IN_TWO": "inherited"}
        result = supervise(config, env={**environ, **inherited})
    assert result.code == 70, "an error of its own is guessed to be final"
    record = next(model_dir.rglob("rank0.failure.json")).read_text()
    assert (
        "FROM_FILE is file-value-1 FROM_STORE is store-value-1 IN_ALL is from-the-config "
        "IN_TWO is store-value-1 INHERITED is inherited"
    ) in record
    ours = [p for p in model_dir.rglob("*") if p.is_file() and not p.name.startswith("rank0.")]
    assert {"journal.jsonl", "run.log", "params.yaml", "summary.json"} <= {p.name for p in ours}
    for path in ours:
        assert re.findall(r"(?:file|store)-value", path.read_text()) == [], path
    told = "FROM_FILE is [redacted] FROM_STORE is [redacted]"
    assert told in result.events("attempt-failed")[-1]["root_cause"]


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        (
            {"env_file": "{file}"},
            78,
            "trainer.command.env_file: cannot be used: {file}:2: is not N",
        ),
        (
            {"env_file": "nowhere"},
            78,
            "env_file: no such file: nowhere; a relative path begins at the working directory",
        ),
        (
            {"env_secrets": {"X": VERSION}},
            78,
            "env_secrets.X: projects/p/secrets/s/versions/1 cann",
        ),
        ({"env_secrets": {"X": "s"}}, 78, "trainer.command.env_secrets.X: "),
        ({"env_secrets": {"X": VERSION}, "env": {"X": ""}}, 78, "X: is also in command.env"),
        ({"env_secrets": {"X": VERSION.replace("1", "2")}}, 74, "2 cannot be fetched: 127.0.0.1"),
    ],
)
def test_what_cannot_be_given_starts_nothing(
    supervise: Supervise,
    model_dir: Path,
    tmp_path: Path,
    command: dict[str, Any],
    code: int,
    told: str,
) -> None:
    file = tmp_path / "secrets.env"
    file.write_text("A=1\nthe-value\n")
    file.chmod(0o600)
    written = json.loads(
        json.dumps(program(model_dir, "pass", **command)).replace("{file}", str(file))
    )
    store = SecretStore()
    with store.serving() as environ:
        if code == 74:
            environ["GCE_METADATA_HOST"] = "127.0.0.1:1"
        result = supervise(written, env=environ)
    assert (result.code, len(result.err.splitlines())) == (code, 1)
    assert told.replace("{file}", str(file)) in result.err
    assert "the-value" not in result.err
    assert not model_dir.exists()


FLOOD = """
import os, json, sys
descriptor = int(os.environ["SUPERVISE_PROGRESS_FD"])
os.set_blocking(descriptor, True)
def send(count, line):
    for start in range(0, count, 1000):
        data = b"".join(line(start + n) for n in range(1000))
        while data:
            data = data[os.write(descriptor, data):]
def say(**body):
    return json.dumps({"v": 1, **body}).encode() + b"\\n"
def evil(n):
    name = "\\x1b[2J\\x1b]0;owned\\x07\\u202e" + str(n)
    return say(kind="evaluated", step=n, metrics={name: 1.0})
send(100000, lambda n: say(kind="step", step=n, metrics={"loss": 1.0}))
send(100000, evil)
send(100000, lambda n: say(kind="stage", stage=("SAVING", "COMPILING")[n % 2]))
send(20000, lambda n: b"\\xff[[[{" * 3 + b"\\n")
print("flooded", flush=True)
while True:
    send(1000, lambda n: say(kind="stage", stage=("SAVING", "COMPILING")[n % 2]))
"""


def peak_memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


@pytest.mark.slow
def test_a_flood_of_reports_is_survived(start: Start, model_dir: Path) -> None:
    """Bounded memory, a bounded run.log without escapes, and still obedient in the middle of it."""
    config = program(model_dir, FLOOD)
    config["trainer"]["init"]["autorestart"]["grace_period"] = 0.1
    running = start(config)
    running.wait_for_event("workers-started")
    before = peak_memory(running.process.pid)
    running.wait_for("flooded\n")
    grown = peak_memory(running.process.pid) - before
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75
    assert grown < 100 << 20
    log = next(model_dir.glob("*_restartable/run.log")).read_bytes()
    assert len(log) < 100_000
    assert re.search(rb"\d+ more reports of the worker were not shown", log)
    assert b"a message of rank 0 was refused: not JSON" in log
    assert rb"\x1b[2J" in log
    assert b"\x1b" not in log
    assert "\u202e".encode() not in log
    assert b"\x1b" not in result.out.encode()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root is told")
def test_root_is_told_of_a_model_dir_that_others_may_write(
    supervise: Supervise, model_dir: Path
) -> None:
    model_dir.mkdir(parents=True)
    for mode, told in ((0o755, False), (0o777, True)):
        model_dir.chmod(mode)
        result = supervise(program(model_dir, "print('hello')"))
        assert result.code == 0
        exposed = result.events("files-exposed")
        assert len(exposed) == told
        assert all(f"{model_dir} can be written by everyone" in each["place"] for each in exposed)
