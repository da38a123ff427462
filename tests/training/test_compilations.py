"""What a run compiles: all of it in its first steps, and nothing twice.

The trainer runs in this process, so that jax can be asked.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import SupportsFloat

import jax
import pytest

from supervisor.config.training.resolved import parse
from supervisor.protocol import environment
from supervisor.protocol.fault_injection import FaultInjector
from supervisor.protocol.reporter import Reporter
from trainer.train import train

from .harness import tiny

_COMPILED = "/jax/core/compile/backend_compile_duration"


class Counting(Reporter):
    """Keeps how many programs were compiled by the time that a step was complete."""

    def __init__(self) -> None:
        super().__init__(None)
        self.number = 0
        self.by_step: dict[int, int] = {}

    def heard(self, event: str, duration_secs: float, **_: str | int) -> None:
        self.number += event == _COMPILED

    def step(
        self,
        step: int,
        metrics: Mapping[str, SupportsFloat] | None = None,
        *,
        always: bool = False,
    ) -> None:
        self.by_step[step] = self.number


@pytest.fixture
def counting() -> Iterator[Counting]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    counting = Counting()
    jax.config.update("jax_disable_most_optimizations", True)  # most of the time is the compiler's
    jax.monitoring.register_event_duration_secs_listener(counting.heard)
    yield counting
    jax.monitoring.unregister_event_duration_listener(counting.heard)
    jax.config.update("jax_disable_most_optimizations", False)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("rest", [{}, {"determinism": {"elastic": "bitwise"}, "sdc": {"every": 3}}])
def test_nothing_is_compiled_after_the_first_steps(
    rest: Mapping[str, object], counting: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By step 6 all has happened once: snapshots, an evaluation, a save, a check."""
    mapping = tiny(tmp_path / "checkpoints", max_steps=24, micro_batch_size=1)
    mapping["trainer"]["init"]["checkpoint"]["snapshot"] = {"every": 3}
    mapping["trainer"]["init"] |= rest
    memory = os.memfd_create("snapshots")
    for name, value in environment.snapshot_variables(memory).items():
        monkeypatch.setenv(name, value)
    train(parse(mapping), counting, FaultInjector((), tmp_path), None)
    os.close(memory)
    assert counting.by_step[6] > 0
    assert {step: number for step, number in counting.by_step.items() if step > 6} == dict.fromkeys(
        range(7, 25), counting.by_step[6]
    )
    assert counting.number == counting.by_step[24], "the last save and the end"
