"""A damaged checkpoint is moved aside and the one before it is taken; one that does not fit is
refused and left alone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.config.training.resolved import StartPoint, parse
from supervisor.diagnosis.failure import Evidence, RankEvidence, Verdict, WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.protocol.committed import METADATA
from supervisor.protocol.messages import NoticeCode
from tests.training.notices import Notices
from trainer.checkpoint import (
    CheckpointMismatchError,
    CheckpointSaver,
    newest_step,
    restore_parts,
)
from trainer.checkpoint_steps import NoUsableCheckpointError, steps_in
from trainer.config_fingerprint import fingerprint, fingerprint_across
from trainer.manifest import MANIFEST, read_manifest
from trainer.train_state import TrainState

from .harness import MakeTrainer, Trainer, assert_same_bits, spec, tiny

SEED = int(os.environ.get("SEED", random.randrange(2**32)))

Damage = Callable[[Path], None]


def largest(step: Path) -> Path:
    """The file with most of the parameters in it."""
    return max((step / "params").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())


def flip(step: Path) -> None:
    path = largest(step)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(step: Path) -> None:
    path = largest(step)
    path.write_bytes(path.read_bytes()[:-7])


def garble_manifest(step: Path) -> None:
    (step / MANIFEST).write_text("{}")


def lose_everything_but_the_mark(step: Path) -> None:
    """No manifest, and nothing that Orbax could restore."""
    (step / MANIFEST).unlink()
    for item in ("params", "optimizer", "progress"):
        shutil.rmtree(step / item)


def lose_the_optimizer(step: Path) -> None:
    """And with it what would tell that something is missing."""
    (step / MANIFEST).unlink()
    shutil.rmtree(step / "optimizer")


def empty(step: Path) -> None:
    largest(step).write_bytes(b"")


def lose_the_mark(step: Path) -> None:
    (step / "commit_success.txt").unlink()
    (step / "_CHECKPOINT_METADATA").unlink()


@pytest.fixture(scope="module")
def stopped(
    tmp_path_factory: pytest.TempPathFactory, unoptimised: dict[str, str]
) -> tuple[Trainer, str]:
    """A trainer with steps 10 and 12 committed, of 17, and what it printed."""
    folder = tmp_path_factory.mktemp("stopped")
    mapping = tiny(folder / "checkpoints", max_inflight_computations=1)
    trainer = Trainer(folder, unoptimised, 1, mapping)
    done = trainer.run({"step": 12, "signal": "SIGTERM"})
    assert done.returncode == -signal.SIGTERM, done.stdout
    return trainer, done.stdout


@pytest.fixture
def copy(stopped: tuple[Trainer, str], make_trainer: MakeTrainer) -> Trainer:
    """A trainer in the same state as `stopped`, to be damaged."""
    trainer = make_trainer(max_inflight_computations=1)
    shutil.copytree(stopped[0].checkpoints, trainer.checkpoints)
    return trainer


def opened(trainer: Trainer, said: Notices) -> tuple[CheckpointSaver, Any]:
    """The trainer's checkpoints in this process, and the abstract state to restore."""
    return saver(trainer, said), spec(parse(trainer.mapping).init).abstract


def saver(trainer: Trainer, said: Notices) -> CheckpointSaver:
    """The trainer's checkpoints in this process."""
    shared = fingerprint(parse(trainer.mapping).init)
    return CheckpointSaver(steps_in(trainer.checkpoints), 2, shared, said)


def test_every_kept_step_has_a_manifest_that_verifies(stopped: tuple[Trainer, str]) -> None:
    for step in (10, 12):
        path = stopped[0].checkpoints / str(step)
        manifest = read_manifest(path)
        assert manifest is not None
        assert manifest.information.keys() == {"jax", "orbax"}
        start = time.perf_counter()
        manifest.verify(path)
        print(f"{len(manifest.files)} files verified in {time.perf_counter() - start:.4f} s")


def test_after_a_flipped_bit_it_ends_with_the_same_bits(
    copy: Trainer, undisturbed: TrainState
) -> None:
    flip(copy.checkpoints / "12")
    output = copy.finish()
    assert "12 is damaged (params/" in output
    assert "does not have the content that was saved): moved to corrupt/12-1" in output
    assert "restored step 10" in output
    assert sorted(path.name for path in (copy.checkpoints / "corrupt").iterdir()) == [
        "12-1",
        "12-1.reason.txt",
    ]
    assert_same_bits(copy.state(17), undisturbed)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "bytes, not"),
        (empty, "0 bytes, not"),
        (lose_the_optimizer, "cannot be restored"),
        (garble_manifest, "is not a manifest"),
        (lose_everything_but_the_mark, "cannot be restored"),
        (lose_the_mark, "the mark of its commit is gone"),
    ],
)
def test_what_is_damaged_is_moved_aside_and_can_be_saved_again(
    copy: Trainer, damage: Damage, reason: str
) -> None:
    damage(copy.checkpoints / "12")
    said = Notices()
    checkpoints, abstract = opened(copy, said)
    restored = checkpoints.restore(abstract)
    assert restored is not None
    step, state, position, _ = restored
    assert step == 10
    assert reason in "\n".join(said)
    assert (said.codes, said.steps) == ([NoticeCode.CHECKPOINT_DAMAGED], [12])
    assert reason in (copy.checkpoints / "corrupt" / "12-1.reason.txt").read_text()

    checkpoints.save(state, 12, position)
    assert checkpoints.committed(wait=True) == 12
    checkpoints.close()
    assert checkpoints.newest_verified() == 12


