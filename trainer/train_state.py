"""The train state (parameters, optimizer state and step count), and its spec.

A `TrainStateSpec` knows its shapes and shardings without computing any of it, so that a restart
restores into it and never initialises first.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from supervisor.config.training.resolved import InitConfig
from trainer.mesh import state_sharding
from trainer.model import Decoder
from trainer.objective import NextToken, Objective
from trainer.optimizer import make_schedule, make_transformation

Params = nnx.State[Any, Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class TrainState:
    """Everything that training changes, except the data's position. `step` (int32) counts completed
    steps; all randomness in a step follows from it and the seed."""

    step: jax.Array
    params: Params
    optimizer: optax.OptState


@dataclass(frozen=True, slots=True)
class TrainStateSpec:
    """What stays constant in training. `abstract` is the state with a ShapeDtypeStruct, which
    includes the sharding, for each array."""

    config: InitConfig
    objective: Objective
    mesh: Mesh
    graph: nnx.GraphDef[Decoder]
    transformation: optax.GradientTransformation
    schedule: optax.Schedule
    abstract: TrainState

    @classmethod
    def of(
        cls, config: InitConfig, mesh: Mesh, objective: Objective | None = None
    ) -> TrainStateSpec:
        """Return the spec for training `config` on `mesh`, without computing anything. Without an
        `objective`, each next token is learned."""
        model = nnx.eval_shape(lambda: Decoder(config.model, rngs=nnx.Rngs(0)))
        transformation = make_transformation(config.optimizer)
        shapes = jax.eval_shape(lambda: _create(config, transformation, jax.random.key(0)))
        return cls(
            config=config,
            objective=objective or NextToken(),
            mesh=mesh,
            graph=nnx.graphdef(model),
            transformation=transformation,
            schedule=make_schedule(config.optimizer, config.loop.max_steps),
            abstract=jax.tree.map(
                lambda array: array.update(sharding=state_sharding(mesh, array)),
                shapes,
            ),
        )

    @property
    def shardings(self) -> TrainState:
        """The sharding of each array of the state."""
        shardings: TrainState = jax.tree.map(lambda array: array.sharding, self.abstract)
        return shardings

    def fresh(self) -> TrainState:
        """Initialise the state from the config's seed. The result is the same on every mesh."""

        def create(seed: jax.Array) -> TrainState:
            return _create(self.config, self.transformation, jax.random.key(seed))

        state: TrainState = jax.jit(create, out_shardings=self.shardings)(
            jnp.uint32(self.config.seed)
        )
        return state


def _create(
    config: InitConfig, transformation: optax.GradientTransformation, key: jax.Array
) -> TrainState:
    model = Decoder(config.model, rngs=nnx.Rngs(key))
    params = nnx.state(model, nnx.Param)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        optimizer=transformation.init(params),
    )
