"""Looks whether the reward function of a config is there, in the source of its module: nothing of
it is imported or run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path

from supervisor.config.training.pretrained import read_linked

_LARGEST = 1 << 20
"""The most bytes of a module that is looked at."""
_MAKE_NAMES = frozenset({"globals", "vars", "locals", "exec", "setattr", "__getattr__", "modules"})
"""What may give a module names that its source does not show."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def why_missing(name: str) -> str | None:
    """Returns why there is no function `name`, `module:function`; None: there may be one."""
    module, _, path = name.partition(":")
    package, here = module.partition(".")[0], str(Path.cwd())
    if package in sys.builtin_module_names:
        return None
    spec = PathFinder.find_spec(package, [*sys.path, here])
    if spec is None:
        return (
            f"names the module {package!r}, which is neither installed nor in {here}, where the "
            f"job is started: put {package}.py there"
        )
    file = _source(module, spec)
    return None if file is None else _why_not_in(file, path.partition(".")[0])


def _source(module: str, package: ModuleSpec) -> Path | None:
    """Returns the source file of `module`, which is `package` or below it; None: not known."""
    spec: ModuleSpec | None = package
    for part in module.split(".")[1:]:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # By its last name alone: with dots it would be looked for in the package as imported.
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    if spec is None or spec.origin is None or not isinstance(spec.loader, SourceFileLoader):
        return None
    return Path(spec.origin)


def _why_not_in(file: Path, name: str) -> str | None:
    """Returns why the module in `file` has no `name`; None: it may have one."""
    try:
        tree = ast.parse(read_linked(file, _LARGEST))
    except SyntaxError as error:
        line = "" if error.lineno is None else f":{error.lineno}"
        return f"names a module that is no Python ({file}{line}: {error.msg}): mend it"
    except (OSError, ValueError, RecursionError, MemoryError):
        return None
    if name in _names(tree) or any(map(_may_make_names, ast.walk(tree))):
        return None
    return f"names {name!r}, which {file} does not define: define it there, or correct the name"


def _names(tree: ast.Module) -> set[str]:
    """Returns the names that the statements of a module give it, wherever they stand but in
    functions and classes."""
    names, todo = set[str](), list[ast.AST](tree.body)
    while todo:
        node = todo.pop()
        names |= set(_names_of(node))
        if not isinstance(node, _SCOPES):
            todo += ast.iter_child_nodes(node)
    return names


def _names_of(node: ast.AST) -> Iterator[str]:
    """Yields the names that `node` itself gives."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.alias(name=name, asname=given):
            yield given or name.partition(".")[0]
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name


def _may_make_names(node: ast.AST) -> bool:
    match node:
        case ast.alias(name="*") | ast.Global():
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name):
            return name in _MAKE_NAMES
    return False
