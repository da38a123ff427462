"""The train state (parameters, optimizer state, step count, frozen weights), and its spec.

A `TrainStateSpec` knows its shapes and shardings without computing any of it, so that a restart
restores into it and never initialises first.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from supervisor.config.training.resolved import InitConfig
from trainer.lora import add_adapters
from trainer.mesh import state_sharding
from trainer.model import Decoder
from trainer.objective import NextToken, Objective
from trainer.optimizer import make_schedule, make_transformation

Params = nnx.State[Any, Any]

_ADAPTERS = 0x4C6F5241
"""Tells the keys of adapters from those of all other weights."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class TrainState:
    """Everything that a step reads, except the data. `step` (int32) counts completed steps; all
    randomness in a step follows from it and the seed.

    `params` are trained. `frozen` is what training reads and never changes: the model's other
    weights, and those of the objective's reference.
    """

    step: jax.Array
    params: Params
    optimizer: optax.OptState
    frozen: Params = field(default_factory=lambda: nnx.State({}))


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
    """The weights of the model without adapters, abstract as in `abstract`."""

    @classmethod
    def of(
        cls, config: InitConfig, mesh: Mesh, objective: Objective | None = None
    ) -> TrainStateSpec:
        """Return the spec for training `config` on `mesh`, without computing anything. Without an
        `objective`, each next token is learned, by all weights."""
        objective = objective or NextToken()
        model = nnx.eval_shape(lambda: Decoder(config.model, rngs=nnx.Rngs(0)))
        with_adapters = nnx.eval_shape(lambda: _model(config, jax.random.key(0)))
        transformation = make_transformation(config.optimizer)
        shapes = jax.eval_shape(
            lambda: _create(config, objective, transformation, jax.random.key(0))
        )

        def placed(tree: Any) -> Any:
            return jax.tree.map(
                lambda array: array.update(sharding=state_sharding(mesh, array)), tree
            )

        return cls(
            config=config,
            objective=objective,
            mesh=mesh,
            graph=nnx.graphdef(with_adapters),
            reference_graph=nnx.graphdef(model),
            transformation=transformation,
            schedule=make_schedule(config.optimizer, config.loop.max_steps),
            abstract=placed(shapes),
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
            return _create(self.config, self.objective, self.transformation, jax.random.key(seed))

        state: TrainState = jax.jit(create, out_shardings=self.shardings)(
            jnp.uint32(self.config.seed)
        )
        return state

    def model(self, params: Params, frozen: Params) -> Decoder:
        """Return the model with the weights `params`, and `frozen` ones where none are trained."""
        return nnx.merge(self.graph, nnx.merge_state(frozen, params))

    def reference(self, frozen: Params) -> Decoder:
        """Return the model as it was at step 0, without adapters, if the objective reads it."""
        return nnx.merge(self.reference_graph, frozen)


def _create(
    config: InitConfig,
    objective: Objective,
    transformation: optax.GradientTransformation,
    key: jax.Array,
) -> TrainState:
    split: Any = nnx.split(_model(config, key), objective.trainable, ...)
    _, params, rest = split
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        optimizer=transformation.init(params),
        frozen=_frozen(params, rest, objective),
    )


def _model(config: InitConfig, key: jax.Array) -> Decoder:
    """Return the model with new weights. Adapters change none of the others."""
    model = Decoder(config.model, rngs=nnx.Rngs(key))
    if config.lora is not None:
        add_adapters(model, config.lora, rngs=nnx.Rngs(jax.random.fold_in(key, _ADAPTERS)))
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
