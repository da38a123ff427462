"""CONTRIBUTING.md names files, and what is in them: all of it is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
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


def test_the_files_of_each_feature_are_in_the_core() -> None:
    rows = re.findall(r"^\| (?:a rank|regrow|an announced|the disk).*\| (.*) \|$", TEXT, re.M)
    assert len(rows) == 4
    for row in rows:
        files = re.findall(r"`(\w+\.py)`", row)
        assert len(files) <= 6
        assert all((ROOT / "supervisor" / "core" / file).is_file() for file in files)
