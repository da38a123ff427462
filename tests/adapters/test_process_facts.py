"""What SIGTERM does to a process, as the kernel tells it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.adapters.kernel.process_facts import (
    SigtermReaction,
    programs_below,
    python_programs,
    sigterm_reaction,
    unasked_below,
)
from tests.running import eventually

PROGRAMS = {
    "pass": SigtermReaction.DEFAULT,
    "signal.signal(signal.SIGTERM, lambda *_: None)": SigtermReaction.HANDLED,
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)": SigtermReaction.IGNORED,
    "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())": SigtermReaction.BLOCKED,
    "threading.Thread(target=signal.pause, daemon=True).start(); signal.pthread_sigmask("
    "signal.SIG_BLOCK, [signal.SIGTERM])": SigtermReaction.DEFAULT,
}
WAITING = {
    "in its only thread": "signal.sigwait({signal.SIGTERM})",
    "in another thread": "t = threading.Thread(target=signal.sigwait, args=({signal.SIGTERM},)); "
    "t.start(); t.join()",
}


@contextmanager
def program(text: str, then: str = "signal.pause()") -> Iterator[int]:
    """A process that has run `text`, and does what is said `then`."""
    lines = f"import os, signal, threading\n{text}\nos.write(1, b'ready')\n{then}"
    with subprocess.Popen([sys.executable, "-c", lines], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(5) == b"ready"
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("text", PROGRAMS)
def test_what_sigterm_does_to_a_process(text: str) -> None:
    with program(text) as pid:
        assert sigterm_reaction(pid) is PROGRAMS[text]


@pytest.mark.parametrize("how", WAITING)
def test_one_that_waits_for_sigterm_is_not_called_defenceless(how: str) -> None:
    blocks = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])"
    with program(blocks, WAITING[how]) as pid:
        threads = Path(f"/proc/{pid}/task")
        assert eventually(
            lambda: any("sigtimedwait" in (t / "wchan").read_text() for t in threads.iterdir())
        )
        assert sigterm_reaction(pid) is SigtermReaction.BLOCKED


def test_one_that_is_stopped_does_not_hear_of_it() -> None:
    with program("signal.signal(signal.SIGTERM, lambda *_: None)") as pid:
        os.kill(pid, signal.SIGSTOP)
        assert eventually(lambda: sigterm_reaction(pid) is SigtermReaction.STOPPED)


def test_one_that_has_ended_but_is_not_reaped_has_ended() -> None:
    with program("pass") as pid:
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: sigterm_reaction(pid) is SigtermReaction.UNKNOWN)


_WRAPS = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1], *sys.argv[2:]])
"""
_COMPUTES = """
import mmap, os, signal, sys
with open(sys.argv[1], "rb") as library:
    loaded = mmap.mmap(library.fileno(), 0, prot=mmap.PROT_READ)
signal.signal(signal.SIGTERM, lambda *_: None)
forked = os.fork() == 0
os.write(1, f"{os.getpid()} {'forked' if forked else 'runs'}\\n".encode())  # in one piece
signal.pause()
"""


@pytest.mark.parametrize(
    ("lineage", "length", "found"),
    [("outer@1", 0, True), ("outer@1", 100_000, True), ("outer@1,inner@2", 0, False)],
)
def test_the_program_below_a_wrapper_is_what_computes_and_no_part_of_it(
    tmp_path: Path, lineage: str, length: int, found: bool
) -> None:
    """Of arguments of any `length`. A supervisor is no wrapper, though the workers below it
    compute."""
    library = tmp_path / "jaxlib" / "library.so"
    library.parent.mkdir()
    library.write_bytes(b"1")
    runs = f"import os; os.environ['SUPERVISE_LINEAGE'] = {lineage!r}\n{_WRAPS}"
    argv = [sys.executable, "-c", runs, _COMPUTES, str(library), length * "x"]
    env = {**os.environ, "SUPERVISE_LINEAGE": "outer@1"}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, text=True) as wrapper:
        assert wrapper.stdout is not None
        told: dict[str, int] = {}
        try:
            for _ in range(2):
                pid, does = wrapper.stdout.readline().split()
                told[does] = int(pid)
            below = [one for one, _ in programs_below(wrapper.pid)]
            assert below == ([told["runs"]] if found else [])
            assert programs_below(told["runs"]) == [], "it is the program itself"
        finally:
            for one in (*told.values(), wrapper.pid):
                os.kill(one, signal.SIGKILL)


