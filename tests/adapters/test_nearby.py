"""The look around for checkpoints costs little, whatever is around."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.stores import nearby
from supervisor.adapters.stores.nearby import found_nearby


def test_no_more_entries_are_listed_than_the_bound_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for number in range(60):
            (tmp_path / folder / f".hidden{number}").touch()
    listed: list[str] = []
    scandir = os.scandir

    def noted(entry: os.DirEntry[str]) -> os.DirEntry[str]:
        listed.append(entry.name)
        return entry

    @contextmanager
    def counting(path: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scandir(path) as listing:
            yield map(noted, listing)

    monkeypatch.setattr(os, "scandir", counting)
    monkeypatch.setattr(nearby, "_MAX_ENTRIES", 100)
    found = found_nearby(None, [tmp_path], 0.0)
    assert found.startswith("nothing like a checkpoint was found below")
    assert found.endswith("set trainer.init.checkpoint.directory if they are elsewhere")
    assert len(listed) == 100


class KindUnknown:
    """An entry of a file system that lists no kinds, and is gone when it is asked for its own."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self._entry = entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        raise OSError(f"Stale file handle, links followed: {follow_symlinks}")


def test_an_entry_that_goes_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ckpt7").touch()
    (tmp_path / "gone").touch()
    scandir = os.scandir

    @contextmanager
    def without_kinds(path: Path) -> Iterator[Iterator[KindUnknown]]:
        with scandir(path) as listing:
            yield map(KindUnknown, listing)

    monkeypatch.setattr(os, "scandir", without_kinds)
    assert found_nearby(None, [tmp_path], 0.0).endswith(
        f"no known checkpoint layout: {tmp_path}/ckpt7"
    )
