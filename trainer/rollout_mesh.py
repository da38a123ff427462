"""Where completions are made: on the devices that train, or on a mesh of their own.

A mesh of its own holds no state: before each batch of completions it gets a copy of the weights
that the train state has then. So after a restore it samples with the restored weights, and there is
nothing of it to save.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass

import jax
from flax import nnx

from supervisor.config.training.layout import Rung, rollout_rung
from trainer.batch_sharder import BatchSharder
from trainer.mesh import make_mesh
from trainer.train_state import Params, TrainState, TrainStateSpec

Weights = tuple[Params, Params]
"""The weights that sampling reads: those that are trained, and frozen ones."""


@dataclass(slots=True)
class RolloutMesh:
    """The mesh on which completions are made, and the weights there."""

    spec: TrainStateSpec
    """The spec of training, but on this mesh."""
    sharder: BatchSharder
    is_separate: bool = False
    """Whether it has other devices than training."""
    _frozen: Params | None = None
    """The copy of the frozen weights, which never change; None: there is none yet."""

    @classmethod
    def of(cls, spec: TrainStateSpec, sharder: BatchSharder, accumulation: int = 1) -> RolloutMesh:
        """Return where the config of `spec` has completions made; `spec` and `sharder` are those of
        training. A mesh of its own has the last devices of the backend."""
        found = rollout_rung(spec.config, accumulation)
        if found is None:
            return cls(spec, sharder)
        mesh = make_mesh(found, jax.devices()[-found.num_devices :])
        own = TrainStateSpec.of(spec.config, mesh, spec.objective)
        return cls(own, BatchSharder(mesh, found), is_separate=True)

    @property
    def rung(self) -> Rung:
        """How the mesh is laid out."""
        return self.sharder.rung

    @property
    def shown(self) -> str:
        """One line for people, on a mesh of its own."""
        number, rung = len(self.spec.mesh.devices.flat), self.rung
        which = ", ".join(str(device) for device in self.spec.mesh.devices.flat)
        return (
            f"completions are made on {number} of {len(jax.devices())} devices ({which}; data "
            f"{rung.data} x fsdp {rung.fsdp}, {rung.per_device_batch} sequences a device at a "
            "time); before each batch of them the weights are copied there"
        )

    @property
    def abstract(self) -> Weights:
        """The shapes, types and shardings of the weights here."""
        return weights_of(self.spec.abstract)

    def weights(self, state: TrainState) -> Weights:
        """Return the weights of `state` on this mesh. The frozen ones are copied once: each
        `state` must have the same."""
        trained, frozen = weights_of(state)
        if not self.is_separate:
            return trained, frozen
        shardings = jax.tree.map(lambda array: array.sharding, self.abstract)
        if self._frozen is None:
            self._frozen = jax.device_put(frozen, shardings[1])
        return jax.device_put(trained, shardings[0]), self._frozen


def weights_of(state: TrainState) -> Weights:
    """Return the weights of `state` that sampling reads: without those of the reference, where the
    same weights are trained."""
    trained = {path for path, _ in nnx.to_flat_state(state.params)}
    read = {path: leaf for path, leaf in nnx.to_flat_state(state.frozen) if path not in trained}
    return state.params, nnx.from_flat_state(read)
