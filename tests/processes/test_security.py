"""Nothing of a config is code, no secret ends in a file that people pass on, and a hostile trainer
neither stops its supervisor nor speaks in its voice."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running import Result, Start, command_config

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
from supervisor.protocol.failure import write_failure_record
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
    assert "refused: [redacted] and [redacted]" in result.log
    assert "refused: [redacted]" in result.summary["attempts"][-1]["failure"]["traceback"]
    assert 'command.env.SEED: "1" -> "2"' in result.log
    assert "DB_PASSWORD:" not in result.log, "redacted values do not differ"


@pytest.mark.parametrize("wrong", [False, True])
def test_validate_shows_no_secrets(tmp_path: Path, model_dir: Path, wrong: bool) -> None:
    config = program(model_dir, "pass", f"--key={FLAG}", env={"MY_TOKEN": GIVEN})
    if wrong:
        config["trainer"]["hub"] = TOKEN
    path = tmp_path / "trainer.yaml"
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "supervisor", "validate", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == (78 if wrong else 0)
    assert "[redacted]" in done.stdout + done.stderr
    assert [s for s in (FLAG, GIVEN, TOKEN) if s in done.stdout + done.stderr] == []


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


def test_a_flood_of_reports_is_survived(start: Start, model_dir: Path) -> None:
    """Bounded memory, a bounded run.log without escapes, and still obedient in the middle of it."""
    config = program(model_dir, FLOOD)
    config["trainer"]["init"]["autorestart"]["grace_period"] = 0.1
    running = start(config)
    running.wait_for("running as pid")
    before = peak_memory(running.process.pid)
    running.wait_for("flooded\n")
    grown = peak_memory(running.process.pid) - before
    asked = time.monotonic()
    running.signal(signal.SIGTERM)
    result = running.result()
    took = time.monotonic() - asked
    assert result.code == 75
    assert took < 10
    assert grown < 100 << 20
    log = next(model_dir.glob("*_restartable/run.log")).read_bytes()
    assert len(log) < 100_000
    assert re.search(rb"\d+ more reports of the worker were not shown", log)
    assert b"a message of rank 0 was refused: not JSON" in log
    assert rb"\x1b[2J" in log
    assert b"\x1b" not in log
    assert "\u202e".encode() not in log
    assert b"\x1b" not in result.out.encode()
