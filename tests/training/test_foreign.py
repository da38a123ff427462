"""What is not the job's in the directory of its checkpoints is left alone, named, never removed."""

# mypy: allow-untyped-calls, disable-error-code="attr-defined"
from __future__ import annotations

import errno
import glob
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import nan
from pathlib import Path
from threading import Timer
from typing import Any

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from supervisor.diagnosis.failure import Evidence, RankEvidence, Verdict, WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.protocol import removal
from supervisor.protocol.committed import MARKER, METADATA, is_committed
from supervisor.protocol.failure_record import record_of
from supervisor.protocol.messages import NoticeCode
from supervisor.protocol.removal import NotOursError
from tests.foreign import ENTRIES, Entry, fingerprint, foreign, put
from tests.training.notices import Notices
from trainer.checkpoint import CheckpointSaver, restore_parts
from trainer.checkpoint_steps import (
    CheckpointSteps,
    ForeignCheckpointError,
    Keep,
    NoUsableCheckpointError,
    RenamedSteps,
    UnmarkedCheckpointError,
    UnreadableCheckpointError,
)
from trainer.fence import Fence, FencedError
from trainer.log import Warn
from trainer.manifest import MANIFEST, write_manifest
from trainer.marked_steps import MarkedSteps
from trainer.retries import Retries
from trainer.train_state import TrainState

