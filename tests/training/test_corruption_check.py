"""The check for silent corruption: which device is wrong, no false alarm on any rung, and what is
trusted after it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.training.layout import rung
from supervisor.config.training.resolved import parse
from supervisor.protocol.reporter import Reporter
from trainer.batch_sharder import BatchSharder
from trainer.checkpoint import CheckpointSaver
from trainer.checkpoint_steps import NoUsableCheckpointError, steps_in
from trainer.corruption_check import (
    Computed,
    CorruptionCheck,
    Digests,
    SilentCorruptionError,
    blamed,
)
from trainer.data import Batch, TrainingData
from trainer.executables import Executables
from trainer.log import WorkerLog
from trainer.mesh import make_mesh
from trainer.rollout_mesh import RolloutMesh
from trainer.step import jit_step_of_leaves, jit_train_step
from trainer.train_state import TrainState, TrainStateSpec
from trainer.training_setup import TrainingSetup

from .harness import MakeTrainer, assert_same_bits, spec, tiny
from .test_elastic import init


def digests(rows: Sequence[int]) -> Digests:
    return np.array([[row] * 4 for row in rows], np.uint32)


NONE: frozenset[int] = frozenset()


def computed(
    count: int,
    shift: int,
    *,
    micro: AbstractSet[int] = NONE,
    sums: AbstractSet[int] = NONE,
    own: AbstractSet[int] = NONE,
) -> Computed:
    """One computation with an accumulation of 2, in which the devices at these places give
    something else, each time and each its own."""
    works = [(index - shift) % count for index in range(2 * count)]

    def of(places: Sequence[int], wrong: AbstractSet[int], base: int) -> Digests:
        found = enumerate(places, base)
        return digests([one + 1000 * (place + 1) * (place in wrong) for one, place in found])

    copies = digests([7000 * (place + 1) if place in own else 1 for place in range(count)])
    return Computed(shift, of(works, micro, 10), of(works[:count], sums, 500), copies)


WRONG = {"micro": "wrong gradients", "sums": "wrong sums of gradients", "own": "a wrong update"}


@given(st.integers(3, 9), st.data())
def test_a_device_that_is_always_wrong_is_named(count: int, data: st.DataObject) -> None:
    wrong = {data.draw(st.integers(0, count - 1))}
    same = digests([1] * count)
    kind = data.draw(st.sampled_from(sorted(WRONG)))
    found = [computed(count, shift, **{kind: wrong}) for shift in (0, 1, 2)]
    assert blamed(same, found) == (sorted(wrong), WRONG[kind])


@given(st.integers(2, 9), st.integers(0, 2), st.data())
def test_a_device_that_is_wrong_once_is_named(count: int, when: int, data: st.DataObject) -> None:
    """With two devices the third computation has the order of the first again."""
    wrong = {data.draw(st.integers(0, count - 1))}
    shifts = [order % count for order in (0, 1, 2)]
    found = [computed(count, shift) for shift in shifts]
    found[when] = computed(count, shifts[when], micro=wrong)
    places, what = blamed(digests([1] * count), found)
    assert what == "wrong gradients"
    if count > 2 or when != 1:
        assert places == sorted(wrong)
    else:
        assert places == [], "each of two devices is at odds with the other one alone"


def test_a_copy_that_went_wrong_long_ago_is_named_first() -> None:
    found = [computed(4, shift, micro={2}) for shift in (0, 1, 2)]
    assert blamed(digests([1, 1, 9, 1]), found)[0] == [2]
    assert blamed(digests([1, 1, 9, 1]), found)[1].startswith("a wrong state")


def test_of_two_devices_that_disagree_none_is_named() -> None:
    found = [computed(2, shift, micro={1}) for shift in (0, 1, 0)]
    assert blamed(digests([1, 1]), found) == ([], "wrong gradients")


def setup_of(num_devices: int) -> TrainingSetup:
    config = init("adamw")
    found = rung(config, num_devices)
    assert found is not None
    sharder = BatchSharder(make_mesh(found), found)
    plan = TrainStateSpec.of(config, sharder.mesh)
    program: Future[Callable[..., Any]] = Future()
    program.set_result(jit_step_of_leaves(plan))
    tokens, executables = sharder.abstract(17), Executables(None, {}, WorkerLog())
    data = partial(TrainingData, None)
    mesh = RolloutMesh(plan, sharder)
    return TrainingSetup(WorkerLog(), sharder, plan, tokens, data, executables, program, mesh)


def batch_of(seed: int) -> Batch:
    return np.random.default_rng(seed).integers(0, 257, (8, 17), np.int32)


@pytest.mark.parametrize("num_devices", [4, pytest.param(2, marks=pytest.mark.slow)])
def test_no_check_of_right_devices_fails_on_any_rung_and_none_changes_a_bit(
    num_devices: int,
) -> None:
    """A device that flips bits is found by the first check, and named if there are others to
    outvote it."""
    setup = setup_of(num_devices)
    reports = Reports()
    wrong: list[jax.Device] = []
    check = CorruptionCheck(1, setup, reports, 0, lambda: wrong, lambda: True)
    step, state, unchecked = setup.compiled_step(), setup.spec.fresh(), setup.spec.fresh()
    for seed in range(20):
        state, metrics = check.step(step, state, batch_of(seed), seed + 1)
        unchecked, expected = step(unchecked, setup.sharder.put(batch_of(seed)))
        assert_same_bits((state, metrics), (unchecked, expected))
    wrong.append(setup.spec.mesh.devices.flat[1])
    faulty = jit_train_step(replace(setup.spec, wrong_places=(1,)))
    with pytest.raises(SilentCorruptionError, match=r"wrong gradients.*\(simulated\)"):
        check.step(faulty, state, batch_of(20), 21)
    named = [(21, 0, 1, "simulated: wrong gradients of step 21")]
    assert reports.told == (named if num_devices > 2 else [])


def test_a_copy_of_the_state_that_differs_is_found_however_it_came_about() -> None:
    setup = setup_of(4)
    reports = Reports()
    check = CorruptionCheck(1, setup, reports)
    state = setup.spec.fresh()
    leaves, tree = jax.tree.flatten(state)
    copies = [shard.data for shard in leaves[-1].addressable_shards]
    copies[2] = jax.device_put(copies[2].at[(0,) * copies[2].ndim].add(1), copies[2].device)
    leaves[-1] = jax.make_array_from_single_device_arrays(
        leaves[-1].shape, leaves[-1].sharding, copies
    )
    with pytest.raises(SilentCorruptionError, match="has computed a wrong state"):
        check.step(setup.compiled_step(), jax.tree.unflatten(tree, leaves), batch_of(0), 5)
    assert [told[:3] for told in reports.told] == [(5, 0, 2)]


class Reports(Reporter):
    """Keeps the devices that were reported."""

    def __init__(self) -> None:
        super().__init__(None)
        self.told: list[tuple[int, int, int, str]] = []

    def wrong_device(self, step: int, rank: int, device: int, text: str) -> None:
        self.told.append((step, rank, device, text))


def saver(directory: Path, keep: int = 1) -> CheckpointSaver:
    return CheckpointSaver(steps_in(directory), keep, {}, lambda *_: None)


def save(checkpoints: CheckpointSaver, state: TrainState, *steps: int) -> None:
    for step in steps:
        checkpoints.save(replace(state, step=jnp.int32(step)), step, {})
        checkpoints.committed(wait=True)
        checkpoints.wait_for_manifest()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.isdecimal())


@pytest.fixture
def plan() -> TrainStateSpec:
    return spec(parse(tiny("/tmp/checkpoints")).init)


def test_a_failed_check_goes_back_to_what_was_saved_before_one_that_passed(
    tmp_path: Path, plan: TrainStateSpec
) -> None:
    state = plan.fresh()
    checkpoints = saver(tmp_path)
    checkpoints.begin_checks(0)
    save(checkpoints, state, 10, 20)
    checkpoints.check_passed(25)
    save(checkpoints, state, 30, 40)
    assert names(tmp_path) == ["20", "40"], "20 is what a failed check would go back to"
    checkpoints.roll_back()
    checkpoints.close()
    assert names(tmp_path) == ["20"]
    again = saver(tmp_path)
    found = again.restore(plan.abstract)
    assert found is not None
    assert found.step == 20
    save(again, state, 30)
    assert again.newest() == 30, "what is computed again is trusted"
    again.close()
    last = saver(tmp_path)
    assert last.newest() == 30


def test_killed_in_a_roll_back_it_is_completed(tmp_path: Path, plan: TrainStateSpec) -> None:
    """Killed right after it was recorded, while another step was being committed."""
    state = plan.fresh()
    checkpoints = saver(tmp_path, keep=3)
    checkpoints.begin_checks(0)
    save(checkpoints, state, 10)
    checkpoints.check_passed(10)
    save(checkpoints, state, 20, 30)
    checkpoints.close()
    (ledger,) = tmp_path.glob("supervise_ledger_*.json")
    body = json.loads(ledger.read_text())
    body |= {"rolled_back": 10, "saving": 30}
    ledger.write_text(json.dumps(body))
    again = saver(tmp_path)
    assert again.newest() == 10


def test_before_any_check_passed_it_begins_anew(tmp_path: Path, plan: TrainStateSpec) -> None:
    """It began with checks. Where they were switched on later, it goes back to where they began."""
    state = plan.fresh()
    checkpoints = saver(tmp_path)
    checkpoints.begin_checks(0)
    save(checkpoints, state, 10)
    checkpoints.roll_back()
    checkpoints.close()
    again = saver(tmp_path)
    assert again.restore(plan.abstract) is None
    save(again, state, 10)
    again.end_checks()
    again.begin_checks(10)
    again.roll_back()
    again.close()
    last = saver(tmp_path)
    found = last.restore(plan.abstract)
    assert found is not None
    assert found.step == 10
    (tmp_path / "10" / "params" / "manifest.ocdbt").unlink()
    with pytest.raises(NoUsableCheckpointError):
        saver(tmp_path).newest_verified()


def test_a_restart_loads_the_program_of_a_check_for_devices_in_another_order(
    make_trainer: MakeTrainer,
) -> None:
    trainer = make_trainer(num_devices=2, micro_batch_size=2, max_steps=4)
    init = trainer.mapping["trainer"]["init"]
    init |= {"determinism": {"elastic": "bitwise"}, "sdc": {"every": 2}}
    init["checkpoint"]["every"] = 1
    del trainer.mapping["trainer"]["fit"]["validation"]
    trainer.extra["SUPERVISE_EXECUTABLES"] = str(trainer.folder / "executables")
    trainer.extra["JAX_COMPILATION_CACHE_DIR"] = str(trainer.folder / "cache")
    trainer.run({"step": 3, "signal": "SIGKILL"})
    said = trainer.finish()
    assert "checked step: loaded from its executable" in said
