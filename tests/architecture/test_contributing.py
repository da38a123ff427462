"""CONTRIBUTING.md names files, and what is in them: all of it is there, and nothing is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from supervisor.core.events import Event

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:supervisor|tests|docs)/[\w./]+)(?::(\w+))?`", TEXT)))


def defined(path: Path) -> set[str]:
    """The functions, methods, classes and variables of a module."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                found.add(name)
    return found


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_what_contributing_names_is_there(path: str, name: str) -> None:
    assert (ROOT / path).exists()
    assert not name or name in defined(ROOT / path)


def section(title: str) -> str:
    """The text below a heading."""
    return re.split(r"^#+ ", TEXT.partition(f"# {title}\n")[2], maxsplit=1, flags=re.M)[0]


def test_every_room_is_in_the_table() -> None:
    rooms = {
        f"supervisor/{path.name}"
        for path in (ROOT / "supervisor").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    named = set(re.findall(r"`(supervisor/[\w.]+)`", section("The shape")))
    assert rooms - named == {"supervisor/__init__.py", "supervisor/__main__.py"}


def test_all_that_an_engine_is_asked_and_tells_is_named() -> None:
    tree = ast.parse((ROOT / "supervisor/engines/engine.py").read_text(encoding="utf-8"))
    (engine,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    members = {node.name for node in engine.body if isinstance(node, ast.FunctionDef)}
    text = section("An engine")
    asked = re.findall(r"`(\w+)`", text.partition("Its members: ")[2].partition(".")[0])
    assert set(asked) == members
    told = re.findall(r"`(\w+)`", text.partition("says by events:")[2].partition(".")[0])
    assert set(told) == posted()


def posted() -> set[str]:
    """The events that are made in `supervisor/engines`."""
    names = {event.__name__ for event in get_args(Event)}
    return {
        node.func.id
        for path in (ROOT / "supervisor/engines").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    }


def test_the_files_of_each_feature_are_in_the_core() -> None:
    rows = re.findall(r"^\| (?:a rank|regrow|an announced|the disk).*\| (.*) \|$", TEXT, re.M)
    assert len(rows) == 4
    for row in rows:
        files = re.findall(r"`(\w+\.py)`", row)
        assert len(files) <= 6
        assert all((ROOT / "supervisor" / "core" / file).is_file() for file in files)


def test_every_other_name_in_it_is_one_of_the_code() -> None:
    words = set[str]()
    for folder in ("supervisor", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            if path != Path(__file__):
                words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    named = {
        name
        for name in re.findall(r"`(\w+)`", TEXT + GLOSSARY)
        if not name.islower() or "_" in name
    }
    assert named - words == set()
