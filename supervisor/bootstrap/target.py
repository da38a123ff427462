"""Finds the program that the interpreter would have run, and sets `sys` and `__main__` for it."""

from __future__ import annotations

import os
import sys

from .buffering import write_by_lines
from .fatal_exceptions import FatalErrorRecorder
from .worker import STANDBY, SupervisedWorker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_OF_EVERY_MAIN = (
    "__name__",
    "__doc__",
    "__package__",
    "__loader__",
    "__spec__",
    "__annotations__",
    "__builtins__",
)


class Program:
    """A program about to run: `function(*arguments())`, inside `ending`."""

    ending: FatalErrorRecorder

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Callable[[], tuple[Any, ...]],
        main: dict[str, Any],
        argv: list[str],
        path: list[str],
    ) -> None:
        """The program gets `argv` and `path` in `sys`, and in `__main__` the usual names of a main
        module and those in `main`.
        """
        self.function = function
        self.arguments = arguments
        self._main = main
        self._argv = argv
        self._path = path

    def set_sys(self, start: str) -> None:
        """Set `sys` as if the file `start` had not been run. The command line may name it by a
        relative path."""
        this = os.path.abspath(start)
        word = next(word for word in sys.orig_argv if os.path.abspath(word) == this)
        sys.path_importer_cache.pop(word, None)
        sys.path[:] = self._path
        sys.argv[:] = self._argv
        sys.orig_argv.remove(word)

    def clear_main(self) -> None:
        """Reset `__main__` to what it is before the first line of a program."""
        namespace = _main_namespace()
        for name in [name for name in namespace if name not in _OF_EVERY_MAIN]:
            del namespace[name]
        namespace["__doc__"] = None
        namespace.update(self._main)


def prepare(start: str) -> Program | None:
    """Returns the program that this interpreter, started on the file `start`, was meant to run.

    None: the interpreter has to run it by itself, without the bootstrap.
    """
    clean_path = sys.path[:] if sys.flags.safe_path else sys.path[1:]
    sys.path[:] = clean_path
    if STANDBY in os.environ:
        from .preload import stand_by

        stand_by(start)
    program = _find(sys.argv[1:], clean_path)
    if program is not None:
        program.set_sys(start)
        write_by_lines()
        worker = SupervisedWorker(os.path.dirname(start), clean_path)
        worker.begin()
        worker.watch_written_paths()
        program.ending = FatalErrorRecorder(worker)
    return program


def _find(argv: list[str], path: list[str]) -> Program | None:
    for option, find in (("-c", _code), ("-m", _module)):
        if argv[0].startswith(option):
            attached = argv[0][2:]
            text, rest = (attached, argv[1:]) if attached else (argv[1], argv[2:])
            return find(text, [option, *rest], path)
    return _file(argv, path)


def _code(text: str, argv: list[str], path: list[str]) -> Program:
    if not sys.flags.safe_path:
        path = ["", *path]
    return Program(exec, lambda: _compiled_text(text), _main_of_no_file(), argv, path)


def _module(name: str, argv: list[str], path: list[str]) -> Program:
    if not sys.flags.safe_path:
        path = [os.getcwd(), *path]
    return Program(_run_module(), lambda: (name,), _main_of_no_file(), argv, path)


def _file(argv: list[str], path: list[str]) -> Program | None:
    given = argv[0]
    filename = given if given.startswith("/") else f"{os.getcwd()}/{given}"
    if _holds_modules(filename):
        path = [filename, *path]
        arguments = ("__main__", False)
        return Program(_run_module(), lambda: arguments, _main_of_no_file(), argv, path)
    if not os.path.isfile(filename):
        return None
    try:
        with open(filename, "rb") as file:
            source = file.read()
    except OSError:
        return None
    if b"\0" in source:
        return None  # a compiled file, or an error that the interpreter reports otherwise
    main: dict[str, Any] = _main_namespace()
    loader = type(main["__loader__"])("__main__", filename)
    main = {"__loader__": loader, "__file__": filename, "__cached__": None}
    if not sys.flags.safe_path:
        path = [os.path.dirname(os.path.realpath(filename)), *path]
    return Program(exec, lambda: _compiled(source, filename), main, argv, path)


def _run_module() -> Callable[..., Any]:
    import runpy

    function: Callable[..., Any] = runpy._run_module_as_main  # type: ignore[attr-defined]
    return function


def _holds_modules(filename: str) -> bool:
    """Whether modules can be imported from `filename`: a directory or an archive, not a script."""
    for hook in sys.path_hooks:
        try:
            sys.path_importer_cache[filename] = hook(filename)
        except ImportError:
            continue
        return True
    sys.path_importer_cache[filename] = None
    return False


def _compiled_text(text: str) -> tuple[Any, dict[str, Any]]:
    code, namespace = _compiled(text, "<string>")
    if sys.version_info >= (3, 13):  # from then on tracebacks show the lines
        import linecache

        key = code if hasattr(linecache, "_interactive_cache") else "<string>"
        linecache._register_code(key, text, "<string>")  # type: ignore[attr-defined]
    return code, namespace


def _compiled(source: str | bytes, filename: str) -> tuple[Any, dict[str, Any]]:
    return compile(source, filename, "exec", dont_inherit=True), _main_namespace()


def _main_namespace() -> dict[str, Any]:
    return sys.modules["__main__"].__dict__


def _main_of_no_file() -> dict[str, Any]:
    return {"__loader__": sys.modules["_frozen_importlib"].BuiltinImporter}
