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
from supervisor.core.doing import Alive, Idle, cause_of
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
from supervisor.core.state import Group, JobState, Status
from supervisor.diagnosis.failure import Confidence, Failure, Verdict
from supervisor.ports import Transition
from supervisor.protocol.messages import Stage
from tests.simulation.expected_backoff import waits_as_it_should
from tests.simulation.expected_remediation import ExpectedRemediation
from tests.simulation.expected_repetition import Guess, comes_too_often

_ASKED = Failure("hang", Verdict.RESTART, "hang", "", "", "", 0, "")
"""The failure of a group that was asked to exit, and exits as it would after success."""

_GOES_ON = (StartWorkers, Wait, ProbeDevices)
"""The answers to a failure that do not end the job."""

Require = Callable[[bool, str], None]


@dataclass(frozen=True, slots=True)
class Account:
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
    end_unknown: bool = False
    """The supervisor of the attempt died before the journal had any sign of the attempt's end."""
    hung: Stage | None = None
    """The stage in which the attempt was called silent, and was ended for it; None: it was not."""
    short_deadline_before: bool = False
    """The attempt before was silent while it initialised, with a deadline shorter than the full
    one."""
    makes_way: bool = False
    """The attempt was asked to stop although nobody asked the job to stop."""
    suspect: tuple[Failure, tuple[str, ...]] | None = None
    """A failure that is charged only if the devices are good, and what its workers could adjust."""
    looks: int = 0
    rung: int | None = None
    disabled_rungs: frozenset[int] = frozenset()
    """The disabled rungs: the program cannot run on them."""
    may_shrink: bool = False
    """Since the last start something was found out that may cost a rung."""
    remediation: ExpectedRemediation = field(default_factory=ExpectedRemediation)
    stop: StopSource | None = None
    ended: ExitCode | None = None

    def after(self, t: Transition, policy: RestartPolicy, require: Require) -> Account:
        """Return the account after a transition; `require` is called with what must hold."""
        event = t.event
        require(
            self.ended is None or isinstance(event, SupervisorStarted),
            "after its end, the job goes on",
        )
        account = self._noted(event, t, policy)
        if isinstance(event, WorkersGone | LaunchFailed) and account._is_answer(event):
            account = account._answered(event, t, policy, require)
        elif isinstance(event, DevicesProbed):
            account = account._looked(event, t, policy, require)
        else:
            starts = [d for d in t.decisions if isinstance(d, StartWorkers)]
            require(
                not (starts and account.owed), "a second attempt, the first is not answered for"
            )
        return account._decided(t.decisions, t, policy, require)

    def _noted(self, event: Event, t: Transition, policy: RestartPolicy) -> Account:
        match event:
            case SupervisorStarted() if t.before.begins_anew(once=event.once):
                return Account(attempts=self.attempts, looks=self.looks)
            case SupervisorStarted(committed=step):
                again = self.ended in (ExitCode.FAILED, ExitCode.BUDGET_SPENT)
                grown = self.ended is ExitCode.SUCCEEDED and t.after.status is not Status.SUCCEEDED
                account = self if self.ended is ExitCode.SUCCEEDED else self._committed(step)
                if again or grown:
                    account = replace(account, restarts=0, preemptions=0, total=0)
                    account = replace(account, failed=(), guessed=())
                account = replace(account, disabled_rungs=frozenset()) if again else account
                remediation = account.remediation.after_the_end() if again else account.remediation
                account = replace(account, remediation=remediation.begun())
                told = self._end_was_told(t.before.group, policy)
                end_unknown = self.owed and (self.end_unknown or self.stop is not None or not told)
                return replace(account, stop=None, ended=None, end_unknown=end_unknown)
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

    def _committed(self, step: int | None) -> Account:
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
    ) -> Account:
        """Check what is decided about the end of the attempt, and what it costs."""
        account = replace(self, owed=False)
        if isinstance(event, WorkersGone):
            account = replace(account._committed(event.committed), short_deadline_before=False)
        decision = t.decisions[0] if t.decisions else None
        failure = event.failure
        if self._only_did_not_exit(event, policy):
            is_over = t.after.phase != self.phase or t.after.status is Status.SUCCEEDED
            require(is_over, "work that is done is no success, because nobody exited")
            return account
        if self.stop is not None:
            return account
        if failure is None:
            asked = self.hung is not None and not policy.phases[self.phase].success.is_proof
            failure = _ASKED if asked else None
        if failure is None:
            return account
        if isinstance(event, WorkersGone) and self.end_unknown:
            require(isinstance(decision, _GOES_ON), "a lost attempt is not started again")
            return account
        if self.makes_way and failure.verdict is not Verdict.FATAL and not self.hung:
            require(isinstance(decision, _GOES_ON), "what made way is not started again")
            return account
        limits = policy.phases[self.phase].limits(tries_again=not self.short_deadline_before)
        whole = policy.phases[self.phase].deadlines
        if self.hung is Stage.INITIALIZING and limits != whole and not failure.says_fatal:
            require(isinstance(decision, _GOES_ON), "it may not be initialised again")
            return replace(account, short_deadline_before=True)
        adjustable = event.adjustable if isinstance(event, WorkersGone) else ()
        if failure.step is None and isinstance(event, WorkersGone) and not failure.certain:
            reported = event.step if failure.verdict is Verdict.FATAL else None
            failure = replace(failure, step=reported)
        return account._charged(failure, adjustable, decision, policy, require)

    def _only_did_not_exit(self, event: WorkersGone | LaunchFailed, policy: RestartPolicy) -> bool:
        """Whether a group that was ended for its silence had committed its last step."""
        last = policy.phases[self.phase].success.step
        if not isinstance(event, WorkersGone) or self.hung is None or self.end_unknown:
            return False
        return last is not None and event.committed is not None and event.committed >= last

    def _looked(
        self, event: DevicesProbed, t: Transition, policy: RestartPolicy, require: Require
    ) -> Account:
        """Take in a probe: a failure that pointed at the devices is charged, unless the probe found
        bad ones."""
        if t.before.status is not Status.PROBING or event.number != self.looks:
            return self
        phase = policy.phases[self.phase]
        in_use = set(t.before.ladder.units(phase))
        guilty = {bad.unit for bad in event.bad} & in_use
        quarantined = {entry.unit for entry in t.before.quarantine.entries} & in_use
        account = replace(self, may_shrink=self.may_shrink or bool(guilty | quarantined))
        if self.suspect is None:
            return account
        failure, adjustable = self.suspect
        account = replace(account, suspect=None)
        if guilty:
            return account
        decision = t.decisions[0] if t.decisions else None
        return account._charged(failure, adjustable, decision, policy, require, looked=True)

    def _charged(
        self,
        failure: Failure,
        adjustable: tuple[str, ...],
        decision: Decision | None,
        policy: RestartPolicy,
        require: Require,
        *,
        looked: bool = False,
    ) -> Account:
        limits = policy.phases[self.phase]
        ends = decision.exit_code if isinstance(decision, FinishJob) else None
        charge = Charge.RESTARTS if self.hung else failure.charge
        said = failure.verdict is Verdict.FATAL and failure.confidence is not Confidence.LOW
        fatal = said or (failure.verdict is Verdict.FATAL and not self.hung)
        if fatal and failure.certain:
            why = "a fatal failure does not end the job with 70"
            return self._check_fatal_end(failure, decision, limits, require, why)
        machine = self.hung is Stage.INITIALIZING if self.hung else failure.hardware
        replaced = machine and policy.replaceable and self.total != limits.max_total_restarts
        gone = limits.workers_are_units and failure.struck and not self.hung
        if limits.units and (failure.hardware or self.hung or gone) and not looked:
            require(isinstance(decision, ProbeDevices), "nobody looks at the devices")
            return replace(self, suspect=(failure, adjustable))
        remedy = None if self.hung else failure.remedy
        remediation = self.remediation.after(remedy, failure.step, self.highest, adjustable)
        account = replace(self, remediation=remediation)
        if (due := remediation.end) is not None:
            require(ends is due, f"a remedy that failed does not end the job with {due}")
            return account
        if fatal:
            return account._guessed(failure, decision, policy, require)
        compared = failure.compared and remedy is None and not self.hung
        if failure.signature is not None and compared:
            account = replace(account, failed=(*self.failed, failure.signature))
            limit, progressed = limits.repeated_failure_limit, self.highest is not None
            if comes_too_often(failure.signature, account.failed, limit, has_progressed=progressed):
                return account._check_budget_end(ends, ExitCode.FAILED, require, replaced=replaced)
        if charge is not Charge.NOTHING:
            if self._is_spent(charge, limits):
                return account._check_budget_end(
                    ends, ExitCode.BUDGET_SPENT, require, replaced=replaced
                )
            account = account._spend(charge)
        require(isinstance(decision, _GOES_ON), "a failure is not answered by a restart")
        account._check_delay(decision, charge, policy, require)
        return account

    def _check_budget_end(
        self, ends: object, due: ExitCode, require: Require, *, replaced: bool
    ) -> Account:
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
    ) -> Account:
        """Check a FATAL verdict that is a guess: one more attempt, unless it had that or none is
        left."""
        limits = policy.phases[self.phase]
        rung = self._on(limits) if failure.per_rung else None
        guess = Guess(failure.signature, failure.step, self.commits, rung)
        if guess.is_again(self.guessed):
            why = "a guess lives through its second time"
            return self._check_fatal_end(failure, decision, limits, require, why)
        if self._is_spent(failure.charge, limits):
            why = "a guess that cannot be tried again does not end the job with 70"
            return self._check_fatal_end(failure, decision, limits, require, why)
        require(isinstance(decision, _GOES_ON), "a guess ends the job the first time")
        account = replace(self._spend(failure.charge), guessed=(*self.guessed, guess))
        account._check_delay(decision, failure.charge, policy, require, sooner=1)
        return account

    def _check_fatal_end(
        self,
        failure: Failure,
        decision: Decision | None,
        limits: PhasePolicy,
        require: Require,
        why: str,
    ) -> Account:
        """Check a failure that would come again: it ends the job, because of `why`, or costs a
        smaller rung."""
        if failure.per_rung and limits.rungs and self._on(limits) != limits.rungs[0]:
            require(isinstance(decision, _GOES_ON), "a rung that is too small ends the job")
            return replace(
                self, may_shrink=True, disabled_rungs=self.disabled_rungs | {self._on(limits)}
            )
        ended = isinstance(decision, FinishJob) and decision.exit_code is ExitCode.FAILED
        require(ended, why)
        return self

    def _on(self, limits: PhasePolicy) -> int:
        """Return the rung."""
        return self.rung or (limits.rungs[0] if limits.rungs else 0)

    def _spend(self, charge: Charge) -> Account:
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
        failures = self.remediation.failures_to_wait_for(self.restarts + self.preemptions) + sooner
        waits = waits_as_it_should(decision, failures, charge, policy)
        require(waits, "the backoff has not its length")

    def _decided(
        self,
        decisions: tuple[Decision, ...],
        t: Transition,
        policy: RestartPolicy,
        require: Require,
    ) -> Account:
        account = self
        if t.after.phase != self.phase:
            require(t.after.phase == self.phase + 1, "a phase is left out")
            account = Account(
                phase=t.after.phase,
                attempts=self.attempts,
                owed=account.owed,
                end_unknown=account.end_unknown,
                hung=account.hung,
                may_shrink=account.may_shrink,
                looks=account.looks,
                stop=account.stop,
                ended=account.ended,
            )
        for decision in decisions:
            match decision:
                case StartWorkers(attempt=attempt):
                    require(attempt == self.attempts + 1, "attempt numbers do not grow by one")
                    require(self.stop is None, "an attempt starts although somebody wants a stop")
                    asked = t.after.remediation.adjustments
                    require(asked == account.remediation.adjustments, f"asked to adjust {asked}")
                    account = replace(
                        account,
                        attempts=attempt,
                        owed=True,
                        end_unknown=False,
                        hung=None,
                        makes_way=False,
                        suspect=None,
                    )
                    account = account._on_rung(decision.num_devices, policy, require)
                case ProbeDevices(number=number):
                    require(number == self.looks + 1, "the numbers of looks do not grow by one")
                    account = replace(account, looks=number)
                case SignalWorkers() if _is_idle(t.after):
                    account = replace(account, hung=Stage.FINISHING)
                case SignalWorkers() if self.stop is None and not self.hung:
                    passed_on = t.after.group is not None and t.after.group.lingers
                    account = replace(account, makes_way=account.makes_way or not passed_on)
                case DumpStacks():
                    hang = t.after.group.hang if t.after.group is not None else None
                    account = replace(account, hung=hang.stage if hang is not None else None)
                case KillWorkers(attempt=attempt):
                    require(attempt == self.attempts, "another attempt is killed")
                case FinishJob():
                    account._check_finish(decision, require)
                    account = replace(account, ended=decision.exit_code, suspect=None)
        return account

    def _on_rung(self, num_devices: int | None, policy: RestartPolicy, require: Require) -> Account:
        rungs = policy.phases[self.phase].rungs
        if not rungs:
            return self
        before, now = self.rung or rungs[0], num_devices or rungs[0]
        require(now not in self.disabled_rungs, "a rung on which nothing can run is tried again")
        require(now >= before or self.may_shrink, "it shrinks although nothing was found out")
        return replace(self, rung=now, may_shrink=False)

    def _check_finish(self, end: FinishJob, require: Require) -> None:
        require(not self.owed, "the job ends although its attempt is not answered for")
        if end.exit_code in (ExitCode.DRAINED, ExitCode.STOPPED):
            person = end.exit_code is ExitCode.STOPPED
            require(self.stop is not None, "the job is stopped although nobody wants that")
            wanted = (self.stop is StopSource.PERSON) == person
            require(wanted, "the job is stopped for another reason than it says")


def _is_idle(state: JobState) -> bool:
    return isinstance(state.doing, Alive) and isinstance(cause_of(state.doing), Idle)