_LINK = """
import mmap, os, signal, subprocess, sys
does, *below = sys.argv[1:]
signal.signal(signal.SIGTERM, lambda *_: None)
if does == "loads":
    with open("numpy/library.so", "rb") as library:
        loaded = mmap.mmap(library.fileno(), 0, prot=mmap.PROT_READ)
if does == "has another child":
    subprocess.Popen(["sleep", "1000"])
if below:
    subprocess.Popen([sys.executable, "-c", sys.orig_argv[2], *below])
os.write(1, f"{len(below)} {os.getpid()}\\n".encode())  # in one piece
signal.pause()
"""


@pytest.mark.parametrize(
    ("chain", "found"),
    [
        (["wraps", "loads"], True),
        (["wraps", "wraps", "loads"], True),
        (["loads", "loads"], False),
        (["has another child", "loads"], False),
        (["wraps", "has another child", "loads"], False),
        (["wraps", "wraps"], False),
    ],
)
def test_a_program_with_numpy_is_found_only_if_it_is_alone_below_its_wrapper(
    tmp_path: Path, chain: list[str], found: bool
) -> None:
    library = tmp_path / "numpy" / "library.so"
    library.parent.mkdir()
    library.write_bytes(b"1")
    argv = [sys.executable, "-c", _LINK, *chain]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, cwd=tmp_path, text=True, start_new_session=True
    ) as wrapper:
        assert wrapper.stdout is not None
        try:
            by_place = dict(wrapper.stdout.readline().split() for _ in chain)
            below = [pid for pid, _ in programs_below(wrapper.pid)]
            assert below == ([int(by_place["0"])] if found else [])
            unasked = [pid for pid, _ in unasked_below(wrapper.pid)]
            outermost = int(by_place[str(len(chain) - 2)])
            assert unasked == ([outermost] if chain[0] != "loads" else []), "it may pass it on"
        finally:
            os.killpg(wrapper.pid, signal.SIGKILL)


_PROGRAM = [
    sys.executable,
    "-c",
    "import os, time; print(os.getpid(), flush=True); time.sleep(1e3)",
]
_RUNS = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"]
_HAS_HELPER = [
    sys.executable,
    "-c",
    "import subprocess, sys; subprocess.Popen(sys.argv[1:]); sys.stdin.read()",
]
_NO_PYTHON = ["sh", "-c", "echo 0; sleep 1000; exit"]


def _shell(argv: list[str]) -> list[str]:
    return ["bash", "-c", f"{shlex.join(argv)}; exit"]


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (_shell(_PROGRAM), "program"),
        (["bash", "-c", f"({shlex.join(_PROGRAM)}; exit) | cat; exit"], "program"),
        ([*_RUNS, *_PROGRAM], "program"),
        (_shell(["timeout", "--foreground", "1000", *_RUNS, *_shell(_PROGRAM)]), "program"),
        ([*_HAS_HELPER, *_PROGRAM], "wrapper"),
        ([*_RUNS, *_NO_PYTHON], "wrapper"),
        (_NO_PYTHON, None),
    ],
)
def test_stacks_are_taken_of_the_program_that_others_only_wait_for(
    argv: list[str], found: str | None
) -> None:
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as wrapper:
        assert wrapper.stdout is not None
        try:
            pids = {"program": int(wrapper.stdout.readline()), "wrapper": wrapper.pid}
            expected = [pids[found]] if found else []
            assert eventually(lambda: [pid for pid, _ in python_programs(wrapper.pid)] == expected)
        finally:
            os.killpg(wrapper.pid, signal.SIGKILL)
