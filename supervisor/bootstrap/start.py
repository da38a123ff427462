"""Takes the program's place on the interpreter's command line: `python [FLAGS] start.py PROGRAM`.

PROGRAM is what the command line had there: `script.py ...`, `-m module ...`, `-c code ...`. If the
bootstrap cannot work, this process execs the interpreter again on the original command line. So
this file must parse in any Python, even in Python 2.

The lines at the end run as `__main__`, in the namespace that the program will have, so they define
no names. They are our only frame below the program's. If the program fails, the exception leaves
through `with`, which raises it again without adding this frame to its traceback;
`FatalErrorRecorder` removes the entries that are already there. All else (exit codes, SystemExit,
the traceback on stderr, SIGINT) is left to the interpreter, as if this frame were not there.
"""

import os
import sys


def run_plainly(why):  # type: (str) -> None
    """Exec the interpreter on the program without the bootstrap; `why` is told in run.log."""
    text = "the program runs unchanged, without the bootstrap: " + why
    try:
        line = '{"v":1,"kind":"notice","code":"bootstrap-left-out","text":"' + text + '"}\n'
        os.write(int(os.environ["SUPERVISE_PROGRESS_FD"]), line.encode())
    except (KeyError, ValueError, OSError):
        pass
    given = getattr(sys.modules.get("_supervise"), "command_line", None)
    if given is not None:  # a standby became a worker: its command line came with the orders
        arguments = [os.fsencode(argument) for argument in given]
    else:
        with open("/proc/self/cmdline", "rb") as file:
            arguments = file.read().split(b"\0")[:-1]
    this = os.path.abspath(__file__).encode()  # the command line may have a relative path
    arguments.remove(next(word for word in arguments if os.path.abspath(word) == this))
    os.environ.setdefault("PYTHONUNBUFFERED", "1")  # see `buffering`
    os.execv(sys.executable, arguments)


def prepare():  # type: () -> None
    """Prepare what the last lines need, and remove all names of this file from `__main__`."""
    version = ".".join([str(number) for number in sys.version_info[:2]])
    if not (3, 11) <= sys.version_info[:2] <= (3, 13) or sys.implementation.name != "cpython":
        run_plainly("it knows CPython 3.11 to 3.13, and this is Python " + version)
    package = type(sys)("_supervise")
    package.__path__ = [os.path.dirname(os.path.dirname(__file__))]
    sys.modules["_supervise"] = package
    run = None
    try:
        target = __import__("_supervise.bootstrap.target", fromlist=["target"])
        run = target.prepare(__file__)
    except Exception as error:
        run_plainly("it cannot be set up (" + type(error).__name__ + ")")
    if run is None:
        why = "its main file cannot be read as source code"
        try:
            os.stat(sys.argv[1])
        except (FileNotFoundError, NotADirectoryError):
            why = "its main file is missing"
        except OSError:
            pass  # Python itself says why it cannot open the file
        run_plainly(why)
    else:
        package.run = run  # type: ignore[attr-defined]
        run.clear_main()


prepare()
with __import__("_supervise").run.ending:
    __import__("_supervise").run.function(*__import__("_supervise").run.arguments())
