"""Reports what a Python program below a shell writes (`bash -c "cd a && python b.py"`).

`site` imports this file at the start of every Python process of such a command. It imports the
`sitecustomize` that it hides, and reports the paths that may be checkpoints (`bootstrap.written`).
It does nothing else: nobody knows which process trains, so signals, exits and failures belong to
the program. Where it cannot work it does nothing and says nothing. So this file must parse in any
Python, even in Python 2.

One thing it gives back: `export PYTHONPATH=$PYTHONPATH:third_party`, where the variable was unset,
puts the working directory on `sys.path` by its empty entry. Our folders take that entry's place.
"""

import sys


def _leave_the_path(folder):  # type: (str) -> None
    import os

    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != folder]
    sys.path_importer_cache.pop(folder, None)


def _add_the_empty_entry(folder):  # type: (str) -> None
    """Append the working directory to `sys.path`, where it can hide nothing, if a program has
    extended a `PYTHONPATH` that was unset or empty before we set it.

    Then it holds our two folders side by side, `folder` and that of `supervise_worker`
    (`supervisor.engines.starting`), and others; a value that we were given stands between them.
    """
    import os

    package = os.path.dirname(os.path.dirname(folder))
    ours = [folder, os.path.join(package, "protocol", "worker_path")]
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if len(entries) > len(ours) and folder in entries:
        at = entries.index(folder)
        here = os.getcwd()
        if entries[at : at + len(ours)] == ours and here not in sys.path:
            sys.path.append(here)


def _is_helper(words):  # type: (list[str]) -> bool
    """Whether the command line `words` is of a tool that installs or supervises, or of a program
    that has the bootstrap."""
    import os

    tools = ("pip", "pipx", "uv", "uvx", "venv", "ensurepip", "compileall", "virtualenv")
    ours = ("supervise", "supervisor")
    before = ""
    for word in words[1:]:
        if word.startswith("-m") and word != "-m":  # python -mpip
            return word[2:].split(".")[0] in ours + tools
        if word.startswith("-") or before in ("-W", "-X"):
            before = word
            continue
        if before == "-m":
            name = word.split(".")[0]
        else:
            name = os.path.basename(word).rstrip("0123456789.")
        is_started = word.endswith(os.path.join("bootstrap", "start.py"))
        return is_started or name in ours or name in tools
    return False


def _report(bootstrap):  # type: (str) -> None
    """Report from now on what this process writes; `bootstrap` is our package's folder."""
    import os

    is_known = (3, 11) <= sys.version_info[:2] <= (3, 13) and sys.implementation.name == "cpython"
    if not is_known or "SUPERVISE_PROGRESS_PIPE" not in os.environ:
        return
    if "_supervise" in sys.modules or _is_helper(sys.orig_argv):
        return
    package = type(sys)("_supervise")
    package.__path__ = [os.path.dirname(bootstrap)]
    sys.modules["_supervise"] = package
    try:
        reports = __import__("_supervise.bootstrap.reports", fromlist=["reports"])
        reports.report_written_paths(bootstrap)
    except Exception:
        for name in [name for name in sys.modules if name.partition(".")[0] == "_supervise"]:
            del sys.modules[name]


def _begin():  # type: () -> None
    import os

    folder = os.path.dirname(os.path.abspath(__file__))
    try:  # noqa: SIM105 (contextlib costs time)
        _report(os.path.dirname(folder))
    except Exception:  # the program runs as if this file were not there
        pass
    _leave_the_path(folder)
    try:  # noqa: SIM105
        _add_the_empty_entry(folder)
    except Exception:  # such as a working directory that is gone
        pass
    ours = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")  # the one that this file hides
    except ImportError as error:
        # `site` says nothing if there is none; Python 2 does not name the module.
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


_begin()
