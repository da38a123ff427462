"""What SIGTERM does to a process, as the kernel tells it."""

from __future__ import annotations

import os
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
    sigterm_reaction,
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


@pytest.mark.parametrize(("lineage", "found"), [("outer@1", True), ("outer@1,inner@2", False)])
def test_the_program_below_a_wrapper_is_what_computes_and_no_part_of_it(
    tmp_path: Path, lineage: str, found: bool
) -> None:
    """A supervisor is no wrapper, though the workers below it compute."""
    library = tmp_path / "jaxlib" / "library.so"
    library.parent.mkdir()
    library.write_bytes(b"1")
    runs = f"import os; os.environ['SUPERVISE_LINEAGE'] = {lineage!r}\n{_WRAPS}"
    argv = [sys.executable, "-c", runs, _COMPUTES, str(library)]
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
