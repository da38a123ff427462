"""What the hosts without ranks are told to prepare while an attempt runs: a standby each.

No I/O and no clock: see `fleet`. The leader sends the command to a spare at each of its questions
until the spare says that it has obeyed.
"""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.core.events import CheckpointCommitted, WorkerReported
from supervisor.core.settling import Settling
from supervisor.engines.fleet.fleet_messages import Forwarded, PrepareStandby, Question
from supervisor.engines.fleet.launch_text import text_of
from supervisor.engines.launch import Launch, Part
from supervisor.protocol.messages import StageMessage, StepMessage


class SpareStandbys:
    """The standbys of the spares, for the attempt that was started last."""

    def __init__(self) -> None:
        self._command: PrepareStandby | None = None
        self._settling = Settling(0.0)
        self._has_stepped = self._has_committed = False

    def begin(
        self,
        epoch: int,
        launch: Launch,
        coordinator: str,
        newest: int | None,
        cache: Mapping[str, str],
        at: float,
    ) -> None:
        """An attempt runs since the time `at`; see `StartRanks` for the others."""
        self._settling = Settling(at)
        self._has_stepped = self._has_committed = False
        self._command = None
        if launch.plan.standby != "off":
            text = text_of(launch, Part((0,), coordinator))
            self._command = PrepareStandby(epoch, launch.attempt, text, newest, cache)

    def hear(self, event: Forwarded, at: float) -> None:
        """Rank 0 of the attempt has said something at the time `at`."""
        match event:
            case WorkerReported(message=StageMessage(stage)):
                self._settling = self._settling.entered(stage, at)
            case WorkerReported(message=StepMessage()):
                self._has_stepped = True
            case CheckpointCommitted(step=step):
                newest = self._command.newest if self._command is not None else None
                self._has_committed |= newest is None or step > newest

    def wanted(self, question: Question, attempt: int, at: float) -> PrepareStandby | None:
        """Returns what to tell a spare that has asked this while `attempt` runs; None: nothing, as
        the attempt has not recovered yet, or the spare has done what it can."""
        command = self._command
        if command is None or command.attempt != attempt or question.prepared == attempt:
            return None
        has_recovered = self._settling.is_over(
            at, has_stepped=self._has_stepped, has_committed=self._has_committed
        )
        return command if has_recovered else None
