"""Checkpoints in a bucket: saved, verified and restored by Orbax itself, against an emulator."""

# mypy: allow-untyped-calls, disable-error-code="attr-defined"
from __future__ import annotations

import re
import shutil
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fsspec
import numpy as np
import orbax.checkpoint as ocp
import pytest

from supervisor.config.problems import ConfigError
from supervisor.config.training.resolved import StartPoint, parse
from supervisor.protocol.committed import MARKER, METADATA, was_committed
from supervisor.protocol.location import Uri
from supervisor.protocol.messages import NoticeCode
from tests.emulators import Emulator
from tests.faulty_store import RESET, SILENCE, Fault, FaultyStore, Request, answered
from tests.running import PATIENCE
from tests.training.notices import Notices
from trainer import bucket_paths
from trainer.checkpoint import CheckpointSaver, Restored, newest_step, restore, restore_parts
from trainer.checkpoint_steps import NoUsableCheckpointError, UnmarkedCheckpointError, steps_in
from trainer.config_fingerprint import fingerprint, fingerprint_across
from trainer.evaluation_progress import EvaluationNote, EvaluationProgress
from trainer.fence import FencedError
from trainer.log import Warn
from trainer.manifest import MANIFEST, read_manifest
from trainer.marked_steps import DAMAGED, MarkedSteps
from trainer.step_files import files_in
from trainer.train_state import TrainState

from .harness import Trainer, assert_same_bits, spec, tiny

REFUSED = answered(401, "authError", "Login Required")


