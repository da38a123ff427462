"""What a job did at each moment: a fold over its transitions into spans of time, one lane each.

The time of an attempt that runs gets its lanes from the `TellStages` that come later: until then it
is open. What a supervisor that was killed has not recorded belongs to the last stage that is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from supervisor.core.decisions import TellStages
from supervisor.core.doing import (
    Alive,
    BackingOff,
    Beginning,
    Launching,
    New,
    Probing,
    Running,
    Waiting,
)
from supervisor.core.events import SupervisorStarted
from supervisor.core.stage_times import UNNAMED
from supervisor.core.state import JobState
from supervisor.ports import Transition
from supervisor.protocol.messages import Stage
from supervisor.report.job_report import Lane, Span

_OF_STAGE: Final[Mapping[str, Lane]] = {
    Stage.STARTING: Lane.STARTING,
    Stage.INITIALIZING: Lane.STARTING,
    Stage.RESTORING: Lane.RESTORING,
    Stage.COMPILING: Lane.COMPILING,
    Stage.TRAINING: Lane.TRAINING,
    Stage.EVALUATING: Lane.EVALUATING,
    Stage.SAVING: Lane.SAVING,
    Stage.FINISHING: Lane.FINISHING,
    UNNAMED: Lane.UNNAMED,
}


def time_of(t: Transition) -> float:
    """Returns the Unix time of a transition."""
    epoch = t.after.epoch
    return epoch + t.event.at if epoch else t.wall.timestamp()


class Timeline:
    """The spans of a job up to the last transition that was taken."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._mark: float | None = None
        """The time up to which all spans are known; None: the job has not begun."""
        self._seen = 0.0
        """The time of the last transition."""
        self._ran_until: float | None = None
        """When the attempt stopped to run whose stages are not recorded yet; None: none did."""
        self._lane = Lane.NOT_RUNNING
        """The lane from the last transition on."""
        self._stage = Lane.UNNAMED
        """The lane of the stage that was told last."""

    def take(self, t: Transition) -> None:
        """Take one more transition."""
        now = time_of(t)
        if self._mark is None:
            self._mark = self._seen = now
        now = max(now, self._seen)
        told = next((each for each in t.decisions if isinstance(each, TellStages)), None)
        was_running = isinstance(t.before.doing, Running)
        if isinstance(t.event, SupervisorStarted):
            self._close(self._seen)
            self._reach(now, Lane.NOT_RUNNING)
        elif told is not None:
            self._tell(told, now)
        elif not was_running and self._ran_until is None:
            self._reach(now, self._lane)
        if was_running and not isinstance(t.after.doing, Running) and told is None:
            self._ran_until = now
        self._seen, self._lane = now, self._lane_of(t.after)

    def spans(self, until: float | None) -> tuple[Span, ...]:
        """Returns all spans, up to the time `until` at which the job lives; None: up to the last
        transition, because it does not."""
        if self._mark is not None:
            self._close(self._seen if until is None else max(until, self._seen))
        return tuple(self._spans)

    def _tell(self, told: TellStages, now: float) -> None:
        """The stages since the mark are known."""
        end = now if self._ran_until is None else self._ran_until
        # What comes before the first stage that a program names was to start up.
        unnamed = Lane.UNNAMED if told.stage is None else Lane.STARTING
        lane = self._stage
        for stage, seconds in told.seconds.items():
            assert self._mark is not None
            lane = unnamed if stage == UNNAMED else _OF_STAGE.get(stage, Lane.UNNAMED)
            self._reach(min(self._mark + seconds, end), lane)
        self._reach(end, lane)
        self._reach(now, Lane.STOPPING)
        self._stage = _OF_STAGE.get(str(told.stage or UNNAMED), Lane.UNNAMED)
        self._ran_until = None

    def _close(self, now: float) -> None:
        """No record of the present stage will come."""
        if self._ran_until is not None:
            self._reach(self._ran_until, self._stage)
            self._reach(now, Lane.STOPPING)
        self._reach(now, self._lane)
        self._ran_until, self._stage = None, Lane.UNNAMED

    def _reach(self, until: float, lane: Lane) -> None:
        """Add the time from the mark to `until` to a lane."""
        assert self._mark is not None
        if until <= self._mark:
            return
        last = self._spans[-1] if self._spans else None
        if last is not None and last.lane is lane:
            self._spans[-1] = Span(lane, last.start, until)
        else:
            self._spans.append(Span(lane, self._mark, until))
        self._mark = until

    def _lane_of(self, state: JobState) -> Lane:
        doing = state.doing
        match doing:
            case Running():
                return self._stage
            case New() | Beginning() | Launching():
                return Lane.STARTING
            case BackingOff() | Probing() | Waiting():
                return Lane.WAITING
            case _ if isinstance(doing, Alive):
                return Lane.STOPPING
            case _:
                return Lane.NOT_RUNNING
