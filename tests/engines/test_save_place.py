"""What an attempt has committed in a directory, by the names and time stamps of its steps."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from supervisor.engines.save_place import SavePlace
from supervisor.protocol.committed import MARKER, METADATA, step_entries

SECOND = 1_700_000_000.0
BEGAN = SECOND + 0.25
"""When the attempt began, as a Unix time."""
NOW = BEGAN + 1000.0


class Told(NamedTuple):
    """A commit time in the metadata of a step, whose files are of now."""

    at: float


Steps = Mapping[int, float | Told]
"""The committed steps, with the time of their files, or with the commit time that they tell."""
NEW = BEGAN + 10.0
OLD = BEGAN - 100_000.0


def commit(directory: Path, step: int, at: float | Told) -> Path:
    folder = directory / str(step)
    folder.mkdir()
    if isinstance(at, Told):
        told = {"commit_timestamp_nsecs": int(at.at * 1e9)}
        (folder / METADATA).write_text(json.dumps(told))
        return folder
    (folder / MARKER).touch()
    for each in (folder / MARKER, folder):
        os.utime(each, ns=(int(at * 1e9), int(at * 1e9)))
    return folder


def seen(
    directory: Path, there: set[str], looks: list[Steps], own: set[int] | None = None
) -> SavePlace:
    """What is known after each of `looks` was there, one after the other."""
    place = SavePlace(there, BEGAN)
    for number, steps in enumerate(looks):
        here = directory / str(number)
        here.mkdir()
        paths = {step: commit(here, step, at) for step, at in steps.items()}
        written = [paths[step] for step in own or ()]
        place.look(sorted(paths.items(), reverse=True), written, NOW)
    return place


@pytest.mark.parametrize(
    ("there", "steps", "newest", "before", "rises", "above"),
    [
        (set(), {}, None, None, False, None),
        # A new name: the clock of a file server may differ by ten minutes.
        (set(), {5: NEW}, 5, None, False, None),
        (set(), {5: BEGAN - 599.0}, 5, None, False, None),
        (set(), {5: BEGAN - 601.0}, None, 5, False, None),
        (set(), {5: NOW + 599.0}, 5, None, False, None),
        (set(), {5: NOW + 601.0}, None, 5, False, None),
        # A name that was there: only the rounding of the file system is made good.
        ({"5"}, {5: NEW}, 5, None, False, None),
        ({"5"}, {5: BEGAN - 0.01}, 5, None, False, None),
        ({"5"}, {5: BEGAN - 0.03}, None, 5, False, None),
        ({"5"}, {5: SECOND}, 5, None, False, None),
        ({"5"}, {5: SECOND - 1.0}, None, 5, False, None),
        ({"5"}, {5: NOW + 59.0}, 5, None, False, None),
        ({"5"}, {5: NOW + 61.0}, None, 5, False, None),
        # A commit time that is told is exact, whatever the name: a copy keeps it.
        (set(), {5: Told(NEW)}, 5, None, False, None),
        (set(), {5: Told(BEGAN - 0.01)}, 5, None, False, None),
        (set(), {5: Told(BEGAN - 599.0)}, None, 5, False, None),
        ({"5"}, {5: Told(NEW)}, 5, None, False, None),
        # New ones beside those that were there before.
        ({"5"}, {5: OLD, 7: NEW}, 7, 5, True, None),
        ({"7"}, {5: NEW, 7: OLD}, 5, 7, False, 7),
        ({"3", "9"}, {3: OLD, 5: NEW, 9: OLD}, 5, 9, False, 9),
        ({"8", "9"}, {5: NEW, 8: OLD, 9: OLD}, 5, 9, False, 9),
        # Two that are new at once may be a base model and a save below it.
        (set(), {5: NEW, 7: NEW}, 7, None, False, None),
    ],
)
def test_one_look(
    there: set[str],
    steps: Steps,
    newest: int | None,
    before: int | None,
    rises: bool,
    above: int | None,
    tmp_path: Path,
) -> None:
    place = seen(tmp_path, there, [steps])
    assert (place.newest, place.before, place.rises, place.above) == (newest, before, rises, above)
    assert place.has_steps == bool(steps)


@pytest.mark.parametrize(
    ("looks", "newest", "before", "rises", "above"),
    [
        ([{5: NEW}, {5: NEW, 7: NEW}], 7, None, True, None),
        ([{5: NEW}, {5: NEW}], 5, None, False, None),
        ([{5: NEW}, {}], 5, None, False, None),
        ([{5: NEW}, {5: NEW, 7: NEW}, {5: NEW}], 5, None, True, None),
        # A base model is copied, and stays.
        ([{50000: NEW}, {100: NEW, 50000: NEW}], 50000, None, False, None),
        # It is deleted once there is a save: those that follow rise.
        ([{50000: NEW}, {100: NEW, 50000: NEW}, {100: NEW}], 100, None, False, None),
        ([{50000: NEW}, {100: NEW, 50000: NEW}, {100: NEW}, {200: NEW}], 200, None, True, None),
        ([{50000: NEW}, {100: NEW}, {200: NEW}, {300: NEW}], 300, None, True, None),
        # The attempt saves again the step that was there: no other one is above it.
        ([{5: Told(OLD)}, {5: Told(NEW)}], 5, 5, False, None),
    ],
)
def test_several_looks(
    looks: list[Steps],
    newest: int | None,
    before: int | None,
    rises: bool,
    above: int | None,
    tmp_path: Path,
) -> None:
    place = seen(tmp_path, set(), looks)
    assert (place.newest, place.before, place.rises, place.above) == (newest, before, rises, above)


@pytest.mark.parametrize(
    ("names", "newest", "is_resumed"),
    [
        ({"epoch_3_step_5": NEW, "epoch_2_step_90": OLD}, 5, True),
        ({"epoch_2_step_90": OLD, "epoch_1_step_95": NEW}, 95, False),
        ({"epoch_1_step_200": NEW, "epoch_0_step_100": OLD}, 200, True),
    ],
)
def test_an_attempt_that_saves_in_a_later_epoch_goes_on(
    names: Mapping[str, float], newest: int, *, is_resumed: bool, tmp_path: Path
) -> None:
    for name, at in names.items():
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (at, at))
    place = SavePlace(frozenset(), BEGAN)
    place.look(step_entries(tmp_path), (), NOW)
    assert (place.newest, place.is_resumed, place.rises) == (newest, is_resumed, is_resumed)
    assert (place.above is None) is is_resumed


def test_what_the_attempt_was_seen_to_write_is_new_under_an_old_name(tmp_path: Path) -> None:
    """The file server's clock may be behind."""
    place = seen(tmp_path, {"5", "7"}, [{5: BEGAN - 300.0, 7: BEGAN - 300.0}], own={5})
    assert (place.newest, place.before, place.above) == (5, 7, 7)
