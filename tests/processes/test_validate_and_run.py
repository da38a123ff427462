"""`validate` finds what `run` finds: configs as strangers write them, the message and code of both.

What is refused is refused before anything is started, so both commands are called in this process.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from supervisor.cli.main import main
from supervisor.core.doing import Succeeded
from supervisor.core.state import JobState
from supervisor.preflight import start_warnings
from supervisor.prepare import prepare
from tests.forked import forked

INIT = "init: {model_dir: run, autorestart: {max_num_restarts: 0}}"
PYTHON = sys.executable
ROOT = Path(__file__).resolve().parents[2]


def command(text: str, init: str = INIT) -> str:
    """A config with this command."""
    return f"trainer:\n  {init}\n  command: {text}\n"


def model_dir(text: str) -> str:
    """A config with this model_dir."""
    return command("[python, there.py]", INIT.replace("run,", f"{text},"))


THERE = command("[python, there.py]")
THERE_PY = """\
import sys
print("ran " + " ".join(sys.argv[1:]))  # one write even if unbuffered: no line comes between
"""
LONG = "n" * 256
REFUSED: dict[str, tuple[str | bytes, str]] = {
    # --- no config
    "empty": ("", "c.yaml: is empty; a config starts with `trainer:`"),
    "only a comment": ("# later\n", "c.yaml: is empty"),
    "a list": ("- trainer\n", 'c.yaml:1: is not a mapping (value ["trainer"])'),
    "a tab": ("trainer:\n\tinit: 1\n", "c.yaml:2: not valid YAML: found character '\\t'"),
    "a key twice": (THERE + "trainer: 1\n", "c.yaml:4: trainer: is here twice"),
    "Latin-1": ("a: \xff".encode("latin-1"), "c.yaml: is not UTF-8 text (byte 3)"),
    "two documents": (THERE + "---\n" + THERE, "c.yaml:4: not valid YAML: but found another"),
    "JSON that is cut off": ('{"trainer": {', "c.yaml:1: not valid YAML"),
    # --- the command
    "text": (command("python there.py --lr 1"), 'the list ["python", "there.py", "--lr", "1"]'),
    "text for a shell": (command("a && b"), 'write the list ["bash", "-c", "a && b"]'),
    "argv as text": (command("{argv: python x.py}"), 'command.argv: is one text, but no shell'),
    "one word": (command("['python there.py']"), "no program is called 'python there.py': write"),
    "a number": (command("[python, there.py, --lr, 1]"), "command[3]: input should be a valid str"),
    "beside fit": (
        THERE + "  fit: {train_dataloader: {paths: stdlib}}\n",
        "c.yaml:3: trainer.command: is given beside fit: keep",
    ),
    "neither": (f"trainer:\n  {INIT}\n", "trainer: needs either fit (our trainer) or command"),
    # --- rules
    "an example of a rule": (
        command("[python, there.py]", INIT.replace("0}", "0, rules: [{regex: a, verdict: FATAL, "
        "examples: [xax, {text: b}]}]}")),
        "c.yaml:2: trainer.init.autorestart.rules[0].examples[1]: should be decided by this rule, "
        "but rule 'unknown' decides (RESTART, on 'exit code 1'): no error in it has that text",
    ),
    # --- the program
    "no script": (command("[python, gone.py]"), "c.yaml:3: trainer.command[1]: no such file: gone"),
    "no script, by options": (command(f"[{PYTHON}, -u, -W, error, gone.py, x]"), "command[4]: no"),
    "no script for a shell": (command("[bash, gone.sh]"), "trainer.command[1]: no such file: gone"),
    "no script in the long form": (command("{argv: [python, gone.py]}"), "trainer.command.argv[1]"),
    "no program": (command("[no-such-program]"), "command[0]: no such program in PATH: no-such-pr"),
    "no interpreter": (command("[/no/python3, there.py]"), "no such file: /no/python3"),
    "a name too long": (command(f"[{LONG}]"), f"command[0]: no such program in PATH: {LONG}"),
    "a script too long": (command(f"[python, {LONG}]"), f"cannot be read: {LONG}: File name too"),
    "not in PATH": (command("[there.sh]"), "no such program in PATH: there.sh; write ./there.sh"),
    "a script not in PATH": (command("[there.py]"), "in PATH: there.py; write python there.py for"),
    "a long program": (command(f"[./{LONG}]"), f"cannot be run: ./{LONG}: File name too long"),
    "a program in a circle": (command("[./circle]"), "cannot be run: ./circle: Too many levels of"),
    "a script in a circle": (command("[python, circle]"), "cannot be read: circle: Too many level"),
    "below a program": (command("[./there.py/x]"), "command[0]: no such file: ./there.py/x"),
    "not executable": (command("[./there.py]"), "./there.py (write python ./there.py, or chmod"),
    "not executable, no Python": (command("[./there.sh]"), "executable: ./there.sh (chmod +x ./t"),
    "a directory": (command("[./folder]"), "command[0]: is a directory: ./folder"),
    "line ends of Windows": (command("[./windows.sh]"), "windows.sh has Windows line ends"),
    "no such shebang": (command("[./shebang.sh]"), "names an interpreter that is not there: /no/"),
    "home": (command("[python, ~/gone.py]"), f"~ is not expanded here: write {Path.home()}/gone"),
    "a variable": (command("[$HOME/python, there.py]"), "variables are not expanded here, no s"),
    "beside the config": (command("[python, beside.py]"), "beside the config: write {conf}/beside"),
    "stars": (command("[python, a**b.py]"), "trainer.command[1]: no such file: a**b.py; a rel"),
    "a star": (command("[python, '*side.py']"), "begins at the working directory, {cwd}\n"),
    "stars for a program": (command("[./a**b, there.py]"), "no such file: ./a**b; a relativ"),
    "stars for an env_file": (command("{argv: [a], env_file: a**.env}"), "no such file: a**.env;"),
    "its env_file": (command("{argv: [a], env_file: gone.env}"), "command.env_file: no such file"),
    "env_file beside": (command("{argv: [a], env_file: e.env}"), "write {conf}/e.env, or run "),
    "open env_file": (command("{argv: [a], env_file: open.env}"), "is open to others (mode 0644)"),
    # --- model_dir
    "a file": (model_dir("there.py"), "model_dir: cannot be written: Not a directory ({cwd}/th"),
    "below a file": (model_dir("there.py/x"), "cannot be written: Not a directory ({cwd}"),
    "a link to nothing": (model_dir("dangling"), "cannot be written: No such file or direc"),
    "below /proc": (model_dir("/proc/runs"), "c.yaml:2: trainer.init.model_dir: cannot be written"),
    "a long name": (model_dir(LONG), "cannot be written: File name too long"),
    "in a variable": (model_dir("$HOME/run"), "model_dir: $HOME is not expanded here: write ~ for"),
    # --- YAML that many believe in
    "an unknown alias": (command("*python"), "c.yaml:3: not valid YAML: found undefined alias; te"),
    "a merged list": (THERE + "  <<: [1]\n", "`<<` merges mappings: give an alias of one"),
    "a tag": (command("!mine [a]"), "a config cannot have the tag !mine; text that begins with"),
    "yes": (command("{argv: [a], bootstrap: yes}"), 'should be a valid boolean (value "yes")'),
    "an unknown x- key": (command("[a]") + "  x-mine: 1\n", "trainer.x-mine: unknown key (value 1"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory, and another folder with the config."""
    conf, cwd = tmp_path / "conf", tmp_path / "cwd"
    for folder in (conf, cwd, cwd / "folder"):
        folder.mkdir()
    for script in ("there.py", "there.sh", "windows.sh", "shebang.sh", "open.env"):
        (cwd / script).write_text(THERE_PY)
    (cwd / "windows.sh").write_text("#!/bin/sh\r\ntrue\r\n", newline="")
    (cwd / "shebang.sh").write_text("#!/no/sh\ntrue\n")
    (cwd / "open.env").write_text("A=1\n")
    for script in ("windows.sh", "shebang.sh"):
        (cwd / script).chmod(0o755)
    (cwd / "open.env").chmod(0o644)
    (cwd / "dangling").symlink_to("nowhere")
    (cwd / "circle").symlink_to("circle")
    (conf / "beside.py").touch()
    (conf / "e.env").touch()
    monkeypatch.chdir(cwd)
    before, hook = signal.getsignal(signal.SIGTERM), sys.excepthook
    yield
    signal.signal(signal.SIGTERM, before)
    sys.excepthook = hook


