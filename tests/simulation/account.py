"""How each end of an attempt must be answered, computed apart from the core that decides it.

This is a second, independent implementation of the design's rules. Like the core's state, it is
folded over the journal. But it keeps only what was spent, what was committed, who asked for a stop,
and whether the last attempt still needs an answer. From these follows how every end of an attempt
must be answered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from supervisor.core.budget import Charge
from supervisor.core.decisions import (
    Decision,
    DumpStacks,
    FinishJob,
    KillWorkers,
    ProbeDevices,
    SignalWorkers,
    StartWorkers,
    Wait,
)
from supervisor.core.events import (
    CheckpointCommitted,
    DevicesProbed,
    Event,
    LaunchFailed,
    PhaseBegun,
    StopRequested,
    StopSource,
    SupervisorStarted,
    WorkersGone,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import Group, Status
from supervisor.diagnosis.failure import Confidence, Failure, Verdict
from supervisor.ports import Transition
from supervisor.protocol.messages import Stage
from tests.simulation.again import Guess, comes_too_often
from tests.simulation.backoff import waits_as_it_should
from tests.simulation.treatment import Treatment

_ASKED = Failure("hang", Verdict.RESTART, "hang", "", "", "", 0, "")
"""The failure of a group that was asked to exit, and exits as it would after success."""

_GOES_ON = (StartWorkers, Wait, ProbeDevices)
"""The answers to a failure that do not end the job."""

Require = Callable[[bool, str], None]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The account of a job."""

    phase: int = 0
    restarts: int = 0
    preemptions: int = 0
    total: int = 0
    """Charged restarts of the phase, whatever was committed between them."""
    failed: tuple[str, ...] = ()
    """The signatures of the failures without progress between them, in order."""
    guessed: tuple[Guess, ...] = ()
    """The failures of the phase whose FATAL verdict was a guess."""
    commits: int = 0
    """How often there was progress in the phase."""
    highest: int | None = None
    attempts: int = 0
    owed: bool = False
    """The end of the last attempt has not been answered yet."""
    free: bool = False
    """The supervisor of the attempt died before the journal had any sign of the attempt's end."""
    hung: Stage | None = None
    """The stage in which the attempt was called silent, and was ended for it; None: it was not."""
    again: bool = False
    """The attempt before was silent while it initialised, with a deadline shorter than the full
    one."""
    makes_way: bool = False
    """The attempt was asked to stop although nobody asked the job to stop."""
    suspect: tuple[Failure, tuple[str, ...]] | None = None
    """A failure that is charged only if the devices are good, and what its workers could adjust."""
    looks: int = 0
    rung: int | None = None
    struck: frozenset[int] = frozenset()
    """The disabled rungs: the program cannot run on them."""
    evidence: bool = False
    """Since the last start something was found out that may cost a rung."""
    treatment: Treatment = field(default_factory=Treatment)
    stop: StopSource | None = None
    ended: ExitCode | None = None

    def after(self, t: Transition, policy: RestartPolicy, require: Require) -> Ledger:
        """Return the account after a transition; `require` is called with what must hold."""
        event = t.event
        require(
            self.ended is None or isinstance(event, SupervisorStarted),
            "after its end, the job goes on",
        )
        ledger = self._noted(event, t, policy)
        if isinstance(event, WorkersGone | LaunchFailed) and ledger._is_answer(event):
            ledger = ledger._answered(event, t, policy, require)
        elif isinstance(event, DevicesProbed):
            ledger = ledger._looked(event, t, policy, require)
        else:
            starts = [d for d in t.decisions if isinstance(d, StartWorkers)]
            require(not (starts and ledger.owed), "a second attempt, the first is not answered for")
        return ledger._decided(t.decisions, t, policy, require)

    def _noted(self, event: Event, t: Transition, policy: RestartPolicy) -> Ledger:
        match event:
            case SupervisorStarted() if t.before.begins_anew(once=event.once):
                return Ledger(attempts=self.attempts, looks=self.looks)
            case SupervisorStarted(committed=step):
                again = self.ended in (ExitCode.FAILED, ExitCode.BUDGET_SPENT)
                grown = self.ended is ExitCode.SUCCEEDED and t.after.status is not Status.SUCCEEDED
                ledger = self if self.ended is ExitCode.SUCCEEDED else self._committed(step)
                if again or grown:
                    ledger = replace(ledger, restarts=0, preemptions=0, total=0)
                    ledger = replace(ledger, failed=(), guessed=())
                ledger = replace(ledger, struck=frozenset()) if again else ledger
                treatment = ledger.treatment.after_the_end() if again else ledger.treatment
                ledger = replace(ledger, treatment=treatment.begun())
                told = self._end_was_told(t.before.group, policy)
                free = self.owed and (self.free or self.stop is not None or not told)
                return replace(ledger, stop=None, ended=None, free=free)
            case PhaseBegun(phase=phase, committed=step) if t.before.directory is None:
                return self._committed(step) if phase == self.phase else self
            case CheckpointCommitted(phase=phase, step=step):
                return self._committed(step) if phase == self.phase else self
            case StopRequested(source=source):
                first = self.stop in (None, StopSource.PREEMPTION)
                announced = source is StopSource.PREEMPTION and self.stop is not None
                return replace(self, stop=source) if first and not announced else self
        return self

    def _end_was_told(self, group: Group | None, policy: RestartPolicy) -> bool:
        """True if the journal has the failure of the attempt, or the end of all its workers."""
        if group is None:
            return False
        codes = {ended.code for ended in group.exits}
        failed = bool(codes - {policy.phases[self.phase].success.exit_code})
        return failed or (len(group.exits) == group.world_size and not group.lingers)

    def _committed(self, step: int | None) -> Ledger:
        if step is None or (self.highest is not None and self.highest >= step):
            return self
        commits = self.commits + 1
        return replace(self, highest=step, restarts=0, preemptions=0, failed=(), commits=commits)

    def _is_answer(self, event: WorkersGone | LaunchFailed) -> bool:
        return self.owed and event.attempt == self.attempts

    def _answered(
        self,
        event: WorkersGone | LaunchFailed,
        t: Transition,
        policy: RestartPolicy,
        require: Require,
    ) -> Ledger:
        """Check what is decided about the end of the attempt, and what it costs."""
        ledger = replace(self, owed=False)
        if isinstance(event, WorkersGone):
            ledger = replace(ledger._committed(event.committed), again=False)
        decision = t.decisions[0] if t.decisions else None
        failure = event.failure
        if self.stop is not None:
            return ledger
        if failure is None:
            asked = self.hung is not None and not policy.phases[self.phase].success.is_proof
            failure = _ASKED if asked else None
        if failure is None:
            return ledger
        if isinstance(event, WorkersGone) and self.free:
            require(isinstance(decision, _GOES_ON), "a lost attempt is not started again")
            return ledger
        if self.makes_way and failure.verdict is not Verdict.FATAL and not self.hung:
            require(isinstance(decision, _GOES_ON), "what made way is not started again")
            return ledger
        limits = policy.phases[self.phase].limits(tries_again=not self.again)
        whole = policy.phases[self.phase].deadlines
        if self.hung is Stage.INITIALIZING and limits != whole and not failure.says_fatal:
            require(isinstance(decision, _GOES_ON), "it may not be initialised again")
            return replace(ledger, again=True)
        adjustable = event.adjustable if isinstance(event, WorkersGone) else ()
        if failure.step is None and isinstance(event, WorkersGone) and not failure.certain:
            reported = event.step if failure.verdict is Verdict.FATAL else None
            failure = replace(failure, step=reported)
        return ledger._charged(failure, adjustable, decision, policy, require)

    def _looked(
        self, event: DevicesProbed, t: Transition, policy: RestartPolicy, require: Require
    ) -> Ledger:
        """Take in a probe: a failure that pointed at the devices is charged, unless the probe found
        bad ones."""
        if t.before.status is not Status.PROBING or event.number != self.looks:
            return self
        phase = policy.phases[self.phase]
        in_use = set(t.before.ladder.units(phase))
        guilty = {bad.unit for bad in event.bad} & in_use
        quarantined = {entry.unit for entry in t.before.quarantine.entries} & in_use
        ledger = replace(self, evidence=self.evidence or bool(guilty | quarantined))
        if self.suspect is None:
            return ledger
        failure, adjustable = self.suspect
        ledger = replace(ledger, suspect=None)
        if guilty:
            return ledger
        decision = t.decisions[0] if t.decisions else None
        return ledger._charged(failure, adjustable, decision, policy, require, looked=True)

    def _charged(
        self,
        failure: Failure,
        adjustable: tuple[str, ...],
        decision: Decision | None,
        policy: RestartPolicy,
        require: Require,
        *,
        looked: bool = False,
    ) -> Ledger:
        limits = policy.phases[self.phase]
        ends = decision.exit_code if isinstance(decision, FinishJob) else None
        charge = Charge.RESTARTS if self.hung else failure.charge
        said = failure.verdict is Verdict.FATAL and failure.confidence is not Confidence.LOW
        fatal = said or (failure.verdict is Verdict.FATAL and not self.hung)
        if fatal and failure.certain:
            why = "a fatal failure does not end the job with 70"
            return self._over(failure, decision, limits, require, why)
        machine = self.hung is Stage.INITIALIZING if self.hung else failure.hardware
        replaced = machine and policy.replaceable and self.total != limits.max_total_restarts
        gone = limits.workers_are_units and failure.struck and not self.hung
        if limits.units and (failure.hardware or self.hung or gone) and not looked:
            require(isinstance(decision, ProbeDevices), "nobody looks at the devices")
            return replace(self, suspect=(failure, adjustable))
        remedy = None if self.hung else failure.remedy
        treated = self.treatment.after(remedy, failure.step, self.highest, adjustable)
        ledger = replace(self, treatment=treated)
        if (due := treated.end) is not None:
            require(ends is due, f"a remedy that failed does not end the job with {due}")
            return ledger
        if fatal:
            return ledger._guessed(failure, decision, policy, require)
        compared = failure.compared and remedy is None and not self.hung
        if failure.signature is not None and compared:
            ledger = replace(ledger, failed=(*self.failed, failure.signature))
            limit, progressed = limits.repeated_failure_limit, self.highest is not None
            if comes_too_often(failure.signature, ledger.failed, limit, has_progressed=progressed):
                return ledger._ends(ends, ExitCode.FAILED, require, replaced=replaced)
        if charge is not Charge.NOTHING:
            if self._is_spent(charge, limits):
                return ledger._ends(ends, ExitCode.BUDGET_SPENT, require, replaced=replaced)
            ledger = ledger._spend(charge)
        require(isinstance(decision, _GOES_ON), "a failure is not answered by a restart")
        ledger._check_delay(decision, charge, policy, require)
        return ledger

    def _ends(self, ends: object, due: ExitCode, require: Require, *, replaced: bool) -> Ledger:
        """Check that the job ends, with 69 if the machine is replaced: the next machine starts with
        nothing spent."""
        due = ExitCode.NO_CAPACITY if replaced else due
        require(ends is due, f"a failure too many does not end the job with {due}")
        return replace(self, restarts=0, preemptions=0, failed=()) if replaced else self

    def _is_spent(self, charge: Charge, limits: PhasePolicy) -> bool:
        spent, limit = self.restarts, limits.max_num_restarts
        if charge is Charge.PREEMPTIONS:
            spent, limit = self.preemptions, limits.max_num_preemptions
        return spent == limit or self.total == limits.max_total_restarts

    def _guessed(
        self,
        failure: Failure,
        decision: Decision | None,
        policy: RestartPolicy,
        require: Require,
    ) -> Ledger:
        """Check a FATAL verdict that is a guess: one more attempt, unless it had that or none is
        left."""
        limits = policy.phases[self.phase]
        rung = self._on(limits) if failure.per_rung else None
        guess = Guess(failure.signature, failure.step, self.commits, rung)
        if guess.is_again(self.guessed):
            why = "a guess lives through its second time"
            return self._over(failure, decision, limits, require, why)
        if self._is_spent(failure.charge, limits):
            why = "a guess that cannot be tried again does not end the job with 70"
            return self._over(failure, decision, limits, require, why)
        require(isinstance(decision, _GOES_ON), "a guess ends the job the first time")
        ledger = replace(self._spend(failure.charge), guessed=(*self.guessed, guess))
        ledger._check_delay(decision, failure.charge, policy, require, sooner=1)
        return ledger

    def _over(
        self,
        failure: Failure,
        decision: Decision | None,
        limits: PhasePolicy,
        require: Require,
        why: str,
    ) -> Ledger:
        """Check a failure that would come again: it ends the job, because of `why`, or costs a
        smaller rung."""
        if failure.per_rung and limits.rungs and self._on(limits) != limits.rungs[0]:
            require(isinstance(decision, _GOES_ON), "a rung that is too small ends the job")
            return replace(self, evidence=True, struck=self.struck | {self._on(limits)})
        ended = isinstance(decision, FinishJob) and decision.exit_code is ExitCode.FAILED
        require(ended, why)
        return self

    def _on(self, limits: PhasePolicy) -> int:
        """Return the rung."""
        return self.rung or (limits.rungs[0] if limits.rungs else 0)

    def _spend(self, charge: Charge) -> Ledger:
        if charge is Charge.RESTARTS:
            return replace(self, restarts=self.restarts + 1, total=self.total + 1)
        return replace(self, preemptions=self.preemptions + 1, total=self.total + 1)

    def _check_delay(
        self,
        decision: Decision | None,
        charge: Charge,
        policy: RestartPolicy,
        require: Require,
        sooner: int = 0,
    ) -> None:
        failures = self.treatment.failures_to_wait_for(self.restarts + self.preemptions) + sooner
        waits = waits_as_it_should(decision, failures, charge, policy)
        require(waits, "the backoff has not its length")

    def _decided(
        self,
        decisions: tuple[Decision, ...],
        t: Transition,
        policy: RestartPolicy,
        require: Require,
    ) -> Ledger:
        ledger = self
        if t.after.phase != self.phase:
            require(t.after.phase == self.phase + 1, "a phase is left out")
            ledger = Ledger(
                phase=t.after.phase,
                attempts=self.attempts,
                owed=ledger.owed,
                free=ledger.free,
                hung=ledger.hung,
                evidence=ledger.evidence,
                looks=ledger.looks,
                stop=ledger.stop,
                ended=ledger.ended,
            )
        for decision in decisions:
            match decision:
                case StartWorkers(attempt=attempt):
                    require(attempt == self.attempts + 1, "attempt numbers do not grow by one")
                    require(self.stop is None, "an attempt starts although somebody wants a stop")
                    asked = t.after.remediation.adjustments
                    require(asked == ledger.treatment.adjustments, f"asked to adjust {asked}")
                    ledger = replace(
                        ledger,
                        attempts=attempt,
                        owed=True,
                        free=False,
                        hung=None,
                        makes_way=False,
                        suspect=None,
                    )
                    ledger = ledger._on_rung(decision.num_devices, policy, require)
                case ProbeDevices(number=number):
                    require(number == self.looks + 1, "the numbers of looks do not grow by one")
                    ledger = replace(ledger, looks=number)
                case SignalWorkers() if self.stop is None and not self.hung:
                    passed_on = t.after.group is not None and t.after.group.lingers
                    ledger = replace(ledger, makes_way=ledger.makes_way or not passed_on)
                case DumpStacks():
                    hang = t.after.group.hang if t.after.group is not None else None
                    ledger = replace(ledger, hung=hang.stage if hang is not None else None)
                case KillWorkers(attempt=attempt):
                    require(attempt == self.attempts, "another attempt is killed")
                case FinishJob():
                    ledger._check_end(decision, require)
                    ledger = replace(ledger, ended=decision.exit_code, suspect=None)
        return ledger

    def _on_rung(self, num_devices: int | None, policy: RestartPolicy, require: Require) -> Ledger:
        rungs = policy.phases[self.phase].rungs
        if not rungs:
            return self
        before, now = self.rung or rungs[0], num_devices or rungs[0]
        require(now not in self.struck, "a rung on which nothing can run is tried again")
        require(now >= before or self.evidence, "it shrinks although nothing was found out")
        return replace(self, rung=now, evidence=False)

    def _check_end(self, end: FinishJob, require: Require) -> None:
        require(not self.owed, "the job ends although its attempt is not answered for")
        if end.exit_code in (ExitCode.DRAINED, ExitCode.STOPPED):
            person = end.exit_code is ExitCode.STOPPED
            require(self.stop is not None, "the job is stopped although nobody wants that")
            wanted = (self.stop is StopSource.PERSON) == person
            require(wanted, "the job is stopped for another reason than it says")
