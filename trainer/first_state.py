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
from supervisor.config.training.sections import Load, LoraConfig
from trainer.checkpoint import FROZEN, newest_adapters, restore_parts
from trainer.config_fingerprint import adapters_of, fingerprint_across
from trainer.log import Warn, log
from trainer.lora import merged
from trainer.objective import NextToken
from trainer.train_state import Params, TrainState, TrainStateSpec


def first_state(source: StartPoint | None, spec: TrainStateSpec, warn: Warn) -> TrainState:
    """Return the state of step 0. With `source`, its weights (and optimizer, if `source` says so)
    are another phase's; adapters of that are merged into its weights."""
    fresh = spec.fresh()
    if source is None:
        return fresh
    adapters = adapters_of(newest_adapters(source.directory))
    wanted = _wanted(spec, adapters, source.load)
    shared = fingerprint_across(spec.config, source)
    step, parts = restore_parts(source.directory, wanted, shared, warn)
    what = ", ".join(wanted) if adapters is None else "params (adapters merged)"
    log.info("phase-loaded", parts=what, step=step, directory=str(source.directory))
    weights = parts["params"]
    if adapters is not None:
        shardings = jax.tree.map(lambda array: array.sharding, spec.weights)
        merge = jax.jit(merged, static_argnums=2, out_shardings=shardings)
        weights = merge(parts["params"], parts[FROZEN], adapters.scale)
    return replace(
        fresh,
        params=_with(fresh.params, weights),
        frozen=_with(fresh.frozen, weights),
        optimizer=parts.get("optimizer", fresh.optimizer),
    )


def _wanted(spec: TrainStateSpec, adapters: LoraConfig | None, load: Load) -> dict[str, Any]:
    """Return what is read of a checkpoint that has these adapters (None: none), abstract."""
    if adapters is not None:
        init = spec.config.model_copy(update={"lora": adapters})
        source = TrainStateSpec.of(init, spec.mesh, NextToken(nnx.LoRAParam)).abstract
        return {"params": source.params, FROZEN: source.frozen}
    if load is Load.ALL:
        return {"params": spec.weights, "optimizer": spec.abstract.optimizer}
    return {"params": spec.weights}


def _with(tree: Params, weights: Params) -> Params:
    """Return `tree` with a copy of each of its `weights`. (A state must not hold one array twice:
    the step donates it.)"""
    given = dict(nnx.to_flat_state(weights))
    found = {path: given.get(path, leaf) for path, leaf in nnx.to_flat_state(tree)}
    copied: Params = jax.tree.map(jnp.copy, nnx.from_flat_state(found))
    return copied
