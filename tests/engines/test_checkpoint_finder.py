"""The finder on real directories: what is new, whose it is, and where it ends."""

from __future__ import annotations

import json
import math
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from supervisor.engines.checkpoint_finder import CheckpointFinder
from supervisor.engines.checkpoint_search import Wanted, search_for
from supervisor.engines.checkpoint_source import steps_in
from supervisor.engines.handles import BegunAgain, FoundPlace
from supervisor.protocol.committed import MARKER, METADATA
from supervisor.protocol.epochs import SavedStep
from tests.running import eventually

OLD = 1_600_000_000.0
"""A Unix time long before any attempt."""


def commit(directory: Path, step: int | str, at: float | None = None) -> None:
    checkpoint = directory / str(step)
    checkpoint.mkdir(parents=True)
    told = {"commit_timestamp_nsecs": int((at or time.time()) * 1e9)}
    (checkpoint / METADATA).write_text(json.dumps(told))


def mark(directory: Path, step: int, ago: float = 0.0) -> None:
    """Commits a step whose files alone tell the time."""
    checkpoint = directory / str(step)
    checkpoint.mkdir(parents=True)
    (checkpoint / MARKER).touch()
    at = time.time() - ago
    for each in (checkpoint / MARKER, checkpoint):
        os.utime(each, (at, at))


class Watched:
    """See `handles.Watch`."""

    def __init__(self, place: Path, places: list[Path]) -> None:
        self.has_new_checkpoint = False
        self.is_stopped = False
        places.append(place)

    def poll_now(self) -> None:
        """See `handles.Watch`."""

    def stop(self) -> None:
        """See `handles.Watch`."""
        self.is_stopped = True

    def last_lower(self, *, closed: bool) -> tuple[SavedStep, ...]:
        """See `handles.Watch`."""
        return ()


class Bench:
    """An attempt of a program in `here`, its model_dir `here/run`."""

    def __init__(
        self, here: Path, *argv: str, pids: tuple[int, ...] = (), known: str = "run/checkpoints"
    ) -> None:
        self.here = here
        self.found: list[tuple[Path, tuple[int, ...]]] = []
        self.others: list[tuple[Path, Mapping[Path, int]]] = []
        self.watched: list[Path] = []
        model_dir = here / "run"
        words = ("sh", *argv)
        wanted = Wanted(
            here / known, model_dir, words, {}, (), False, None, lambda: pids, lambda: pids
        )
        search = search_for(wanted, here, (), time.time())
        self.finder = CheckpointFinder(
            search,
            lambda place, names, closed: steps_in(place, lambda: pids, names, closed),
            lambda place, names: Watched(place, self.watched),
            lambda place, names: Watched(place, self.watched),
            self._on_found,
            lambda directory, others: self.others.append((directory, others)),
        )

    def _on_found(self, place: FoundPlace) -> None:
        self.found.append((place.directory, tuple(step.number for step in place.steps)))
        self.is_resumed, self.again = place.is_resumed, place.again

    def has_seen(self, place: Path, step: int) -> bool:
        """Whether `step` is the newest one that the finder knows in another directory."""
        return self.finder._others.get(place) == step

    def ends(self) -> Path | None:
        """The attempt is over; returns what was found."""
        self.finder.stop()
        return self.finder.last_look(closed=False)


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def begin(*argv: str, **wanted: Any) -> Bench:
        benches.append(Bench(tmp_path, *argv, **wanted))
        return benches[-1]

    yield begin
    for each in benches:
        each.finder.stop()


Attempt = Callable[..., Bench]


@pytest.mark.parametrize("place", ["out/checkpoints/actor", "out", "run/x/checkpoints"])
def test_a_new_step_in_a_place_of_the_job_is_found(
    attempt: Attempt, tmp_path: Path, place: str
) -> None:
    bench = attempt("train.py", "--workdir=out")
    commit(tmp_path / place, 5)
    assert bench.ends() == tmp_path / place
    assert bench.found == [(tmp_path / place, (5,))]


@pytest.mark.parametrize(("there", "is_resumed"), [(None, False), (3, True), (9, False)])
def test_whether_the_attempt_goes_on_where_steps_were_is_told(
    attempt: Attempt, tmp_path: Path, there: int | None, is_resumed: bool
) -> None:
    if there is not None:
        commit(tmp_path / "out", there, OLD)
    bench = attempt("train.py", "--workdir=out")
    commit(tmp_path / "out", 5)
    assert bench.ends() == tmp_path / "out"
    assert bench.is_resumed is is_resumed


