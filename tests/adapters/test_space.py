"""What is deleted to make room, and what never is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path

import pytest

from supervisor.adapters.stores.space import MAX_LOG, Space
from supervisor.config.schema import Limits
from supervisor.core.events import WorkersGone
from supervisor.core.state import JobState
from supervisor.history.past import Past
from supervisor.host.notice import Notice
from supervisor.ports import Transition
from tests.core.history import RETRY
from tests.foreign import fingerprint

FIRST, SECOND = "20260101_000000_restartable", "20260102_000000_restartable"
ROOMY = Limits()


@pytest.fixture
def said() -> list[Notice]:
    return []


@pytest.fixture
def space(tmp_path: Path, said: list[Notice]) -> Space:
    return spaced(tmp_path, said)


def spaced(model_dir: Path, said: list[Notice], *phases: str) -> Space:
    """What can be deleted where the journal has these phases (none given: both)."""
    return Space(model_dir, said.append, lambda: phases or (FIRST, SECOND))


def attempt(model_dir: Path, number: int, phase: str = FIRST, size: int = 10) -> Path:
    """The folder of an attempt that is over, with output and records of so many bytes each."""
    folder = model_dir / phase / "attempts" / f"{number:04d}"
    folder.mkdir(parents=True)
    for name in ("rank0.log", "rank0.failure.json"):
        (folder / name).write_bytes(bytes(size))
    return folder


def failed(number: int, phase: str = FIRST) -> Transition:
    """An attempt failed."""
    gone = WorkersGone(0.0, number, RETRY, None, None, None)
    state = JobState(directory=phase)
    return Transition(gone, state, state, (), datetime(2026, 1, 1, tzinfo=UTC))


@contextmanager
def somebody() -> Iterator[Path]:
    """A folder of ours in which whoever we are meanwhile may look, and nothing else: root, whom no
    mode stops, is nobody meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def without_rights(folder: Path, mode: int) -> Iterator[None]:
    """While `folder` has that mode, as a user whom it stops."""
    user, before = os.geteuid(), folder.stat().st_mode & 0o777
    folder.chmod(mode)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(before)


def past(*transitions: Transition) -> Past:
    """What these leave to know."""
    return reduce(Past.after, transitions, Past())


def outputs(model_dir: Path) -> list[int]:
    """Which attempts still have their output."""
    return sorted(int(path.parent.name) for path in model_dir.glob("*/attempts/*/rank0.log"))


def test_a_full_disk_costs_the_oldest_output_first(
    tmp_path: Path, space: Space, said: list[Notice]
) -> None:
    for number in (10_000, 1_001, 9_999):
        attempt(tmp_path, number)
    running = attempt(tmp_path, 10_001, SECOND)
    space.in_use = lambda: running
    for left in ([9_999, 10_000, 10_001], [10_000, 10_001], [10_001]):
        assert space.delete_oldest_output()
        assert outputs(tmp_path) == left
    assert not space.delete_oldest_output()
    assert said[0].event == "outputs-deleted"
    assert said[0].keys == {"attempt": 1001, "directory": FIRST, "bytes": 10}
    assert len(list(tmp_path.glob("*/attempts/*/rank0.failure.json"))) == 4


def test_an_earlier_phase_is_older_whatever_its_numbers(tmp_path: Path, space: Space) -> None:
    attempt(tmp_path, 7, FIRST)
    attempt(tmp_path, 3, SECOND)
    assert space.delete_oldest_output()
    assert outputs(tmp_path) == [3]


def test_phases_that_the_journal_does_not_have_are_somebody_elses(
    tmp_path: Path, said: list[Notice]
) -> None:
    for number in (1, 2, 3):
        attempt(tmp_path, number, FIRST)  # a colleague's, or an earlier journal's
        attempt(tmp_path, number, SECOND)
    before = fingerprint(tmp_path / FIRST)
    looked_up, told = (spaced(tmp_path, said, SECOND) for _ in range(2))
    told.recall(past(failed(1, SECOND)))
    assert looked_up.delete_oldest_output()
    told.keep_within(limits(outputs=0, records=0))
    while told.delete_oldest_output() or looked_up.delete_oldest_output():
        pass
    assert fingerprint(tmp_path / FIRST) == before
    assert {path.parts[-4] for path in tmp_path.glob("*/*/*/rank0.log")} == {FIRST}


