"""The train state (parameters, optimizer state, step count, frozen weights, and the batch that
the model has made for itself), and its spec.

A `TrainStateSpec` knows its shapes and shardings without computing any of it, so that a restart
restores into it and never initialises first.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from supervisor.config.training.resolved import InitConfig
from trainer.int8 import quantise_linear_layers
from trainer.lora import add_adapters
from trainer.mesh import replicated, state_sharding
from trainer.model import Decoder
from trainer.objective import NextToken, Objective
from trainer.optimizer import make_schedule, make_transformation

Params = nnx.State[Any, Any]

ROWS = "rows"
"""The key of the batch in `TrainState.rollout`."""
_ADAPTERS = 0x4C6F5241
"""Tells the keys of adapters from those of all other weights."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class TrainState:
    """Everything that a step reads, except the data. `step` (int32) counts completed steps; all
    randomness in a step follows from it and the seed.

    `params` are trained. `frozen` is what training reads and never changes: the model's other
    weights, and those of the objective's reference. `rollout` is the batch that the model has made,
    if the objective learns from such: it is made anew after some steps, not in a step.
    """

    step: jax.Array
    params: Params
    optimizer: optax.OptState
    frozen: Params = field(default_factory=lambda: nnx.State({}))
    rollout: dict[str, jax.Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainStateSpec:
    """What stays constant in training. `abstract` is the state with a ShapeDtypeStruct, which
    includes the sharding, for each array."""

    config: InitConfig
    objective: Objective
    mesh: Mesh
    graph: nnx.GraphDef[Decoder]
    reference_graph: nnx.GraphDef[Decoder]
    """The model without adapters."""
    transformation: optax.GradientTransformation
    schedule: optax.Schedule
    abstract: TrainState
    weights: Params
    """The weights of the model without adapters, in float32, abstract as in `abstract`."""
    wrong_places: tuple[int, ...] = ()
    """The devices, by their places in the mesh, that simulate a wrong result of each step. (In
    bitwise mode only.)"""

    @classmethod
    def of(
        cls, config: InitConfig, mesh: Mesh, objective: Objective | None = None
    ) -> TrainStateSpec:
        """Return the spec for training `config` on `mesh`, without computing anything. Without an
        `objective`, each next token is learned, by all weights."""
        objective = objective or NextToken()
        model, base, with_adapters = _abstract_models(config)
        transformation = make_transformation(config.optimizer)
        shapes = nnx.eval_shape(lambda new: _begin(new, objective, transformation), with_adapters)

        def placed(tree: Any) -> Any:
            return jax.tree.map(
                lambda array: array.update(sharding=state_sharding(mesh, array)), tree
            )

        def on_each(tree: Any) -> Any:
            return jax.tree.map(lambda array: array.update(sharding=replicated(mesh)), tree)

        return cls(
            config=config,
            objective=objective,
            mesh=mesh,
            graph=nnx.graphdef(with_adapters),
            reference_graph=nnx.graphdef(base),
            transformation=transformation,
            schedule=make_schedule(config.optimizer, config.loop.max_steps),
            abstract=replace(placed(shapes), rollout=on_each(shapes.rollout)),
            weights=placed(nnx.state(model, nnx.Param)),
        )

    @property
    def shardings(self) -> TrainState:
        """The sharding of each array of the state."""
        shardings: TrainState = jax.tree.map(lambda array: array.sharding, self.abstract)
        return shardings

    def fresh(self) -> TrainState:
        """Initialise the state from the config's seed. The result is the same on every mesh."""

        def create(seed: jax.Array) -> TrainState:
            new = _model(self.config, jax.random.key(seed))
            return _begin(new, self.objective, self.transformation)

        state: TrainState = jax.jit(create, out_shardings=self.shardings)(
            jnp.uint32(self.config.seed)
        )
        return state

    def model(self, params: Params, frozen: Params) -> Decoder:
        """Return the model with the weights `params`, and `frozen` ones where none are trained."""
        model = nnx.merge(self.graph, nnx.merge_state(frozen, params))
        model.remat = self.config.loop.remat
        model.scans_layers = self.config.loop.scan_layers
        return model

    def reference(self, frozen: Params) -> Decoder:
        """Return the model as it was at step 0, without adapters, if the objective reads it."""
        return nnx.merge(self.reference_graph, frozen)


def _abstract_models(config: InitConfig) -> tuple[Decoder, Decoder, Decoder]:
    """Return the model without adapters in float32, without adapters, and with them, all abstract.
    To make one takes a second for twenty layers, so what is the same is made once."""
    model = nnx.eval_shape(lambda: Decoder(config.model, rngs=nnx.Rngs(0)))
    if config.lora is None:
        return model, model, model
    int8 = config.lora.base == "int8"
    base = nnx.eval_shape(lambda: _base(config, nnx.Rngs(0))) if int8 else model
    return model, base, nnx.eval_shape(lambda: _model(config, jax.random.key(0)))


def _begin(
    model: Decoder, objective: Objective, transformation: optax.GradientTransformation
) -> TrainState:
    """Return the state of step 0 with the weights of `model`."""
    split: Any = nnx.split(model, objective.trainable, ...)
    _, params, rest = split
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        optimizer=transformation.init(params),
        frozen=_frozen(params, rest, objective),
        rollout=_no_rollout(objective),
    )


def _no_rollout(objective: Objective) -> dict[str, jax.Array]:
    """Return room for a batch that the model makes, if the objective learns from such."""
    return {} if objective.rollout is None else {ROWS: jnp.zeros(objective.rollout, jnp.int32)}


def _model(config: InitConfig, key: jax.Array) -> Decoder:
    """Return the model with new weights. Adapters change none of the others."""
    model = _base(config, nnx.Rngs(key))
    if config.lora is not None:
        add_adapters(model, config.lora, rngs=nnx.Rngs(jax.random.fold_in(key, _ADAPTERS)))
    return model


def _base(config: InitConfig, rngs: nnx.Rngs) -> Decoder:
    """Return the model without adapters, with new weights; those of its linear layers may be
    int8."""
    model = Decoder(config.model, rngs=rngs)
    if config.lora is not None and config.lora.base == "int8":
        quantise_linear_layers(model)
    return model


def _frozen(params: Params, rest: Params, objective: Objective) -> Params:
    """Return what is kept unchanged of a model at step 0: all that is not trained and, if the
    objective reads the reference, a copy of what is, without adapters."""
    if not objective.reads_reference:
        return rest
    base = {
        path: leaf
        for path, leaf in nnx.to_flat_state(params)
        if not isinstance(leaf, nnx.LoRAParam)
    }
    copies: Params = jax.tree.map(jnp.copy, nnx.from_flat_state(base))
    merged: Params = nnx.merge_state(rest, copies)
    return merged
