"""A trainer that is killed between checkpoints goes on from memory and ends with the same bits; and
whatever is wrong with what it finds there, it goes on from the checkpoint."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from supervisor.config.training.resolved import parse
from supervisor.protocol.environment import JOB, snapshot_variables
from supervisor.protocol.messages import NoticeCode
from tests.running import eventually
from tests.training.notices import Notices
from trainer.byte_layout import ByteLayout, Written
from trainer.checkpoint import newest_step
from trainer.manifest import MANIFEST
from trainer.snapshot import SnapshotWriter
from trainer.train_state import TrainState, TrainStateSpec

from .harness import MakeTrainer, Trainer, assert_same_bits, newest_snapshot, spec, tiny

HANGS = {"step": 13, "hang": True}


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    yield descriptor
    os.close(descriptor)


def with_snapshots(trainer: Trainer, memory: int) -> Trainer:
    trainer.mapping["trainer"]["init"]["checkpoint"]["snapshot"] = {"every": 6}
    trainer.extra |= snapshot_variables(memory)
    return trainer


def killed_after_13_with_a_snapshot_of_12(trainer: Trainer, memory: int) -> None:
    with trainer.start(HANGS, pass_fds=(memory,)) as process:
        ready = (12, 10)
        seen = eventually(
            lambda: (newest_snapshot(memory), newest_step(trainer.checkpoints)) == ready, 60.0
        )
        process.kill()
        output = process.communicate()[0]
    assert seen, output
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_devices", "loop"), [(1, {}), (4, {"fsdp": 2})], ids=["1 device", "4 devices"]
)
def test_killed_between_checkpoints_it_ends_with_the_same_bits(
    make_trainer: MakeTrainer, memory: int, num_devices: int, loop: dict[str, int]
) -> None:
    whole = make_trainer("whole", num_devices, **loop)
    whole.finish()
    killed = with_snapshots(make_trainer("killed", num_devices, **loop), memory)
    killed_after_13_with_a_snapshot_of_12(killed, memory)

    output = killed.finish(pass_fds=(memory,))

    assert "resumed from the snapshot of step 12 in memory" in output
    assert "step 12  loss" not in output
    assert_same_bits(killed.state(17), whole.state(17))


# --- in this process ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan() -> TrainStateSpec:
    return spec(parse(tiny(Path("/nowhere"))).init, 4, 2)


@pytest.fixture(scope="module")
def state(plan: TrainStateSpec) -> TrainState:
    return plan.fresh()


def take(
    snapshots: SnapshotWriter, state: TrainState, step: int, finite: jax.Array | None = None
) -> None:
    snapshots.take(state, step, {"batch": step}, finite)
    snapshots.settle()


def test_what_is_taken_is_restored_where_no_checkpoint_is_newer(
    memory: int, plan: TrainStateSpec, state: TrainState
) -> None:
    said = Notices()
    for number in (2, 4):
        take(SnapshotWriter(memory, 2, plan, said), state, number)
    for checkpoint in (None, 3, 4):
        found = SnapshotWriter(memory, 2, plan, said).restore(checkpoint)
        assert found is not None
        step, restored, position = found
        assert (step, position) == (4, {"batch": 4})
        assert_same_bits(restored, state)
        for one, other in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
            assert one.sharding == other.sharding
            assert one.dtype == other.dtype
    assert SnapshotWriter(memory, 2, plan, said).restore(5) is None
    assert os.fstat(memory).st_size == 0, "an older history is left in memory"


def test_a_state_that_is_not_finite_is_not_kept(
    memory: int, plan: TrainStateSpec, state: TrainState
) -> None:
    snapshots = SnapshotWriter(memory, 2, plan, print)
    take(snapshots, state, 2, jnp.bool_(True))
    take(snapshots, state, 4, jnp.bool_(False))
    assert newest_snapshot(memory) == 2


class Pending:
    """A step that is not complete yet: who wants to know whether it is finite has to wait."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def __bool__(self) -> bool:
        return self.done.wait(60.0)


