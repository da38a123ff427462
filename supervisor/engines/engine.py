"""What an engine is to the rest of the program: where worker groups run, and how they are reached.

`job.py` chooses an implementation; nobody else names one. All methods but `pass_on_sigterm` are
called in the main loop and return soon; what becomes of a call is posted as an event.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from supervisor.config.plan import PhasePlan
from supervisor.diagnosis.failure import Survivor, WorkerExit
from supervisor.engines.launch import Launch


class Engine(Protocol):
    """Starts, signals and kills the one worker group of a job. It never decides."""

    @property
    def directory(self) -> Path | None:
        """The directory that the running attempt writes to; None while none runs."""
        ...

    def start(self, launch: Launch) -> None:
        """Start the attempt's workers. Answered by `WorkersStarted` or `LaunchFailed`; then what
        they do is told by `WorkersObserved`, `WorkerReported` and `CheckpointCommitted`."""
        ...

    def probe(self, plan: PhasePlan, number: int, units: tuple[str, ...] | None) -> None:
        """Look at these devices or hosts (None: all of the phase). Answered by `DevicesProbed`."""
        ...

    def dump_stacks(self, attempt: int) -> None:
        """Have the attempt's workers write down what they are doing, by all means there are."""
        ...

    def terminate(self, attempt: int) -> None:
        """Ask the attempt to save and exit: its workers, and what lives on after them."""
        ...

    def kill(
        self, launch: Launch, exits: tuple[WorkerExit, ...], late: tuple[Survivor, ...] = ()
    ) -> None:
        """Kill all that is left of the attempt and judge it. Answered by `WorkersGone`, once
        nothing of it lives.

        `exits` is what is known of an attempt that an earlier supervisor started. That one of
        `late` still runs is a fault of the attempt.

        Raises:
            UnkillableError: something does not die.
        """
        ...

    def pass_on_sigterm(self) -> None:
        """Send SIGTERM to the workers while the main loop hangs. Safe in any thread."""
        ...

    def name_holders(self) -> None:
        """Tell people who or what keeps an accelerator busy."""
        ...
