"""Takes a journal's records one by one and computes the state that they lead to.

The records win over today's code: recorded decisions and states are the history, and today's rules
do not decide where the job stands. A record that this very version wrote is also checked against
its rules; if it does not follow from them, the file was changed. Records of format 1 have no state,
so it is computed from their events, and their decisions must not contradict it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from supervisor.core.decisions import ONLY_TOLD, Decision, FinishJob, StartWorkers
from supervisor.core.events import VOLATILE, PhaseBegun, SupervisorStarted, WorkersGone
from supervisor.core.exit_codes import ExitCode
from supervisor.core.machine import step
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.files.attempts import is_phase_folder
from supervisor.history.encoding import EncodingError, difference, encode, patched
from supervisor.history.past import Past, lost_after_in
from supervisor.history.record import (
    ConfigRecord,
    DamagedJournalError,
    Record,
    Snapshot,
    Turn,
    what_is_wrong,
)
from supervisor.history.upcasters import FORMAT
from supervisor.history.writer import writer
from supervisor.ports import Transition
from supervisor.protocol.messages import printable

_MAX_SHOWN = 80


class ContradictionError(DamagedJournalError):
    """A record can be read, but does not follow from the records before it."""


@dataclass(slots=True)
class History:
    """The content of a journal: the state that it leads to, and facts about the way there."""

    state: JobState = field(default_factory=JobState)
    config: list[dict[str, Any]] | None = None
    """The resolved config of each phase, as last recorded."""
    transitions: list[Transition] = field(default_factory=list)
    """The transitions since the snapshot that the journal begins with."""
    policy: RestartPolicy | None = None
    """The policy since the last supervisor started; None: no supervisor has started."""
    torn_bytes: int = 0
    """The number of bytes of an incomplete last line, which are cut off."""
    torn_file: str = ""
    """The file in which these bytes are kept; "": there are none."""
    past: Past = field(default_factory=Past)
    number: int = 0
    """The number of the last record; 0: there is none."""
    snapshot: Snapshot | None = None
    """The snapshot that the journal begins with; None: no records are archived."""
    is_outdated: bool = False
    """True: some records are in an older format."""

    def apply_record(
        self, record: Record, written: int, where: str, *, checked: bool = True
    ) -> None:
        """Add one more record, found at the place `where` in format `written`.

        `checked`: also check that it follows from the records before it.

        Raises:
            ContradictionError: it does not follow from them.
            DamagedJournalError: it cannot be applied to the state.
        """
        self._count(record, where)
        self.is_outdated |= written != FORMAT
        match record:
            case ConfigRecord():
                self._configure(record.config, record.diff)
            case Snapshot():
                self._begin_with(record, where)
            case Turn():
                self._turn(record, where, checked=checked)

    def _count(self, record: Record, where: str) -> None:
        begins = self.number == 0 and isinstance(record, Snapshot) and record.number > 0
        if record.number != self.number + 1 and not begins:
            why = f"is record {_shown(record.number)} where {self.number + 1} should be"
            what = "records are missing, or there twice"
            raise DamagedJournalError(f"{where} {why}: {what}")
        self.number = record.number

    def _begin_with(self, snapshot: Snapshot, where: str) -> None:
        self.state, self.past, self.config = snapshot.state, snapshot.past, snapshot.config
        self.policy, self.snapshot = snapshot.policy, snapshot
        self.transitions.clear()
        for directory in (*snapshot.past.directories, snapshot.state.directory):
            _check_directory(directory, where)

    @property
    def repaired(self) -> str:
        """Returns what `supervise repair` did; "": nothing, or a supervisor has started since.

        The next supervisor reports it.
        """
        was_told = any(isinstance(each.event, SupervisorStarted) for each in self.transitions)
        return self.snapshot.repaired if self.snapshot is not None and not was_told else ""

    @property
    def torn_text(self) -> str:
        """Returns a sentence about an incomplete last line."""
        bytes_ = "1 byte was" if self.torn_bytes == 1 else f"{self.torn_bytes} bytes were"
        return (
            f"the journal ended in the middle of a line: {bytes_} cut off, and can be found in "
            f"{self.torn_file}"
        )

    def apply_transition(self, transition: Transition) -> None:
        """Update the state for a transition that is recorded now; `transitions` stays as it is."""
        if isinstance(transition.event, SupervisorStarted):
            self.policy = transition.event.policy
        self.number += 1
        self.state, self.past = transition.after.durable(), self._past_after(transition)

    def apply_config(self, config: list[dict[str, Any]], diff: Sequence[str]) -> None:
        """Update the history for a config that is recorded now."""
        self.number += 1
        self._configure(config, diff)

    def _configure(self, config: list[dict[str, Any]], diff: Sequence[str]) -> None:
        self.past = self.past.config_replaced(self.config, diff, self.state.attempt)
        self.config = config

    @property
    def longest_lost_after(self) -> float:
        """Returns the longest `init.hosts.lost_after` for which an agent may let workers live
        without an answer; 0: no config has one.

        A supervisor may end before an agent hears of it. So each config counts since the one under
        which the last attempt ended.
        """
        return max(self.past.lost_after, lost_after_in(self.config))

    def _past_after(self, transition: Transition) -> Past:
        event, past = transition.event, self.past.after(transition)
        if isinstance(event, WorkersGone) and event.attempt == transition.before.attempt:
            past = replace(past, lost_after=0.0)
        return past

    def check_final_state(self, name: str) -> None:
        """Check that the state at the end of the journal `name` is a possible one.

        Raises:
            DamagedJournalError: no job can be in that state.
        """
        state, policy = self.state, self.policy
        if policy is None:
            return
        is_known = state.exit_code is None or state.exit_code in set(ExitCode)
        if not 0 <= state.phase < len(policy.phases) or state.attempt < 0 or not is_known:
            raise DamagedJournalError(f"{name} ends in an impossible state")

    def _turn(self, turn: Turn, where: str, *, checked: bool) -> None:
        event = turn.event
        if isinstance(event, PhaseBegun):
            _check_directory(event.directory, where)
        if isinstance(event, SupervisorStarted):
            self.policy = event.policy
        if self.policy is None:
            raise DamagedJournalError(f"{where} comes before any SupervisorStarted")
        before = self.state
        if turn.changes is None:
            after, follows = _next(before, turn, self.policy, where)
            contradiction = _recheck_format_1(turn.decisions, follows) if checked else None
        else:
            after = _recorded(before, turn.changes, where)
            _check_directory(after.directory, where)
            checked = checked and turn.by == writer() and not isinstance(event, VOLATILE)
            contradiction = _recheck(before, turn, after, self.policy) if checked else None
        if contradiction is not None:
            place, recorded, expected = contradiction
            raise ContradictionError(
                f"{where} ({type(event).__name__}) does not follow from those before it: "
                f"{place} is recorded as {_shown(recorded)}, but should be {_shown(expected)}; "
                "the file is damaged or was changed"
            )
        self.state = after
        transition = Transition(event, before, after, turn.decisions, turn.wall)
        self.transitions.append(transition)
        self.past = self._past_after(transition)


def _recorded(before: JobState, changes: dict[str, Any], where: str) -> JobState:
    try:
        return patched(before, changes, JobState)
    except (EncodingError, ValueError, TypeError) as error:
        why = f"{where} is damaged: {what_is_wrong(error)}"
        raise DamagedJournalError(why) from error


def _next(
    before: JobState, turn: Turn, policy: RestartPolicy, where: str
) -> tuple[JobState, tuple[Decision, ...]]:
    try:
        return step(before, turn.event, policy)
    except Exception as error:  # none of our versions wrote this line: the core cannot take it
        why = f"{where} does not follow from those before it"
        raise DamagedJournalError(why) from error


_Contradiction = tuple[str, Any, Any] | None
"""A place in a record, what is recorded there, and what should be; None: nothing is wrong."""


def _recheck(
    before: JobState, turn: Turn, after: JobState, policy: RestartPolicy
) -> _Contradiction:
    """Returns where a turn of this very version differs from what its rules make of the event."""
    try:
        state, decisions = step(before, turn.event, policy)
    except Exception as error:
        return "the event", type(turn.event).__name__, f"{type(error).__name__}"
    recorded, expected = _without_reports(turn.decisions), _without_reports(decisions)
    if recorded == expected and after == state.durable():
        return None
    return difference(
        {"decisions": _encoded(recorded), "state": encode(after, JobState)},
        {"decisions": _encoded(expected), "state": encode(state.durable(), JobState)},
    )


def _without_reports(decisions: tuple[Decision, ...]) -> tuple[Decision, ...]:
    """Returns the decisions without those that only report volatile times."""
    return tuple(each for each in decisions if not isinstance(each, ONLY_TOLD))


def _encoded(decisions: tuple[Decision, ...]) -> list[Any]:
    return [encode(decision, Decision) for decision in decisions]


def _recheck_format_1(
    recorded: tuple[Decision, ...], follows: tuple[Decision, ...]
) -> _Contradiction:
    """Returns how recorded decisions contradict those that `follows` from the events alone."""
    facts, expected = _immutable_facts(recorded), _immutable_facts(follows)
    return None if facts == expected else ("the decision", facts, expected)


def _immutable_facts(decisions: tuple[Decision, ...]) -> str:
    """Returns the attempt numbers and exit codes in the decisions, which no later version may
    decide differently."""
    found = [f"attempt {each.attempt}" for each in decisions if isinstance(each, StartWorkers)]
    found += [f"exit code {each.exit_code}" for each in decisions if isinstance(each, FinishJob)]
    return ", ".join(found) or "nothing of the kind"


def _check_directory(directory: str | None, where: str) -> None:
    if directory is not None and not is_phase_folder(directory):
        why = f"{where} names the folder {_shown(directory)} of a phase"
        raise DamagedJournalError(f"{why}, which is not a valid name")


def _shown(value: Any) -> str:
    return printable(str(value) if isinstance(value, str) else repr(value))[:_MAX_SHOWN]
