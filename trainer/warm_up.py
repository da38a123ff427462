"""The trainer as a standby: it does all that does not depend on the attempt before there is one.

It runs a step on zeros, and a save and a restore of zeros. That makes the first real ones as quick
as later ones. It touches nothing of the job: no checkpoint, no progress, no injected fault.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import yaml

from supervisor.config.training.data_files import matching_files
from supervisor.config.training.resolved import TrainerConfig, parse
from supervisor.protocol.adjustments import Adjustments
from supervisor.protocol.environment import WorkerIdentity
from supervisor.protocol.standby import StandbyOrders
from trainer.checkpoint import CheckpointSaver
from trainer.checkpoint_steps import steps_in
from trainer.log import WorkerLog
from trainer.snapshot import SnapshotWriter
from trainer.training_setup import TrainingSetup, set_up
from trainer.visible_devices import device_variables

_FileFacts = list[tuple[str, int, int]]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What was prepared, and for which config, data and devices."""

    setup: TrainingSetup
    config: TrainerConfig
    text: str
    """The text of the config file."""
    data: _FileFacts
    num_devices: int | None
    platform: str
    visible: dict[str, str]
    accumulation: int

    @classmethod
    def of(cls, params: Path) -> WarmUp | None:
        """Prepare to train the config in the file `params`, on the devices of this process. None:
        it only evaluates, which nothing is prepared for."""
        text = params.read_text(encoding="utf-8")
        config = parse(yaml.safe_load(text))
        if config.fit.train_dataloader is None:
            return None
        data = _file_facts(config)
        num_devices = _num_devices(os.environ)
        adjustments = Adjustments.from_environment()
        setup = set_up(config, num_devices, adjustments, WorkerLog())
        _rehearse(setup)
        platform = jax.devices()[0].platform
        visible = device_variables()
        accumulation = adjustments.accumulation
        return cls(setup, config, text, data, num_devices, platform, visible, accumulation)

    def problem(self, orders: StandbyOrders) -> str | None:
        """Return why the worker of `orders` cannot use what was prepared; None: it can.

        Other simulated devices are no problem: the worker can have any number of them, and it then
        uses the imports only.
        """
        try:
            if Path(orders.argv[-1]).read_text(encoding="utf-8") != self.text:
                return "the config was changed"
            if _file_facts(self.config) != self.data:
                return "the data were changed"
        except OSError as error:
            return str(error)
        if self.platform != "cpu" and not self.has_its_devices(orders.env):
            return "other devices"
        if Adjustments.from_environment(orders.env).accumulation != self.accumulation:
            return "another accumulation"
        return None

    def has_its_devices(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Whether `environ` selects the devices that this was prepared for."""
        number = _num_devices(environ)
        return number == self.num_devices and device_variables(environ) == self.visible


def _num_devices(environ: Mapping[str, str]) -> int | None:
    identity = WorkerIdentity.from_environment(environ)
    return identity.num_devices if identity is not None else None


def _file_facts(config: TrainerConfig) -> _FileFacts:
    """Return path, modification time and size of each file of training data."""
    patterns = config.fit.decisive.paths
    files = [file for pattern in patterns for file in matching_files(pattern)]
    return [(str(file), (status := file.stat()).st_mtime_ns, status.st_size) for file in files]


def _rehearse(setup: TrainingSetup) -> None:
    """Do one step, one save and one restore of zeros; also a snapshot, if the config asks for
    them."""
    spec, position = setup.spec, setup.data().batches.get_state()
    state, metrics = setup.compiled_step()(_zeros(spec.abstract), _zeros(setup.tokens))
    if spec.config.checkpoint.snapshot is not None:
        memory = os.memfd_create("rehearsal")
        snapshots = SnapshotWriter(memory, 1, spec, WorkerLog().warn)
        snapshots.take(state, 1, position, metrics["finite"])
        snapshots.settle()
        jax.block_until_ready(snapshots.restore(None))
        os.close(memory)
    with tempfile.TemporaryDirectory(prefix="supervise-standby-") as directory:
        checkpoints = CheckpointSaver(steps_in(Path(directory)), 1, {}, WorkerLog().warn)
        checkpoints.save(state, 1, position)
        checkpoints.committed(wait=True)
        checkpoints.wait_for_manifest()
        jax.block_until_ready(checkpoints.restore(spec.abstract))
        checkpoints.close()


def _zeros(abstract: Any) -> Any:
    """Return arrays of zeros with the shapes, types and shardings of `abstract`."""
    return jax.tree.map(
        lambda leaf: jax.device_put(jnp.zeros(leaf.shape, leaf.dtype), leaf.sharding), abstract
    )