def test_what_a_process_reports_is_found_while_it_runs(attempt: Attempt, tmp_path: Path) -> None:
    bench = attempt("train.py")
    commit(tmp_path / "elsewhere", 5)
    bench.finder.note_written(str(tmp_path / "elsewhere" / "5"))
    assert eventually(lambda: bench.watched[1:] == [tmp_path / "elsewhere"])
    assert bench.finder.has_new_checkpoint
    assert bench.ends() == tmp_path / "elsewhere"
    assert bench.found == [(tmp_path / "elsewhere", (5,))]


def test_a_folder_that_a_process_makes_is_its_own(attempt: Attempt, tmp_path: Path) -> None:
    """But not the working directory, in which others save too."""
    bench = attempt("train.py")
    for made in (tmp_path, tmp_path / "models"):
        bench.finder.note_written(str(made))
    commit(tmp_path, 4)
    commit(tmp_path / "models", 5)
    assert eventually(lambda: bench.watched[1:] == [tmp_path / "models"])
    assert bench.ends() == tmp_path / "models"


def test_who_writes_inside_a_step_of_another_job_does_not_save_there(
    attempt: Attempt, tmp_path: Path
) -> None:
    out = tmp_path / "theirs"
    bench = attempt("train.py")
    commit(out, "step_7")
    for inside in ("eval", "eval/x_1.json"):
        bench.finder.note_written(str(out / "step_7" / inside))
    commit(out, "step_8")
    assert bench.ends() is None


def test_who_writes_inside_a_step_that_is_not_committed_saves_there(
    attempt: Attempt, tmp_path: Path
) -> None:
    out = tmp_path / "ours"
    (out / "step_7").mkdir(parents=True)
    bench = attempt("train.py")
    bench.finder.note_written(str(out / "step_7" / "array_1"))
    assert eventually(lambda: (out, "step_#") in bench.finder._written)
    commit(out, "step_8")
    assert bench.ends() == out


