"""Every error of every rank, each with the rule that decides about it, in the order of how likely
it is to be the root cause.

A culprit's comes before a victim's, and an exception that ended a program before one that somebody
caught. How a process ended counts where nothing was said; but a rank that was struck down from
outside is what the victims among the others speak of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from supervisor.core.chain import Chain, Origin, Raised
from supervisor.core.failure import Evidence, RankEvidence, WorkerExit
from supervisor.core.outcome import Confidence
from supervisor.core.policy import Success
from supervisor.core.rootcause import chain_of_record, chains_of_text
from supervisor.core.rules import (
    GUARD_LOST,
    NO_OOM_KILL,
    NO_SPACE,
    NO_STEP_TOLD,
    OOM_KILLED,
    STILL_RUNNING,
    TOLD_TO_STOP,
    Rule,
    names_match,
    occurs,
    says,
)

_SIGNAL_CODES = {
    128 + 1: "SIGHUP",
    128 + 2: "SIGINT",
    128 + 4: "SIGILL",
    128 + 6: "SIGABRT",
    128 + 7: "SIGBUS",
    128 + 8: "SIGFPE",
    128 + 9: "SIGKILL",
    128 + 11: "SIGSEGV",
    128 + 15: "SIGTERM",
}
_FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1", "SIGUSR2"})
"""Signals that end a program which need not have done anything wrong: what it had caught and
logged before says nothing about its end."""
_NO_ROOM = 1 << 20
"""A disk with less free than this has no room for anything of ours."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One error of one rank (none: its exit alone), with the rule that decides about it."""

    rule: Rule
    rank: RankEvidence
    chain: Chain | None
    member: Raised | None
    time: float
    struck: bool = False
    """It was ended from outside, not by us, and said nothing."""

    @property
    def order(self) -> tuple[int, float, str]:
        """Less is more likely to be the root cause: certainty first, then time."""
        if self.chain is None:
            return (4 if self.rule.culprit or self.struck else 100), self.time, ""
        caught = is_hearsay(self.chain)
        vague = 5 * self.rule.victim + 3 * (self.rule.confidence is Confidence.LOW)
        return 10 * caught + vague + self.chain.origin, self.time, self.chain.when


def is_hearsay(chain: Chain | None) -> bool:
    """Whether nobody can tell that the error ended the program: it was only printed."""
    return chain is not None and chain.origin in (Origin.LOGGED, Origin.OUTPUT)


def judgements(evidence: Evidence, success: Success, rules: Sequence[Rule]) -> list[Judgement]:
    """What can be said of each error of each rank, and of each exit by itself."""
    facts = _facts(evidence, success)
    ranks = evidence.ranks or (RankEvidence(WorkerExit(rank=0)),)
    return [
        judgement
        for number, rank in enumerate(ranks)
        for judgement in _Judge(rank, number, success, rules, facts | _known_of(rank)).judgements()
    ]


def _facts(evidence: Evidence, success: Success) -> frozenset[str]:
    """What is known besides the ranks' own ends, by the names that rules ask for."""
    found, host = set(), evidence.host
    if evidence.survivors:
        found.add(STILL_RUNNING)
    if success.step is not None and evidence.step is None and evidence.committed is None:
        found.add(NO_STEP_TOLD)
    if host.oom_kills is not None:
        found.add(OOM_KILLED if host.oom_kills else NO_OOM_KILL)
    if host.guard_lost:
        found.add(GUARD_LOST)
    if host.free_disk is not None and host.free_disk < _NO_ROOM:
        found.add(NO_SPACE)
    return frozenset(found)


def _known_of(rank: RankEvidence) -> frozenset[str]:
    """The same of one rank."""
    return frozenset({TOLD_TO_STOP}) if rank.exit.told_to_stop else frozenset()


@dataclass(frozen=True, slots=True)
class _Judge:
    """Judges one rank's end, error by error."""

    rank: RankEvidence
    number: int
    success: Success
    rules: Sequence[Rule]
    facts: frozenset[str]

    def judgements(self) -> Iterator[Judgement]:
        """What can be said of it: of each error, and of the exit by itself."""
        rank = self.rank
        time = rank.record.time if rank.record is not None else float("inf")
        judged = [(chain, *self._of_chain(chain)) for chain in self._chains()]
        if rank.exit.told_to_stop or _signal(rank.exit) == "SIGTERM":
            # A SIGTERM for a whole process group also ends the peers and pipes that it misses then.
            judged = [each for each in judged if not each[1].victim]
        for chain, rule, member in judged:
            if rule.about_text or chain.origin is not Origin.OUTPUT:
                yield Judgement(rule, rank, chain, member, time)
        ended_well = rank.exit.code == self.success.exit_code
        struck = not judged and rank.fell and _signal(rank.exit) in _FROM_OUTSIDE
        rule = next(rule for rule in self.rules if not rule.about_text and self._ends(rule, None))
        yield Judgement(rule, rank, None, None, self.number + 1000 * ended_well, struck)

    def _chains(self) -> Sequence[Chain]:
        """The errors of a rank: its record if it left one, else what its output shows.

        In the output, the end of the program alone counts where it was ended from outside.
        """
        rank, record = self.rank, self.rank.record
        if record is not None and not record.is_mere_exit and (chain := chain_of_record(record)):
            return (chain,)
        if rank.exit.clean or not rank.output:
            return ()
        found = chains_of_text(rank.output)
        if _signal(rank.exit) in _FROM_OUTSIDE:
            return [chain for chain in found if chain.origin <= Origin.ABORT]
        return found

    def _of_chain(self, chain: Chain) -> tuple[Rule, Raised | None]:
        """The rule about a chain, and the member that it is about.

        Where a program fails and its teardown then loses a peer, both are in one chain: what says
        no more than that somebody else is gone gives way to a member that says more.
        """
        rule, member = self._first(chain, chain.members)
        if rule.victim and len(chain.members) > 1:
            others = tuple(each for each in chain.members if not self._of_victim(chain, each))
            if others:
                genuine, root = self._first(chain, others)
                if genuine.about_text and genuine.confidence is not Confidence.LOW:
                    return genuine, root
        return rule, member

    def _of_victim(self, chain: Chain, member: Raised) -> bool:
        return self._first(chain, (member,))[0].victim

    def _first(self, chain: Chain, members: Sequence[Raised]) -> tuple[Rule, Raised | None]:
        """The first rule that matches, and the outermost of `members` that it matches."""
        for rule in self.rules:
            if not self._ends(rule, chain):
                continue
            if rule.alone and len(members) > 1:
                continue
            if not rule.about_text:
                return rule, members[-1] if members else None
            for member in reversed(members):
                if rule.speakers and member.speaker not in rule.speakers:
                    continue
                if names_match(rule, member.names) and says(rule, member.text):
                    return rule, member
        raise AssertionError("the last rule matches anything")

    def _ends(self, rule: Rule, chain: Chain | None) -> bool:
        """Whether all that is no matter of an error's own words is as the rule wants it."""
        ended = self.rank.exit
        stage = self.rank.stage or (chain.stage if chain is not None else None)
        return (
            (not rule.signals or _signal(ended) in rule.signals)
            and (not rule.exit_codes or ended.code in rule.exit_codes)
            and (not rule.stages or stage in rule.stages)
            and self.facts.issuperset(rule.facts)
            and (not rule.frames or (chain is not None and occurs(rule.frames, chain.path)))
        )


def _signal(ended: WorkerExit) -> str | None:
    return ended.signal if ended.code is None else _SIGNAL_CODES.get(ended.code)