def written(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "conf" / "c.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize("name", REFUSED)
def test_both_refuse_it_with_the_same_words(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text, expected = REFUSED[name]
    path, before = written(tmp_path, text), sorted(tmp_path.rglob("*"))
    told = []
    for what in ("validate", "run"):
        code = main([what, path])
        out, err = capfd.readouterr()
        told.append((code, out, err))
        assert sorted(tmp_path.rglob("*")) == before, "it left something behind"
    assert told[0] == told[1]
    code, out, err = told[0]
    assert (code, out) == (78, "")
    expected = expected.replace("{conf}", f"{tmp_path}/conf").replace("{cwd}", f"{tmp_path}/cwd")
    assert expected in err
    assert len(err.splitlines()) == 1, "one mistake is told once"
    assert len(err) < 600


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("name", ["mine", "mine/run"])
def test_who_may_not_write_model_dir_is_told_whose_it_is(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with TemporaryDirectory() as folder:  # others may not enter tmp_path
        Path(folder).chmod(0o755)
        mine = Path(folder, "mine")
        mine.mkdir(mode=0o755)
        config = Path(folder, "c.yaml")
        config.write_text(command("[/bin/true]", INIT.replace("run,", f"{mine.parent / name},")))
        assert main(["validate", str(config)]) == 0
        os.seteuid(65534)
        try:
            assert main(["validate", str(config)]) == 78
        finally:
            os.seteuid(0)
        told = capfd.readouterr().err
    assert "cannot be written: Permission denied: it " in told
    assert ("it is not there" in told) == (name == "mine/run")
    assert f"{mine}, in which it would be made, belongs" in told or name == "mine"
    assert "belongs to uid 0 (mode 755), while supervise runs as uid 65534" in told


@pytest.mark.parametrize("name", ["missing", "directory"])
def test_both_tell_of_a_config_that_cannot_be_read(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "conf" / ("gone.yaml" if name == "missing" else "")
    told = [(main([what, str(path)]), capfd.readouterr()) for what in ("validate", "run")]
    assert told[0] == told[1]
    assert told[0][0] == 78


def test_both_tell_of_a_disk_that_cannot_be_written_now(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, model_dir("/sys/fs/run"))
    told = [(main([what, path]), capfd.readouterr().err) for what in ("validate", "run")]
    assert told[0][0] == told[1][0]
    assert told[0][0] in (74, 78)
    assert all("cannot be written: " in err for _, err in told)


ANCHORS = f"""\
x-init: &init
  model_dir: run
  autorestart: &restart {{max_num_restarts: 5, grace_period: 1}}
trainer:
  init:
    <<: *init
    autorestart: {{<<: *restart, max_num_restarts: 0, standby: off}}
  command: {{argv: [{PYTHON}, there.py, '$HOME', ~], env: {{A: "1"}}}}
""".replace(", ~]", ", '~']")
ACCEPTED: dict[str, tuple[str | bytes, str]] = {
    "anchors and merges": (ANCHORS, "ran $HOME ~"),
    "CRLF": (THERE.replace("\n", "\r\n"), "ran"),
    "a byte order mark": (b"\xef\xbb\xbf" + THERE.encode(), "ran"),
    "JSON": (
        '{"trainer": {"init": {"model_dir": "run", "autorestart": {"max_num_restarts": 0}},\n'
        '"command": ["python", "there.py", "x"]}}',
        "ran x",
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_both_take_it(name: str, tmp_path: Path) -> None:
    text, expected = ACCEPTED[name]
    path = written(tmp_path, text)
    done = [forked(what, path) for what in ("validate", "run")]
    assert [(each.returncode, each.stderr) for each in done] == [(0, ""), (0, "")]
    assert expected in done[1].stdout
    if "$HOME" in expected:
        for each in done:
            told = "'$HOME' is given to the program as it stands: no shell expands it"
            assert told in each.stdout
    assert not (tmp_path / "conf" / "run").exists()


@pytest.mark.parametrize(
    ("word", "told"), [("|", True), ("2>&1", True), ("&&", True), ("||x", False), ("-", False)]
)
def test_a_pipe_without_a_shell_is_told(
    word: str, told: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = command(f"[python, there.py, '{word}', tee]")
    shell = command(f"[bash, -c, 'python there.py', '{word}', tee]")
    for text, expected in ((plain, told), (shell, False)):
        assert main(["validate", written(tmp_path, text)]) == 0
        said = f"# {word!r} is given to the program as it stands: only a shell acts on it"
        assert (said in capfd.readouterr().out) == expected


def test_our_trainer_needs_its_libraries(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = str(ROOT / "examples" / "quickstart.yaml")
    place = f"--set=trainer.init.model_dir={tmp_path / 'run'}"
    assert main(["validate", config, place]) == 0
    monkeypatch.setitem(sys.modules, "optax", None)  # as if it were not installed
    capfd.readouterr()
    for what in ("validate", "run"):
        assert main([what, config, place]) == 78
        told = capfd.readouterr().err
        assert "trainer.fit: needs optax here: install the [trainer] extra" in told


@pytest.mark.parametrize("is_low", [False, True])
def test_several_hosts_need_ray_and_descriptors_and_to_be_lost_in_time(
    is_low: bool,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = limit if is_low else 2
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    hosts = f"hosts: {{engine: ray, count: {count}, lost_after: 1m}},"
    path = written(tmp_path, command("[python, there.py]", INIT.replace("run,", f"run, {hosts}")))
    for what in ("validate", "run"):
        assert main([what, path]) == 78
        told = capfd.readouterr().err
        assert "trainer.init.hosts.engine: needs ray here, and on each host: install the" in told
        assert (f"hosts, but a process here may open {limit} files only" in told) == is_low
        assert "trainer.init.hosts.lost_after: is 60 s, too long for the lease of model_dir" in told


def test_a_script_that_waits_for_all_of_its_programs_is_warned_of(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, command("[bash, -c, 'python a.py & python b.py & wait']"))
    assert main(["validate", path]) == 0
    told = capfd.readouterr().out
    assert "starts programs in the background and waits for all of them (command.argv)" in told


@pytest.mark.parametrize("count", ["{num_devices}", "8"])
def test_fewer_devices_need_jax_for_the_probe(
    count: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    init = INIT.replace("run,", "run, devices: {platform: gpu, count: 8},")
    path = written(tmp_path, command(f"[python, there.py, '{count}']", init))
    warning = "install the [cuda] extra there"
    assert main(["validate", path]) == 0
    assert warning not in capfd.readouterr().out
    monkeypatch.setitem(sys.modules, "jax", None)  # as if it were not installed
    assert main(["validate", path]) == 0
    assert (warning in capfd.readouterr().out) == (count == "{num_devices}")


def test_validate_leaves_no_trace_where_all_is_well(tmp_path: Path) -> None:
    path, before = written(tmp_path, THERE), sorted(tmp_path.rglob("*"))
    assert main(["validate", path]) == 0
    assert sorted(tmp_path.rglob("*")) == sorted({*before, Path(path)})


def test_validate_soon_tells_that_a_bucket_needs_credentials(tmp_path: Path) -> None:
    """`run` asks for a minute whether they come."""
    path = written(tmp_path, model_dir("gs://no-such-bucket-of-ours/x"))
    gone = {"HOME": str(tmp_path), "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "none")}
    done = subprocess.run(
        [PYTHON, "-m", "supervisor", "validate", path],
        env={**os.environ, **gone},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 74
    assert "gs://no-such-bucket-of-ours/x cannot be reached: DefaultCred" in done.stderr
    assert "not found; give this host credentials: for gs:// Google's application" in done.stderr


def test_a_config_may_come_from_a_pipe(tmp_path: Path) -> None:
    for what, text, code in (
        ("validate", THERE, 0),
        ("validate", "trainer: 1", 78),
        ("run", THERE, 0),
        ("run", "trainer: 1", 78),
    ):
        done = subprocess.run(
            [PYTHON, "-m", "supervisor", what, "/dev/stdin"],
            input=text.encode(),
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
    assert os.path.lexists("run")


def test_a_job_beside_the_config_is_told_where_another_begins(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conf" / "run").mkdir()
    (tmp_path / "conf" / "run" / "journal.jsonl").touch()
    assert main(["validate", written(tmp_path, THERE)]) == 0
    told = f"a new job begins in {tmp_path}/cwd/run, but there is a job in {tmp_path}/conf/run"
    assert told in capfd.readouterr().out


SAVES = "[python, there.py, --to, '{model_dir}/checkpoints']"
UNTOLD = "succeeds at step 9 (command.success.step), but nothing in the config tells a step"


@pytest.mark.parametrize(
    ("argv", "more", "init", "told"),
    [
        ("[python, there.py]", "", "", True),
        ("[python, there.py]", ", progress: {pattern: 'step (\\d+)'}", "", False),
        ("[python, there.py]", "", ", checkpoint: {directory: elsewhere}", False),
        (SAVES, "", "", False),
    ],
    ids=["nothing", "pattern", "directory", "model_dir"],
)
def test_a_success_by_a_step_that_nothing_tells_is_doubted(
    argv: str, more: str, init: str, told: bool, tmp_path: Path
) -> None:
    (tmp_path / "there.py").write_text("")
    config = f"""
trainer:
  init: {{model_dir: {tmp_path}/run, autorestart: {{max_num_restarts: 0}}{init}}}
  command: {{argv: {argv}, success: {{step: 9}}{more}}}
"""
    path = written(tmp_path, config)
    for what in ("validate", "run"):
        done = forked(what, path, cwd=tmp_path)
        assert done.returncode == (0 if what == "validate" else 76), done.stderr
        assert done.stdout.count(UNTOLD) == told
        assert done.stdout.count("a hang cannot be noticed") == ("pattern" not in more)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (JobState(), True),
        (JobState(doing=Succeeded(9, proven=True)), False),
        (JobState(doing=Succeeded(None, proven=False)), True),
        (JobState(checkpoints="/out"), False),
    ],
    ids=["new", "succeeded", "begins anew", "found"],
)
def test_a_success_that_was_seen_is_not_doubted(
    state: JobState, told: bool, tmp_path: Path
) -> None:
    path = written(tmp_path, command("{argv: [python, there.py], success: {step: 9}}"))
    notices = start_warnings(prepare(Path(path), []), state=state)
    assert any(UNTOLD in each for each in notices) == told


@pytest.mark.parametrize(
    ("argv", "state", "told"),
    [
        ("[a, --workdir, 'gs://b/runs']", JobState(), True),
        ("[a, 'base_output_directory=s3://b/runs']", JobState(), True),
        ("[a, --data, 'gs://b/corpus']", JobState(), False),
        ("[a, 'load_parameters_path=gs://b/base']", JobState(), False),
        ("[a, --workdir, out]", JobState(), False),
        ("[a, --workdir, 'gs://b/runs']", JobState(checkpoints="/out"), False),
    ],
)
def test_a_bucket_in_which_the_program_may_save_is_told(
    argv: str, state: JobState, told: bool, tmp_path: Path
) -> None:
    path = written(tmp_path, command(f"{{argv: {argv}}}"))
    notices = start_warnings(prepare(Path(path), []), state=state)
    found = [each for each in notices if each.keys.get("code") == "bucket-unsearched"]
    assert len(found) == told
    assert all("set trainer.init.checkpoint.directory" in each for each in found)


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["run", "--aot", "v5e:2x4", "c.yaml"], "`supervise validate --aot v5e:2x4 trainer.yaml`"),
        (["doctor", "--accelerator"], "`python -m deploy.acceptance` in a checkout"),
        (["relaunch"], None),
    ],
)
def test_what_is_elsewhere_is_told_where_it_is(
    argv: list[str], hint: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="64"):
        main(argv)
    last = capsys.readouterr().err.splitlines()[-1]
    assert (hint in last) if hint is not None else last.endswith(")"), last


def test_a_placeholder_that_is_misspelt_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, command("[a, '{{modeldir}}/x', '{{Model_dir}}', '{{other}}']"))
    told = [each for each in start_warnings(prepare(Path(path), [])) if "placeholder" in each]
    what = "is given to the program as it stands: the placeholder is {model_dir}"
    assert told == [f"{{modeldir}} {what} (command.argv[1])"]
