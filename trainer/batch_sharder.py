"""Puts a global batch from the host onto the mesh."""

# mypy: allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from supervisor.config.training.layout import Rung
from trainer.data import Batch
from trainer.mesh import batch_sharding


@dataclass(frozen=True, slots=True)
class BatchSharder:
    """Cuts global batches into micro-batches and spreads each of them over `mesh`."""

    mesh: Mesh
    rung: Rung

    def argument(self, batch: Batch) -> Batch | jax.Array:
        """Return what a compiled program takes as `batch`. On one device that is an array of the
        host: the program puts it there itself, without what `jax.device_put` does in Python."""
        if self.mesh.size == 1 and jax.process_count() == 1:
            return batch.reshape(self.rung.accumulation, -1, batch.shape[-1])
        return self.put(batch)

    def put(self, batch: Batch, shift: int = 0) -> jax.Array:
        """Return `batch`, of shape [sequences, length], on the mesh as [accumulation, sequences /
        accumulation, length]. Each device gets the part of the one that is `shift` places after
        it."""
        micro_batches = batch.reshape(self.rung.accumulation, -1, batch.shape[-1])
        if shift:
            micro_batches = np.roll(micro_batches, -shift * self.rung.per_device_batch, axis=1)
        sharding = batch_sharding(self.mesh)
        placed: jax.Array
        if jax.process_count() == 1:  # this costs the host half as much
            placed = jax.device_put(micro_batches, sharding)
        else:
            placed = jax.make_array_from_process_local_data(
                sharding, micro_batches, micro_batches.shape
            )
        return placed

    def abstract(self, length: int) -> jax.ShapeDtypeStruct:
        """Return the shape, type and sharding of what `put` returns for sequences of `length`."""
        sequences = self.rung.per_device_batch * self.rung.num_devices
        shape = (self.rung.accumulation, sequences, length)
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=batch_sharding(self.mesh))