def test_the_last_that_failed_keeps_its_output_on_a_full_disk_as_long_as_there_is_any_other(
    tmp_path: Path, space: Space
) -> None:
    for number in (1, 2, 3, 4):
        attempt(tmp_path, number)
    space.recall(past(failed(2)))
    space.make_room()
    assert outputs(tmp_path) == [2, 4]
    space.make_room()
    assert outputs(tmp_path) == [4]
    assert space.delete_oldest_output()
    assert outputs(tmp_path) == []


@pytest.mark.parametrize(
    "linked",
    [
        FIRST,
        f"{FIRST}/attempts",
        f"{FIRST}/attempts/0001",
        "compile_cache",
        "compile_cache/executables",
    ],
)
def test_nothing_is_deleted_through_a_link(tmp_path: Path, said: list[Notice], linked: str) -> None:
    model_dir, outside = tmp_path / "run", tmp_path / "outside"
    attempt(model_dir, 1)
    attempt(outside, 1)
    for folder in (model_dir, outside):
        (folder / "compile_cache" / "executables").mkdir(parents=True)
    step = outside / "compile_cache" / "executables" / f"train-step-rank0-{'a' * 32}.executable"
    step.write_bytes(bytes(10))
    if not linked.startswith("compile_cache"):
        (model_dir / "compile_cache" / "executables").rmdir()
    target = model_dir / linked
    target.rename(tmp_path / "moved")
    target.symlink_to(outside / linked)
    space = spaced(model_dir, said)
    space.delete_oldest_output()
    space.keep_within(Limits(outputs=0, records=0, executables=0))
    assert (outside / FIRST / "attempts" / "0001" / "rank0.log").exists()
    assert (outside / FIRST / "attempts" / "0001" / "rank0.failure.json").exists()
    assert step.exists()
    assert not any("cannot" in text for text in said), "a link is none of ours, and no fault"


def test_a_linked_file_is_no_output(tmp_path: Path, space: Space) -> None:
    folder = attempt(tmp_path, 1)
    (tmp_path / "theirs").write_text("theirs")
    (folder / "rank0.log").unlink()
    (folder / "rank0.log").symlink_to(tmp_path / "theirs")
    (folder / "rank1.log").hardlink_to(tmp_path / "theirs")
    assert space.delete_oldest_output()
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (folder / "rank0.log").is_symlink()


def test_model_dir_itself_may_be_reached_through_a_link(tmp_path: Path, said: list[Notice]) -> None:
    attempt(tmp_path / "disk", 1)
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    assert spaced(tmp_path / "run", said).delete_oldest_output()
    assert outputs(tmp_path / "disk") == []


def test_outputs_are_kept_within_their_limit(
    tmp_path: Path, space: Space, said: list[Notice]
) -> None:
    for number in range(1, 9):
        attempt(tmp_path, number)
    attempt(tmp_path, 10_000, SECOND)
    space.keep_within(limits(outputs=40))
    assert outputs(tmp_path) == [6, 7, 8, 10_000]
    assert said == [
        f"deleted the outputs of 5 attempts, 1 to 5 of {FIRST}, 50 B: together they may take "
        "40 B (trainer.init.limits.outputs)"
    ]
    space.keep_within(limits(outputs=40))
    assert len(said) == 1


def test_records_have_a_limit_of_their_own(
    tmp_path: Path, space: Space, said: list[Notice]
) -> None:
    for number in (1, 2, 3):
        folder = attempt(tmp_path, number)
        (folder / "rank0.stacks.txt").write_bytes(bytes(10))
        (folder / "theirs.json").write_bytes(bytes(10))
    space.keep_within(limits(records=40))
    assert outputs(tmp_path) == [1, 2, 3]
    first = tmp_path / FIRST / "attempts" / "0001"
    assert sorted(path.name for path in first.iterdir()) == ["rank0.log", "theirs.json"]
    assert len(list(tmp_path.glob("*/attempts/*/rank0.failure.json"))) == 2
    assert f"the records of attempt 1 of {FIRST}, 20 B: together they may take 40 B" in said[0]


