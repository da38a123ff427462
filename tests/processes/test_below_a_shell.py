"""A Python program below a shell: what it writes is reported, and nothing of it changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from supervisor.bootstrap import below_shell
from supervisor.protocol import worker_path
from tests.running import Start

FOLDER = str(Path(below_shell.__file__).parent)
WORKER_PATH = str(Path(worker_path.__file__).parent)
FIT = """
import os, signal
from pathlib import Path

folder = Path("nobody/names/checkpoints")
step = max((int(each.name) for each in folder.glob("*[0-9]")), default=0)
if step < 4:
    temporary = folder / f"{step + 1}.orbax-checkpoint-tmp"
    temporary.mkdir(parents=True)
    os.mknod(temporary / "commit_success.txt")  # no file is ever open
    temporary.rename(folder / str(step + 1))
    os.kill(os.getpid(), signal.SIGKILL)
"""
HELPER = """
import os
from pathlib import Path

Path("prepared").mkdir(exist_ok=True)
Path("prepared/shard_00099.json").write_text("[1, 2, 3]")
"""
STATE = """
import json, os, signal, sys

print(json.dumps({
    "path": sys.path,
    "ours": sorted(each for each in sys.modules if each.startswith("_supervise")),
    "site": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    "usr2": signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL,
    "exit": os._exit.__module__,
}))
"""


@pytest.fixture(autouse=True)
def second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the programs, below the working directory of the jobs."""
    second = tmp_path / "second"
    second.mkdir()
    (second / "fit2.py").write_text(FIT)
    (second / "helper.py").write_text(HELPER)
    monkeypatch.chdir(tmp_path)
    return second


def job(*argv: str, **env: str) -> dict[str, Any]:
    restart = {"max_num_restarts": 1, "backoff": {"first": 0.01}, "standby": "off"}
    init = {"model_dir": "run", "autorestart": restart}
    return {"trainer": {"init": init, "command": {"argv": [*argv], "env": env}}}


def found(start: Start, config: dict[str, Any], second: Path) -> None:
    """The job of `config` ends well, though it is killed more often than its budget allows."""
    result = start(config).result()
    assert result.code == 0, result.log
    places = {each["place"] for each in result.events("checkpoints-found")}
    assert places == {str(second / "nobody" / "names" / "checkpoints")}
    ended = [each["newest_committed_step"] for each in result.events("attempt-ended")]
    assert ended == [1, 2, 3, 4, 4]


@pytest.mark.parametrize(
    "text",
    [
        "cd second && exec PYTHON fit2.py",
        "cd second\nPYTHON fit2.py\n",
        "cd second\nPYTHON helper.py\nPYTHON fit2.py\n",
    ],
    ids=["exec", "no exec", "a helper first"],
)
@pytest.mark.parametrize("is_file", [False, True], ids=["text", "file"])
def test_quick_saves_below_a_shell_are_seen(
    start: Start, second: Path, text: str, is_file: bool
) -> None:
    text = text.replace("PYTHON", sys.executable)
    Path("train.sh").write_text(text)
    found(start, job("bash", *(["train.sh"] if is_file else ["-c", text])), second)


def test_quick_saves_of_the_python_of_a_virtual_environment_are_seen(
    start: Start, second: Path, tmp_path: Path
) -> None:
    place = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    text = f". {place}/bin/activate && cd second && python fit2.py; exit $?"
    found(start, job("bash", "-c", text), second)


def test_a_sitecustomize_of_the_user_runs_too(start: Start, second: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('x')\n")
    text = f"cd second && exec {sys.executable} fit2.py"
    found(start, job("bash", "-c", text, PYTHONPATH=str(theirs)), second)
    assert (tmp_path / "ran").read_text() == "xxxxx"


def test_a_program_that_a_shell_leaves_in_the_background_is_no_helper(
    start: Start, second: Path
) -> None:
    """That it saves does not mean that the shell does: it is the work, and ends too early."""
    left = FIT.replace("os.kill(os.getpid(), signal.SIGKILL)", "signal.pause()")
    (second / "left.py").write_text(left)
    saved = "nobody/names/checkpoints/1"
    text = f"cd second && {{ {sys.executable} left.py & while ! test -e {saved}; do :; done; }}"
    result = start(job("bash", "-c", text)).result()
    assert {each["code"] for each in result.events("attempt-failed")} == {"background"}, result.log


class Pipe:
    """A progress pipe, and the environment of a process that inherits it."""

    def __init__(self, *more: str) -> None:
        self.read, self.write = os.pipe()
        status = os.fstat(self.write)
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((FOLDER, *more)),
            "SUPERVISE_PROGRESS_FD": str(self.write),
            "SUPERVISE_PROGRESS_PIPE": f"{status.st_dev}:{status.st_ino}",
        }

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                argv, env=self.env, pass_fds=(self.write,), capture_output=True, timeout=60
            )
        finally:
            os.close(self.write)

    def said(self) -> bytes:
        with os.fdopen(self.read, "rb") as file:
            return file.read()


