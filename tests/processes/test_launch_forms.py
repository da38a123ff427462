"""The forms in which people launch a program: launchers and wrappers, and pipes behind it."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running import Result, Running, Start, command_config

Supervise = Callable[..., Result]

_PROGRAM = """
import mmap, os, signal, sys, time
from pathlib import Path

with open(sys.argv[1], "rb") as library:  # as a program that has imported jax
    loaded = mmap.mmap(library.fileno(), 0, prot=mmap.PROT_READ)
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append(1))
os.write(1, b"ready to save\\n")
while not got: time.sleep(0.01)
time.sleep(0.2)  # a second SIGTERM would come meanwhile
step = Path(sys.argv[2], "checkpoints", "300")
step.mkdir(parents=True)
(step / "commit_success.txt").touch()
os.write(1, b"%d times\\n" % len(got))
"""
"""A program that computes, saves on SIGTERM, and counts how often it got one."""

_POPEN = "import signal, subprocess, sys\nprogram = subprocess.Popen(sys.argv[1:])\n"
_WRAPPERS = {
    "keeps it to itself": _POPEN
    + "signal.signal(signal.SIGTERM, lambda *_: None)\nsys.exit(program.wait())",
    "ignores it": _POPEN
    + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsys.exit(program.wait())",
    "passes it on, as uv does": _POPEN
    + "signal.signal(signal.SIGTERM, lambda *_: program.terminate())\nsys.exit(program.wait())",
    "kills what it has started": "import signal, subprocess, sys\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
    "sys.exit(subprocess.run(sys.argv[1:]).returncode)",
    "has no handler": _POPEN + "sys.exit(program.wait())",
}


def program(tmp_path: Path, model_dir: Path) -> list[str]:
    """The command line of a program that has loaded a library that computes."""
    library = tmp_path / "jaxlib" / "library.so"
    library.parent.mkdir()
    library.write_bytes(b"1")
    return [sys.executable, "-c", _PROGRAM, str(library), str(model_dir)]


def launched(start: Start, model_dir: Path, argv: list[str], **command: Any) -> Running:
    """A run of `argv`, whose program is ready to save."""
    config = command_config(model_dir, **command)
    config["trainer"]["command"]["argv"] = argv
    running = start(config)
    running.wait_for("ready to save")
    return running


def drained(running: Running) -> Result:
    """Drain the run; returns its result, once the program has saved."""
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    assert result.has_event("attempt-stopped", saved=True, step=300), result.log
    assert b"1 times" in result.rank_log(1), "it got SIGTERM once"
    assert not result.has_event("workers-killed")
    return result


@pytest.mark.parametrize("wrapper", _WRAPPERS.values(), ids=_WRAPPERS)
def test_a_program_below_a_wrapper_gets_sigterm_once_and_saves(
    start: Start, model_dir: Path, tmp_path: Path, wrapper: str
) -> None:
    argv = [sys.executable, "-c", wrapper, *program(tmp_path, model_dir)]
    drained(launched(start, model_dir, argv))


def test_a_program_that_only_its_wrapper_could_have_asked_to_save_is_named(
    start: Start, model_dir: Path, tmp_path: Path
) -> None:
    """It is a job in the background of a shell whose trap does not pass SIGTERM on."""
    text = shlex.join(program(tmp_path, model_dir))
    script = f"trap : TERM; {text} & while kill -0 $!; do wait $!; done"
    config = command_config(model_dir, restart={"max_num_restarts": 1, "grace_period": 1})
    config["trainer"]["command"]["argv"] = ["bash", "-c", script]
    running = start(config)
    running.wait_for("ready to save")
    running.signal(signal.SIGTERM)
    result = running.result()
    (told,) = result.events("program-not-asked")
    assert len(told["pids"]) == 1
    assert result.has_event("sigterm-reaction", ranks=[0], reason="passes-on")


def test_nobody_says_of_make_that_it_saves(start: Start, model_dir: Path, tmp_path: Path) -> None:
    """It handles SIGTERM, and the Python below it does not."""
    program = "import time; print('ready', flush=True); time.sleep(3600)"
    makefile = tmp_path / "Makefile"
    makefile.write_text(f'train:\n\t{sys.executable} -c "{program}"\n')
    config = command_config(model_dir)
    config["trainer"]["command"]["argv"] = ["make", "-s", "-f", str(makefile)]
    running = start(config)
    running.wait_for("ready")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert [each["reason"] for each in result.events("sigterm-reaction")] == ["passes-on"]


_COPIES_LATE = """
import sys, time
for line in sys.stdin.buffer:
    time.sleep(0.3)
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
"""
_FORMS = {
    "env": ("env", "A=1"),
    "nice": ("nice", "-n", "1"),
    "stdbuf": ("stdbuf", "-oL"),
    "timeout": ("timeout", "1000"),
    "script": ("script", "-qefc", "{}", "/dev/null"),
    "bash, exec": ("bash", "-c", "exec {}"),
    "bash, chain": ("bash", "-c", "true && {} && true"),
    "bash, pipe": ("bash", "-c", "{} | tee copy"),
    "bash, slow pipe": ("bash", "-c", f"{{}} | {shlex.join([sys.executable, '-c', _COPIES_LATE])}"),
    "bash, two": ("bash", "-c", "bash -c 'trap : TERM; \"$@\"; exit $?' bash {}; true"),
}


@pytest.mark.parametrize("form", _FORMS.values(), ids=_FORMS)
def test_in_each_form_the_program_gets_sigterm_once_and_saves(
    start: Start,
    model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = program(tmp_path, model_dir)
    text = shlex.join(words)
    argv = [word.replace("{}", text) for word in form]
    drained(launched(start, model_dir, argv if argv != [*form] else [*argv, *words]))


_LAUNCHERS = {
    "uv": ("uv", "run", "--no-project"),
    "numactl": ("numactl", "--localalloc"),
    "torchrun": ("torchrun", "--no-python", "--standalone", "--nproc-per-node", "1"),
    "accelerate": ("accelerate", "launch", "--no_python", "--num_processes", "1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", _LAUNCHERS.values(), ids=_LAUNCHERS)
def test_a_real_launcher(
    start: Start, model_dir: Path, tmp_path: Path, launcher: tuple[str, ...]
) -> None:
    if shutil.which(launcher[0]) is None:
        pytest.skip(f"{launcher[0]} is not installed")
    drained(launched(start, model_dir, [*launcher, *program(tmp_path, model_dir)]))


def test_of_a_wrapper_below_a_shell_the_program_saves(
    start: Start, model_dir: Path, tmp_path: Path
) -> None:
    wrapper = [sys.executable, "-c", _WRAPPERS["kills what it has started"]]
    script = f"{shlex.join([*wrapper, *program(tmp_path, model_dir)])}; true"
    drained(launched(start, model_dir, ["bash", "-c", script]))


def test_an_interactive_shell_ignores_sigterm_and_its_program_saves(
    start: Start, model_dir: Path, tmp_path: Path
) -> None:
    """`bash -ic` is used for what only ~/.bashrc sets up, such as conda."""
    script = f"{shlex.join(program(tmp_path, model_dir))}; true"
    result = drained(launched(start, model_dir, ["bash", "--norc", "-ic", script]))
    assert result.has_event("sigterm-reaction", ranks=[0], reason="shell")