def test_one_that_comes_too_soon_is_left_out(
    memory: int, plan: TrainStateSpec, state: TrainState
) -> None:
    snapshots = SnapshotWriter(memory, 2, plan, print)
    step: Any = Pending()
    snapshots.take(state, 2, {}, step)
    snapshots.take(state, 4, {}, None)
    step.done.set()
    snapshots.settle()
    assert newest_snapshot(memory) == 2
    take(snapshots, state, 6)
    assert newest_snapshot(memory) == 6


def test_a_flipped_byte_is_found_and_nothing_in_memory_is_trusted(
    memory: int, plan: TrainStateSpec, state: TrainState
) -> None:
    said = Notices()
    for number in (2, 4):
        take(SnapshotWriter(memory, 2, plan, print), state, number)
    where = os.fstat(memory).st_size - 4096
    data = os.pread(memory, 4096, where)
    place = where + len(data.rstrip(b"\0")) - 1
    os.pwrite(memory, bytes([data[place - where] ^ 1]), place)
    assert SnapshotWriter(memory, 2, plan, said).restore(None) is None
    (line,) = said
    assert (said.codes, said.steps) == ([NoticeCode.SNAPSHOT_NOT_USED], [4])
    assert line.endswith("are not what was written")


def test_a_torn_slot_falls_back_to_the_other(
    memory: int, plan: TrainStateSpec, state: TrainState
) -> None:
    for number in (2, 4):
        take(SnapshotWriter(memory, 2, plan, print), state, number)
    os.pwrite(memory, bytes(8), os.fstat(memory).st_size // 2)
    found = SnapshotWriter(memory, 2, plan, print).restore(None)
    assert found is not None
    assert found[0] == 2


def test_a_snapshot_of_another_job_phase_or_model_is_not_used(
    memory: int, plan: TrainStateSpec, state: TrainState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(other: TrainStateSpec) -> str:
        said = Notices()
        take(SnapshotWriter(memory, 2, plan, print), state, 2)
        with monkeypatch.context() as context:
            context.setenv(JOB, "another" if other is plan else "")
            assert SnapshotWriter(memory, 2, other, said).restore(None) is None
        return said[0].partition("is not used: ")[2]

    monkeypatch.setenv(JOB, "")
    mapping = tiny(Path("/elsewhere"))
    assert refused(plan) == "it is of another job"
    assert refused(spec(parse(mapping).init, 4, 2)) == "it is of another phase"
    mapping = tiny(Path("/nowhere"))
    mapping["trainer"]["init"]["model"]["rope_theta"] = 5000.0
    assert refused(spec(parse(mapping).init, 4, 2)) == "it is of another model.rope_theta"


@pytest.mark.parametrize(("num_devices", "fsdp"), [(4, 4), (4, 1), (2, 2), (1, 1)])
def test_a_snapshot_of_other_devices_is_put_together(
    memory: int, plan: TrainStateSpec, state: TrainState, num_devices: int, fsdp: int
) -> None:
    take(SnapshotWriter(memory, 2, plan, print), state, 2)
    other = spec(plan.config, num_devices, fsdp)
    found = SnapshotWriter(memory, 2, other, print).restore(None)
    assert found is not None
    assert_same_bits(found[1], state)
    wanted = jax.tree.leaves(other.abstract)
    for one, like in zip(jax.tree.leaves(found[1]), wanted, strict=True):
        assert one.sharding == like.sharding
        assert one.dtype == like.dtype
    take(SnapshotWriter(memory, 2, other, print), found[1], 4)
    back = SnapshotWriter(memory, 2, plan, print).restore(None)
    assert back is not None
    assert back[0] == 4
    assert_same_bits(back[1], state)


def test_what_holds_another_state_or_a_part_of_it_cannot_be_read(plan: TrainStateSpec) -> None:
    whole, sharded = (ByteLayout.of(spec(plan.config, 4, fsdp).abstract) for fsdp in (1, 4))
    written = sharded.written
    assert whole.can_read(written)
    assert sharded.can_read(whole.written)
    assert not whole.can_read(written[1:])
    split = next(index for index, one in enumerate(written) if len(one.parts) > 1)
    half = replace(written[split], parts=written[split].parts[:2])
    assert not whole.can_read([*written[:split], half, *written[split + 1 :]])
    assert not sharded.can_read([*written[:split], half, *written[split + 1 :]])
    other = replace(written[split], dtype="bfloat16")
    assert not sharded.can_read([*written[:split], other, *written[split + 1 :]])
    assert [Written.of(json.loads(json.dumps(one.described))) for one in written] == written


def test_without_a_supervisor_there_are_none(
    memory: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mapping = tiny(Path("/nowhere"))
    assert SnapshotWriter.of(spec(parse(mapping).init), print) is None
    assert capsys.readouterr().out == ""
    mapping["trainer"]["init"]["checkpoint"]["snapshot"] = {"every": 2}
    wanted = spec(parse(mapping).init)
    assert SnapshotWriter.of(wanted, print) is None
    assert "no supervisor has memory for them" in capsys.readouterr().out
    for name, value in snapshot_variables(memory).items():
        monkeypatch.setenv(name, value)
    assert SnapshotWriter.of(wanted, print) is not None


def test_without_room_it_is_said_once_and_training_goes_on(
    memory: int, plan: TrainStateSpec, state: TrainState
) -> None:
    said = Notices()
    snapshots = SnapshotWriter(memory, 2, plan, said)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    assert snapshots.due(2)
    take(snapshots, state, 2)
    assert said.codes == [NoticeCode.SNAPSHOTS_STOPPED]
    assert "PermissionError: [Errno 1] Operation not permitted" in said[0]
    assert not snapshots.due(4)
    assert snapshots.restore(None) is None


# --- several processes ----------------------------------------------------------------------------


def start_group(
    trainers: list[Trainer], memories: list[int], *faults: Any
) -> list[subprocess.Popen[str]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    started = []
    for rank, (trainer, memory) in enumerate(zip(trainers, memories, strict=True)):
        trainer.extra = {
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "JAX_NUM_PROCESSES": str(len(trainers)),
            "JAX_PROCESS_ID": str(rank),
            **snapshot_variables(memory),
        }
        started.append(trainer.start(*faults, pass_fds=(memory,)))
    return started


def ends(group: list[subprocess.Popen[str]]) -> list[str]:
    """What each process of a group printed."""
    return [process.communicate(timeout=120)[0] for process in group]


@pytest.mark.slow
def test_several_processes_use_it_only_if_all_have_the_same_step(
    make_trainer: MakeTrainer, memory: int, tmp_path: Path
) -> None:
    trainers = [make_trainer(name, fsdp=2) for name in ("rank0", "rank1")]
    checkpoints = trainers[0].checkpoints
    for trainer in trainers:
        init = trainer.mapping["trainer"]["init"]
        init["checkpoint"] |= {
            "directory": str(checkpoints),
            "every": 4,  # the save at 12 waits until that at 8 is committed
            "keep": 3,
            "snapshot": {"every": 7},
        }
    memories = [memory, os.memfd_create("other")]
    group = start_group(trainers, memories, {"step": 15, "hang": True})
    ready = eventually(
        lambda: (
            [newest_snapshot(one) for one in memories] == [14, 14]
            and newest_step(checkpoints) == 12
            and (checkpoints / "8" / MANIFEST).exists()
        ),
        60.0,
    )
    for process in group:
        process.kill()
    assert ready, ends(group)
    ends(group)

    before = [os.pread(one, os.fstat(one).st_size, 0) for one in memories]
    shutil.copytree(checkpoints, tmp_path / "before")
    for output in ends(start_group(trainers, memories)):
        assert "resumed from the snapshot of step 14 in memory" in output
        assert "step 14  loss" not in output
        assert "step 17  loss" in output

    shutil.rmtree(checkpoints)
    (tmp_path / "before").rename(checkpoints)
    shutil.rmtree(checkpoints / "12")
    os.pwrite(memory, before[0], 0)
    os.ftruncate(memories[1], 0)
    with (checkpoints / "8" / "progress" / "metadata").open("ab") as file:
        file.write(b" ")
    outputs = ends(start_group(trainers, memories))
    assert "the snapshot of step 14 is not used: another process does not have it" in outputs[0]
    assert ["moved to corrupt/8-1" in output for output in outputs] == [True, False]
    for output in outputs:
        assert "restored step 4" in output
        assert "step 17  loss" in output
        assert "manifest" not in output
    os.close(memories[1])
