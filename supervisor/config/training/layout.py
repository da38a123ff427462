"""Lays out the global batch of our trainer on a number of devices, or says why that is impossible.

The global batch is the same on every rung: fewer devices need more accumulation steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from supervisor.config.problems import Location
from supervisor.config.training.resolved import InitConfig, rollout_problems

_LOOP = ("init", "loop")


@dataclass(frozen=True, slots=True)
class Rung:
    """A number of devices as a `data` x `fsdp` mesh. Each device computes on `per_device_batch`
    sequences at a time, in `accumulation` accumulation steps for one optimizer step."""

    num_devices: int
    data: int
    fsdp: int
    per_device_batch: int
    accumulation: int


def rung(init: InitConfig, num_devices: int, accumulation: int = 1) -> Rung | None:
    """Returns how to train on `num_devices`; None: the global batch cannot be divided among them.

    `micro_batch_size` is an upper bound: a device computes at a time on the largest divisor of its
    share that is not above it. `fsdp` is an upper bound too: parameters are sharded over the
    greatest common divisor of `fsdp` and `num_devices`. `accumulation` asks for this many times as
    many accumulation steps, as far as there are sequences for them.

    With `determinism.elastic: bitwise` micro-batches have exactly `micro_batch_size` sequences on
    every rung and with every `accumulation`; None: the share is no multiple of it.

    Devices that make completions (`grpo.rollout`) are a part of `num_devices`, and do not train.
    """
    training = num_devices - init.num_rollout_devices
    return _laid_out(init, training, accumulation) if training > 0 else None


def rollout_rung(init: InitConfig, accumulation: int = 1) -> Rung | None:
    """Returns how the devices of `grpo.rollout` make the completions of a global batch, as `rung`
    does; None: there are none, or the batch cannot be divided among them."""
    number = init.num_rollout_devices
    return _laid_out(init, number, accumulation) if number else None


def _laid_out(init: InitConfig, num_devices: int, accumulation: int) -> Rung | None:
    loop = init.loop
    share, remainder = divmod(loop.global_batch_size, num_devices)
    if remainder:
        return None
    if init.is_bitwise:
        if loop.micro_batch_size is None or share % loop.micro_batch_size:
            return None
        per_device = loop.micro_batch_size
    else:
        per_device = _divisor(share, loop.micro_batch_size or share)
        per_device = _divisor(share, per_device // accumulation)
    fsdp = gcd(loop.fsdp, num_devices)
    return Rung(num_devices, num_devices // fsdp, fsdp, per_device, share // per_device)


def _divisor(share: int, at_most: int) -> int:
    """Returns the largest divisor of `share` that is at most `at_most`, and at least 1."""
    return next((size for size in range(min(at_most, share), 1, -1) if share % size == 0), 1)


def ladder(init: InitConfig, counts: Sequence[int]) -> dict[int, Rung | str]:
    """Returns for each of `counts` how to train on so many devices, or as a text why it is no rung.

    The full number comes first in `counts`.
    """
    return {count: _rung_or_reason(init, count, counts[0]) for count in counts}


def _rung_or_reason(init: InitConfig, num_devices: int, full: int) -> Rung | str:
    batch, micro = init.loop.global_batch_size, init.loop.micro_batch_size
    if apart := init.num_rollout_devices:
        if num_devices <= apart:
            return f"init.grpo.rollout takes {apart}, and none is left to train"
        num_devices, full = num_devices - apart, full - apart
    if init.is_bitwise and num_devices == 1 < full:
        return "determinism.elastic: bitwise needs at least two, as one is compiled differently"
    found = _laid_out(init, num_devices, 1)
    if found is not None:
        return found
    if batch % num_devices or micro is None:
        return f"global_batch_size {batch} does not divide among them"
    return (
        f"the {batch // micro} micro-batches that determinism.elastic: bitwise keeps do not divide "
        "among them"
    )


def full_rung_problem(init: InitConfig, num_devices: int) -> tuple[Location, str] | None:
    """Returns the key and the message if `num_devices` cannot be the full number of devices; None:
    it can."""
    loop, apart = init.loop, init.num_rollout_devices
    batch = loop.global_batch_size
    if apart >= num_devices:
        return ("init", "grpo", "rollout", "devices"), (
            f"is {apart}, but must be less than the number of devices, {num_devices}: the others "
            "train"
        )
    num_devices -= apart
    rest = f" beside the {apart} of init.grpo.rollout" if apart else ""
    if batch % num_devices:
        counts = [
            count for count in range(1, min(batch, 2 * num_devices) + 1) if batch % count == 0
        ]
        multiple = -(-batch // num_devices) * num_devices
        return (*_LOOP, "global_batch_size"), (
            f"is {batch}, which does not divide among {num_devices} devices{rest}: use {multiple}, "
            f"or a number of devices out of {', '.join(map(str, counts))}{rest}"
        )
    if num_devices % loop.fsdp:
        message = f"is {loop.fsdp}, but must divide the number of devices, {num_devices}{rest}"
        return (*_LOOP, "fsdp"), message
    if init.sdc is not None and num_devices == 1:
        return ("init", "sdc"), (
            "needs at least two devices, because one has no other order: leave it out, or give "
            f"init.devices a larger count (value 1{rest})"
        )
    if init.is_bitwise and _laid_out(init, num_devices, 1) is None:
        given = "" if loop.micro_batch_size is None else f" (value {loop.micro_batch_size})"
        return (*_LOOP, "micro_batch_size"), (
            "must be given, and divide a device's share of the global batch, "
            f"{batch // num_devices}, for determinism.elastic: bitwise{given}"
        )
    return next(rollout_problems(init), None)
