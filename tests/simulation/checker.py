"""Observes the supervisors: after every transition it checks everything that must always hold."""

from __future__ import annotations

from supervisor.adapters.stores.journal import FileJournal, History
from supervisor.core.events import SupervisorStarted, WorkersGone
from supervisor.core.exit_codes import ExitCode
from supervisor.core.machine import step
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.files.segments import JOURNAL
from supervisor.history.record import Turn, parse
from supervisor.ports import Transition
from tests.simulation.account import Account
from tests.simulation.chance import ViolationError
from tests.simulation.disk import FakeStorage
from tests.simulation.loop import FaultyLoop
from tests.simulation.stage_times_check import StageTimesCheck
from tests.simulation.true_host import TrueHost


class Checker:
    """An observer (`ports.Observer`) that outlives the supervisors it observes."""

    def __init__(self, storage: FakeStorage, host: TrueHost) -> None:
        self._storage = storage
        self._host = host
        self._read = b""
        """The part of the journal that was followed so far."""
        self._folded = History()
        self._stages = StageTimesCheck(self._require)
        self._accounts: list[tuple[int, JobState, Account]] = [(0, JobState(), Account())]
        """For each record: its number, the state after it, and the account after it."""

    @property
    def account(self) -> Account:
        """The account as it is now."""
        return self._accounts[-1][2]

    # --- while a supervisor runs ------------------------------------------------------------------

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        before, after, event = transition.before, transition.after, transition.event
        if before.status.terminal and not isinstance(event, SupervisorStarted):
            self._require(after == before and not transition.decisions, "a terminal state changes")
        self._follow_journal()
        self._stages.after(transition)
        require = self._require
        require(
            self._folded.state.durable() == after.durable(),
            "replay gives another state than the live one",
        )
        require(after.attempt >= before.attempt, "attempt numbers fall")
        require((after.exit_code is not None) == after.status.terminal, "no exit code fits the end")
        account, budget = self.account, after.budget
        require(account.attempts == after.attempt, "the journal tells of another attempt")
        require(account.phase == after.phase, "the journal tells of another phase")
        require(
            (account.restarts, account.preemptions) == (budget.restarts, budget.preemptions),
            f"the budget is {budget}, the account {account}",
        )
        require(account.highest == budget.highest, f"progress is {budget}, the account {account}")
        truth = self._host.work.ever.get(after.phase)
        if isinstance(event, WorkersGone) and after != before and not event.from_snapshot:
            restored, known = event.resumed_from, self._host.work.ever.get(before.phase)
            above = restored is not None and (known is None or restored > known)
            require(not above, "restored above what is committed")
        require(
            budget.highest is None or (truth is not None and budget.highest <= truth),
            "progress is counted that was never committed",
        )

    def _follow_journal(self) -> None:
        """Fold in the records that were appended since, exactly as a replay would."""
        data = self._storage.content.get(JOURNAL, b"")
        if not data.startswith(self._read):  # it was compacted
            self._read, self._folded = b"", History()
        for line in data[len(self._read) :].splitlines(keepends=True):
            record, written = parse(line, JOURNAL, 0)
            self._folded.apply_record(record, written, JOURNAL)
            account = self.account
            if record.number > self._accounts[-1][0]:
                for transition in self._folded.transitions[-1:] if isinstance(record, Turn) else ():
                    assert self._folded.policy is not None
                    account = account.after(transition, self._folded.policy, self._require)
                self._accounts.append((record.number, self._folded.state, account))
        self._read = data

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise ViolationError(what)

    # --- between supervisors ----------------------------------------------------------------------

    def recovered(self, history: History) -> None:
        """Check what a new supervisor has read from the journal: nothing that was durable may be
        missing."""
        if history.number > self._accounts[-1][0]:
            self._follow_journal()
        while self._accounts[-1][0] > history.number:
            self._accounts.pop()
        number, state, _ = self._accounts[-1]
        self._require(number == history.number, "a record is missing")
        durable = history.state.durable()
        self._require(durable == state.durable(), "replay gives another state than was written")
        self._read, self._folded = b"", History()
        self._follow_journal()

    def ended(self, state: JobState, loop: FaultyLoop, policy: RestartPolicy) -> None:
        """Check the end of a supervisor that ended by itself."""
        account = self.account
        self._require(state.exit_code == account.ended, "the exit code is not the one decided")
        again = FileJournal(self._storage).read()
        self._require(again.state.durable() == state.durable(), "replay gives another end")
        if account.ended is ExitCode.SUCCEEDED:
            for phase, limits in enumerate(policy.phases):
                done = self._host.work.is_done(phase, limits.success)
                self._require(done, f"success, although phase {phase} is not done")
        self._require(not self._host.alive(), "the job ends, but a process of it lives")
        for event in loop.told:
            if not isinstance(event, SupervisorStarted):
                after = step(state, event, policy)
                self._require(after == (state, ()), "an event changes what has ended")
