"""The version that a record names is of all the code that decides: else a checkout that decides
otherwise would take records of its own for ones that somebody has changed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from supervisor.history.writer import code_that_decides

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "supervisor").rglob("*.py")
}


def imports(name: str) -> Iterator[str]:
    """The modules that a module names in its imports, and those above them."""
    path = FILES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                above = package[: len(package) + 1 - level] if level else []
                base = ".".join([*above, *([module] if module else [])])
                yield from (base, *(f"{base}.{alias.name}" for alias in names))
    yield ".".join(package)


def test_the_fingerprint_is_of_all_that_decides() -> None:
    pending, found = ["supervisor.core.machine", "supervisor.history.fold"], set[str]()
    while pending:
        name = pending.pop()
        if name in FILES and name not in found:
            found.add(name)
            pending += imports(name)
    decides = {FILES[name] for name in found if FILES[name].read_bytes().strip()}
    missing = decides - {*code_that_decides(), ROOT / "supervisor" / "__init__.py"}
    bare = {path for path in missing if path.name == "__init__.py"}  # that say what a room is
    assert not missing - bare, "add it to supervisor/history/writer.py"
    assert all(is_bare(path) for path in bare)


def is_bare(path: Path) -> bool:
    """Whether a module says no more than its docstring."""
    return all(isinstance(node, ast.Expr) for node in ast.parse(path.read_text()).body)
