"""A program does under the bootstrap what it does without: output, error output, exit status."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping

import pytest

from supervisor.engines.python_program import START
from supervisor.protocol.messages import NoticeMessage
from tests.bootstrap.programs import SUPPORTED, UNSUPPORTED, Outcome, Twice

WORLD = r"""
import sys
shown = dict(globals())
print(__name__, list(shown))
print(__doc__, __package__, __spec__ and __spec__.name, __annotations__)
print(type(__loader__), getattr(__loader__, "path", None))
print(globals().get("__file__"), globals().get("__cached__", "none at all"))
print(sys.argv, sys.orig_argv, sys.path, sys.flags)
print(sys.modules["__main__"].__dict__ is globals())
print(sys.excepthook is sys.__excepthook__, sys.unraisablehook is sys.__unraisablehook__)
import os, signal, threading, warnings
print(threading.excepthook is threading.__excepthook__, len(threading.enumerate()))
print([signal.getsignal(number) for number in sorted(signal.valid_signals())])
print(sorted(name for name in os.environ if not name.startswith("SUPERVISE_")))
print(warnings.filters, sys.getrecursionlimit(), os.getcwd(), sys.dont_write_bytecode)
print(sys.stdin.read())
"""

CHAIN = """
def read():
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("no good") from error
"""

PROGRAMS: dict[str, str] = {
    "it ends well": "print('hello')",
    "it sees the world": WORLD,
    "a docstring": '"""Mine."""\nprint(__doc__, list(globals()))',
    "annotations": "x: int = 3\nprint(__annotations__)",
    "an exception": CHAIN + "read()",
    "an exception group": "raise ExceptionGroup('two', [ValueError(1), TypeError(2)])",
    "an exception with notes": "e = ValueError(1)\ne.add_note('noted')\nraise e",
    "a deep exception": "def f(n):\n    return f(n + 1)\nf(0)",
    "a syntax error": "def f(:\n    pass",
    "an indentation error": "if True:\nprint()",
    "a warning of the compiler": "import re\nprint('\\d', 1 is 1)",
    "future": "from __future__ import annotations\nx: nonsense\nprint(__annotations__)",
    "SystemExit()": "import sys; sys.exit()",
    "SystemExit(0)": "raise SystemExit(0)",
    "SystemExit(3)": "raise SystemExit(3)",
    "SystemExit(256)": "raise SystemExit(256)",
    "SystemExit(-1)": "raise SystemExit(-1)",
    "SystemExit(True)": "raise SystemExit(True)",
    "SystemExit of a text": "import sys; sys.exit('it is over')",
    "SystemExit of an object": "import sys; sys.exit([1, 2])",
    "SystemExit from an exception": "import sys\ntry: 1/0\nexcept Exception: sys.exit(4)",
    "KeyboardInterrupt": "def f(): raise KeyboardInterrupt('now')\nf()",
    "SIGINT": "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('not here')",
    "SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "abort": "import os, sys; print('said'); sys.stdout.flush(); os.abort()",
    "os._exit": "import os\nprint('said')\nos._exit(7)",
    "os._exit(status=7)": "import os\nos._exit(status=7)",
    "os._exit in an exception": "import os\ntry: 1/0\nexcept Exception: os._exit(8)",
    "os._exit of nonsense": "import os\nos._exit('x')",
    "order of output": (
        "import os, sys\nprint('first'); os.write(1, b'second\\n'); sys.stderr.write('third\\n')\n"
        "print('fourth', file=sys.stderr); raise RuntimeError('fifth')"
    ),
    "atexit": (
        "import atexit\natexit.register(print, 'registered first')\n"
        "atexit.register(print, 'registered last')\nprint('main'); raise SystemExit(2)"
    ),
    "atexit sees main": (
        "import atexit, sys\nerror = 'mine'\n"
        "atexit.register(lambda: print(error, list(globals()), sys.exc_info(), sys.last_value))\n"
        "1/0"
    ),
    "atexit raises": "import atexit\natexit.register(lambda: 1/0)",
    "atexit after an exception": "import atexit\natexit.register(lambda: 1/0)\n[][1]",
    "a hook of its own": (
        "import sys\n"
        "sys.excepthook = lambda *a: print('mine', a, a[2].tb_frame.f_code.co_name)\n1/0"
    ),
    "a hook that fails": (
        "import sys\ndef hook(*a): raise KeyError('hook')\nsys.excepthook = hook\n1/0"
    ),
    "a hook that exits": "import sys\nsys.excepthook = lambda *a: sys.exit(9)\n1/0",
    "an unraisable exception": (
        "class A:\n    def __del__(self): 1/0\nA()\nprint('goes on')\nkept = A()"
    ),
    "a thread that fails": (
        "import threading\ndef work(): raise ValueError('in a thread')\n"
        "t = threading.Thread(target=work, name='worker'); t.start(); t.join(); print('main')"
    ),
    "a hook for threads": (
        "import threading\nthreading.excepthook = lambda a: print(a.exc_type, a.thread.name)\n"
        "t = threading.Thread(target=lambda: 1/0, name='w'); t.start(); t.join()"
    ),
    "a thread that exits": (
        "import threading, sys\n"
        "t = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()"
    ),
    "a thread that outlives main": (
        "import threading, time\n"
        "main = threading.main_thread()\n"
        "def work():\n    main.join(); print('after main')\n"
        "threading.Thread(target=work).start(); print('main ends')"
    ),
    "a signal handler of its own": (
        "import os, signal\nsignal.signal(signal.SIGTERM, lambda *a: print('asked', a[0]))\n"
        "signal.signal(signal.SIGUSR2, lambda *a: print('mine', a[0]))\n"
        "os.kill(os.getpid(), signal.SIGTERM); os.kill(os.getpid(), signal.SIGUSR2)"
    ),
    "what it knows of its signal handlers": (
        "import signal\ndef stop(*a): pass\n"
        "print(signal.signal(15, stop) is signal.SIG_DFL, signal.getsignal(15) is stop)\n"
        "print(signal.signal(signal.SIGTERM, signal.SIG_IGN) is stop, signal.getsignal(15))\n"
        "print(signal.signal.__name__, signal.getsignal.__doc__, signal.sigwait.__name__)"
    ),
    "a signal handler that raises": (
        "import os, signal\ndef stop(*a): raise ValueError('told')\n"
        "signal.signal(signal.SIGTERM, stop)\nos.kill(os.getpid(), signal.SIGTERM)"
    ),
    "a signal handler that exits": (
        "import os, signal, sys\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit('saved'))\n"
        "os.kill(os.getpid(), signal.SIGTERM)"
    ),
    "a signal handler that calls the one before": (
        "import os, signal\nsignal.signal(15, lambda *a: print('first', a[0]))\n"
        "before = signal.signal(15, lambda *a: (before(*a), print('second')))\n"
        "os.kill(os.getpid(), 15)"
    ),
    "a signal handler that is none": "import signal; signal.signal(signal.SIGTERM, 'stop')",
    "a signal handler of a thread": (
        "import signal, threading\n"
        "threading.Thread(target=signal.signal, args=(15, print), name='one').start()"
    ),
    "a signal that is waited for": (
        "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {15})\n"
        "for wait in (signal.sigwait, signal.sigwaitinfo, lambda s: signal.sigtimedwait(s, 9)):\n"
        "    os.kill(os.getpid(), 15); print(type(wait({15})))\n"
        "print(signal.sigtimedwait({15}, 0))\nsignal.sigwait({0})"
    ),
    "an event loop with signal handlers": (
        "import asyncio, os, signal\nasync def main():\n    stop = asyncio.Event()\n"
        "    loop = asyncio.get_running_loop()\n    loop.add_signal_handler(15, stop.set)\n"
        "    os.kill(os.getpid(), 15)\n    await stop.wait()\n"
        "    print(loop.remove_signal_handler(15), signal.getsignal(15))\nasyncio.run(main())"
    ),
    "warnings": (
        "import warnings\nwarnings.warn('plain')\nwarnings.warn('old', DeprecationWarning)\n"
        "open('program.py')\n"
    ),
    "traceback of its own": CHAIN + "import traceback\ntry: read()\nexcept Exception: "
    "traceback.print_exc()",
    "pickle": (
        "import pickle\nclass C:\n    def __eq__(self, other): return type(other) is C\n"
        "data = pickle.dumps(C())\nprint(b'__main__' in data, pickle.loads(data) == C())"
    ),
    "inspect": "import inspect\ndef f(): pass\nprint(inspect.getsource(f), inspect.getfile(f))",
    "itself as a module": "if __name__ == '__main__':\n  import program\n  print(program.__name__)",
    "a neighbour": "import neighbour; print(neighbour.__file__)",
    "neighbours with our names": "import start, worker, program; print(start.A, worker.A)",
    "neighbours with Python's names": "raise SystemExit('json must not be imported')",
    "multiprocessing": (
        "import multiprocessing as m, sys\n"
        "def work(n):\n    print('child', n, __name__, flush=True)\n    sys.exit(n)\n"
        "if __name__ == '__main__':\n"
        "    for how in ('fork', 'spawn', 'forkserver'):\n"
        "        p = m.get_context(how).Process(target=work, args=(5,)); p.start(); p.join()\n"
        "        print(how, p.exitcode)\n"
    ),
    "a pool": (
        "import multiprocessing as m\n"
        "def square(n): return n * n\n"
        "if __name__ == '__main__':\n"
        "    with m.get_context('spawn').Pool(2) as pool: print(pool.map(square, range(4)))\n"
    ),
    "a child that fails": (
        "import multiprocessing as m\n"
        "def work(): raise ValueError('in a child')\n"
        "if __name__ == '__main__':\n"
        "    for how in ('fork', 'spawn'):\n"
        "        p = m.get_context(how).Process(target=work, name=how); p.start(); p.join()\n"
        "        print(p.exitcode)\n"
    ),
    "a forked child that falls through": (
        "import os, sys\npid = os.fork()\nif pid == 0: raise ValueError('child')\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    ),
    "a child of the same interpreter": (
        "import subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-c', 'import sys; print(sys.path[0] == \"\")'],"
        " capture_output=True).stdout)"
    ),
    "it becomes another": (
        "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(6)'])"
    ),
    "asyncio": "import asyncio\nasync def main(): raise OSError(5, 'x')\nasyncio.run(main())",
    "logging": "import logging\nlogging.basicConfig(format='%(pathname)s %(message)s')\n"
    "logging.warning('w')",
    "dataclasses and typing": (
        "from __future__ import annotations\nimport dataclasses, typing\n"
        "@dataclasses.dataclass\nclass C:\n    x: int = 1\n"
        "print(C(), typing.get_type_hints(C), C.__module__)"
    ),
}

NEIGHBOURS = {
    "neighbour.py": "",
    "start.py": "A = 1",
    "worker.py": "A = 2",
    "json.py": "print('the wrong json')\n",
    "package/__init__.py": "",
    "package/part.py": "from . import other\nprint(__name__, __package__, __spec__.name)",
    "package/other.py": "",
    "package/failing.py": "from . import other\nother.missing",
    "package/__main__.py": "from .other import __name__ as n\nprint(n)\nraise SystemExit(5)",
    "directory/__main__.py": WORLD + "import beside\n1/0",
    "directory/beside.py": "print(__file__)",
}


@pytest.fixture(autouse=True)
def _neighbours(twice: Twice) -> None:
    twice.write(NEIGHBOURS)


def settled(stderr: bytes) -> bytes:
    """Without what differs from run to run, and how deep a program can recurse: the bootstrap is a
    frame below it.
    """
    return re.sub(rb"0x[0-9a-f]+|repeated \d+ more", b"*", stderr)


def assert_same(twice: Twice, arguments: tuple[str, ...], python: str) -> None:
    plain = twice.plainly(*arguments, python=python)
    ours = twice.bootstrapped(*arguments, python=python)
    assert_equal(twice, ours, plain)


def assert_equal(twice: Twice, ours: Outcome, plain: Outcome) -> None:
    assert ours.status == plain.status
    assert settled(ours.stdout).decode() == settled(plain.stdout).decode()
    assert settled(ours.stderr).decode() == settled(plain.stderr).decode()
    notices = [message for message in twice.messages if isinstance(message, NoticeMessage)]
    assert notices == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_script(twice: Twice, name: str) -> None:
    twice.write({"program.py": PROGRAMS[name]})
    assert_same(twice, ("program.py", "one", "--two", "-m"), SUPPORTED[0])


@pytest.mark.parametrize(
    "python",
    [SUPPORTED[0], *(pytest.param(each, marks=pytest.mark.slow) for each in SUPPORTED[1:])],
)
def test_every_python_that_is_supported(twice: Twice, python: str) -> None:
    """All that does not depend on the version in one go: most of the time is the interpreter's."""
    for name, text in PROGRAMS.items():
        if python != SUPPORTED[0] and "child" not in name:
            twice.write({"program.py": text})
            assert_same(twice, ("program.py",), python)


