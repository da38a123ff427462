"""Find out whether a program makes checkpoints that the supervisor does not see.

Then progress does not refill the budget, and a healthy job ends with exit code 76. A fold over the
transitions of a phase: the saves that the program shows, against the commits that were seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from supervisor.core.events import CheckpointCommitted, Event, WorkerReported, WorkersGone
from supervisor.protocol.messages import SavedMessage, StepMessage

_ENOUGH_SAVES = 2
"""How many saves are a sign while the program runs: the commit of one save may still come."""


@dataclass(frozen=True, slots=True)
class UnseenSaves:
    """What the current attempt of a phase has shown of its saves."""

    newest: int | None = None
    """The newest committed step when the attempt began."""
    first: int | None = None
    """The attempt's first step."""
    earlier: int | None = None
    """The first step of the attempt before it."""
    saves: int = 0
    """How often the program said that it saved."""
    committed: bool = False
    """Whether a higher step was seen committed in the phase: then nothing is wrong."""
    ended: bool = False
    epochs: tuple[int, ...] = ()
    """The epochs of the last commit: see `CheckpointCommitted`."""

    def begun(self, newest: int | None) -> UnseenSaves:
        """Another attempt begins; `newest` is the newest committed step."""
        earlier = self.earlier if self.first is None else self.first
        return UnseenSaves(newest, earlier=earlier, committed=self.committed, epochs=self.epochs)

    def after(self, event: Event) -> UnseenSaves:
        """Returns the value after `event`."""
        match event:
            case WorkerReported(_, _, _, StepMessage(recognised=True)) if self.newest is not None:
                return self  # what it counts need not be what the checkpoints count
            case WorkerReported(_, _, _, StepMessage() as message) if self.first is None:
                return replace(self, first=message.earliest)
            case WorkerReported(_, _, _, SavedMessage()):
                return replace(self, saves=self.saves + 1)
            case CheckpointCommitted(step=step, new=new, epochs=epochs):
                is_later = bool(self.epochs) and epochs > self.epochs
                committed = self.committed or new or is_later or self._is_new(step)
                return replace(self, committed=committed, epochs=epochs or self.epochs)
            case WorkersGone(committed=step):
                committed = self.committed or (step is not None and self._is_new(step))
                return replace(self, committed=committed, ended=True)
            case _:
                return self

    @property
    def reason(self) -> str | None:
        """Why it seems that checkpoints are not seen; None: nothing says so."""
        if self.committed:
            return None
        if self.first is not None:
            if self.newest is not None and self.ended and self.first < self.newest:
                return (
                    f"the program began at step {self.first}, and step {self.newest} was there "
                    "before: only a step above that is progress"
                )
            if self.newest is None and self.earlier is not None and self.first > self.earlier:
                return f"the program goes on at step {self.first}, so it has saved"
        if self.saves >= (1 if self.ended else _ENOUGH_SAVES):
            return "the program has saved"
        return None

    def _is_new(self, step: int) -> bool:
        return self.newest is None or step > self.newest