def test_who_has_just_begun_to_save_in_a_folder_that_a_process_makes_is_another_job(
    attempt: Attempt, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    commit(out, "seed2_step_10")
    bench = attempt("train.py")
    at = bench.finder._search.began - 0.5
    os.utime(out / "seed2_step_10", (at, at))
    bench.finder.note_written(str(out))
    assert eventually(lambda: out in bench.finder._places)
    commit(out, "seed2_step_20")
    assert bench.ends() is None
    bench.finder.note_written(str(out / "seed1_step_5"))
    commit(out, "seed1_step_5")
    assert bench.ends() == out


def test_a_folder_that_is_named_needs_no_search_of_all_folders(
    attempt: Attempt, tmp_path: Path
) -> None:
    bench = attempt("train.py", "--workdir", "out")
    assert eventually(lambda: bench.finder._has_walked)
    bench.finder._walk_at = math.inf
    commit(tmp_path / "out", 5)
    assert eventually(lambda: bench.watched[1:] == [tmp_path / "out"])


def test_what_a_process_has_open_is_found(attempt: Attempt, tmp_path: Path) -> None:
    written = tmp_path / "elsewhere" / "5.orbax-checkpoint-tmp" / "array"
    written.parent.mkdir(parents=True)
    with written.open("w"):
        attempt_of_this_process = attempt("train.py", pids=(os.getpid(),))
        finder = attempt_of_this_process.finder
        assert eventually(lambda: (tmp_path / "elsewhere", "#") in finder._written)
    commit(tmp_path / "elsewhere", 5)
    assert attempt_of_this_process.ends() == tmp_path / "elsewhere"


def test_what_was_seen_before_the_attempt_told_its_names_is_forgotten(
    attempt: Attempt, tmp_path: Path
) -> None:
    """Another job saves in the same folder."""
    commit(tmp_path / "run" / "checkpoints", 90, OLD)  # so that nothing else counts at once
    out = tmp_path / "out"
    commit(out, "seed2_step_10", OLD)
    bench = attempt("train.py", "--workdir", "out")
    commit(out, "seed2_step_20")
    assert eventually(lambda: bench.finder._others == {out: 20})
    bench.finder.note_written(str(out / "seed1_step_5"))
    commit(out, "seed1_step_5")
    assert bench.ends() == out
    assert bench.found == [(out, (5,))]
    assert not bench.is_resumed


def test_a_base_model_that_is_only_read_is_no_progress(attempt: Attempt, tmp_path: Path) -> None:
    commit(tmp_path / "base", 900, OLD)
    bench = attempt("train.py", "--base", "base")
    assert bench.ends() is None


def test_a_copy_of_an_old_step_is_no_progress(attempt: Attempt, tmp_path: Path) -> None:
    bench = attempt("train.py", "--workdir", "out")
    commit(tmp_path / "out", 900, OLD)
    bench.finder.note_written(str(tmp_path / "out" / "900"))
    assert bench.ends() is None


def test_a_folder_that_somebody_moved_just_before_is_no_progress(
    attempt: Attempt, tmp_path: Path
) -> None:
    """Checkpoints that are taken away from a job keep the times at which it committed them."""
    commit(tmp_path / "run" / "taken-away", 4, time.time() - 0.2)
    bench = attempt("train.py")
    assert bench.ends() is None


def test_new_steps_below_an_old_one_are_told_after_it(attempt: Attempt, tmp_path: Path) -> None:
    """So that the core can tell that the old one is a base model's, or another run's."""
    commit(tmp_path / "out", 900, OLD)
    bench = attempt("train.py", "--workdir", "out")
    commit(tmp_path / "out", 5)
    assert bench.ends() == tmp_path / "out"
    assert bench.found == [(tmp_path / "out", (900, 5))]


def test_an_old_step_above_new_ones_replaces_nothing(attempt: Attempt, tmp_path: Path) -> None:
    commit(tmp_path / "run" / "checkpoints", 700, OLD)
    commit(tmp_path / "out", 900, OLD)
    bench = attempt("train.py", "--workdir", "out")
    commit(tmp_path / "out", 5)
    assert bench.ends() is None


def test_a_base_model_that_is_copied_gives_way_to_lower_steps(
    attempt: Attempt, tmp_path: Path
) -> None:
    base, own = tmp_path / "out" / "base", tmp_path / "out" / "checkpoints"
    bench = attempt("train.py")
    mark(base, 50000)
    bench.finder.note_written(str(base / "50000"))
    assert eventually(lambda: bench.watched[1:] == [base])
    mark(own, 100)
    bench.finder.note_written(str(own / "100"))
    assert bench.ends() == own
    assert bench.found == [(base, (50000,)), (own, (100,))]


def test_of_a_base_model_and_a_lower_step_in_one_look_the_lower_one_is_taken(
    attempt: Attempt, tmp_path: Path
) -> None:
    bench = attempt("train.py", "--workdir", "out")
    bench.finder.stop()
    bench.finder._thread.join()  # so that one look sees both
    mark(tmp_path / "out" / "actor", 50000)
    mark(tmp_path / "out" / "checkpoints", 100)
    assert bench.ends() == tmp_path / "out" / "checkpoints"


def test_a_directory_whose_steps_rise_takes_the_place_of_one_that_has_one(
    attempt: Attempt, tmp_path: Path
) -> None:
    bench = attempt("train.py")
    places = bench.finder._places
    for place, step in (("base", 3), ("own", 100)):
        mark(tmp_path / place, step)
        bench.finder.note_written(str(tmp_path / place / str(step)))
        assert eventually(partial(places.__contains__, tmp_path / place))
    assert eventually(lambda: places[tmp_path / "own"].newest == 100)
    mark(tmp_path / "own", 200)
    assert bench.ends() == tmp_path / "own"
    assert bench.found == [(tmp_path / "base", (3,)), (tmp_path / "own", (200,))]


def test_a_base_model_that_is_copied_again_does_not_end_the_search(
    attempt: Attempt, tmp_path: Path
) -> None:
    """As where each attempt begins with a copy: the directory that is known is the base model's."""
    base = tmp_path / "run" / "checkpoints"
    mark(base, 50000, ago=3600.0)
    bench = attempt("train.py", "--workdir", "out")
    (base / "50000" / MARKER).touch()
    mark(tmp_path / "out", 100)
    assert bench.ends() == tmp_path / "out"


def test_other_directories_are_told_once_it_is_known_which_one_counts(
    attempt: Attempt, tmp_path: Path
) -> None:
    bench = attempt("train.py", "--workdir", "out")
    actor, critic = (tmp_path / "out" / "checkpoints" / name for name in ("actor", "critic"))
    places = bench.finder._places
    for step in (5, 10):
        for place in (actor, critic):
            mark(place, step)
            bench.finder.note_written(str(place / str(step)))
        assert eventually(lambda: bench.watched[1:] == [actor])
        assert eventually(lambda: critic in places and places[critic].newest is not None)
    assert bench.ends() == actor
    assert [directory for directory, _ in bench.others] == [actor]
    assert bench.others[0][1].keys() == {critic}


def test_a_directory_that_commits_after_it_is_known_which_one_counts_is_told(
    attempt: Attempt, tmp_path: Path
) -> None:
    bench = attempt("train.py")
    often, seldom = tmp_path / "run" / "ema", tmp_path / "run" / "checkpoints"
    mark(often, 20)
    bench.finder.note_written(str(often / "20"))
    assert eventually(lambda: bench.watched[1:] == [often])
    mark(often, 30)
    bench.finder.note_written(str(often / "30"))
    assert eventually(lambda: bench.finder._is_decided)
    mark(seldom, 40)
    bench.finder.note_written(str(seldom / "40"))
    assert eventually(lambda: bench.others == [(often, {seldom: 40})])
    assert bench.found == [(often, (20,))]


def test_a_later_attempt_tells_only_of_directories_that_had_no_steps_before(
    attempt: Attempt, tmp_path: Path
) -> None:
    known, old, new = (tmp_path / "run" / name for name in ("checkpoints", "critic", "ema"))
    for place in (known, old):
        commit(place, 5, OLD)
    bench = attempt("train.py")
    commit(known, 10)
    assert eventually(lambda: bench.finder._is_decided)
    for place in (old, new):
        commit(place, 10)
        bench.finder.note_written(str(place / "10"))
    assert eventually(lambda: bench.others == [(known, {new: 10})])


@pytest.mark.parametrize(("behind", "is_found"), [(30.0, True), (-120.0, True), (86400.0, False)])
def test_what_was_not_there_is_new_although_the_clock_of_the_file_server_differs(
    attempt: Attempt, tmp_path: Path, behind: float, *, is_found: bool
) -> None:
    """But time stamps of yesterday are those of a copy."""
    bench = attempt("train.py", "--workdir", "out")
    assert eventually(lambda: bench.finder._has_walked)
    mark(tmp_path / "out", 5, ago=behind)
    assert bench.ends() == (tmp_path / "out" if is_found else None)


def test_a_step_of_a_wrong_clock_is_no_progress(attempt: Attempt, tmp_path: Path) -> None:
    commit(tmp_path / "out", 900, time.time() + 1e6)
    assert attempt("train.py", "--workdir", "out").ends() is None


def test_steps_beside_the_job_are_not_its_own(attempt: Attempt, tmp_path: Path) -> None:
    bench = attempt("train.py", "--workdir", "out")
    commit(tmp_path / "other" / "checkpoints", 5)
    commit(tmp_path / "checkpoints", 6)
    assert bench.ends() is None


@pytest.mark.parametrize(
    ("name", "is_found"),
    [("0399.pkl", False), ("params_{now}.pkl", False), ("params_400.pkl", True)],
)
def test_numbered_data_and_times_are_no_steps(
    attempt: Attempt, tmp_path: Path, name: str, is_found: bool
) -> None:
    bench = attempt("train.py", "--out", "out")
    bench.finder.stop()
    bench.finder._thread.join()  # only the last look sees it, after a clean exit
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name.format(now=int(time.time()))).write_bytes(pickle.dumps("data"))
    found = bench.finder.last_look(closed=True)
    assert found == (tmp_path / "out" if is_found else None)


