"""The state of step 0: from the seed, or with the weights of another phase.

A restart needs it too, if a checkpoint does not hold the frozen weights.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from supervisor.config.training.resolved import StartPoint
from supervisor.config.training.sections import Load
from trainer.checkpoint import restore_parts
from trainer.config_fingerprint import fingerprint_across
from trainer.log import Warn, log
from trainer.train_state import Params, TrainState, TrainStateSpec


def first_state(source: StartPoint | None, spec: TrainStateSpec, warn: Warn) -> TrainState:
    """Return the state of step 0. With `source`, its weights (and optimizer, if `source` says so)
    are another phase's."""
    fresh = spec.fresh()
    if source is None:
        return fresh
    wanted: dict[str, Any] = {"params": spec.weights}
    if source.load is Load.ALL:
        wanted["optimizer"] = spec.abstract.optimizer
    shared = fingerprint_across(spec.config, source)
    step, parts = restore_parts(source.directory, wanted, shared, warn)
    place = str(source.directory)
    log.info("phase-loaded", parts=", ".join(wanted), step=step, directory=place)
    weights = parts["params"]
    return replace(
        fresh,
        params=_with(fresh.params, weights),
        frozen=_with(fresh.frozen, weights),
        optimizer=parts.get("optimizer", fresh.optimizer),
    )


def _with(tree: Params, weights: Params) -> Params:
    """Return `tree` with a copy of each of its `weights`. (A state must not hold one array twice:
    the step donates it.)"""
    given = dict(nnx.to_flat_state(weights))
    found = {path: given.get(path, leaf) for path, leaf in nnx.to_flat_state(tree)}
    copied: Params = jax.tree.map(jnp.copy, nnx.from_flat_state(found))
    return copied
