"""Puts a global batch from the host onto the mesh."""

# mypy: allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from supervisor.config.training.layout import Rung
from trainer.data import Batch
from trainer.mesh import batch_sharding


@dataclass(frozen=True, slots=True)
class BatchSharder:
    """Cuts global batches into micro-batches and spreads each of them over `mesh`."""

    mesh: Mesh
    rung: Rung

    def put(self, batch: Batch) -> jax.Array:
        """Return `batch`, of shape [sequences, length], on the mesh as [accumulation, sequences /
        accumulation, length]."""
        micro_batches = batch.reshape(self.rung.accumulation, -1, batch.shape[-1])
        placed: jax.Array = jax.make_array_from_process_local_data(
            batch_sharding(self.mesh), micro_batches, micro_batches.shape
        )
        return placed

    def abstract(self, length: int) -> jax.ShapeDtypeStruct:
        """Return the shape, type and sharding of what `put` returns for sequences of `length`."""
        sequences = self.rung.per_device_batch * self.rung.num_devices
        shape = (self.rung.accumulation, sequences, length)
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=batch_sharding(self.mesh))
