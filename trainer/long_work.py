"""Work between two steps that now and then takes long is told as a stage of its own.

The supervisor learns from the steps how long the next one may take. A function of the user that
rewards completions may take a thousand times longer than a step, and is no hang.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from supervisor.protocol.messages import Stage
from supervisor.protocol.reporter import Reporter

_LONG = 1.0
"""Seconds after which work is long: far less than any limit that is learned."""


@contextmanager
def told_if_long(reporter: Reporter, step: int, after: float = _LONG) -> Iterator[None]:
    """Report stage EVALUATING once the block has lasted `after` seconds, and stage TRAINING at its
    end then. `step` is the last completed step."""
    is_told = threading.Event()

    def tell() -> None:
        is_told.set()
        reporter.stage(Stage.EVALUATING, step)

    timer = threading.Timer(after, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if is_told.is_set():
            reporter.stage(Stage.TRAINING, step)
