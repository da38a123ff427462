"""The state of step 0: from the seed, or with weights of a pretrained model or another phase.

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
from trainer.int8 import quantised_like
from trainer.log import Warn, log
from trainer.lora import merged
from trainer.not_finite import WeightsNotFiniteError, not_finite, some_of
from trainer.objective import NextToken
from trainer.pretrained_weights import load_pretrained
from trainer.train_state import Params, TrainState, TrainStateSpec


def first_state(
    source: StartPoint | None, spec: TrainStateSpec, warn: Warn, *, checks: bool = True
) -> TrainState:
    """Return the state of step 0. With `source`, its weights (and optimizer, if `source` says so)
    are another phase's; adapters of that are merged into its weights.

    Raises:
        WeightsNotFiniteError: what is loaded holds NaN or Inf. (Not without `checks`.)
    """
    if source is None:
        return _pretrained(spec, checks=checks)
    adapters = adapters_of(newest_adapters(source.directory))
    wanted = _wanted(spec, adapters, source.load)
    shared = fingerprint_across(spec.config, source)
    step, parts = restore_parts(source.directory, wanted, shared, warn)
    if checks and (names := not_finite(parts)):
        raise WeightsNotFiniteError(
            f"start_from: step {step} in {source.directory} holds NaN or Inf in {some_of(names)}. "
            "No training can mend that: move that step aside, so that an earlier one is taken, or "
            "train the phase before again"
        )
    what = ", ".join(wanted) if adapters is None else "params (adapters merged)"
    log.info("phase-loaded", parts=what, step=step, directory=str(source.directory))
    weights = parts["params"]
    if adapters is not None:
        shardings = jax.tree.map(lambda array: array.sharding, spec.weights)
        merge = jax.jit(merged, static_argnums=2, out_shardings=shardings)
        weights = merge(parts["params"], parts[FROZEN], adapters.scale)
    fresh = spec.fresh()
    return replace(
        fresh,
        params=_with(fresh.params, weights),
        frozen=_with(fresh.frozen, quantised_like(weights, fresh.frozen)),
        optimizer=parts.get("optimizer", fresh.optimizer),
    )


def _pretrained(spec: TrainStateSpec, *, checks: bool) -> TrainState:
    """Return a fresh state with the weights of the pretrained model, if the config names one. These
    come first: to make the state is compiled, and files that cannot be used are told before."""
    model = spec.config.model
    if model.folder is None:
        return spec.fresh()
    weights = load_pretrained(model.folder, model, spec.weights, checks=checks)
    log.info("pretrained-loaded", directory=str(model.folder))
    fresh = spec.fresh()
    return replace(fresh, params=_with(fresh.params, weights), frozen=_with(fresh.frozen, weights))


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
    copied: Params = jax.tree.map(
        lambda leaf, like: jax.device_put(jnp.copy(leaf), like.sharding),
        nnx.from_flat_state(found),
        tree,
    )
    return copied