def test_a_link_to_a_folder_that_everybody_uses_proves_nothing(
    attempt: Attempt, tmp_path: Path
) -> None:
    (tmp_path / "run").symlink_to(tmp_path)  # the model_dir
    bench = attempt("train.py")
    commit(tmp_path / "theirs" / "checkpoints", 5)
    assert bench.ends() is None


def test_the_model_dir_of_another_job_is_never_ours(attempt: Attempt, tmp_path: Path) -> None:
    bench = attempt("train.py", "--workdir", "out")
    for other in (tmp_path / "out" / "checkpoints", tmp_path / "run" / "inner"):
        commit(other / "checkpoints", 5)
        (other / "journal.jsonl").touch()
        bench.finder.note_written(str(other / "checkpoints" / "5"))
    assert bench.ends() is None


def test_in_the_working_directory_the_kind_of_name_decides(
    attempt: Attempt, tmp_path: Path
) -> None:
    bench = attempt("train.py")
    commit(tmp_path, "theirs_7")
    bench.finder.note_written(str(tmp_path / "ours_3"))
    assert bench.ends() is None
    again = attempt("train.py")
    commit(tmp_path, "ours_8")
    again.finder.note_written(str(tmp_path / "ours_8"))
    assert again.ends() == tmp_path


def test_a_new_step_in_the_known_directory_ends_the_search(
    attempt: Attempt, tmp_path: Path
) -> None:
    bench = attempt("train.py", "--workdir", "out")
    bench.finder.stop()
    bench.finder._thread.join()  # a look between the two commits may take the second for the first
    commit(tmp_path / "run" / "checkpoints", 5)
    commit(tmp_path / "out", 6)
    assert bench.ends() is None
    assert bench.watched == [tmp_path / "run" / "checkpoints"]