def test_nothing_but_the_report_is_set_up() -> None:
    pipe = Pipe()
    done = pipe.run([sys.executable, "-c", STATE])
    assert done.stderr == b""
    state = json.loads(done.stdout)
    assert FOLDER not in state["path"]
    assert state["sigterm"]
    assert state["usr2"]
    assert state["exit"] == "posix"
    assert "_supervise.bootstrap.written" in state["ours"]
    assert "_supervise.bootstrap.worker" not in state["ours"]
    assert pipe.said() == b""


@pytest.mark.parametrize("flag", ["-E", "-I", "-S"])
def test_a_python_that_ignores_its_environment_goes_without(flag: str) -> None:
    pipe = Pipe()
    done = pipe.run([sys.executable, flag, "-c", STATE])
    assert (done.returncode, done.stderr) == (0, b"")
    assert b'"ours": []' in done.stdout


@pytest.mark.parametrize("is_joined", [False, True])
@pytest.mark.parametrize(("module", "is_told"), [("pip", False), ("train", True)])
def test_a_tool_that_installs_is_no_program(
    tmp_path: Path, module: str, is_told: bool, is_joined: bool
) -> None:
    (tmp_path / f"{module}.py").write_text("import os; os.mkdir('12')")
    pipe = Pipe(str(tmp_path))
    option = [f"-m{module}"] if is_joined else ["-m", module]
    done = pipe.run([sys.executable, "-P", *option])
    assert (done.returncode, done.stderr) == (0, b"")
    assert (b'"wrote"' in pipe.said()) is is_told


def test_an_error_in_a_sitecustomize_of_the_user_is_told_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import nothing_of_this_name\n")
    alone = Pipe()
    alone.env["PYTHONPATH"] = str(tmp_path)
    pipe = Pipe(str(tmp_path))
    plain = alone.run([sys.executable, "-c", "print('goes on')"])
    done = pipe.run([sys.executable, "-c", "print('goes on')"])
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert done.stderr == plain.stderr
    os.close(alone.read)
    os.close(pipe.read)


def test_what_other_pythons_cannot_run_is_left_out() -> None:
    """The file does nothing where the version or the implementation is another one."""
    code = (
        "import sys, runpy\n"
        "sys.version_info = (3, 14, 0, 'final', 0)\n"
        f"runpy.run_path({FOLDER + '/sitecustomize.py'!r})\n"
        "assert not [each for each in sys.modules if each.startswith('_supervise')]\n"
    )
    pipe = Pipe()
    pipe.env["PYTHONPATH"] = ""
    done = pipe.run([sys.executable, "-c", code])
    assert (done.returncode, done.stderr) == (0, b"")
    assert pipe.said() == b""


@pytest.mark.parametrize(
    ("given", "text", "is_added"),
    [
        ("", "export PYTHONPATH=$PYTHONPATH:third_party", True),
        ("", "export PYTHONPATH=src:$PYTHONPATH", True),
        ("", "true", False),
        ("theirs", "export PYTHONPATH=$PYTHONPATH:third_party", False),
        ("", "export PYTHONPATH=third_party", False),
    ],
)
def test_the_empty_entry_of_an_extended_path_is_the_working_directory(
    tmp_path: Path, given: str, text: str, is_added: bool
) -> None:
    """As without us, but at the end; where nothing is extended, `sys.path` stays as it is."""
    pipe = Pipe(*filter(None, (given, WORKER_PATH)))
    (tmp_path / "place.py").write_text("import json, sys; print(json.dumps(sys.path))")
    python = f"{sys.executable} -P place.py"
    done = pipe.run(["bash", "-c", f"cd {tmp_path}; {text}; {python}"])
    assert (done.returncode, done.stderr) == (0, b"")
    path = json.loads(done.stdout)
    assert (path[-1] == str(tmp_path)) is is_added, path
    assert path.count(str(tmp_path)) == is_added
    os.close(pipe.read)