@pytest.mark.parametrize("python", SUPPORTED)
def test_a_broken_pipe(twice: Twice, python: str) -> None:
    """A buffered line that cannot be written fails once more when the interpreter ends."""
    program = "import os\nr, w = os.pipe(); os.close(r); os.dup2(w, 1); print('x', flush=True)"
    twice.write({"program.py": program})
    plain = twice.plainly("program.py", python=python, env={"PYTHONUNBUFFERED": ""})
    assert plain.status == 120
    assert_equal(twice, twice.bootstrapped("program.py", python=python), plain)


@pytest.mark.parametrize("python", SUPPORTED)
@pytest.mark.parametrize(
    "arguments",
    [
        ("./program.py", "x"),
        ("../programs/program.py",),
        ("-u", "program.py"),
        ("-OO", "-X", "dev", "-Werror::FutureWarning", "-W", "ignore", "program.py", "-u"),
        ("-I", "program.py"),
        ("-ES", "-X", "utf8", "program.py"),
        ("-s", "-P", "program.py"),
        ("-Bb", "--check-hash-based-pycs", "never", "program.py"),
        ("-c", WORLD, "a", "-c"),
        ("-c", "import sys; print(sys.argv); sys.exit('end')"),
        ("-c", "def f(): 1/0\nf()"),
        ("-c", "if"),
        ("-I", "-c", WORLD),
        ("-m", "program", "a"),
        ("-m", "package.part"),
        ("-m", "package.failing"),
        ("-m", "package"),
        ("-mpackage.part", "x"),
        ("-m", "missing"),
        ("-m", "package.missing"),
        ("-I", "-m", "json.tool", "absent"),
        ("directory", "x"),
        ("-P", "directory"),
        ("archive.pyz", "y"),
        ("linked.py",),
    ],
)
def test_a_command_line(twice: Twice, arguments: tuple[str, ...], python: str) -> None:
    twice.write({"program.py": WORLD, "elsewhere/real.py": WORLD})
    (twice.directory / "linked.py").symlink_to("elsewhere/real.py")
    with zipfile.ZipFile(twice.directory / "archive.pyz", "w") as archive:
        archive.writestr("__main__.py", WORLD + "import beside")
        archive.writestr("beside.py", "print(__file__)\n1/0")
    assert_same(twice, arguments, python)