def test_a_program_that_moves_on_is_followed(attempt: Attempt, tmp_path: Path) -> None:
    """As with a new folder for each start, where the last one's steps were restored."""
    commit(tmp_path / "run" / "checkpoints", 5, OLD)
    bench = attempt("train.py", "--workdir", "out")
    commit(tmp_path / "out" / "version_1", 6)
    assert bench.ends() == tmp_path / "out" / "version_1"


@pytest.mark.parametrize(
    ("known", "other", "steps", "is_again"),
    [
        ("runs/version_0", "runs/version_1", [2], True),
        ("runs/version_0", "runs/version_1", [2, 4, 8], True),
        ("runs/version_0", "runs/version_1", [6], False),
        ("runs/last", "runs/best", [2], False),
        ("runs/fold_0", "runs/fold_1", [2], False),
    ],
)
def test_a_program_that_begins_again_in_a_folder_of_each_start_is_told_from_one_that_goes_on(
    attempt: Attempt, tmp_path: Path, known: str, other: str, steps: list[int], *, is_again: bool
) -> None:
    last, place = tmp_path / known, tmp_path / other
    commit(last, 5, OLD)
    bench = attempt("train.py", "--workdir", "runs", known=known)
    for step in steps:
        commit(place, step)
        bench.finder.note_written(str(place / str(step)))
        assert eventually(partial(bench.has_seen, place, step))
    assert bench.ends() == place
    assert bench.again == (BegunAgain(2, last, 5) if is_again else None)


def test_steps_that_are_copied_into_a_new_folder_were_restored(
    attempt: Attempt, tmp_path: Path
) -> None:
    last, place = tmp_path / "runs" / "version_0", tmp_path / "runs" / "version_1"
    for step in (5, 10):
        commit(last, step, OLD)
    bench = attempt("train.py", "--workdir", "runs", known="runs/version_0")
    bench.finder.stop()
    bench.finder._thread.join()  # so that one look sees both
    for step in (5, 10):
        commit(place, step)
    assert bench.ends() == place
    assert bench.again is None


def test_of_several_the_first_by_name_is_taken(attempt: Attempt, tmp_path: Path) -> None:
    bench = attempt("train.py", "--workdir", "out")
    bench.finder.stop()
    bench.finder._thread.join()  # so that one look sees both
    for name in ("critic", "actor"):
        commit(tmp_path / "out" / "checkpoints" / name, 5)
    assert bench.ends() == tmp_path / "out" / "checkpoints" / "actor"


def test_a_link_that_cannot_be_read_does_not_end_the_search(
    attempt: Attempt, tmp_path: Path, unreadable_link: Path
) -> None:
    """As /proc/1/fd/1, to which programs in a container write: its name is a number, too."""
    (tmp_path / "logs").symlink_to(unreadable_link)
    bench = attempt("train.py", f"--logs={tmp_path / 'logs'}")
    bench.finder.note_written(str(tmp_path / "logs" / "1"))
    bench.finder.note_written(str(unreadable_link / "1"))
    commit(tmp_path / "elsewhere", 5)
    bench.finder.note_written(str(tmp_path / "elsewhere" / "5"))
    assert bench.ends() == tmp_path / "elsewhere"
