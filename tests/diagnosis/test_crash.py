"""Where native code crashed: what the interpreter writes of it, in the order of a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.diagnosis.crash import place_of_crash, traceback_of_crash
from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.signals import CRASHES
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.narrative.failure_text import end_of_traceback

CRASH = """\
import os, signal, threading
def waits():
    threading.Event().wait()
for _ in range(2):
    threading.Thread(target=waits, daemon=True).start()
def culprit():
    os.kill(os.getpid(), signal.{name})
def calls(depth):
    calls(depth - 1) if depth else culprit()
calls(8)
"""
IN_A_THREAD = """\
import os, threading
def culprit():
    os.abort()
thread = threading.Thread(target=culprit)
thread.start()
thread.join()
"""
IN_A_LIBRARY = "import ctypes, os\ndef culprit():\n    os.fspath(Broken())\n{}\nculprit()\n".format(
    "class Broken(os.PathLike):\n    def __fspath__(self):\n        ctypes.string_at(0)"
)


def crashed(folder: Path, source: str) -> tuple[Path, str]:
    """The program, and the stacks that it left."""
    path = folder / "train.py"
    path.write_text(source)
    argv = [sys.executable, "-X", "faulthandler", str(path)]
    return path, subprocess.run(argv, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGFPE"])
def test_the_thread_that_crashed_ends_with_its_most_recent_call(tmp_path: Path, name: str) -> None:
    path, stacks = crashed(tmp_path, CRASH.format(name=name))
    traceback = traceback_of_crash(stacks)
    assert place_of_crash(traceback) == f"{path}:7 in culprit"
    assert "waits" not in traceback
    *_, outer, inner, error = end_of_traceback(traceback)
    assert outer == f'  File "{path}", line 9, in calls'
    assert inner == f'  File "{path}", line 7, in culprit'
    assert error.startswith("Fatal Python error: ")


def test_a_thread_other_than_the_main_one(tmp_path: Path) -> None:
    path, stacks = crashed(tmp_path, IN_A_THREAD)
    assert place_of_crash(traceback_of_crash(stacks)) == f"{path}:3 in culprit"


def test_a_crash_in_a_library_is_told_with_the_line_that_called_it(tmp_path: Path) -> None:
    path, stacks = crashed(tmp_path, IN_A_LIBRARY)
    traceback = traceback_of_crash(stacks)
    assert "in string_at" in end_of_traceback(traceback)[-2]
    assert place_of_crash(traceback) == f"{path}:6 in __fspath__"


STACKS = """\
Thread 0x00007f9657d846c0 (most recent call first):
  File "/app/train.py", line 3 in waits

Current thread 0x00007f96589e8b80 (most recent call first):
  File "/app/train.py", line 5 in hangs
"""


def test_stacks_that_were_asked_for_are_of_no_crash() -> None:
    assert traceback_of_crash(STACKS) == ""
    assert traceback_of_crash("") == ""
    assert place_of_crash("") == ""


@pytest.mark.parametrize(
    ("found", "where"),
    [
        ("Current thread 0x01 [Thread-1 (work)] (most recent call first):\n", "/app/a.py:1 in f"),
        ("Current thread 0x01 (most recent call first):\n", "/app/a.py:1 in f"),
        ("Current thread 0x01 (most recent call first):\n  <no Python frame>\n\n", ""),
        ("Thread 0x01 (most recent call first):\n", ""),
    ],
    ids=["with a name", "without a name", "without Python code", "of another thread"],
)
def test_of_several_stacks_in_a_file_those_of_the_crash_count(found: str, where: str) -> None:
    stacks = (
        f"{STACKS}\nFatal Python error: Bus error\n\n{found}"
        '  File "/app/a.py", line 1 in f\n  File "/app/a.py", line 9 in <module>\n\n'
        "Current thread's C stack trace (most recent call first):\n"
        '  Binary file "/lib/libc.so.6", at +0x45330\n\nExtension modules: numpy (total: 1)\n'
    )
    traceback = traceback_of_crash(stacks)
    assert place_of_crash(traceback) == where
    assert traceback.splitlines()[-1] == "Fatal Python error: Bus error"
    assert "hangs" not in traceback
    assert "libc" not in traceback


def crash(source: Path, output: str = "", **rank: Any) -> Failure:
    """What is made of a rank that crashed at `source`, whose stacks are in a file."""
    ended = WorkerExit(0, **(rank.pop("ended", None) or {"signal": "SIGSEGV"}))
    stacks = STACK.format(path=source)
    known = Evidence((RankEvidence(ended, output=output, stacks=stacks, **rank),), step=7)
    failure = judge(known, Success(step=9))
    assert failure is not None
    return failure


STACK = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f96589e8b80 (most recent call first):
  File "/usr/lib/python3.12/site-packages/jax/core.py", line 5 in bind
  File "{path}", line 5 in loses
"""
TRAIN, OTHER = Path("/app/train.py"), Path("/app/data.py")


def test_a_crash_of_which_nothing_was_said_is_known_again_by_its_stack() -> None:
    first = crash(TRAIN)
    assert first.compared
    assert first.signature is not None
    assert first.signature.startswith("SIGSEGV-")
    assert first.signature == crash(TRAIN).signature
    assert first.signature != crash(OTHER).signature
    assert first.signature != crash(TRAIN, output="out of luck\n").signature
    assert first.where == "/app/train.py:5 in loses"


def test_a_shell_that_tells_the_crash_by_its_exit_code_shows_the_stack_too() -> None:
    by_shell = crash(TRAIN, ended={"code": 139})
    assert (by_shell.rule, by_shell.signature) == ("crash", crash(TRAIN).signature)
    assert "in loses" in by_shell.traceback


def test_no_stack_is_compared_of_what_others_or_chance_may_do() -> None:
    """A rank that loses a peer aborts wherever it is; SIGBUS is a limit of the host."""
    for name in ("SIGABRT", "SIGBUS"):
        failure = crash(TRAIN, ended={"signal": name})
        assert "in loses" in failure.traceback
        assert failure.signature is None
    assert crash(Path("/usr/lib/python3.12/runpy.py")).signature is None


@pytest.mark.parametrize("name", sorted(CRASHES))
def test_every_crash_alone_is_a_root_cause(name: str) -> None:
    rule = next(rule for rule in RULES if rule.signals and name in rule.signals)
    assert rule.culprit