ENVIRON = {"SUPERVISE_JOB": "0123456789ab"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


class Saver:
    """Saves a tiny state as the trainer does, in this process."""

    def __init__(self, directory: Path, keep: int | Keep = 2) -> None:
        self.said = Notices()
        self.directory = directory
        self.keep = keep
        self.steps_in: type[RenamedSteps | MarkedSteps] = RenamedSteps

    def opened(self) -> CheckpointSaver:
        steps = self.steps_in(self.directory)
        return CheckpointSaver(steps, self.keep, {}, self.said, retries=Retries(pauses=()))

    def save(self, *steps: int) -> None:
        checkpoints = self.opened()
        for step in steps:
            checkpoints.save(state_of(step), step, {"next": step})
            assert checkpoints.committed(wait=True) == step
            checkpoints.wait_for_manifest()
        checkpoints.close()

    @property
    def steps(self) -> set[str]:
        return {path.name for path in self.directory.iterdir() if path.name.isdecimal()}


@pytest.fixture
def saver(tmp_path: Path) -> Saver:
    return Saver(tmp_path / "checkpoints")


def test_folders_of_years_are_left_and_told_once(saver: Saver) -> None:
    for year in ("2023", "2024"):
        (saver.directory / year).mkdir(parents=True)
        (saver.directory / year / "results.csv").write_text(year)
    (saver.directory / "9").mkdir()
    before = fingerprint(saver.directory)
    saver.save(3, 6)
    assert saver.opened().newest() == 6
    saver.save(12, 15)
    (told,) = saver.said
    assert saver.said.codes == [NoticeCode.CHECKPOINTS_FOREIGN]
    assert "has what this job did not save: '2023', '2024', '9'. It is never removed" in told
    assert before.items() <= fingerprint(saver.directory).items()


def test_keep_evicts_this_jobs_steps_alone(saver: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERVISE_JOB", "anotherjob")
    saver.save(1, 2)
    monkeypatch.setenv("SUPERVISE_JOB", ENVIRON["SUPERVISE_JOB"])
    others = {step: fingerprint(saver.directory / step) for step in ("1", "2")}
    saver.save(3, 4, 5, 6)
    assert saver.steps == {"1", "2", "5", "6"}
    assert {step: fingerprint(saver.directory / step) for step in ("1", "2")} == others
    assert "did not save: '1', '2'" in saver.said[0]
    saver.save(7)  # another process of the same job
    assert saver.steps == {"1", "2", "6", "7"}


@pytest.mark.parametrize("kind", [RenamedSteps, MarkedSteps])
def test_multiples_and_the_step_before_a_failure_are_kept_besides(
    saver: Saver, kind: type[RenamedSteps | MarkedSteps]
) -> None:
    saver.steps_in, saver.keep = kind, Keep(newest=2, every=10)
    saver.save(10, 14, 18)
    failed = saver.opened()
    failed.pin_newest()
    failed.close()
    saver.save(20, 22, 24, 26)
    assert saver.steps == {"10", "18", "20", "24", "26"}
    failed = saver.opened()
    failed.pin_newest()  # the next failure: the pin moves
    failed.close()
    saver.save(28, 32, 34)
    assert saver.steps == {"10", "20", "26", "32", "34"}
    assert not saver.said


def test_the_best_is_kept_however_old_and_a_better_one_takes_its_place(saver: Saver) -> None:
    saver.keep = Keep(newest=1, best=True)
    checkpoints = saver.opened()
    for step, loss in [(1, 3.0), (2, 1.0), (3, nan), (4, 2.0), (5, 1.0), (6, 0.5), (7, 0.75)]:
        checkpoints.save(state_of(step), step, {"next": step}, loss)
        assert checkpoints.committed(wait=True) == step
        checkpoints.wait_for_manifest()
        best = max(2 if step >= 2 else 1, 6 if step >= 6 else 0)
        assert saver.steps == {str(best), str(step)}
    checkpoints.close()
    saver.save(8)  # another process of the same job
    assert saver.steps == {"6", "8"}


def test_a_pin_that_cannot_be_written_is_told(saver: Saver) -> None:
    saver.save(1)
    checkpoints = saver.opened()
    (ledger,) = saver.directory.glob("supervise_ledger_*.json")
    ledger.unlink()
    ledger.mkdir()  # so that it cannot be replaced
    checkpoints.pin_newest()
    checkpoints.close()
    assert saver.said.codes == [NoticeCode.CHECKPOINT_NOT_PINNED]


def test_another_step_under_the_name_of_ours_is_not_evicted(saver: Saver, tmp_path: Path) -> None:
    other = Saver(tmp_path / "other")
    other.save(1)
    saver.save(1, 2)
    shutil.rmtree(saver.directory / "1")
    shutil.copytree(other.directory / "1", saver.directory / "1")
    before = fingerprint(saver.directory / "1")
    saver.save(3, 4)
    assert saver.steps == {"1", "3", "4"}
    assert fingerprint(saver.directory / "1") == before
    assert saver.said == [], "it is not even tried"


def put_a_note(step: Path) -> None:
    (step / "notes.txt").write_text("the best one")


def put_a_link(step: Path) -> None:
    (step / "params" / "link").symlink_to("/etc")


@pytest.mark.parametrize("put", [put_a_note, put_a_link])
def test_a_step_with_something_else_in_it_is_kept(
    saver: Saver, put: Callable[[Path], None]
) -> None:
    saver.save(1, 2)
    put(saver.directory / "1")
    before = fingerprint(saver.directory / "1")
    saver.save(3, 4)
    assert saver.steps == {"1", "3", "4"}
    assert fingerprint(saver.directory / "1") == before
    assert saver.said.codes[0] == NoticeCode.CHECKPOINT_NOT_REMOVED
    assert saver.said.steps[0] == 1


def test_a_step_that_is_being_copied_in_is_left(saver: Saver, tmp_path: Path) -> None:
    other = Saver(tmp_path / "other")
    other.save(30)
    saver.save(10)
    partial = saver.directory / "30"
    shutil.copytree(other.directory / "30" / "params", partial / "params")
    shutil.copy(other.directory / "30" / "supervise_manifest.json", partial)
    before = fingerprint(partial)
    saver.save(20)
    assert fingerprint(partial) == before
    assert saver.opened().newest() == 20
    assert "did not save: '30'" in saver.said[0]


def test_an_older_step_with_truncated_metadata_is_left(saver: Saver) -> None:
    older = saver.directory / "40"
    (older / "params").mkdir(parents=True)
    (older / METADATA).write_text('{"commit_timestamp_nse')
    before = fingerprint(older)
    saver.save(10)
    assert fingerprint(older) == before
    assert "did not save: '40'" in saver.said[0]


def test_what_comes_into_the_way_of_a_save_is_set_aside(saver: Saver) -> None:
    saver.save(10)
    checkpoints = saver.opened()
    (saver.directory / "20").mkdir()
    (saver.directory / "20" / "mine").write_text("x")
    (saver.directory / "20.orbax-checkpoint-tmp").symlink_to("/etc")
    saver.save(20)
    checkpoints.close()
    foreign = saver.directory / "foreign"
    assert (foreign / "20-1" / "mine").read_text() == "x"
    link = foreign / "20.orbax-checkpoint-tmp-1" / "20.orbax-checkpoint-tmp"
    assert link.readlink() == Path("/etc")
    told = list(zip(saver.said.codes, saver.said.steps, strict=True))
    assert told.count((NoticeCode.FOREIGN_SET_ASIDE, 20)) == 2


def test_what_comes_into_the_way_while_orbax_saves_is_set_aside(saver: Saver) -> None:
    class Meanwhile(RenamedSteps):
        def begin(self, step: int, warn: Warn, loss: float | None = None) -> None:
            super().begin(step, warn, loss)
            (self.directory / f"{step}").mkdir()
            (self.directory / f"{step}" / "mine").write_text("x")

    saver.steps_in = Meanwhile
    saver.save(20)
    assert (saver.directory / "foreign" / "20-1" / "mine").read_text() == "x"
    assert saver.opened().newest() == 20


def test_a_newest_step_that_cannot_be_read_is_an_error(
    saver: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver.save(10, 20)
    before = fingerprint(saver.directory)
    lstat = Path.lstat

    def failing(path: Path) -> os.stat_result:
        if path == saver.directory / "20" / "commit_success.txt":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", failing)
    with pytest.raises(UnreadableCheckpointError, match="no older one is restored") as error:
        saver.opened().newest()
    monkeypatch.undo()
    record = record_of(error.value, rank=0, stage=None, step=None)
    failure = judge(Evidence((RankEvidence(WorkerExit(0, code=1), record),)), Success())
    assert failure is not None
    assert (failure.cause, failure.verdict) == ("storage or network trouble", Verdict.RESTART)
    assert fingerprint(saver.directory) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
def test_nobody_takes_what_may_not_be_read_for_absent(saver: Saver) -> None:
    saver.save(10, 20)
    (saver.directory / "20").chmod(0o700)
    for path in (saver.directory, *saver.directory.parents):
        if path.stat().st_uid == os.geteuid() and path != Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o055)
        if path == Path("/tmp"):
            break
    script = f"""
        import os
        from supervisor.protocol.committed import committed_steps
        from pathlib import Path
        os.setgid(65534), os.setuid(65534)
        try:
            print(list(committed_steps(Path({str(saver.directory)!r}))))
        except PermissionError as error:
            print("refused", error.filename)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("refused"), done.stdout
    assert "/20/" in done.stdout


def test_a_fifo_for_metadata_commits_nothing_and_is_left(saver: Saver) -> None:
    saver.save(10)
    (saver.directory / "30").mkdir()
    os.mkfifo(saver.directory / "30" / METADATA)
    before = fingerprint(saver.directory / "30")
    saver.save(20)
    assert saver.opened().newest() == 20
    assert fingerprint(saver.directory / "30") == before
    assert "did not save: '30'" in saver.said[0]


def test_what_a_killed_save_left_goes_and_only_that(saver: Saver) -> None:
    class Killed(RenamedSteps):
        """What is on the disk is what a kill leaves at the last moment before a commit."""

        def clear_final_name(self, step: int, warn: Warn) -> None:
            raise KeyboardInterrupt

    saver.save(5)
    saver.steps_in = Killed
    with pytest.raises(KeyboardInterrupt):
        saver.save(10)
    killed = saver.directory / "10.orbax-checkpoint-tmp"
    assert killed.is_dir()
    other = saver.directory / "15.orbax-checkpoint-tmp"
    shutil.copytree(killed, other)
    before = fingerprint(other)
    saver.steps_in = RenamedSteps
    assert saver.opened().newest() == 5
    assert not killed.exists()
    assert fingerprint(other) == before
    assert "did not save: '15.orbax-checkpoint-tmp'" in saver.said[0]
    saver.save(15)
    assert fingerprint(saver.directory / "foreign" / "15.orbax-checkpoint-tmp-1") == before


class Halves(MarkedSteps):
    """A kill comes once an eviction has begun."""

    def _remove(self, *arguments: Any) -> None:
        (self.directory / "5" / MARKER).unlink()
        (self.directory / "5" / "params" / "d" / "0a").unlink()
        raise KeyboardInterrupt


def test_what_a_killed_eviction_left_on_a_mount_goes_by_its_time_of_commit(saver: Saver) -> None:
    steps = MarkedSteps(saver.directory)
    saver.directory.mkdir()
    commit(steps, 5)
    commit(steps, 10)
    killed = Halves(saver.directory)
    killed.clear(saver.said)
    with pytest.raises(KeyboardInterrupt):
        killed.evict(Keep(1), lambda what: None, saver.said)
    again = MarkedSteps(saver.directory)
    again.clear(saver.said)
    assert (saver.steps, saver.said) == ({"10"}, [])


def test_a_name_in_the_ledger_alone_removes_nothing(both: Saver) -> None:
    """The ledger of a bucket, copied to a disk, says `evicting: ["2023"]` of a folder of anybody's;
    so does one that somebody has edited."""
    both.save(5)
    for name in ("2023", "7"):
        (both.directory / name).mkdir()
        (both.directory / name / "results.csv").write_text(name)
    ledger = both.directory / f"supervise_ledger_{ENVIRON['SUPERVISE_JOB']}.json"
    body = json.loads(ledger.read_text())
    body["evicting"] = ["2023", "7", "results.csv", f".supervise-evicted-7-{'0' * 31}g"]
    if both.steps_in is MarkedSteps:  # on a disk this is a damaged step, which is set aside
        body["committed"]["7"] = 17
    ledger.write_text(json.dumps(body))
    before = fingerprint(both.directory)
    opened = both.opened()
    assert opened.newest() == 5
    opened.close()
    after = fingerprint(both.directory)
    assert {name for name in before if after.get(name) != before[name]} <= {ledger.name, ""}


# --- another program's checkpoints ---------------------------------------------------------------


def save_as_another_program(directory: Path, step: int) -> None:
    """As Orbax's own examples do."""
    with ocp.CheckpointManager(directory) as manager:
        manager.save(step, args=ocp.args.StandardSave({"w": jnp.zeros(3)}))


def mark(directory: Path) -> None:
    """As an Orbax that saves to a bucket does."""
    for step in filter(Path.is_dir, directory.iterdir()):
        (step / MARKER).write_text("committed")


@pytest.fixture(params=[RenamedSteps, MarkedSteps])
def both(saver: Saver, request: pytest.FixtureRequest) -> Saver:
    saver.steps_in = request.param
    return saver


def test_another_programs_checkpoint_is_passed_over_and_left(both: Saver) -> None:
    both.save(3)
    save_as_another_program(both.directory, 5)
    mark(both.directory)
    before = fingerprint(both.directory / "5")
    for _ in range(2):
        opened = both.opened()
        assert opened.newest_verified() == 3  # of several processes
        restored = opened.restore(state_of(3))
        assert restored is not None
        assert restored[0] == 3
    assert fingerprint(both.directory / "5") == before
    assert not (both.directory / "corrupt").exists()
    assert NoticeCode.CHECKPOINT_DAMAGED not in both.said.codes
    skipped = both.said.codes.index(NoticeCode.CHECKPOINT_SKIPPED)
    assert both.said.steps[skipped] == 5
    assert "no params, no optimizer, no progress in it" in both.said[skipped]


def test_a_directory_of_another_program_alone_is_refused(both: Saver) -> None:
    both.directory.mkdir()
    save_as_another_program(both.directory, 5)
    mark(both.directory)
    before = fingerprint(both.directory / "5")
    opened = both.opened()
    for read in (opened.newest_verified, lambda: opened.restore(state_of(3))):
        with pytest.raises(ForeignCheckpointError) as error:
            read()
        assert f"{both.directory} can be restored" in str(error.value)
        assert "move them away" in str(error.value)
        assert "damaged" not in str(error.value)
    record = record_of(error.value, rank=0, stage=None, step=None)
    failure = judge(Evidence((RankEvidence(WorkerExit(0, code=1), record),)), Success())
    assert failure is not None
    assert (failure.rule, failure.verdict) == ("foreign-checkpoint", Verdict.FATAL)
    assert fingerprint(both.directory / "5") == before
    with pytest.raises(NoUsableCheckpointError, match=r"cannot be used .*left as it is"):
        restore_parts(both.directory, {"params": state_of(3).params}, {}, print)


def test_another_jobs_step_that_is_still_being_copied_in_is_not_moved(
    both: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPERVISE_JOB", "anotherjob")
    both.save(9)
    monkeypatch.setenv("SUPERVISE_JOB", ENVIRON["SUPERVISE_JOB"])
    both.save(3)
    next((both.directory / "9" / "params").rglob("d/*")).unlink()  # it was not reached yet
    before = fingerprint(both.directory / "9")
    assert both.opened().newest_verified() == 3
    assert fingerprint(both.directory / "9") == before


def test_a_step_of_ours_whose_metadata_is_damaged_is_ours(both: Saver) -> None:
    both.save(3, 6)
    path = both.directory / "6"
    (path / MARKER).write_text("committed")
    (path / METADATA).write_bytes(bytes(100))
    assert both.opened().newest_verified() == 3
    assert not is_committed(path, posix=both.steps_in is RenamedSteps)


@pytest.mark.parametrize("name", ["notes", "5", "5-1", "notes-1.reason.txt"])
def test_a_persons_folder_called_corrupt_stands_in_nobodys_way(saver: Saver, name: str) -> None:
    (saver.directory / "corrupt" / name).mkdir(parents=True)
    assert saver.opened().newest_verified() is None


def test_what_a_kill_left_without_its_reason_still_counts(saver: Saver) -> None:
    saver.save(3)
    removal.set_aside(saver.directory / "3", "corrupt", below=saver.directory)
    with pytest.raises(NoUsableCheckpointError, match=r"corrupt \(3-1, each"):
        saver.opened().newest_verified()


def state_of(step: int) -> TrainState:
    tree: Any = {"w": jnp.full(3, step)}
    return TrainState(jnp.int32(step), tree, tree)


# --- any tree ------------------------------------------------------------------------------------


def commit(steps: CheckpointSteps, step: int) -> None:
    """What Orbax does of a save, in short."""
    path = steps.directory / str(step)
    (path / "params" / "d").mkdir(parents=True, exist_ok=True)
    (path / "params" / "d" / "0a").write_bytes(b"array")
    (path / METADATA).write_text(json.dumps({"commit_timestamp_nsecs": time.time_ns()}))
    (path / MARKER).write_text("committed")
    write_manifest(path, {}, {})
    steps.mark_committed(step)


def strangers(step: Path) -> set[str]:
    """What is in a step of ours besides what we wrote."""
    known = {"", "params", "params/d", "params/d/0a", METADATA, MARKER, MANIFEST}
    known |= {"supervise_reading_rank0", "params/commit_success.txt", "params/d/commit_success.txt"}
    return set(fingerprint(step)) - known


@settings(deadline=None, max_examples=30)
@given(
    ENTRIES,
    st.sampled_from([RenamedSteps, MarkedSteps]),
    st.sets(st.sampled_from([1, 3, 7]), min_size=1),
    st.sampled_from([2, 9, 2023]),
)
@example([(["2023"], "loop", 0o400)], RenamedSteps, {1}, 2023)
@example([(["2023"], "loop", 0o400)], MarkedSteps, {1}, 2023)
@example([(["2023"], "outward", 0o400)], MarkedSteps, {1}, 2023)
@example([(["2023"], "broken", 0o400)], MarkedSteps, {1}, 2023)
@example([(["2023", "params", "x"], "loop", 0o400)], MarkedSteps, {1}, 2023)
def test_a_job_lives_among_anything_and_changes_nothing_of_it(
    entries: list[Entry], kind: type[RenamedSteps | MarkedSteps], own: set[int], saving: int
) -> None:
    with foreign([]) as (root, outside):
        steps = kind(root)
        for step in sorted(own):
            steps.begin(step, print)
            commit(steps, step)
        for parts, what, mode in entries:
            with suppress(OSError):
                put(root, outside, parts, what, mode)
        away = fingerprint(outside)
        clean = {f"{step}" for step in own if not strangers(root / f"{step}")}
        before = {one.name: fingerprint(one) for one in root.iterdir()}
        said = Notices()
        steps = kind(root)
        with suppress(UnmarkedCheckpointError, NotOursError):
            steps.clear(said)
            steps.begin(saving, said)
            commit(steps, saving)
            steps.evict(Keep(1), lambda what: None, said)
        assert fingerprint(outside) == away
        for name, told in before.items():
            if name in clean or name.startswith("supervise_ledger"):
                continue
            places = [root / name, *root.glob(f"foreign/{glob.escape(name)}-*")]
            places += [folder / name for folder in root.glob("foreign/*")]
            places += root.glob(f"corrupt/{glob.escape(name)}-*")
            found = [fingerprint(one) for one in places if os.path.lexists(one)]
            if name in ("foreign", "corrupt"):
                assert any(told.items() <= one.items() for one in found), (name, said)
            else:
                assert told in found, (name, said)


# --- the fence ------------------------------------------------------------------------------------

TOKEN = "ab" * 16


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The owner's file, which says that we are."""
    file = tmp_path / "owner.json"
    file.write_text(f'{{"token": "{TOKEN}", "epoch": 3}}')
    monkeypatch.setenv("SUPERVISE_OWNER", TOKEN)
    monkeypatch.setenv("SUPERVISE_OWNER_FILE", str(file))
    return file


def take_over(file: Path) -> None:
    file.write_text('{"token": "another", "epoch": 4}')


def release(file: Path) -> None:
    file.write_text('{"token": null, "epoch": 3}')


def lose(file: Path) -> None:
    file.unlink()


def garble(file: Path) -> None:
    file.write_text("[" * 10_000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (take_over, "the commit of step 20 was not done: the job has another owner now"),
        (release, "the job has no owner now"),
        (lose, "cannot read whether"),
        (garble, "cannot read whether"),
    ],
)
def test_a_trainer_that_is_not_the_owners_commits_nothing(
    saver: Saver, owner: Path, change: Callable[[Path], None], message: str
) -> None:
    class LostDuringTheSave(RenamedSteps):
        def begin(self, step: int, warn: Warn, loss: float | None = None) -> None:
            super().begin(step, warn, loss)
            change(owner)
            commit_as_the_new_owner(self.directory / f"{step}")

    def commit_as_the_new_owner(path: Path) -> None:
        path.mkdir()
        (path / MARKER).write_text("the new owner's")

    saver.save(10)
    saver.steps_in = LostDuringTheSave
    with pytest.raises(FencedError, match=message) as error:
        saver.save(20)
    assert (saver.directory / "20" / MARKER).read_text() == "the new owner's"
    with pytest.raises(FencedError, match="the save of step 20 was not done"):
        saver.save(20)
    record = record_of(error.value, rank=0, stage=None, step=None)
    failure = judge(Evidence((RankEvidence(WorkerExit(0, code=1), record),)), Success())
    assert failure is not None
    assert (failure.rule, failure.verdict) == ("fenced", Verdict.RESTART)


def test_a_trainer_that_is_not_the_owners_evicts_nothing(
    saver: Saver, owner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver.save(10, 20)
    check, asked = Fence.check, list[str]()

    def lost_after_the_commit(fence: Fence, what: str) -> None:
        asked.append(what)
        if "eviction" in what:
            take_over(owner)
        check(fence, what)

    monkeypatch.setattr(Fence, "check", lost_after_the_commit)
    with pytest.raises(FencedError, match="the eviction of step 10 was not done"):
        saver.save(30)
    assert asked[1:] == ["the commit of step 30", "the eviction of step 10"]
    assert saver.steps == {"10", "20", "30"}


def test_an_owner_file_that_its_supervisor_writes_again_is_waited_for(owner: Path) -> None:
    away = owner.rename(owner.with_name("away"))
    restored = Timer(0.2, lambda: away.replace(owner))
    restored.start()
    Fence(TOKEN, str(owner)).check("the commit of step 20")
    restored.join()


def test_without_an_owner_nobody_is_asked(environment: pytest.MonkeyPatch) -> None:
    environment.delenv("SUPERVISE_OWNER", raising=False)
    owner: Mapping[str, str] = os.environ
    assert Fence.from_environment(owner) is None
