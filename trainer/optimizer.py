"""Optimizers and the learning-rate schedule.

The optimizers run at a learning rate of one, and the train step scales their updates by the
schedule. So the schedule follows the step of the phase, which starts at 0, even where a phase takes
over the optimizer's state (and with it its step count) from the phase before.
"""

from __future__ import annotations

import optax

from supervisor.config.training.sections import AdamW, Lion, OptimizerConfig, Sgd


def make_schedule(config: OptimizerConfig | None, max_steps: int | None) -> optax.Schedule:
    """Return the learning rate as a function of the steps done: linear warm-up from near 0, then a
    cosine down to the final fraction at `max_steps`. None: nothing is trained."""
    if config is None or max_steps is None:
        return optax.constant_schedule(0.0)
    peak = config.learning_rate
    final = peak * config.final_learning_rate_fraction
    warmup = config.warmup_steps
    decay = optax.cosine_decay_schedule(peak, max(1, max_steps - warmup), final / peak)
    rise = optax.linear_schedule(peak / (warmup + 1), peak, max(1, warmup))
    return optax.join_schedules([rise, decay], [warmup])


def make_transformation(config: OptimizerConfig | None) -> optax.GradientTransformation:
    """Return the optimizer at a learning rate of one, on gradients clipped by their global norm.
    None: nothing is trained."""
    if config is None:
        return optax.identity()
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), _optimizer(config))


def _optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    match config:
        case AdamW():
            return optax.adamw(1.0, config.b1, config.b2, weight_decay=config.weight_decay)
        case Lion():
            return optax.lion(1.0, config.b1, config.b2, weight_decay=config.weight_decay)
        case Sgd():
            return optax.sgd(1.0, config.momentum)
        case _:
            return optax.adafactor(1.0)
