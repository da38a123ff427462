"""Verifies the newest checkpoint of a command before its workers start (`checkpoint.verify`).

The check reads gigabytes, perhaps, so it runs in a thread (`host_port.HostFiles`), and the main
loop goes on. Damaged checkpoints are moved aside, and the program restores the one before. If the
check fails or takes too long, the attempt starts all the same: only damage that was seen counts.

If all checkpoints are damaged, the attempt does not start, and nothing is moved: only a person may
decide to begin from step 0, and no kill or stop in between decides it for them. Nor does it start
while a checkpoint is away, with the disk that it is on: that is tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from supervisor.checkpoints.step_check import CheckedSteps
from supervisor.core.events import CheckpointSetAside
from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.verdicts import (
    damaged_checkpoints,
    immovable_checkpoint,
    unavailable_checkpoint,
)
from supervisor.engines.handles import Check
from supervisor.engines.host_port import Host, MainLoop
from supervisor.engines.launch import Launch
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Clock

_PATIENCE = 240.0
"""Seconds that a check may take. It is less than a launch may (`RestartPolicy.launch_timeout`)."""


class VerifiedStart:
    """Checks one launch at a time."""

    def __init__(
        self, reactor: MainLoop, clock: Clock, machine: Host, warn: Tell, tell: Tell
    ) -> None:
        """`warn` tells people of problems, `tell` of normal things."""
        self._reactor = reactor
        self._clock = clock
        self._machine = machine
        self._warn = warn
        self._tell = tell
        self._check: Check | None = None
        self._attempt = 0
        """The attempt that the check is for."""

    def before(
        self, launch: Launch, start: Callable[[], None], refuse: Callable[[Failure], None]
    ) -> None:
        """Check what the program of `launch` would restore, if its config asks for that; then call
        `start`, or `refuse` with the reason why it must not start.

        Neither is called after `cancel`.
        """
        directory = launch.plan.checkpoint_dir
        if not (launch.plan.verifies_checkpoints and isinstance(directory, Path)):
            start()
            return
        began = self._clock.now()
        try:
            check = self._machine.check_checkpoints(directory, launch.model_dir)
        except OSError as error:
            self._tell_unverified(directory, str(error.strerror or error))
            start()
            return
        self._check, self._attempt = check, launch.attempt
        over = partial(self._over, check, launch, directory, began, start, refuse)
        self._reactor.watch(check.descriptor, over)
        give_up = partial(self._give_up, check, directory, start)
        self._reactor.call_later(_PATIENCE, give_up)

    def cancel(self, attempt: int | None = None) -> bool:
        """End the check that is under way; returns False if there is none (of this attempt)."""
        check = self._check
        if check is None or attempt not in (None, self._attempt):
            return False
        self._check = None
        self._reactor.forget(check.descriptor)
        check.close()
        return True

    def _over(
        self,
        check: Check,
        launch: Launch,
        directory: Path,
        began: float,
        start: Callable[[], None],
        refuse: Callable[[Failure], None],
    ) -> None:
        self.cancel()
        try:
            found = check.result()
        except Exception as error:
            why = error.strerror if isinstance(error, OSError) else None
            self._tell_unverified(directory, why or str(error) or type(error).__name__)
            start()
            return
        failure = _why_not(found, directory) or self._move_aside(launch, found)
        if failure is not None:
            refuse(failure)
            return
        self._tell_result(launch, directory, found, self._clock.now() - began)
        start()

    def _give_up(self, check: Check, directory: Path, start: Callable[[], None]) -> None:
        if self._check is check:
            self.cancel()
            self._tell_unverified(directory, f"the check has not ended within {_PATIENCE:g} s")
            start()

    def _move_aside(self, launch: Launch, found: CheckedSteps) -> Failure | None:
        """Move the damaged steps aside; returns why the program must not start (None: it may)."""
        for damaged in found.damaged:
            try:
                place = self._machine.set_aside_damaged(damaged, launch.model_dir)
            except FileNotFoundError:  # somebody has moved it away meanwhile
                continue
            except OSError as error:
                return immovable_checkpoint(damaged.step, error)
            self._reactor.post(
                CheckpointSetAside(
                    self._clock.now(),
                    launch.attempt,
                    damaged.step,
                    found.newest,
                    str(place),
                    damaged.reason,
                    damaged.names,
                )
            )
        return None

    def _tell_result(
        self, launch: Launch, directory: Path, found: CheckedSteps, seconds: float
    ) -> None:
        step, size = found.newest, found.num_bytes
        if step is None:
            self._tell_uncommitted(launch, directory)
        elif found.why_unverified is not None:
            self._tell_unverified(directory, found.why_unverified, step)
        else:
            text = f"the checkpoint of step {step} is as it was committed"
            text += f" ({size / 1e6:.0f} MB, checked in {seconds:.2f} s)"
            self._tell(Notice("checkpoint-verified", text, step=step, bytes=size, seconds=seconds))

    def _tell_uncommitted(self, launch: Launch, directory: Path) -> None:
        """Warn if there are checkpoints, but only ones that nothing commits."""
        try:
            step = self._machine.newest_checkpoint(directory, launch.plan.own_layout, closed=True)
        except OSError:  # whoever looks for the newest one says so
            return
        if step is not None:
            why = "no marker and no rename commits a checkpoint of this layout"
            self._tell_unverified(directory, why, step)

    def _tell_unverified(self, directory: Path, why: str, step: int | None = None) -> None:
        which = (
            f"the checkpoint of step {step} is"
            if step is not None
            else f"the checkpoints in {directory} are"
        )
        text = f"{which} used unverified: {why}"
        self._warn(
            Notice("checkpoint-unverified", text, step=step, reason=why, place=str(directory))
        )


def _why_not(found: CheckedSteps, directory: Path) -> Failure | None:
    """Returns why no program may start, whatever is moved aside; None: it may."""
    if found.unavailable is not None:
        return unavailable_checkpoint(*found.unavailable, str(directory))
    if found.damaged and found.newest is None:
        steps = [damaged.step for damaged in found.damaged]
        return damaged_checkpoints(steps, found.damaged[0].reason, str(directory))
    return None
