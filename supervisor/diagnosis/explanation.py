"""Explains a judgement: every error with every rule that matches it, and what would change it.

It calls the functions that judge (`weighing`, `verdicts`), so it cannot differ from the judgement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from supervisor.diagnosis.certainty import is_certain
from supervisor.diagnosis.chain import Chain, Origin, PrintedError
from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.ownership import is_of_our_trainer, is_of_supervisor
from supervisor.diagnosis.rules import Rule, codes_wanted, leftmost_match, matched_text
from supervisor.diagnosis.secret_forms import REDACTED
from supervisor.diagnosis.speakers import Speaker
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import failure_of, judge, one_line, place_of, succeeded
from supervisor.diagnosis.weighing import Judgement, as_read, ranked_judgements

MOST = 100
"""The largest number of errors that are explained: a log may hold thousands."""
_MAX_WORDS = 120
_MAX_PATTERN = 80
_OF_THE_DATA = ".data_files.DataError"
"""The type of what our trainer and its checks say of the data."""
_SPEAKERS = {
    Speaker.OWN: "your own code",
    Speaker.IO: "a library that talks to a network, a store or another process",
    Speaker.LIBRARY: "another library, or Python itself",
}

Redact = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Match:
    """A rule that matches an error."""

    rule: Rule
    line: str
    """The first line of the error, or how the rank ended."""
    on: tuple[str, ...]
    """The parts of the error that meet the rule's conditions; empty: it has no conditions."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One error of one rank, or its exit, as a candidate for the root cause."""

    rank: int
    line: str
    where: str
    speaker: str
    """Who raised it; empty: not known."""
    origin: str
    time: str
    """When it was printed; empty: not known."""
    why: str
    """Why it is the root cause, or why another error is."""
    matches: tuple[Match, ...]
    """The rules that match, by precedence: the first decides."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """An error that does not count, and why."""

    rank: int
    line: str
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A failure, and how it was judged."""

    failure: Failure
    errors: tuple[Candidate, ...]
    """The root cause first; at most `MOST`."""
    more: int
    """How many errors there are beyond those."""
    discarded: tuple[Discarded, ...]
    """Errors that do not count, and whose lines are not in `errors`."""
    changes: tuple[dict[str, Any], ...]
    """Rules for `autorestart.rules`, each of which would change the verdict or how certain it is;
    empty: none is known."""


def explain(
    evidence: Evidence, success: Success, rules: tuple[Rule, ...], redact: Redact = str
) -> Explanation | None:
    """Returns how the verdict about the evidence came about; None: the attempt succeeded.

    Raises:
        SlowPatternError: the search for a pattern from the config took too long.
    """
    if succeeded(evidence, success):
        return None
    judgements, left_out = ranked_judgements(evidence, success, rules)
    judgements = list(_distinct(judgements))
    shown = judgements[:MOST]
    told = {(each.rank.exit.rank, _line(each.member, each.rank, redact)) for each in shown}
    found = (
        Discarded(each.rank.exit.rank, _line(each.chain.members[-1], each.rank, redact), each.why)
        for each in left_out[:MOST]
    )
    discarded = tuple(each for each in found if (each.rank, each.line) not in told)
    return Explanation(
        failure_of(judgements[0], evidence, redact),
        tuple(_candidate(each, judgements, bool(discarded), redact) for each in shown),
        max(0, len(judgements) - MOST),
        discarded,
        tuple(_changes(judgements[0], evidence, success, rules, redact)),
    )


def _distinct(judgements: list[Judgement]) -> Iterator[Judgement]:
    """Yields the judgements but those of last lines that repeat another error of the same rank."""
    seen = set()
    for judgement in judgements:
        said = judgement.rank.exit.rank, judgement.member.line if judgement.member else None
        echo = judgement.chain is not None and judgement.chain.origin is Origin.OUTPUT
        if not (echo and said in seen):
            yield judgement
        seen.add(said)


def _candidate(
    judgement: Judgement, judgements: list[Judgement], are_others_discarded: bool, redact: Redact
) -> Candidate:
    chain, member, rank = judgement.chain, judgement.member, judgement.rank
    return Candidate(
        rank=rank.exit.rank,
        line=_line(member, rank, redact),
        where=one_line(redact(place_of(judgement))),
        speaker=_speaker_in_words(member) if member is not None else "",
        origin=chain.origin.told if chain is not None else "how the process ended",
        time=chain.when if chain is not None else "",
        why=_why_root(judgements, are_others_discarded)
        if judgement is judgements[0]
        else _why_not_root(judgement, judgements[0]),
        matches=tuple(
            Match(
                rule,
                _line(about, rank, redact),
                tuple(_met_conditions(rule, about, judgement, redact)),
            )
            for rule, about in judgement.matches()
        ),
    )


def _speaker_in_words(error: PrintedError) -> str:
    """Returns who raised an error; empty: not known. For the rules our trainer is as the user's own
    code, where it runs from a checkout, or as a library, where it is installed."""
    is_ours = is_of_our_trainer(error.raised_in) or is_of_supervisor(error.raised_in)
    if is_ours and error.type.endswith(_OF_THE_DATA):
        return "supervise's check of the data: the data is at fault, not the code"
    if is_of_supervisor(error.raised_in):
        return "supervise itself"
    if is_of_our_trainer(error.raised_in):
        return "supervise's own trainer"
    return _SPEAKERS.get(error.speaker, "")