def test_the_newest_attempt_and_the_last_failed_one_stay(tmp_path: Path, space: Space) -> None:
    """The newest one runs, or has ended a moment ago and nobody has said yet that it failed."""
    for number in (1, 2, 3, 4):
        attempt(tmp_path, number)
    space.recall(past(failed(1), failed(2)))
    space.keep_within(limits(outputs=0, records=0))
    assert outputs(tmp_path) == [2, 4]
    space.observe(failed(4, SECOND))
    attempt(tmp_path, 10_000, SECOND)
    space.keep_within(limits(outputs=0, records=0))
    assert outputs(tmp_path) == [4, 10_000]
    assert len(list(tmp_path.glob("*/attempts/*/rank0.failure.json"))) == 2


def test_compiled_steps_go_by_when_they_were_used(
    tmp_path: Path, space: Space, said: list[Notice]
) -> None:
    folder = tmp_path / "compile_cache" / "executables"
    folder.mkdir(parents=True)
    for used, digit in ((30, "a"), (10, "b"), (20, "c")):
        path = folder / f"train-step-rank0-{digit * 32}.executable"
        path.write_bytes(bytes(10))
        os.utime(path, (used, used))
    (folder / "notes.executable").write_bytes(bytes(100))
    (folder / f"train-step-rank0-{'b' * 32}.trial").write_bytes(bytes(100))
    space.keep_within(limits(executables=25))
    left = {path.name[-12] for path in folder.glob("train*.executable")}
    assert left == {"a", "c"}
    assert (folder / "notes.executable").exists()
    assert "compiled steps, 10 B: together they may take 25 B" in said[0]


@pytest.mark.parametrize("log", ["standby.log", "standby-h2.log"])
def test_the_logs_of_helpers_are_emptied_when_they_are_too_large(
    tmp_path: Path, space: Space, said: list[Notice], log: str
) -> None:
    attempts = attempt(tmp_path, 1).parent
    (attempts / "prefetch4").mkdir()
    standby, prefetch = attempts / log, attempts / "prefetch4" / "rank0.log"
    prefetch.write_text("well")
    with standby.open("ab", buffering=0) as writer:
        writer.truncate(MAX_LOG + 1)
        space.keep_within(ROOMY)
        writer.write(b"goes on")
    assert (standby.read_text(), prefetch.read_text()) == ("goes on", "well")
    assert said == [f"emptied {standby}, which had 64 MiB: what wrote it has a fault"]
    (tmp_path / "theirs").write_bytes(b"")
    os.truncate(tmp_path / "theirs", MAX_LOG + 1)
    standby.unlink()
    standby.symlink_to(tmp_path / "theirs")
    space.keep_within(ROOMY)
    assert (tmp_path / "theirs").stat().st_size == MAX_LOG + 1
    standby.unlink()
    standby.hardlink_to(tmp_path / "theirs")
    space.keep_within(ROOMY)
    assert (tmp_path / "theirs").stat().st_size == MAX_LOG + 1
    assert "has a second name (a hard link), and is not emptied" in said[1]


def test_what_cannot_be_deleted_is_told_once(said: list[Notice]) -> None:
    with somebody() as model_dir:
        space, folder = spaced(model_dir, said), attempt(model_dir, 1)
        attempt(model_dir, 2)
        with without_rights(folder, 0o555):
            space.keep_within(limits(outputs=0))
            space.keep_within(limits(outputs=0))
        assert said == [f"{folder}/rank0.log cannot be deleted to make room: Permission denied"]


def test_what_cannot_be_looked_at_is_told_once_and_costs_nothing_else(said: list[Notice]) -> None:
    with somebody() as model_dir:
        space, folder = spaced(model_dir, said), attempt(model_dir, 1)
        for number in (2, 3):
            attempt(model_dir, number).chmod(0o777)
        with without_rights(folder, 0o444):  # its names can be read, and nothing of them
            space.keep_within(limits(outputs=0))
            assert (folder.parent / "0003" / "rank0.log").exists()
            assert not (folder.parent / "0002" / "rank0.log").exists()
            assert space.delete_oldest_output()
        assert outputs(model_dir) == [1]
        told = "cannot be looked at to make room: Permission denied"
        assert f"{folder}/rank0.log {told}" in said
        assert len([text for text in said if told in text]) == 2, "each once"


def limits(**given: int) -> Limits:
    """No limits but these."""
    return ROOMY.model_copy(update=given)
