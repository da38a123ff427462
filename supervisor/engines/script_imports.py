"""Reads which packages a Python script imports, from its source, without running it."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from supervisor.protocol.reading import UnreadableError, open_file

_MAX_SCRIPT = 1 << 20
_OURS = "{}.{}".format(*sys.version_info)
_EXPECTED = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
"""Errors whose handler makes an import optional."""


class UnreadScriptError(Exception):
    """A script cannot be read; the text continues the sentence that begins with its path."""


def read_script(path: Path) -> ast.Module | None:
    """Returns the syntax tree of the script at `path`; None: `parsed_script` refuses it."""
    try:
        return parsed_script(path)
    except UnreadScriptError:
        return None


def parsed_script(path: Path) -> ast.Module:
    """Returns the syntax tree of the script at `path`.

    Raises:
        UnreadScriptError: it cannot be read, is larger than 1 MiB, or is not Python of our version.
    """
    try:
        with open_file(path, linked=True) as file:
            text = file.read(_MAX_SCRIPT + 1)
    except UnreadableError as error:
        raise UnreadScriptError(error.why) from error
    except OSError as error:
        raise UnreadScriptError(f"cannot be read: {error.strerror}") from error
    if len(text) > _MAX_SCRIPT:
        raise UnreadScriptError(f"has more than {_MAX_SCRIPT >> 20} MiB")
    try:
        with warnings.catch_warnings():  # of an invalid escape in the script
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        line = "" if error.lineno is None else f" (line {error.lineno})"
        raise UnreadScriptError(f"is not Python {_OURS}: {error.msg}{line}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadScriptError(f"is not Python {_OURS} that can be parsed") from error


def imported_packages(tree: ast.AST) -> Iterator[str]:
    """Yields the top-level names of all packages that `tree` imports anywhere."""
    for node in ast.walk(tree):
        yield from _packages(node)


def required_packages(tree: ast.Module) -> set[str]:
    """Returns the packages that the script cannot do without: imports that run when it starts, and
    that no handler of an ImportError makes optional."""
    return set(_required(tree.body))


def _required(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Try):
            if not any(map(_expects_import_error, node.handlers)):
                yield from _required(node.body)
        elif isinstance(node, ast.With):
            yield from _required(node.body)
        else:
            yield from _packages(node)


def _packages(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
        yield node.module.partition(".")[0]


def _expects_import_error(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in _EXPECTED for kind in kinds)
