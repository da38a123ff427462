"""Guards that nothing is removed but through `supervisor.protocol.removal`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from supervisor.protocol.removal import Place
from tests.foreign import SAMPLES

from .test_layers import MODULES, ROOT

_REMOVES = {"unlink", "rmtree", "rmdir", "removedirs", "delete", "rm", "rm_file", "delete_steps"}
_OF_OS = {"remove", "removedirs", "rename", "renames"}
_MAY = {
    "supervisor/host/cgroups.py",  # the kernel's folders, by the name of a run, and empty
    "supervisor/protocol/removal.py",
    "supervisor/adapters/stores/bucket.py",  # the client, whose `delete` removal calls
    "trainer/bucket_paths.py",  # the same for the trainer
}


def removals(source: str) -> Iterator[str]:
    """What `source` calls that removes something, or moves it away."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, owner = node.func.attr, node.func.value
        of_os = isinstance(owner, ast.Name) and owner.id == "os" and name in _OF_OS
        if name in _REMOVES or of_os or (name == "rename" and len(node.args) == 1):
            yield f"line {node.lineno}: {ast.unparse(node.func)}"


@pytest.mark.parametrize("path", [path for path in MODULES if path not in _MAY])
def test_nothing_is_removed_elsewhere(path: str) -> None:
    assert list(removals((ROOT / path).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "line",
    [
        "path.unlink(missing_ok=True)",
        "shutil.rmtree(path)",
        "os.remove(path)",
        "self._objects.delete(name)",
        "path.rename(other)",
        "store.rm(path, recursive=True)",
    ],
)
def test_a_removal_is_seen(line: str) -> None:
    assert len(list(removals(line))) == 1


def test_names_are_no_removals() -> None:
    assert list(removals("found.remove(item); text.replace('a', 'b')")) == []


@pytest.mark.parametrize("place", Place, ids=lambda place: place.name)
def test_each_place_is_used_and_in_the_property_test(place: Place) -> None:
    assert any(f"Place.{place.name}" in (ROOT / path).read_text() for path in MODULES)
    assert place.claims(SAMPLES.get(place, "")), "tests/foreign.py needs a name of each place"
    assert place.value.what
    assert place.value.proof