@pytest.fixture(scope="module")
def emulator(gcs: Emulator) -> Iterator[Emulator]:
    """A bucket that this process and its children find."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in gcs.env.items():
            environment.setenv(name, value)
        yield gcs


@dataclass
class Saver:
    """Saves and restores a small state in one place, as the trainer does, in this process."""

    place: Uri | Path
    said: Notices = field(default_factory=Notices)
    keep: int = 3

    def __post_init__(self) -> None:
        self.init = parse(tiny(Path("/unused"))).init
        self.spec = spec(self.init)
        self.print = fingerprint(self.init)

    def opened(self) -> CheckpointSaver:
        return CheckpointSaver(steps_in(self.place), self.keep, self.print, self.said)

    def save(self, *steps: int) -> TrainState:
        """Save a fresh state as each of these steps."""
        state, checkpoints = self.spec.fresh(), self.opened()
        for step in steps:
            checkpoints.save(state, step, {"next": step})
            assert checkpoints.committed(wait=True) == step
        checkpoints.close()
        return state

    def restored(self) -> Restored | None:
        return self.opened().restore(self.spec.abstract)


@pytest.fixture(scope="module")
def saved(emulator: Emulator) -> tuple[Saver, TrainState]:
    """Steps 10 and 20 in the bucket, and what was saved; in a new folder each time, because xdist
    may give one process tests of this module twice, and other ones between."""
    saver = Saver(emulator.root / f"saved-{uuid.uuid4().hex}" / "checkpoints")
    return saver, saver.save(10, 20)


@pytest.fixture
def copy(saved: tuple[Saver, TrainState], request: pytest.FixtureRequest) -> Saver:
    """The same in a place of its own, to be damaged."""
    place = saved[0].place
    assert isinstance(place, Uri)
    name = re.sub(r"\W", "", request.node.name)
    own = Uri(place.scheme, place.bucket, f"{name}/checkpoints")
    store().copy(f"{place}/", f"{own}/", recursive=True)
    return Saver(own)


def store() -> Any:
    return fsspec.filesystem("gcs", finalize_on_close=True)


def names(place: Uri | Path) -> set[str]:
    return {path.name for path in bucket_paths.path_of(place).iterdir()}


def steps(place: Uri | Path) -> set[str]:
    return {name for name in names(place) if name.isdecimal()}


def path_of(saver: Saver, step: int) -> Path:
    return bucket_paths.path_of(saver.place) / str(step)


def test_what_is_saved_is_verified_and_restored_to_the_bit(
    saved: tuple[Saver, TrainState],
) -> None:
    saver, state = saved
    found = saver.restored()
    assert found is not None
    step, restored, position, _ = found
    assert (step, position, saver.said) == (20, {"next": 20}, [])
    assert_same_bits((restored.params, restored.optimizer), (state.params, state.optimizer))
    manifest = read_manifest(path_of(saver, 20))
    assert manifest is not None
    manifest.verify(path_of(saver, 20))
    assert all(len(digest) == 32 for _, digest in manifest.files.values()), "MD5, as the store has"
    assert any(name.startswith("params/") for name in manifest.files)
    shared = fingerprint_across(saver.init, StartPoint(directory=saver.place))
    abstract = {"params": saver.spec.abstract.params}
    step, parts = restore_parts(saver.place, abstract, shared, print)
    assert step == 20
    assert_same_bits(parts["params"], state.params)


def test_old_steps_go_and_the_newest_is_found(copy: Saver) -> None:
    copy.keep = 2
    note, progress = EvaluationNote(path_of(copy, 10)), EvaluationProgress("a", 7, 0.1 + 0.2)
    note.write(progress)
    assert note.read() == progress
    copy.save(30)
    assert newest_step(copy.place) == 30
    assert steps(copy.place) == {"20", "30"}
    assert copy.said == []


def test_another_jobs_steps_stay(copy: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERVISE_JOB", "0123456789ab")
    before = {step: bucket_paths.objects(path_of(copy, step)) for step in (10, 20)}
    copy.keep = 1
    copy.save(30, 40)
    assert steps(copy.place) == {"10", "20", "40"}
    assert {step: bucket_paths.objects(path_of(copy, step)) for step in (10, 20)} == before
    (told,) = copy.said
    assert "did not save: '10', '20'" in told
    (bucket_paths.path_of(copy.place) / "50" / "mine").write_text("somebody's")
    with pytest.raises(UnmarkedCheckpointError, match="/50 is in the way of a save"):
        copy.save(50)
    assert names(bucket_paths.path_of(copy.place) / "50") == {"mine"}


class Interrupted(MarkedSteps):
    """Steps with something that happens while one is saved."""

    happens: Callable[[Path], object]
    early = False
    """Whether it happens before the owner is asked."""

    def begin(self, step: int, warn: Warn, loss: float | None = None) -> None:
        super().begin(step, warn, loss)
        if self.early:
            self.happens(self.directory / str(step))

    def clear_final_name(self, step: int, warn: Warn) -> None:
        if not self.early:
            self.happens(self.directory / str(step))


@pytest.mark.parametrize(
    ("happens", "error", "marked"),
    [
        ("another owner", FencedError, False),
        ("another's marker", FileExistsError, True),
    ],
)
def test_a_marker_is_made_by_the_owners_trainer_and_only_once(
    emulator: Emulator,
    monkeypatch: pytest.MonkeyPatch,
    happens: str,
    error: type[Exception],
    marked: bool,
) -> None:
    root = emulator.root / happens.replace(" ", "-").replace("'", "")
    saver = Saver(root / "checkpoints")
    lease = bucket_paths.path_of(root) / "lease.json"
    lease.write_text('{"token": "ours", "epoch": 1}')
    monkeypatch.setenv("SUPERVISE_OWNER", "ours")
    monkeypatch.setenv("SUPERVISE_OWNER_FILE", f"{root}/lease.json")
    state = saver.save(10)
    steps = Interrupted(bucket_paths.path_of(saver.place))
    if marked:
        steps.happens = lambda path: (path / MARKER).write_text("another's")
    else:
        steps.early = True
        steps.happens = lambda path: lease.write_text('{"token": "another"}')
    checkpoints = CheckpointSaver(steps, 3, saver.print, saver.said)
    checkpoints.save(state, 20, {})
    with pytest.raises(error):
        checkpoints.committed(wait=True)
    assert (path_of(saver, 20) / MARKER).exists() is marked
    if marked:
        assert (path_of(saver, 20) / MARKER).read_text() == "another's"


def largest(path: Path) -> str:
    """The file with most of the parameters in it."""
    files = files_in(path / "params")
    return f"params/{max(files.names(), key=lambda name: files.size(name) or 0)}"


def flip(path: Path) -> None:
    content = bytearray((path / largest(path)).read_bytes())
    content[len(content) // 2] ^= 1
    (path / largest(path)).write_bytes(bytes(content))


def truncate(path: Path) -> None:
    content = (path / largest(path)).read_bytes()
    (path / largest(path)).write_bytes(content[:-7])


def remove(path: Path) -> None:
    (path / largest(path)).unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flip, "does not have the content that was saved"),
        (truncate, "bytes, not"),
        (remove, "is missing"),
    ],
)
def test_a_damaged_step_is_marked_and_the_one_before_is_taken(
    copy: Saver, damage: Callable[[Path], None], reason: str
) -> None:
    damage(path_of(copy, 20))
    found = copy.restored()
    assert found is not None
    assert found[0] == newest_step(copy.place) == 10
    assert (copy.said.codes, copy.said.steps) == ([NoticeCode.CHECKPOINT_DAMAGED], [20])
    assert re.search(f"20 is damaged .*{reason}.*{DAMAGED}", copy.said[0])
    assert reason in (path_of(copy, 20) / DAMAGED).read_text()
    copy.save(20)  # by the time that it is reached again
    assert newest_step(copy.place) == 20
    assert DAMAGED not in names(Uri("gs", "bucket", f"{copy.place}/20".split("/", 3)[3]))
    assert len(copy.said) == 1


def test_where_all_are_damaged_only_a_person_can_start_afresh(copy: Saver) -> None:
    flip(path_of(copy, 10))
    flip(path_of(copy, 20))
    for _ in range(2):
        with pytest.raises(NoUsableCheckpointError, match=r"remove the damaged ones \(10, 20 in"):
            copy.restored()
    (path_of(copy, 10) / MARKER).write_text("it must do")  # against the note: still not used
    with pytest.raises(NoUsableCheckpointError):
        copy.restored()
    store().rm(f"{copy.place}/10", recursive=True)
    store().rm(f"{copy.place}/20", recursive=True)
    assert copy.restored() is None


# --- what a killed save leaves --------------------------------------------------------------------


@dataclass
class Gate:
    """Holds the uploads of an object for ever, and says when one came."""

    name: str
    reached: threading.Event = field(default_factory=threading.Event)

    def __call__(self, asked: Request) -> Fault | None:
        told = unquote(asked.target).encode() + asked.body[:1000]
        if asked.method != "POST" or self.name.encode() not in told:
            return None
        self.reached.set()
        return SILENCE


@pytest.mark.slow
def test_a_save_that_is_killed_is_not_committed_and_is_cleared_away(
    emulator: Emulator, tmp_path: Path, unoptimised: dict[str, str], undisturbed: TrainState
) -> None:
    place = emulator.root / "killed" / "checkpoints"
    trainer = Trainer(tmp_path, unoptimised, 1, tiny(place))

    def killed_at(name: str) -> str:
        """What a trainer says that is killed while this object of step 10 is on its way."""
        gate = Gate(f"{place.path}/10/{name}")
        with FaultyStore(emulator, gate).serving() as faulty:
            trainer.extra = dict(faulty.proxied.env)
            with trainer.start() as process:
                reached = gate.reached.wait(PATIENCE)
                process.send_signal(signal.SIGKILL)
                assert process.stdout is not None
                output = process.stdout.read()
        assert reached, output
        assert newest_step(place) == 5
        return output

    removed = f"removing {place}/10: its save was never committed"
    assert "fresh start" in killed_at(METADATA)
    assert "restored step 5 from gs://" in killed_at("params/manifest.ocdbt")
    assert removed in killed_at(MARKER)
    metadata = (bucket_paths.path_of(place) / "10" / METADATA).read_bytes()
    assert was_committed(metadata), "nothing but the marker was missing"
    trainer.extra = dict(emulator.env)
    assert removed in trainer.finish()
    assert steps(place) == {"15", "17"}

    abstract = spec(parse(trainer.mapping).init).abstract
    assert_same_bits(restore(place, 17, abstract)[0], undisturbed)


# --- faults ---------------------------------------------------------------------------------------


def test_a_save_outlives_what_passes(
    emulator: Emulator, saved: tuple[Saver, TrainState], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {
        20: answered(503, "backendError", "We encountered an internal error."),
        60: RESET,
        100: answered(429, "rateLimitExceeded", "Slow down."),
    }
    with FaultyStore(emulator, lambda asked: faults.get(asked.count)).serving() as faulty:
        for name, value in faulty.proxied.env.items():
            monkeypatch.setenv(name, value)
        saver = Saver(emulator.root / "faults" / "checkpoints")
        saver.save(10)
        assert len(faulty.requests) > max(faults)
        found = saver.restored()
        assert found is not None
        assert_same_bits(found[1].params, saved[1].params)
        assert saver.said == []

        faulty.plan = lambda asked: REFUSED if MANIFEST in asked.target else None
        saver.save(20)
        assert saver.said.codes[:1] == [NoticeCode.MANIFEST_NOT_WRITTEN]
        assert "Login Required" in saver.said[0]
        faulty.plan = lambda asked: None
        found = saver.restored()
    assert found is not None
    assert found[0] == 20
    assert saver.said.codes[1] == NoticeCode.CHECKPOINT_UNVERIFIED


def test_a_read_outlives_what_passes(
    emulator: Emulator, saved: tuple[Saver, TrainState], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tenth request fails: of Orbax's, of tensorstore's and of ours."""
    passing = (answered(503, "backendError", "We encountered an internal error."), RESET)

    def plan(asked: Request) -> Fault | None:
        return passing[asked.count // 10 % 2] if asked.count % 10 == 3 else None

    saver = Saver(saved[0].place)
    with FaultyStore(emulator, plan).serving() as faulty:
        for name, value in faulty.proxied.env.items():
            monkeypatch.setenv(name, value)
        found = saver.restored()
        assert len(faulty.requests) > 13, "at least one of each"
    assert found is not None
    assert found.step == 20
    assert_same_bits(found.state.params, saved[1].params)
    assert saver.said == []


# --- copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [b"\r", b"\n", b"\r\n", b"--==0==", b""])
def test_what_a_person_copies_arrives_to_the_byte(emulator: Emulator, last: bytes) -> None:
    """Files of Orbax end in any byte; the emulator dropped a carriage return."""
    place = f"{emulator.root}/bytes/object"
    store().pipe_file(place, b"\x00\r\n\n--" + last)
    assert store().cat_file(place) == b"\x00\r\n\n--" + last


def test_a_copy_without_its_marker_is_explained_and_left_alone(
    emulator: Emulator, tmp_path: Path
) -> None:
    local = Saver(tmp_path / "checkpoints")
    state = local.save(10, 20)
    place = emulator.root / "copied" / "checkpoints"
    store().put(f"{tmp_path}/checkpoints/", f"{place}/", recursive=True)
    saver = Saver(place)
    (path_of(saver, 20) / MARKER).unlink()
    before = bucket_paths.objects(bucket_paths.path_of(place))
    for _ in range(2):
        with pytest.raises(UnmarkedCheckpointError, match="looks like a checkpoint") as refusal:
            saver.restored()
    command = f"`echo copied | gcloud storage cp - {place}/20/{MARKER}`"
    assert command in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert bucket_paths.objects(bucket_paths.path_of(place)) == before
    (path_of(saver, 20) / MARKER).write_text("copied\n")  # as the command does
    (path_of(saver, 10) / MARKER).unlink()  # below the newest one: nobody asks for it
    found = saver.restored()
    assert found is not None
    assert found[0] == 20
    assert_same_bits(found[1].params, state.params)
    assert (path_of(saver, 10) / METADATA).exists()


def test_a_copy_that_lost_a_file_is_damaged(copy: Saver, tmp_path: Path) -> None:
    """From the bucket to a disk: digests are of the kind that the bucket knew."""
    store().get(f"{copy.place}/", f"{tmp_path}/there/", recursive=True)
    there = Saver(tmp_path / "there")
    flip(path_of(there, 20))
    found = there.restored()
    assert found is not None
    assert found[0] == 10
    assert "does not have the content that was saved" in there.said[0]


# --- a mounted bucket -----------------------------------------------------------------------------


def test_on_a_mount_only_the_marker_counts_and_nothing_is_renamed(tmp_path: Path) -> None:
    """A made-up mount: an ordinary directory, by the rules for one."""
    saver, said = Saver(tmp_path / "checkpoints"), Notices()
    directory = tmp_path / "checkpoints"

    def opened() -> CheckpointSaver:
        return CheckpointSaver(MarkedSteps(directory), 3, saver.print, said)

    checkpoints, state = opened(), saver.spec.fresh()
    for step in (10, 20):
        checkpoints.save(state, step, {"next": step})
        assert not any("tmp" in name for name in names(directory))
        assert checkpoints.committed(wait=True) == step
    checkpoints.close()
    shutil.copytree(directory / "20", directory / "30")
    (directory / "30" / MARKER).unlink()
    with pytest.raises(UnmarkedCheckpointError, match=f"`touch {directory}/30/{MARKER}`"):
        opened()
    (directory / "supervise_saving.txt").write_text("30")  # had it been ours
    flip(directory / "20")
    found = opened().restore(saver.spec.abstract)
    assert found is not None
    assert found[0] == 10
    assert_same_bits(found[1].params, state.params)
    assert steps(directory) == {"10", "20"}
    assert (directory / "20" / DAMAGED).exists()
    assert not (directory / "20" / MARKER).exists()


# --- the config -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("s3://bucket/x", "Orbax cannot save to s3://"),
        ("az://bucket/x", "is on no object store that is supported"),
        ("gs:///x", "names no bucket"),
        ("gs://bucket/x[1]", "takes them for patterns"),
    ],
)
def test_a_place_that_cannot_be_saved_to_is_refused(place: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        parse(tiny(place))
    assert error.value.problems[0].key == "trainer.init.checkpoint.directory"


def test_orbax_itself_saves_to_no_other_store(
    s3: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The day this fails, the refusal above can go."""
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    place, arrays = f"{s3.root}/orbax/1", {"w": np.arange(4.0)}
    with pytest.raises(ValueError, match="path should be absolute"):
        ocp.Checkpointer(ocp.StandardCheckpointHandler()).save(place, arrays)