@pytest.mark.slow
def test_of_two_hundred_flipped_bits_each_is_caught(
    stopped: tuple[Trainer, str], copy: Trainer
) -> None:
    """Half of them in any file, half anywhere in the bytes, most of which are parameters. A flip in
    the time of the commit makes the step another job's, which is left where it is."""
    print(f"SEED={SEED}")
    chance = random.Random(SEED)
    step, ten = copy.checkpoints / "12", stopped[0].state(10)
    abstract = spec(parse(copy.mapping).init).abstract
    manifest = read_manifest(step)
    assert manifest is not None
    sizes = {name: (step / name).stat().st_size for name in (*manifest.files, MANIFEST)}
    filled = [name for name, size in sizes.items() if size]
    for number in range(200):
        weights = [sizes[name] if number % 2 else 1 for name in filled]
        (name,) = chance.choices(filled, weights)
        byte, bit = chance.randrange(sizes[name]), chance.randrange(8)
        content = bytearray((step / name).read_bytes())
        content[byte] ^= 1 << bit
        (step / name).write_bytes(content)
        flipped = f"bit {bit} of byte {byte} of {name}"

        said = Notices()
        restored = saver(copy, said).restore(abstract)
        assert restored is not None, flipped
        assert restored.step == 10, flipped
        assert_same_bits(restored.state, ten)
        told = (NoticeCode.CHECKPOINT_DAMAGED, 12), (NoticeCode.CHECKPOINT_SKIPPED, 12)
        assert set(told) & set(zip(said.codes, said.steps, strict=True)), (flipped, said)
        if NoticeCode.CHECKPOINT_SKIPPED in said.codes:
            assert name == METADATA, (flipped, said)
        else:
            assert not step.exists(), (flipped, said)

        shutil.rmtree(copy.checkpoints)
        shutil.copytree(stopped[0].checkpoints, copy.checkpoints)


def test_without_a_manifest_it_is_used_unverified(copy: Trainer) -> None:
    (copy.checkpoints / "12" / MANIFEST).unlink()
    said = Notices()
    checkpoints, abstract = opened(copy, said)
    restored = checkpoints.restore(abstract)
    assert restored is not None
    assert restored[0] == 12
    assert (said.codes, said.steps) == ([NoticeCode.CHECKPOINT_UNVERIFIED], [12])


def test_where_all_are_damaged_only_a_person_may_start_afresh(copy: Trainer) -> None:
    truncate(copy.checkpoints / "12")
    flip(copy.checkpoints / "10")
    assert copy.run().returncode == 1
    record = copy.failure()
    failure = judge(Evidence((RankEvidence(WorkerExit(0, code=1), record),)), Success())
    assert failure is not None
    assert (failure.rule, failure.verdict) == ("no-usable-checkpoint", Verdict.FATAL)
    assert f"remove what was moved to {copy.checkpoints}/corrupt (10-1, 12-1" in failure.root_cause

    checkpoints, abstract = opened(copy, Notices())
    with pytest.raises(NoUsableCheckpointError):
        checkpoints.restore(abstract)
    shutil.rmtree(copy.checkpoints / "corrupt")
    assert checkpoints.restore(abstract) is None


@pytest.mark.parametrize("manifest", [True, False], ids=["by the manifest", "by Orbax"])
def test_another_model_is_refused_and_nothing_is_moved(copy: Trainer, manifest: bool) -> None:
    if not manifest:
        (copy.checkpoints / "12" / MANIFEST).unlink()
    copy.mapping["trainer"]["init"]["model"]["hidden_size"] = 32
    checkpoints, abstract = opened(copy, Notices())
    with pytest.raises(CheckpointMismatchError) as error:
        checkpoints.restore(abstract)
    if manifest:
        assert "model.hidden_size is 16 there, but 32 in the config" in str(error.value)
    assert newest_step(copy.checkpoints) == 12
    assert not (copy.checkpoints / "corrupt").exists()
    evidence = RankEvidence(
        WorkerExit(0, code=1), output=f"Traceback (most recent call last):\n{_line(error.value)}"
    )
    failure = judge(Evidence((evidence,)), Success())
    assert failure is not None
    assert failure.rule == "checkpoint-structure"


def _line(error: Exception) -> str:
    return f"{type(error).__module__}.{type(error).__name__}: {error}".splitlines()[0]


def test_another_phase_is_verified_and_left_alone(copy: Trainer) -> None:
    init = parse(copy.mapping).init
    abstract = {"params": spec(init).abstract.params}
    shared = fingerprint_across(init, StartPoint(directory=copy.checkpoints))
    assert restore_parts(copy.checkpoints, abstract, shared, print)[0] == 12
    flip(copy.checkpoints / "12")
    with pytest.raises(NoUsableCheckpointError, match="left as it is"):
        restore_parts(copy.checkpoints, abstract, shared, print)
    assert newest_step(copy.checkpoints) == 12
    with pytest.raises(CheckpointMismatchError, match=r"start_from: .* does not fit .*num_heads"):
        restore_parts(copy.checkpoints, abstract, {**shared, "model.num_heads": 2}, print)


def test_a_phase_may_use_parameters_in_another_way() -> None:
    mapping = tiny(Path("/nowhere"), micro_batch_size=1)
    mapping["trainer"]["init"]["determinism"] = {"elastic": "bitwise"}
    init = parse(mapping).init
    source = StartPoint(directory=Path("/nowhere"))
    left_out = fingerprint(init).keys() - fingerprint_across(init, source).keys()
    assert left_out == {
        "model.dropout",
        "model.dtype",
        "model.norm_epsilon",
        "model.rope_theta",
        "model.rope_scaling",
        "optimizer.name",
        "determinism.elastic",
        "loop.micro_batch_size",
        "loop.remat",
        "loop.scan_layers",
        "lora.base",
        "lora.rank",
        "lora.alpha",
        "lora.dropout",
        "lora.pattern",
    }
