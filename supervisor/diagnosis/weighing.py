"""Chooses the root cause: sorts the errors of all ranks, the most likely root cause first.

Each error has the rule that decides about it. A culprit's error comes before a victim's (the rule
says which it is), and an exception that ended the program before one that the program caught. The
exit of a process counts only if it left no error. But the exit of a rank that was killed from
outside, or that crashed, explains the errors of victims among the other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from supervisor.diagnosis.chain import Chain, Origin, PrintedError
from supervisor.diagnosis.failure import Evidence, RankEvidence, WorkerExit
from supervisor.diagnosis.hints import points_above
from supervisor.diagnosis.outcome import Confidence, Verdict
from supervisor.diagnosis.own_values import matches_words_only, states_requirement
from supervisor.diagnosis.rootcause import chain_of_record, chains_of_text, tracebacks_before
from supervisor.diagnosis.rules import (
    GUARD_LOST,
    LOST_WORKER,
    NO_OOM_KILL,
    NO_SPACE,
    NO_STEP_TOLD,
    OOM_KILLED,
    PEER_ENDED_FIRST,
    STILL_RUNNING,
    TOLD_TO_STOP,
    Rule,
    any_occurs,
    any_pattern_matches,
    codes_match,
    names_match,
)
from supervisor.diagnosis.signals import CRASHES, FROM_OUTSIDE, signal_of
from supervisor.diagnosis.success import Success

_NO_ROOM = 1 << 20
"""Bytes: a disk with less free space counts as full."""


_POINTS = "it refers to an error that was printed above it"
_VICTIM = "it is an error that ranks get when another rank fails"
_VAGUE = "its rule is vague: it matches any error of this kind"
_END = "the exit of a process counts only if no error was found"
_SILENT_END = "the rank ended without an error, which may have caused errors of other ranks"
_SIGTERM_BROKE_IT = (
    "the process got SIGTERM, which also ends the peers and pipes that it then misses"
)
_BEFORE_THE_END = "it was only printed, and the process was then ended from outside"
_BEFORE_THE_RECORD = (
    "it was printed before the error that ended the program, which does not say that it came of it"
)
_UNKNOWN_WORDS = "no rule matches the last lines"


@dataclass(frozen=True, slots=True)
class Judgement:
    """One error of one rank, or its exit alone (`chain` is None), with the rule that decides."""

    rank_judge: _RankJudge
    rule: Rule
    chain: Chain | None
    member: PrintedError | None
    time: float
    matched_members: tuple[PrintedError, ...] = ()
    """The members of the chain that the rules were matched against."""
    killed_first: bool = False
    """Whether the rank was killed from outside, not by us, and left no error."""

    @property
    def rank(self) -> RankEvidence:
        """The evidence of the rank whose error it is."""
        return self.rank_judge.rank

    @property
    def drawbacks(self) -> dict[str, int]:
        """The reasons against it as the root cause, each with its weight."""
        if self.chain is None:
            return {_SILENT_END: 4} if self.rule.culprit or self.killed_first else {_END: 100}
        origin = self.chain.origin
        weights = {
            origin.told: int(origin) + 10 * is_hearsay(self.chain),
            _POINTS: 15 * _points(self.member),
            _VICTIM: 5 * self.rule.victim,
            _VAGUE: 3 * (self.rule.confidence is Confidence.LOW),
        }
        return {text: weight for text, weight in weights.items() if weight}

    @property
    def order(self) -> tuple[int, float, str]:
        """The sort key: the smallest is the most likely root cause. Weight first, then time."""
        when = self.chain.when if self.chain is not None else ""
        return sum(self.drawbacks.values()), self.time, when

    def matches(self) -> Iterator[tuple[Rule, PrintedError | None]]:
        """Yields all rules that match, each with the error that it matches; the first one
        decides."""
        return self.rank_judge.matches(self.chain, self.matched_members)


@dataclass(frozen=True, slots=True)
class DiscardedChain:
    """Errors of a rank that do not count as root cause, and why."""

    rank: RankEvidence
    chain: Chain
    why: str


def _points(member: PrintedError | None) -> bool:
    return member is not None and points_above(member.text)


def _is_how_python_ends(chain: Chain, signal: str) -> bool:
    """True if Python itself has sent the `signal` to its process, after this exception, which
    nobody caught."""
    return signal == "SIGINT" and any(
        each.type == "KeyboardInterrupt" for each in chain.members if chain.origin is Origin.MAIN
    )


def is_hearsay(chain: Chain | None) -> bool:
    """True if the error was only printed, so that it may not have ended the program."""
    return chain is not None and chain.origin in (Origin.LOGGED, Origin.OUTPUT)


def ranked_judgements(
    evidence: Evidence, success: Success, rules: Sequence[Rule]
) -> tuple[list[Judgement], list[DiscardedChain]]:
    """Returns the judgements of all errors and exits, most likely root cause first, and the errors
    that do not count."""
    facts = _facts(evidence, success)
    ranks = evidence.ranks or (RankEvidence(WorkerExit(rank=0)),)
    num_ended = sum(map(_was_ended, ranks))
    found = [
        each
        for number, rank in enumerate(ranks)
        for each in _judge_of(rank, number, num_ended, success, rules, facts).weigh()
    ]
    judgements = [each for each in found if isinstance(each, Judgement)]
    judgements.sort(key=lambda judgement: judgement.order)
    return judgements, [each for each in found if isinstance(each, DiscardedChain)]


def _facts(evidence: Evidence, success: Success) -> frozenset[str]:
    """Returns the facts about the whole attempt, by the names that rules use."""
    found, host = set(), evidence.host
    if evidence.survivors:
        found.add(STILL_RUNNING)
    none_told = evidence.step is None and evidence.committed is None
    if success.step is not None and none_told and not success.committed:  # our trainer tells them
        found.add(NO_STEP_TOLD)
    if host.oom_kills is not None:
        found.add(OOM_KILLED if host.oom_kills else NO_OOM_KILL)
    if host.guard_lost:
        found.add(GUARD_LOST)
    if host.free_disk is not None and host.free_disk < _NO_ROOM:
        found.add(NO_SPACE)
    return frozenset(found)


def _known_of(rank: RankEvidence, num_ended: int) -> frozenset[str]:
    """Returns the facts about one rank, by the names that rules use. `num_ended` ranks were ended
    (`_was_ended`), among them perhaps this one."""
    found = {TOLD_TO_STOP} if rank.exit.told_to_stop else set()
    if num_ended > _was_ended(rank):
        found.add(PEER_ENDED_FIRST)
    return frozenset(found)


def _was_ended(rank: RankEvidence) -> bool:
    """True if the rank was killed or stopped from outside, vanished unseen, or crashed."""
    unseen = rank.exit.code is None and rank.exit.signal is None
    ended = unseen or signal_of(rank.exit) in FROM_OUTSIDE | CRASHES
    return rank.exit.told_to_stop or (rank.ended_before_kill and ended)


def _judge_of(
    rank: RankEvidence,
    number: int,
    num_ended: int,
    success: Success,
    rules: Sequence[Rule],
    facts: frozenset[str],
) -> _RankJudge:
    known = facts | _known_of(rank, num_ended)
    fitting = tuple(rule for rule in rules if _fits(rule, rank.exit, known))
    return _RankJudge(rank, number, success, fitting, known)


def _fits(rule: Rule, ended: WorkerExit, facts: frozenset[str]) -> bool:
    """True if the exit of a process and the facts meet the conditions of the rule."""
    return (
        (not rule.signals or signal_of(ended) in rule.signals)
        and (not rule.exit_codes or ended.code in rule.exit_codes)
        and facts.issuperset(rule.facts)
    )


@dataclass(frozen=True, slots=True)
class _RankJudge:
    """Judges one rank's end, error by error."""

    rank: RankEvidence
    number: int
    success: Success
    rules: Sequence[Rule]
    """The rules whose conditions on exit and facts hold."""
    facts: frozenset[str]

    def weigh(self) -> Iterator[Judgement | DiscardedChain]:
        """Yields a judgement, or why it does not count, of each error; and one of the exit itself.

        If the rank was killed from outside, only an error that ended the program counts.
        """
        rank, ended, judged = self.rank, signal_of(self.rank.exit), False
        chains, set_aside = self._chains()
        for chain in set_aside:
            yield DiscardedChain(rank, chain, _BEFORE_THE_RECORD)
        for chain in chains:
            was_printed = chain.origin > Origin.ABORT or self._ended_silently()
            if ended in FROM_OUTSIDE and was_printed and not _is_how_python_ends(chain, ended):
                yield DiscardedChain(rank, chain, _BEFORE_THE_END)
                continue
            judgement = self._of_chain(chain)
            if judgement.rule.victim and (rank.exit.told_to_stop or ended == "SIGTERM"):
                yield DiscardedChain(rank, chain, _SIGTERM_BROKE_IT)
                continue
            judged = True
            if judgement.rule.about_text or chain.origin is not Origin.OUTPUT:
                yield judgement
            else:
                yield DiscardedChain(rank, chain, _UNKNOWN_WORDS)
        ended_well = rank.exit.code == self.success.exit_code
        killed_first = not judged and rank.ended_before_kill and ended in FROM_OUTSIDE
        rule, _ = next(self.matches(None, ()))
        time = self.number + 1000 * ended_well
        yield Judgement(self, rule, None, None, time, killed_first=killed_first)

    def _ended_silently(self) -> bool:
        """True if it ended before we killed any rank, and without a failure record.

        Then it survived the errors in its output. A rank that we killed may instead have hung in
        its exit handlers after an error.
        """
        return self.rank.ended_before_kill and self.rank.record is None

    def _chains(self) -> tuple[Sequence[Chain], Sequence[Chain]]:
        """Returns the errors of the rank: of its failure record if there is one, else of its
        output; and those of its output that do not count beside the record.

        The record of a launcher, or of a lost worker, only says that another process has failed:
        the output says why.
        """
        rank, record = self.rank, self.rank.record
        told = None if record is None or record.is_mere_exit else record
        chain = chain_of_record(told, rank.output) if told is not None else None
        if chain is not None and not (chain.is_of_a_launcher and rank.output):
            before = tracebacks_before(chain, rank.output)
            is_of_a_loss = self._of_chain(chain).rule.name == LOST_WORKER
            return ((*before, chain), ()) if is_of_a_loss else ((chain,), before)
        if (rank.exit.clean and not rank.code_of_reader) or not rank.output:
            return (), ()
        return chains_of_text(rank.output), ()

    def _of_chain(self, chain: Chain) -> Judgement:
        """Returns the judgement of a chain.

        If a program fails and then loses a peer in its teardown, both errors are in one chain. A
        member that only says that a peer is gone gives way to one that says more.
        """
        found = self._about(chain, chain.members)
        if (found.rule.victim or _points(found.member)) and len(chain.members) > 1:
            others = tuple(each for each in chain.members if not self._gives_way(chain, each))
            if others:
                genuine = self._about(chain, others)
                if genuine.rule.about_text and genuine.rule.confidence is not Confidence.LOW:
                    return genuine
        return found

    def _about(self, chain: Chain, members: tuple[PrintedError, ...]) -> Judgement:
        rule, member = next(self.matches(chain, members))
        time = self.rank.record.time if self.rank.record is not None else float("inf")
        return Judgement(self, rule, chain, member, time, members)

    def _gives_way(self, chain: Chain, member: PrintedError) -> bool:
        return _points(member) or self._about(chain, (member,)).rule.victim

    def matches(
        self, chain: Chain | None, members: Sequence[PrintedError]
    ) -> Iterator[tuple[Rule, PrintedError | None]]:
        """Yields each rule that matches, in order, with the outermost of `members` that it matches.

        The last rule matches anything.
        """
        stage = self.rank.stage or (chain.stage if chain is not None else None)
        for rule in self.rules:
            if rule.stages and stage not in rule.stages:
                continue
            if rule.frames and (chain is None or not any_occurs(rule.frames, chain.path)):
                continue
            if rule.without_context and chain is not None and len(chain.members) > 1:
                continue
            if not rule.about_text:
                yield rule, members[-1] if members else None
                continue
            for member in reversed(members):
                if _is_about(rule, member) and not (
                    chain and matches_words_only(rule) and states_requirement(chain, member)
                ):
                    yield rule, member
                    break


def _is_about(rule: Rule, member: PrintedError) -> bool:
    """True if one error meets all conditions of the rule on errors."""
    return (
        (not rule.speakers or member.speaker in rule.speakers)
        and codes_match(rule, member.codes)
        and names_match(rule, member.names)
        and any_pattern_matches(rule, as_read(rule, member))
    )


def as_read(rule: Rule, member: PrintedError) -> str:
    """Returns the text that the rule's patterns are searched in: all of it for rules of the config.

    Text beside an exception without a message is added, except for a FATAL: it may only show that
    another try can succeed.
    """
    said = member.text if rule.from_config or rule.matches_suppositions else member.stated
    if not member.hints or rule.from_config or rule.verdict is Verdict.FATAL:
        return said
    return f"{member.type}: {member.hints}\n{said}"
