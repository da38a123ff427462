"""Looks on: after every transition, everything that must always hold is checked."""

from __future__ import annotations

from supervisor.adapters.stores.journal import FileJournal, History, _replay
from supervisor.core.events import SupervisorStarted, WorkersGone
from supervisor.core.exit_codes import ExitCode
from supervisor.core.machine import step
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.ports import Transition
from supervisor.protocol.segments import JOURNAL
from tests.simulation.disk import FakeStorage
from tests.simulation.host import Host
from tests.simulation.ledger import Ledger
from tests.simulation.world import FakeWorld, ViolationError


class Checker:
    """An observer (`ports.Observer`) that outlives the supervisors it observes."""

    def __init__(self, storage: FakeStorage, host: Host) -> None:
        self._storage = storage
        self._host = host
        self._read = 0
        """How far the journal was followed, in bytes."""
        self._folded = History()
        self._accounts: list[tuple[int, JobState, Ledger]] = [(0, JobState(), Ledger())]
        """After each line: where it ends, the state that its replay gives, and the account."""

    @property
    def ledger(self) -> Ledger:
        """The account as it is now."""
        return self._accounts[-1][2]

    # --- while a supervisor runs ------------------------------------------------------------------

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        before, after, event = transition.before, transition.after, transition.event
        if before.status.terminal and not isinstance(event, SupervisorStarted):
            self._require(after == before and not transition.decisions, "a terminal state changes")
        self._follow_journal()
        require = self._require
        require(
            self._folded.state.durable() == after.durable(),
            "replay gives another state than the live one",
        )
        require(after.attempt >= before.attempt, "attempt numbers fall")
        require((after.exit_code is not None) == after.status.terminal, "no exit code fits the end")
        account, budget = self.ledger, after.budget
        require(account.attempts == after.attempt, "the journal tells of another attempt")
        require(account.phase == after.phase, "the journal tells of another phase")
        require(
            (account.restarts, account.preemptions) == (budget.restarts, budget.preemptions),
            f"the budget is {budget}, the account {account}",
        )
        require(account.highest == budget.highest, f"progress is {budget}, the account {account}")
        truth = self._host.ever.get(after.phase)
        if isinstance(event, WorkersGone) and after != before and not event.from_snapshot:
            restored, known = event.resumed_from, self._host.ever.get(before.phase)
            above = restored is not None and (known is None or restored > known)
            require(not above, "restored above what is committed")
        require(
            budget.highest is None or (truth is not None and budget.highest <= truth),
            "progress is counted that was never committed",
        )

    def _follow_journal(self) -> None:
        """Fold in what was appended since, exactly as replaying it will."""
        data = self._storage.content.get(JOURNAL, b"")
        for line in data[self._read :].splitlines(keepends=True):
            told = len(self._folded.transitions)
            _replay(self._folded, 0, line)
            self._read += len(line)
            account = self.ledger
            for transition in self._folded.transitions[told:]:
                assert self._folded.policy is not None
                account = account.after(transition, self._folded.policy, self._require)
            self._accounts.append((self._read, self._folded.state, account))

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise ViolationError(what)

    # --- between supervisors ----------------------------------------------------------------------

    def recovered(self, history: History) -> None:
        """A new supervisor has read the journal: of what was durable nothing may be missing."""
        size = len(self._storage.content.get(JOURNAL, b""))
        if size > self._read:
            self._follow_journal()
        while self._accounts[-1][0] > size:
            self._accounts.pop()
        end, state, _ = self._accounts[-1]
        self._require(end == size, "the journal was cut in the middle of a line")
        self._require(history.state == state, "replay gives another state than was written")
        self._read, self._folded = end, history

    def ended(self, state: JobState, world: FakeWorld, policy: RestartPolicy) -> None:
        """A supervisor ended by itself."""
        account = self.ledger
        self._require(state.exit_code == account.ended, "the exit code is not the one decided")
        again = FileJournal(self._storage).read()
        self._require(again.state.durable() == state.durable(), "replay gives another end")
        if account.ended is ExitCode.SUCCEEDED:
            for phase, limits in enumerate(policy.phases):
                done = self._host.fulfilled(phase, limits.success)
                self._require(done, f"success, although phase {phase} is not done")
        self._require(not self._host.alive(), "the job ends, but a process of it lives")
        for event in world.told:
            if not isinstance(event, SupervisorStarted):
                after = step(state, event, policy)
                self._require(after == (state, ()), "an event changes what has ended")
