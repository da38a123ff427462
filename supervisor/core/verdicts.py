"""From the evidence of an attempt's end to success or a judged failure.

Every error that any rank left is judged by itself; what is told of the attempt is the judgement
of the one that most likely came first: a culprit's before a victim's, and an exception that ended
a program before one that somebody caught. How a process ended counts where nothing was said; but a
rank that was struck down from outside is what the victims among the others speak of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from errno import EACCES, ENOENT, ENOEXEC, ENOTDIR

from supervisor.config.patterns import SlowPatternError
from supervisor.core.failure import Evidence, Failure, RankEvidence, WorkerExit, told_survivors
from supervisor.core.outcome import Charge, Confidence, Verdict
from supervisor.core.policy import Success
from supervisor.core.remedy import Remedy
from supervisor.core.rootcause import Chain, Origin, Raised, chain_of_record, chains_of_text
from supervisor.core.rules import (
    GUARD_LOST,
    NO_OOM_KILL,
    NO_SPACE,
    NO_STEP_TOLD,
    OOM_KILLED,
    RULES,
    STILL_RUNNING,
    TOLD_TO_STOP,
    Rule,
    names_match,
    occurs,
    says,
)
from supervisor.core.signature import signature
from supervisor.core.state import Hang
from supervisor.protocol.messages import printable

_MAX_ROOT_CAUSE = 300
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
class _Judgement:
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
        caught = _is_hearsay(self.chain)
        vague = 5 * self.rule.victim + 3 * (self.rule.confidence is Confidence.LOW)
        return 10 * caught + vague + self.chain.origin, self.time, self.chain.when


def succeeded(evidence: Evidence, success: Success) -> bool:
    """Whether the attempt has done the work of its phase.

    Who was told to stop may end well without having done it: then the exit code proves nothing.
    """
    if any(rank.exit.code != success.exit_code for rank in evidence.ranks) or not evidence.ranks:
        return False
    told_to_stop = any(rank.exit.told_to_stop for rank in evidence.ranks)
    if not success.is_proof and (evidence.survivors or told_to_stop):
        return False
    if success.step is not None:
        step = evidence.committed
        if not success.committed:
            step = max((s for s in (step, evidence.step) if s is not None), default=None)
        return step is not None and step >= success.step
    if success.pattern is not None:
        return evidence.pattern_seen
    return success.file is None or evidence.file_exists


def judge(
    evidence: Evidence,
    success: Success,
    rules: tuple[Rule, ...] = RULES,
    redact: Callable[[str], str] = str,
) -> Failure | None:
    """The failure that the evidence shows, by the first rule that matches; None: it succeeded.

    `redact` takes the secrets out of what is cut to be told: before that, because half a secret is
    not known as one.
    """
    if succeeded(evidence, success):
        return None
    facts = _facts(evidence, success)
    ranks = evidence.ranks or (RankEvidence(WorkerExit(rank=0)),)
    found = [
        judgement
        for number, rank in enumerate(ranks)
        for judgement in _Judge(rank, number, success, rules, facts | _known_of(rank)).judgements()
    ]
    return _failure(min(found, key=lambda judgement: judgement.order), evidence, redact)


def judge_in_time(
    evidence: Evidence,
    success: Success,
    rules: tuple[Rule, ...],
    tell: Callable[[str], None],
    redact: Callable[[str], str] = str,
) -> Failure | None:
    """As `judge`, without the rules of the config whose patterns take too long: `tell` of them."""
    while True:
        try:
            return judge(evidence, success, rules, redact)
        except SlowPatternError as slow:
            tell(f"{slow}: its rule is passed over; make the pattern simpler")
            rules = tuple(rule for rule in rules if slow.source not in rule.patterns)


def hang_failure(end: Failure | None, hang: Hang) -> Failure:
    """The failure of a group that was ended because it hung; `end` is how it then ended.

    None: as it does when it succeeds, which is what a trainer does that saves when it is asked to.
    A rank whose program had failed for good before may hang in its exit handlers for minutes,
    waiting for the others: that was no hang.
    """
    if end is not None and end.ends_the_job:
        return end
    ended = end.exit if end is not None else "well"
    return Failure(
        cause=f"hang in stage {hang.stage}",
        verdict=Verdict.RESTART,
        rule="hang",
        reason=f"Nothing was heard of it for {hang.seconds:.1f} s, more than the stage may take.",
        advice="Read the stacks in the attempt's folder; `deadlines:` sets the limit of a stage.",
        root_cause=f"silent for {hang.seconds:.1f} s in stage {hang.stage}, then ended: {ended}",
        rank=end.rank if end is not None else 0,
        exit=ended,
        confidence=Confidence.HIGH,
        hardware=True,  # a device may hang too
        traceback=end.traceback if end is not None else "",
    )


def launch_failure(error: OSError, argv: tuple[str, ...]) -> Failure:
    """The failure of a command that could not be started."""
    for_good = error.errno in (ENOENT, EACCES, ENOEXEC, ENOTDIR)
    return Failure(
        cause="the command cannot be started",
        verdict=Verdict.FATAL if for_good else Verdict.RESTART,
        rule="launch",
        reason=(
            "The program is missing or not executable."
            if for_good
            else "The system refused to start it; that may pass."
        ),
        advice="Correct command.argv."
        if for_good
        else "Look at the limits of processes and memory.",
        root_cause=printable(f"{argv[0]}: {error.strerror}"),
        rank=0,
        exit="not started",
    )


def store_failure(error: OSError, ended: WorkerExit) -> Failure:
    """What is made of an end if the store that would tell its success does not answer."""
    return Failure(
        cause="storage or network trouble",
        verdict=Verdict.RESTART,
        rule="success-file",
        reason="Whether the work is done is told by a file in a bucket, which did not answer.",
        advice="See that the bucket can be read from here; the next attempt may find all done.",
        root_cause=printable(error.strerror or str(error)),
        rank=ended.rank,
        exit=str(ended),
        charge=Charge.NOTHING,
        remedy=Remedy.WAIT_FOR_STORAGE,
    )


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

    def judgements(self) -> Iterator[_Judgement]:
        """What can be said of it: of each error, and of the exit by itself."""
        rank = self.rank
        time = rank.record.time if rank.record is not None else float("inf")
        judged = [(chain, *self._of_chain(chain)) for chain in self._chains()]
        if rank.exit.told_to_stop or _signal(rank.exit) == "SIGTERM":
            # A SIGTERM for a whole process group also ends the peers and pipes that it misses then.
            judged = [each for each in judged if not each[1].victim]
        for chain, rule, member in judged:
            if rule.about_text or chain.origin is not Origin.OUTPUT:
                yield _Judgement(rule, rank, chain, member, time)
        ended_well = rank.exit.code == self.success.exit_code
        struck = not judged and rank.fell and _signal(rank.exit) in _FROM_OUTSIDE
        rule = next(rule for rule in self.rules if not rule.about_text and self._ends(rule, None))
        yield _Judgement(rule, rank, None, None, self.number + 1000 * ended_well, struck)

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


def _failure(judgement: _Judgement, evidence: Evidence, redact: Callable[[str], str]) -> Failure:
    rule, rank, chain, member = judgement.rule, judgement.rank, judgement.chain, judgement.member
    line = member.line if member is not None else str(rank.exit)
    if STILL_RUNNING in rule.facts:
        line = f"{line}, but still running: {told_survivors(evidence.survivors)}"
    return Failure(
        cause=rule.cause,
        verdict=rule.verdict,
        rule=rule.name,
        reason=rule.reason,
        advice=rule.advice,
        root_cause=printable(redact(line)[:_MAX_ROOT_CAUSE]),
        rank=rank.exit.rank,
        exit=str(rank.exit),
        charge=rule.charge,
        certain=rule.certain and not _is_hearsay(chain),
        grounds=_grounds(rule, chain),
        confidence=_confidence(rule, chain),
        signature=_signature(judgement, evidence),
        remedy=rule.remedy,
        hardware=rule.hardware,
        per_rung=rule.per_rung,
        struck=judgement.struck,
        blames_host=rule.verdict is not Verdict.FATAL
        and rule.charge is Charge.RESTARTS
        and not rule.victim,
        step=rank.record.step if rank.record is not None else None,
        traceback=rank.record.traceback if rank.record is not None else "",
        where=printable(redact(member.at)[:_MAX_ROOT_CAUSE]) if member is not None else "",
    )


def _is_hearsay(chain: Chain | None) -> bool:
    """Whether nobody can tell that the error ended the program: it was only printed."""
    return chain is not None and chain.origin in (Origin.LOGGED, Origin.OUTPUT)


def _grounds(rule: Rule, chain: Chain | None) -> str:
    """Why a FATAL is certain, or a guess."""
    if rule.verdict is not Verdict.FATAL:
        return ""
    if not rule.certain:
        return "a guess: what passes is sometimes reported in such words, too"
    if _is_hearsay(chain):
        return "a guess: it was printed, but nothing tells that it ended the program"
    return "certain: this is wrong by construction"


def _confidence(rule: Rule, chain: Chain | None) -> Confidence:
    caught = _is_hearsay(chain)
    if caught and rule.confidence is Confidence.HIGH:
        return Confidence.MEDIUM
    return Confidence.LOW if caught else rule.confidence


def _signature(judgement: _Judgement, evidence: Evidence) -> str | None:
    chain, member, record = judgement.chain, judgement.member, judgement.rank.record
    if judgement.rule.transient or chain is None or member is None:
        return None
    if chain.origin is Origin.OUTPUT:
        return None
    stage = (record.stage if record is not None else None) or judgement.rank.stage
    step = record.step if record is not None and record.step is not None else evidence.step
    return signature(member.type, member.text, chain.frames, stage, step)
