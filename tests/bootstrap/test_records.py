"""What a bootstrapped program leaves behind: a record of what ended it, its stacks on request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.bootstrap import worker, written
from supervisor.engines.python_program import START, bootstrapped
from supervisor.protocol import environment
from supervisor.protocol.messages import StacksMessage, encode
from supervisor.protocol.stacks import STACK_SIGNAL
from tests.bootstrap.programs import SUPPORTED, Twice
from tests.running import eventually

THREAD = (
    "import os, sys, threading\nt = threading.Thread(target=lambda: [][1]); t.start(); t.join()\n"
)


def raised(twice: Twice, program: str, *arguments: str) -> list[tuple[str, str]]:
    """Type and relation of the exceptions in the record that `program` leaves."""
    twice.write({"program.py": program})
    twice.bootstrapped(*(arguments or ("program.py",)))
    if twice.record is None:
        return []
    return [(e.type.removeprefix("builtins."), e.relation) for e in twice.record.exceptions]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("1/0", [("ZeroDivisionError", "raised")]),
        (
            "try: {}['x']\nexcept KeyError as e: raise OSError(28, 'full') from e",
            [("OSError", "raised"), ("KeyError", "cause")],
        ),
        ("def f(:", [("SyntaxError", "raised")]),
        ("import absent", [("ModuleNotFoundError", "raised")]),
        ("class E(Exception): pass\nraise E", [("__main__.E", "raised")]),
        ("raise SystemExit(3)", [("SystemExit", "raised")]),
        ("import sys; sys.exit('over')", [("SystemExit", "raised")]),
        (
            "import sys\ntry: 1/0\nexcept Exception: sys.exit(1)",
            [("SystemExit", "raised"), ("ZeroDivisionError", "context")],
        ),
        ("raise KeyboardInterrupt", [("KeyboardInterrupt", "raised")]),
        (
            "import os\ntry: 1/0\nexcept Exception: os._exit(1)",
            [("ZeroDivisionError", "raised")],
        ),
        (THREAD + "sys.exit(1)", [("IndexError", "raised")]),
        (THREAD + "os._exit(1)", [("IndexError", "raised")]),
        (THREAD + "raise ValueError", [("ValueError", "raised")]),
        (
            "import threading\nthreading.excepthook = print\n" + THREAD + "sys.exit(1)",
            [("IndexError", "raised")],
        ),
        ("import atexit; atexit.register(lambda: 1/0)", [("ZeroDivisionError", "raised")]),
        (
            "import atexit; atexit.register(lambda: 1/0); raise ValueError",
            [("ValueError", "raised")],
        ),
        (
            "import sys; sys.stdout = open('/dev/full', 'w'); print('x')",
            [("OSError", "raised")],
        ),
        # --- nothing has failed, or nothing that ended the program
        ("print('well')", []),
        ("import sys; sys.exit(0)", []),
        ("raise SystemExit(256)", []),
        ("import os; os._exit(0)", []),
        ("import os\ntry: 1/0\nexcept Exception: os._exit(0)", []),
        (THREAD, []),
        (THREAD + "sys.exit()", []),
        ("import sys, threading\nt = threading.Thread(target=sys.exit, args=(3,)); t.start()", []),
        ("class A:\n    def __del__(self): 1/0\nA(); kept = A()", []),
        # --- a child is not the program
        ("import os\nif os.fork() == 0: raise ValueError\nos.wait()", []),
        ("import os\nif os.fork() == 0: os._exit(3)\nos.wait()", []),
        (
            "import multiprocessing as m, sys\ndef work(): raise ValueError\n"
            "if __name__ == '__main__':\n  for how in ('fork', 'spawn', 'forkserver'):\n"
            "    p = m.get_context(how).Process(target=work); p.start(); p.join()",
            [],
        ),
    ],
)
def test_the_record(twice: Twice, program: str, expected: list[tuple[str, str]]) -> None:
    assert raised(twice, program) == expected


@pytest.mark.parametrize("python", SUPPORTED)
def test_what_it_tells(twice: Twice, python: str) -> None:
    twice.write({"program.py": "def f():\n    raise ValueError('bad luck')\nf()"})
    plain = twice.plainly("program.py", python=python)
    twice.bootstrapped("program.py", python=python)
    record = twice.record
    assert record is not None
    assert record.exceptions[0].message == "bad luck"
    assert record.rank == 2
    assert (record.stage, record.step) == (None, None)
    assert record.traceback == plain.stderr.decode()


def test_a_module_leaves_one_too(twice: Twice) -> None:
    assert raised(twice, "1/0", "-m", "program") == [("ZeroDivisionError", "raised")]
    assert twice.record is not None
    assert str(Path(START).parent) not in twice.record.traceback


def test_python_modules_of_its_own_are_not_taken_for_pythons(twice: Twice) -> None:
    twice.write(dict.fromkeys(("json.py", "dataclasses.py", "traceback.py"), "print('mine')"))
    assert raised(twice, "raise ValueError") == [("ValueError", "raised")]


def test_its_own_record_is_kept(twice: Twice) -> None:
    write = "import os; open(os.environ['SUPERVISE_FAILURE_FILE'], 'w').write('{}'); 1/0"
    twice.write({"program.py": write})
    twice.bootstrapped("program.py")
    assert twice.failure_file.read_text() == "{}"


def test_a_record_that_cannot_be_written_changes_nothing(twice: Twice) -> None:
    twice.write({"program.py": "1/0"})
    env = {"SUPERVISE_FAILURE_FILE": "/proc/nowhere/failure.json"}
    assert twice.bootstrapped("program.py", env=env) == twice.plainly("program.py")


def test_exceptions_of_threads_are_not_kept_alive(twice: Twice) -> None:
    program = (
        "import gc, threading, weakref\nclass Big: pass\nalive = []\n"
        "def work():\n    big = Big(); alive.append(weakref.ref(big)); raise ValueError\n"
        "t = threading.Thread(target=work); t.start(); t.join(); gc.collect()\n"
        "raise SystemExit(3 if alive[0]() else 0)"
    )
    twice.write({"program.py": program})
    assert twice.bootstrapped("program.py").status == 0


def test_no_more_than_python_itself_is_imported(twice: Twice) -> None:
    """A program that imports nothing pays for nothing."""
    program = "import sys; print(*sorted(m for m in sys.modules if '_supervise' not in m))"
    plain = twice.plainly("-I", "-c", program).stdout.split()
    ours = twice.bootstrapped("-I", "-c", program).stdout.split()
    assert set(ours) - set(plain) == {b"__future__", b"faulthandler"}


def test_stacks_are_dumped_on_request(twice: Twice) -> None:
    twice.write({"program.py": "def stuck():\n  print(1, flush=True)\n  while True: pass\nstuck()"})
    stacks = twice.directory.parent / "stacks.txt"
    argv, _ = bootstrapped([sys.executable, "program.py"])
    env = {**os.environ, environment.STACKS_FILE: str(stacks)}
    with subprocess.Popen(argv, cwd=twice.directory, env=env, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        program.send_signal(STACK_SIGNAL)
        dumped = eventually(lambda: "in stuck" in stacks.read_text())
        program.terminate()
    assert dumped
    assert program.returncode == -signal.SIGTERM
    twice.write({"program.py": ""})
    twice.bootstrapped("program.py")
    assert twice.messages == [StacksMessage()]


def test_a_forked_child_dies_of_the_signal_as_ever(twice: Twice) -> None:
    program = (
        "import os, signal\nif (pid := os.fork()) == 0:\n"
        "    os.kill(os.getpid(), signal.SIGUSR2)\n    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    twice.write({"program.py": program})
    assert twice.bootstrapped("program.py").stdout == b"-%d\n" % signal.SIGUSR2


def test_the_protocol_is_spelled_right() -> None:
    """The bootstrap spells out what it could not afford to import."""
    for name in ("FAILURE_FILE", "STACKS_FILE", "RANK"):
        assert getattr(worker, name) == getattr(environment, name)
    for name in ("PROGRESS_FD", "PROGRESS_PIPE"):
        assert getattr(written, name) == getattr(environment, name)
    assert encode(StacksMessage()) == worker.STACKS_LINE


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS"])
@pytest.mark.parametrize("python", SUPPORTED)
def test_a_crash_of_native_code_leaves_the_stacks(twice: Twice, name: str, python: str) -> None:
    crash = f"import os, signal\ndef native(): os.kill(os.getpid(), signal.{name})\nnative()"
    twice.write({"program.py": crash})
    ours = twice.bootstrapped("program.py", python=python)
    assert ours == twice.plainly("program.py", python=python)
    stacks = (twice.directory.parent / "stacks.txt").read_text()
    assert "in native" in stacks


def test_a_person_who_wants_the_stacks_on_standard_error_gets_them_there(twice: Twice) -> None:
    twice.write({"program.py": "import os\nos.abort()"})
    ours = twice.bootstrapped("-X", "faulthandler", "program.py")
    assert b"Fatal Python error: Aborted" in ours.stderr
    assert (twice.directory.parent / "stacks.txt").read_text() == ""
