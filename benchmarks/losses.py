"""A storm of losses: simulated devices are lost and come back at random times while a job trains.

In the bitwise mode, the parameters at its end must equal those of an undisturbed run.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml

from benchmarks.contest import FailedError
from benchmarks.training import Contestant, Training, training
from supervisor.config.training.layout import Rung
from supervisor.config.training.resolved import parse
from supervisor.protocol import simulated
from trainer.checkpoint import newest_step, restore
from trainer.mesh import make_mesh
from trainer.train_state import TrainStateSpec

_DEVICES = 8
_LEAST = 2
_STEPS_PER_CHANGE = 12
"""Steps that a run has for each change. The next change comes 2 to 11 steps after the last one."""
_EVERY = 10


@dataclass(frozen=True, slots=True)
class Storm:
    """The results of a storm. True is 1 and False is 0, because figures are numbers."""

    changes: int
    rung_changes: int
    explained: int
    """Whether a `devices-probed` event comes right before each `rung-changed` event."""
    bit_identical: int


def storm(changes: int) -> Storm:
    """Lose or return a device `changes` times, then let the job finish; returns the results.

    Raises:
        FailedError: a job does not succeed.
    """
    steps = changes * _STEPS_PER_CHANGE + 3 * _EVERY
    with tempfile.TemporaryDirectory() as calm, tempfile.TemporaryDirectory() as wild:
        with _job(Path(calm), steps) as run:
            _finished(run)
            expected = _parameters(run, steps)
        with _job(Path(wild), steps) as run:
            _disturb(run, changes)
            _finished(run)
            found = _parameters(run, steps)
            names = [event["event"] for event in run.events()]
    moved = [n for n, name in enumerate(names) if name == "rung-changed"]
    return Storm(
        changes=changes,
        rung_changes=len(moved),
        explained=int(all(names[n - 1] == "devices-probed" for n in moved)),
        bit_identical=int(_same(expected, found)),
    )


def _job(folder: Path, steps: int) -> Any:
    contestant = Contestant(
        "storm",
        autorestart={"ladder": [8, 4, 2], "min_num_devices": _LEAST, "standby": "imports"},
        init={
            "devices": {"platform": "cpu", "count": _DEVICES},
            "determinism": {"elastic": "bitwise"},
        },
    )
    return training(contestant, folder, every=_EVERY, max_steps=steps)


def _disturb(run: Training, changes: int) -> None:
    """Lose or return one device `changes` times, some steps apart; in the end return all."""
    lots = random.Random("a storm of losses")
    file = run.folder / "run" / simulated.FILE
    lost: set[str] = set()
    step = run.wait_for_step(_EVERY)
    for _ in range(changes):
        well = sorted({str(device) for device in range(_DEVICES)} - lost)
        if lost and (len(well) <= _LEAST or lots.random() < 0.5):
            unit = lots.choice(sorted(lost))
            simulated.mark_healthy(file, unit)
            lost.discard(unit)
        else:
            unit = lots.choice(well)
            simulated.mark_lost(file, unit)
            lost.add(unit)
        step = run.wait_for_step(step.number + lots.randrange(2, _STEPS_PER_CHANGE), since=step.at)
    simulated.mark_healthy(file, *lost)


def _finished(run: Training) -> None:
    run.wait_for_event("job-ended", timeout=3600.0, status="SUCCEEDED", code=0)


def _parameters(run: Training, step: int) -> Any:
    """Returns the parameters and the optimizer state of the checkpoint of `step`, on one device.

    Raises:
        FailedError: the newest checkpoint is of another step.
    """
    checkpoints = run.folder / "run" / "checkpoints"
    if newest_step(checkpoints) != step:
        raise FailedError(f"the last checkpoint is of step {newest_step(checkpoints)}")
    params = max((run.folder / "run").glob("*_restartable/params.yaml"))
    init = parse(yaml.safe_load(params.read_text(encoding="utf-8"))).init
    alone = Rung(1, 1, 1, per_device_batch=1, accumulation=1)
    state, _ = restore(checkpoints, step, TrainStateSpec.of(init, make_mesh(alone)).abstract)
    return state.params, state.optimizer


def _same(one: Any, other: Any) -> bool:
    left, right = jax.tree.leaves(one), jax.tree.leaves(other)
    return len(left) == len(right) and all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(left, right, strict=True)
    )