@pytest.mark.parametrize(
    ("files", "arguments", "why"),
    [
        ({}, ("absent.py",), "is missing"),
        ({"notes.txt": "x"}, ("notes.txt/train.py",), "is missing"),
        ({}, (f"{'x' * 300}.py",), "cannot be read as source code"),
        ({"compiled.pyc": "\0\0 nonsense"}, ("compiled.pyc",), "cannot be read as source code"),
        ({"null.py": "print('\0')"}, ("null.py",), "cannot be read as source code"),
        ({}, ("/dev/null",), "cannot be read as source code"),
    ],
)
def test_what_cannot_be_bootstrapped_runs_plainly(
    twice: Twice, files: Mapping[str, str], arguments: tuple[str, ...], why: str
) -> None:
    twice.write(files)
    assert twice.bootstrapped(*arguments) == twice.plainly(*arguments)
    (notice,) = twice.messages
    assert isinstance(notice, NoticeMessage)
    assert notice.text == f"the program runs unchanged, without the bootstrap: its main file {why}"


@pytest.mark.parametrize("python", UNSUPPORTED)
def test_other_versions_run_plainly(twice: Twice, python: str) -> None:
    twice.write({"program.py": "import sys; print(sys.argv, sys.path, sys.flags); sys.exit(4)"})
    arguments = ("-O", "program.py", "x")
    ours = twice.bootstrapped(*arguments, python=python)
    assert ours == twice.plainly(*arguments, python=python)
    assert ours.status == 4
    (notice,) = twice.messages
    assert isinstance(notice, NoticeMessage)
    assert "it knows CPython 3.11 to 3.13, and this is Python " in notice.text


@pytest.mark.parametrize(
    "program", ["program.py", "no_such_program.py"], ids=["bootstrapped", "run plainly"]
)
def test_the_command_line_may_name_the_bootstrap_by_a_relative_path(
    twice: Twice, program: str
) -> None:
    twice.write({"program.py": "import sys\nprint(sys.argv, sys.orig_argv[1:])"})
    relative = os.path.relpath(START, twice.directory)
    plain = twice.plainly(program, "one")
    ours = twice.bootstrapped(program, "one", start=relative)
    assert (ours.stdout, ours.stderr, ours.status) == (plain.stdout, plain.stderr, plain.status)
