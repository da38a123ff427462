"""Which code an acceptance run tests: the checkout's, whose commit the file names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.acceptance import machine
from deploy.acceptance.bench import ROOT, Bench

SHOW = (
    "import supervisor, trainer, json; print(json.dumps([supervisor.__file__, trainer.__file__]))"
)


def test_the_processes_have_the_code_of_the_checkout_and_not_of_an_older_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("supervisor", "trainer"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bench = Bench("cpu", 1)
    bench.begin(60.0)
    try:
        child = bench.start([sys.executable, "-P", "-c", SHOW])
        assert child.wait() == 0, child.text
        found = json.loads(child.text)
    finally:
        bench.close()
    assert [Path(each).parents[1] for each in found] == [ROOT, ROOT]


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def test_a_tree_with_changes_is_told(tmp_path: Path) -> None:
    git(tmp_path, "init")
    code = tmp_path / "code.py"
    code.write_text("1\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-m", "one")
    git(tmp_path, "tag", "-m", "v1", "v1")
    bench = Bench("cpu", 1)
    try:
        clean = machine.facts(bench, tmp_path)["commit"]
        code.write_text("2\n")
        dirty = machine.facts(bench, tmp_path)["commit"]
    finally:
        bench.close()
    assert len(clean) == 12
    assert dirty == f"{clean}-dirty"