def _why_root(judgements: list[Judgement], are_others_discarded: bool) -> str:
    root, *others = judgements
    if root.chain is None:
        return "no error was found that says more" if root.rank.output else "there is no output"
    if not any(other.chain for other in others):
        return f"it is the only error that {'counts' if are_others_discarded else 'was found'}"
    if not root.drawbacks:
        return "nothing speaks against it, and it came first"
    return f"less speaks against it than against the others ({'; '.join(root.drawbacks)})"


def _why_not_root(judgement: Judgement, root: Judgement) -> str:
    if judgement.order[0] > root.order[0]:
        return "; ".join(text for text in judgement.drawbacks if text not in root.drawbacks) or (
            "; ".join(judgement.drawbacks)
        )
    if judgement.order > root.order:
        return "as likely, but it came later"
    if judgement.rank is not root.rank:
        return "as likely, but of a later rank, and nothing tells which came first"
    return "as likely, but it was printed later"


def _met_conditions(
    rule: Rule, about: PrintedError | None, judgement: Judgement, redact: Redact
) -> Iterator[str]:
    """Yields each condition of the rule with the part of the error that meets it."""
    if about is not None and rule.types:
        yield f"type {one_line(about.type)}"
    if about is not None and rule.patterns:
        said = matched_text(rule, redact(as_read(rule, about)))
        if said != "":  # an empty match: the pattern asks that words are absent
            yield f"words {_words(said)}"
    if about is not None and rule.codes:
        yield f"code {' '.join(sorted(codes_wanted(rule, about.codes)))}"
    if about is not None and rule.speakers and about.speaker in _SPEAKERS:
        yield f"raised by {_speaker_in_words(about)}"
    if judgement.chain is not None and rule.frames:
        yield f"frame {_words(leftmost_match(rule.frames, redact(judgement.chain.path)))}"
    if rule.signals or rule.exit_codes:
        yield str(judgement.rank.exit)
    if rule.stages:
        yield f"stage {judgement.rank.stage or _stage(judgement.chain)}"
    yield from (f"known of the host: {fact}" for fact in rule.facts)


def _stage(chain: Chain | None) -> str:
    return (chain.stage if chain is not None else None) or ""


def _words(said: str | None) -> str:
    """Returns the words in quotes, shortened. None stands for words that are part of a secret."""
    if said is None:
        return REDACTED
    return repr(said if len(said) <= _MAX_WORDS else f"{said[:_MAX_WORDS]}...")


def _line(member: PrintedError | None, rank: RankEvidence, redact: Redact) -> str:
    return one_line(redact(member.line if member is not None else str(rank.exit)))


def _changes(
    root: Judgement, evidence: Evidence, success: Success, rules: tuple[Rule, ...], redact: Redact
) -> Iterator[dict[str, Any]]:
    """Yields, for each other verdict, the narrowest rule that would give it on this evidence."""
    for other in _other_verdicts(root):
        for conditions in _conditions_of_root(root, redact):
            rule = _rule(conditions, other)
            changed = judge(evidence, success, (rule, *rules))
            if changed is not None and changed.rule == rule.name:
                alone = {name: v if isinstance(v, str) else v[0] for name, v in conditions.items()}
                yield {**alone, **other}
                break


def _other_verdicts(root: Judgement) -> tuple[dict[str, Any], ...]:
    """Returns the verdicts that a rule of the config could give instead; for a FATAL, also a FATAL
    that is certain if this one is a guess, and a guess if it is certain."""
    if root.rule.verdict is not Verdict.FATAL:
        return ({"verdict": str(Verdict.FATAL)},)
    other = {"verdict": str(Verdict.FATAL), "certain": not is_certain(root)}
    return {"verdict": str(Verdict.RESTART)}, other


def _rule(conditions: dict[str, Any], other: dict[str, Any]) -> Rule:
    verdict = Verdict(other["verdict"])
    return Rule(
        "changed",
        verdict,
        "",
        "",
        "",
        types=tuple(conditions.get("type", ())),
        patterns=(conditions["regex"],) if "regex" in conditions else (),
        exit_codes=tuple(conditions.get("exit_code", ())),
        signals=tuple(conditions.get("signal", ())),
        from_config=True,
        certain=verdict is Verdict.FATAL and other.get("certain", True),
    )


def _conditions_of_root(root: Judgement, redact: Redact) -> Iterator[dict[str, Any]]:
    """Yields conditions that the root cause meets, the narrowest first."""
    member, ended = root.member, root.rank.exit
    if member is not None:
        kind = {"type": [member.type.rpartition(".")[2]]} if member.type else {}
        message = member.line.partition(": ")[2] if member.type else member.line
        if pattern := _pattern(message, redact):
            yield {**kind, "regex": pattern}
        if kind:
            yield kind
    elif ended.signal is not None:
        yield {"signal": [ended.signal]}
    elif ended.code is not None:
        yield {"exit_code": [ended.code]}


def _pattern(message: str, redact: Redact) -> str:
    """Returns a regular expression for the config that matches the message with any numbers.

    It ends before a secret. It is shortened until `redact` finds no secret in its config line.
    """
    start = redact(message).partition(REDACTED)[0].strip()
    start = "".join(takewhile(str.isprintable, start)).rstrip()
    if len(start) > _MAX_PATTERN:
        start = start[:_MAX_PATTERN].rpartition(" ")[0] or start[:_MAX_PATTERN]
    while start and REDACTED in redact(f"regex: '{start}', verdict: RESTART}}"):
        start = start.rpartition(" ")[0].rstrip()
    quoted = re.sub(r"([.^$*+?{}\[\]|()\\])", r"\\\1", start)
    return re.sub(r"\d+", r"\\d+", quoted)
