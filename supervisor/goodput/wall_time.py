"""Where the wall time of a job went: a fold over its transitions, in whole nanoseconds.

Every moment from the job's first start on belongs to exactly one `Part`, so the parts add up to the
wall time. The parts are those of Google's ml-goodput-measurement (`GOOGLE_NAMES`), and a few more
where that package tells them apart no further, or not at all.

An attempt's stages come from its `TellStages`. `Training` knows which steps have become a
checkpoint: where the next attempt goes on from a step, all training after it is lost. A program
that names no stages trains all the time, as far as is known.

What the journal cannot tell: after the last record of a supervisor that was killed, its workers may
have run on for up to five minutes. That time counts as `NOT_RUNNING`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from supervisor.core.decisions import StartWorkers, TellRecovery, TellStages
from supervisor.core.doing import (
    Alive,
    Ended,
    Probing,
    Running,
    Succeeded,
    Waiting,
    workers_of,
)
from supervisor.core.events import (
    VOLATILE,
    CheckpointCommitted,
    DeadlineReached,
    Event,
    LaunchFailed,
    SupervisorStarted,
    WorkerReported,
    WorkersGone,
)
from supervisor.core.stage_times import UNNAMED
from supervisor.core.state import JobState
from supervisor.goodput.training_curve import Training
from supervisor.ports import Transition
from supervisor.protocol.messages import Stage, StepMessage

_SECOND = 1_000_000_000
"""Nanoseconds."""
_LONGEST = 1e15
"""Seconds: only a damaged journal has more of a stage."""


class Part(StrEnum):
    """What a moment of the wall time belongs to."""

    PRODUCTIVE = "productive"
    """Training and evaluation whose steps are committed, or may still be."""
    LOST_STEPS = "lost_steps"
    """Training whose steps had to be run again, or would have to be."""
    DETECTION = "detection"
    """A hang, from the last sign of life until it was noticed."""
    RESTART = "restart"
    """From the end of an attempt to the start of the next one: clean up, decide, wait, start."""
    WAIT_FOR_DEVICES = "wait_for_devices"
    """Devices or hosts were probed, or there were too few."""
    DRAINED = "drained"
    """From the request to stop until no process was left."""
    PROGRAM_STARTUP = "program_startup"
    """The first start of a phase, the imports of the program, and the making of its first state; of
    a program that names no stages, all until it tells its first step."""
    INITIALIZATION = "initialization"
    """The backend came up, and the processes met."""
    COMPILE = "compile"
    RESTORE = "restore"
    """A state of this phase was restored: from a checkpoint, or a snapshot in memory."""
    SAVE = "save"
    """Training waited for a save."""
    OTHER = "other"
    """After the training was complete."""
    NOT_RUNNING = "not_running"
    """No supervisor ran. It is no part of the goodput."""


GOOGLE_NAMES: Mapping[Part, str] = {
    Part.LOST_STEPS: "WASTED_PROGRESS_FROM_DISRUPTION",
    Part.DETECTION: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    Part.RESTART: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    Part.WAIT_FOR_DEVICES: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    Part.DRAINED: "OTHER",
    Part.PROGRAM_STARTUP: "PROGRAM_STARTUP",
    Part.INITIALIZATION: "TPU_INITIALIZATION",
    Part.COMPILE: "TRAINING_PREP",
    Part.RESTORE: "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    Part.SAVE: "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    Part.OTHER: "OTHER",
}
"""The kinds of badput in github.com/AI-Hypercomputer/ml-goodput-measurement (`BadputType`)."""

_OF_STAGE: Mapping[str, Part] = {
    Stage.STARTING: Part.PROGRAM_STARTUP,
    Stage.INITIALIZING: Part.INITIALIZATION,
    Stage.RESTORING: Part.RESTORE,
    Stage.COMPILING: Part.COMPILE,
    Stage.TRAINING: Part.PRODUCTIVE,
    Stage.EVALUATING: Part.PRODUCTIVE,
    UNNAMED: Part.PRODUCTIVE,
    Stage.SAVING: Part.SAVE,
    Stage.FINISHING: Part.OTHER,
}


@dataclass(frozen=True, slots=True)
class Goodput:
    """How a stretch of wall time was used. Seconds."""

    parts: Mapping[Part, float]
    """Every part with any time; together they are the whole stretch."""
    uncommitted: float
    """How much of the productive time is in no checkpoint yet."""

    @property
    def wall(self) -> float:
        """The whole stretch."""
        return sum(self.parts.values())

    @property
    def running(self) -> float:
        """The time in which a supervisor ran."""
        return self.wall - self.parts.get(Part.NOT_RUNNING, 0.0)

    @property
    def share(self) -> float | None:
        """The goodput, from 0 to 1; None: no time has passed."""
        return self.parts.get(Part.PRODUCTIVE, 0.0) / self.running if self.running > 0 else None


@dataclass(frozen=True, slots=True)
class Ledger:
    """The wall time of a job up to its last transition. Times are in nanoseconds."""

    begun: int | None = None
    """The Unix time of the first start; None: there was none."""
    now: int = 0
    """The Unix time up to which all time is in its place."""
    epoch: float = 0.0
    """The Unix time, in seconds, at which the clock of the last supervisor showed zero."""
    parts: Mapping[Part, int] = field(default_factory=dict)
    """All but the productive time and what is in `held`."""
    done: int = 0
    """The training of the phases that are complete."""
    training: Training = field(default_factory=Training)
    earlier: Training | None = None
    """The training as it was before the present attempt, until it is known from which step that
    goes on; it is taken to be the newest committed one. None: it is known."""
    since: int = 0
    """The time on the curve at which the present attempt began."""
    held: int = 0
    """The time of the attempt that no record of its stages covers yet."""
    ending: int = 0
    """The time at its end that has its place already, though the last record will cover it."""
    stage: str = UNNAMED
    current: Part | None = Part.NOT_RUNNING
    """What the time from now on belongs to; None: an attempt runs, and its stages will tell."""
    newest: int | None = None
    """The newest committed step."""
    reached: int | None = None
    """The last step that the last attempt has told."""
    is_ending: bool = False
    """Whether the attempt has workers, and does not only run."""
    is_disturbed: bool = False
    """Whether an attempt of the phase has ended."""
    is_complete: bool = False
    """Whether the job has succeeded."""

    def after(self, t: Transition) -> Ledger:
        """Returns the ledger after one more transition."""
        if isinstance(t.event, VOLATILE) and not t.decisions:
            return self
        ledger = self._reached(t)
        if isinstance(t.event, DeadlineReached) and t.event.silence is not None:
            ledger = ledger._silent(round(t.event.silence.seconds * _SECOND))
        told = next((each for each in t.decisions if isinstance(each, TellStages)), None)
        if told is not None:
            ledger = ledger._staged(told)
        ledger = ledger._trained(t, told)._resumed(t)
        if isinstance(t.event, WorkersGone | LaunchFailed):
            ledger = replace(ledger, ending=0, is_disturbed=True)
        if t.before.phase != t.after.phase:
            done = ledger.done + ledger.training.total
            ledger = replace(ledger, done=done, training=Training(), earlier=None, reached=None)
            ledger = replace(ledger, is_disturbed=False)
        group = t.after.doing if isinstance(t.after.doing, Alive) else None
        return replace(
            ledger,
            current=ledger._part_of(t.after),
            newest=t.after.newest,
            is_ending=group is not None
            and not isinstance(group, Running)
            and workers_of(group) is not None,
            is_complete=isinstance(t.after.doing, Succeeded),
        )

    def so_far(self, now: float | None = None) -> Goodput:
        """Returns where the time went up to the Unix time `now`, in seconds, at which the job
        lives; None: up to the last transition."""
        ledger = self if now is None else self._moved(round(now * _SECOND))
        lives = ledger.current is None or ledger.is_ending
        ledger = ledger._flushed()
        unsaved = ledger.training.total - ledger.training.until(ledger.newest)
        if not lives and not ledger.is_complete:
            ledger = ledger._gone_back_to(ledger.newest)
        productive = ledger.done + ledger.training.total
        parts = {**ledger.parts, Part.PRODUCTIVE: productive}
        ordered = {part: parts[part] / _SECOND for part in Part if parts.get(part)}
        return Goodput(ordered, unsaved / _SECOND if lives else 0.0)

    # --- the time ---------------------------------------------------------------------------------

    def _reached(self, t: Transition) -> Ledger:
        """Moves on to the time of a transition."""
        if not isinstance(t.event, SupervisorStarted):
            return self._moved(round((self.epoch + t.event.at) * _SECOND))
        at = round((t.event.epoch + t.event.at) * _SECOND)
        ledger = replace(self, epoch=t.event.epoch)
        if self.begun is None:
            return replace(ledger, begun=at, now=at)
        disturbed = self.is_disturbed or isinstance(t.before.doing, Alive)
        ledger = replace(ledger._flushed(), current=Part.NOT_RUNNING, is_disturbed=disturbed)
        return replace(ledger, is_ending=False, ending=0)._moved(at)

    def _moved(self, at: int) -> Ledger:
        passed = max(0, at - self.now)
        if self.begun is None or not passed:
            return self
        ledger = replace(self, now=at)
        if self.current is None:
            return replace(ledger, held=self.held + passed)
        if self.is_ending:
            ledger = replace(ledger, ending=self.ending + passed)
        return ledger._with({self.current: passed})

    def _with(self, times: Mapping[Part, int]) -> Ledger:
        trained = times.get(Part.PRODUCTIVE, 0)
        parts = {**self.parts}
        for part, time in times.items():
            if time and part is not Part.PRODUCTIVE:
                parts[part] = parts.get(part, 0) + time
        return replace(self, parts=parts, training=self.training.longer(trained))

    def _silent(self, time: int) -> Ledger:
        """The attempt hung: the last time of it was its detection."""
        time = min(time, self.held)
        ledger = replace(self, held=self.held - time, ending=self.ending + time)
        return ledger._with({Part.DETECTION: time})

    def _staged(self, told: TellStages) -> Ledger:
        """A record says how long the attempt was in each stage since the last one."""
        seconds = _without_end(told.seconds, self.ending / _SECOND) or {self.stage: 1.0}
        # A first step names the stage: what a program did before, that names none, was to start up.
        unnamed = Part.PRODUCTIVE if told.stage is None else Part.PROGRAM_STARTUP
        ledger = self._with(_shared_out(self.held, seconds, self._parts_of_stages(unnamed)))
        return replace(ledger, held=0, stage=str(told.stage or UNNAMED))

    def _flushed(self) -> Ledger:
        """No record of the present stage will come."""
        part = self._parts_of_stages().get(self.stage, Part.PRODUCTIVE)
        return replace(self._with({part: self.held}), held=0)

    def _parts_of_stages(self, unnamed: Part = Part.PRODUCTIVE) -> Mapping[str, Part]:
        """Where no step was committed or told, there is nothing to restore yet: a state is made."""
        is_first = self.newest is None and self.reached is None
        restoring = Part.PROGRAM_STARTUP if is_first else Part.RESTORE
        return {**_OF_STAGE, UNNAMED: unnamed, Stage.RESTORING: restoring}

    def _part_of(self, state: JobState) -> Part | None:
        """Returns what the time from this state on belongs to: see `current`."""
        group = state.doing
        if isinstance(group, Running):
            return None
        if isinstance(group, Ended):
            return Part.NOT_RUNNING
        if state.drains:
            return Part.DRAINED
        if isinstance(group, Probing | Waiting):
            return Part.WAIT_FOR_DEVICES
        workers = workers_of(group) if isinstance(group, Alive) else None
        if workers is not None and workers.all_ended and all(each.clean for each in workers.exits):
            return Part.OTHER
        if workers is not None or self.is_disturbed:
            return Part.RESTART
        return Part.PROGRAM_STARTUP

    # --- the steps --------------------------------------------------------------------------------

    def _trained(self, t: Transition, told: TellStages | None) -> Ledger:
        """Steps were committed, or told."""
        training, step = self.training, told.step if told is not None else None
        is_new = t.after.newest is not None and t.after.newest != t.before.newest
        if is_new and isinstance(t.event, CheckpointCommitted | WorkersGone):
            assert t.after.newest is not None
            training = training.committed(t.after.newest, step)
        return replace(self, training=training.heard(step))

    def _resumed(self, t: Transition) -> Ledger:
        """An attempt starts, or it is known from which step it has gone on."""
        ledger = self._ended(t.event) if isinstance(t.event, WorkersGone) else self
        for each in t.decisions:
            if isinstance(each, TellRecovery):
                began = _began_at(each, ledger.reached, t.event)
                ledger = ledger if began is None else ledger._went_on_from(began)
            elif isinstance(each, StartWorkers) and ledger.earlier is None:
                earlier, ledger = ledger.training, ledger._gone_back_to(t.after.newest)
                ledger = replace(ledger, earlier=earlier, since=ledger.training.total)
        return ledger

    def _ended(self, end: WorkersGone) -> Ledger:
        step = end.resumed_from if end.starting_step is None else end.starting_step
        ledger = self if step is None else self._went_on_from(step)
        return replace(ledger, earlier=None, reached=end.step)

    def _gone_back_to(self, step: int | None) -> Ledger:
        back = self.training.back_at(step)
        lost = self.training.total - back.total
        return replace(self._with({Part.LOST_STEPS: lost}), training=back)

    def _went_on_from(self, step: int) -> Ledger:
        """The present attempt has gone on from `step`, and not from the newest committed one."""
        if self.earlier is None:
            return self
        newest = self.earlier.points[-1].step if self.earlier.points else 0
        if step < newest and (self.reached is None or self.reached < newest):
            return self  # the program tells something else than the checkpoints count
        start = self.earlier.back_at(step)
        training = self.training.moved_onto(start, step, self.since)
        ledger = self._with({Part.LOST_STEPS: self.since - start.total})
        return replace(ledger, training=training, earlier=None)


def _began_at(told: TellRecovery, reached: int | None, event: Event) -> int | None:
    """Returns the step from which an attempt went on after `reached`; None: not known.

    If that is not known exactly, it is the earliest that its first step allows: a program that
    tells each tenth step, and tells 80 first, has restored step 70 or a later one.
    """
    if reached is None:
        return None
    if told.lost is not None:
        return reached - told.lost
    match event:
        case WorkerReported(_, _, _, StepMessage(every=int(every))):
            return min(reached, max(0, told.step - every))
        case _:
            return reached if told.step > reached else None


def _without_end(seconds: Mapping[str, float], end: float) -> dict[str, float]:
    """Returns the seconds in each stage without the last ones, in the order of the stages."""
    kept: dict[str, float] = {}
    for stage, time in reversed(tuple(seconds.items())):
        kept[stage] = max(0.0, time - end)
        end = max(0.0, end - time)
    return {stage: time for stage, time in kept.items() if 0 < time < _LONGEST}


def _shared_out(
    time: int, seconds: Mapping[str, float], part_of: Mapping[str, Part]
) -> dict[Part, int]:
    """Returns `time`, to the nanosecond, shared out like the seconds in each stage."""
    whole, so_far, given = sum(seconds.values()), 0.0, 0
    parts: dict[Part, int] = {}
    for number, (stage, each) in enumerate(seconds.items(), 1):
        so_far += each
        until = time if number == len(seconds) else min(time, round(time * so_far / whole))
        part = part_of.get(stage, Part.PRODUCTIVE)
        parts[part] = parts.get(part, 0) + max(0, until - given)
        given = max(given, until)
    return parts
