"""Decides whether a FATAL is certain and ends the job at once, or a guess with one more attempt.

`Rule.certain` says that the rule's errors are wrong by construction. A doubt about the case at hand
makes a guess of it: another error of the chain, another rank, or another meaning of the words.
"""

from __future__ import annotations

import re

from supervisor.diagnosis.chain import Chain, PrintedError
from supervisor.diagnosis.fitting import misfit
from supervisor.diagnosis.outcome import Confidence, Verdict
from supervisor.diagnosis.rules import PEER_ENDED_FIRST, TOLD_TO_STOP, Rule
from supervisor.diagnosis.speakers import Speaker
from supervisor.diagnosis.weighing import Judgement

_YOUR_RULE = "your rule in the config says so"
_OUTSIDE_WORDS = re.compile(
    r"(?i)(?<![a-z])(?:(?:local_)?devices?|chips?|gpus?|tpus?|cuda|hosts?|hostnames?|peers?|nodes?|"
    r"workers?|replicas?|process(?:es)?|world[_ ]size|join(?:ed)?|alive|ready|available|"
    r"response|reply|status|request|server|https?|url|ok|socket|port|network|connect(?:ed|ion)?|"
    r"mount(?:ed|s)?|ismount|exists?|is_?file|is_?dir|listdir|glob|disk|bucket|missing|found|"
    r"download(?:ed|s)?|upload(?:ed|s)?|exit(?:ed)?|exit[_ ]?code|return[_ ]?code|killed|"
    r"time[ds]?[_ ]?out|wait(?:ed|ing)?|deadline|elapsed|seconds|minutes)(?![a-z])|"
    r"\branks? \d+ (?!but|and|or|instead|vs|for)[a-z]|\btime\.|\b(?:408|425|429|500|502|503|504)\b"
)
"""Words for things outside the program, which may be different at the next attempt."""
_WRONG_TYPE_ERRORS = frozenset({"TypeError", "AttributeError"})
"""Types that Python raises if a value has an unexpected type."""
_READS_ANSWER = re.compile(
    r"\b(?:resp(?:onse)?|reply|answer|payload)s?\b|\.json\(|\bjson\.loads?\(|\burlopen\(|"
    r"\b(?:requests|httpx|session|http|client|api|conn(?:ection)?|cursor|redis|blob|bucket|stub)"
    r"\.(?:\w+\.)?(?:get|post|request|fetch\w*|execute|query|list\w*|read|recv|download\w*)\("
)
"""A line of code that reads an answer from outside, which may be an error page and not data."""
_LOST_MOUNT = re.compile(
    r"(?i)transport endpoint is not connected|stale (?:nfs )?file handle|"
    r"\[Errno (?:5|107|116|121)\]|(?:remote i/o|input/output) error"
)
_NEAR = 4000
"""Characters at the end of an output that are searched for a mount or disk that was lost."""


def reason_for_guess(judgement: Judgement) -> str:
    """Returns why a FATAL is only a guess; empty: it is certain."""
    rule, chain, member = judgement.rule, judgement.chain, judgement.member
    if rule.from_config:
        return "" if rule.certain else _YOUR_RULE
    if not rule.certain and chain is None:
        return "the exit of a process says little about the cause"
    if not rule.certain:
        return "transient trouble is sometimes reported in the same words"
    if chain is None or member is None:
        return ""
    misfits = misfit(chain, judgement.rank) or _doubt_about_the_error(rule, chain, member)
    if misfits:
        return misfits
    if _LOST_MOUNT.search(judgement.rank.output[-_NEAR:]):
        return "the output also tells of a mount or disk that does not answer"
    return _doubt_about_the_rest(judgement, chain, member)


def _doubt_about_the_error(rule: Rule, chain: Chain, member: PrintedError) -> str:
    """Returns the doubt that follows from the error itself: its place in the chain, who raised it,
    and its line of code; empty: there is none."""
    if chain.lacks_cause:
        return "an earlier error led to it, which the log no longer shows"
    if chain.members[-1] is not member:
        return "another error was raised after it, which may have another cause"
    if member.speaker is Speaker.IO:
        return "it came from a library that talks to others"
    if member.names & _WRONG_TYPE_ERRORS and _READS_ANSWER.search(member.code):
        return "the line that raised it reads the answer of another program"
    if "AssertionError" in rule.types and _OUTSIDE_WORDS.search(f"{member.stated}\n{member.hints}"):
        return "it checks something outside the program, which may be different next time"
    return ""


def _doubt_about_the_rest(judgement: Judgement, chain: Chain, member: PrintedError) -> str:
    """Returns the doubt that follows from other ranks, errors and rules; empty: there is none."""
    if TOLD_TO_STOP in judgement.rank_judge.facts:
        return "the rank got SIGTERM, so the error may come from its SIGTERM handler"
    if PEER_ENDED_FIRST in judgement.rank_judge.facts:
        return "another rank was killed or crashed before, which may have caused it"
    for each in chain.members:
        cause, _ = next(judgement.rank_judge.matches(chain, (each,)))
        is_sure = cause.verdict is Verdict.FATAL and cause.confidence is not Confidence.LOW
        if each is not member and not is_sure:
            other = each.type or "another error"
            return f"it was raised while {other} was handled, which may be transient"
    passing = next(
        (each for each, _ in judgement.matches() if _is_about_transient_trouble(each)), None
    )
    if passing is not None:
        return f"the rule {passing.name!r} about transient trouble also matches its words"
    return ""


def _is_about_transient_trouble(rule: Rule) -> bool:
    return rule.about_text and not rule.matches_suppositions and (rule.transient or rule.victim)


def grounds(judgement: Judgement) -> str:
    """Returns why a FATAL is certain, or a guess; empty if the verdict is not FATAL."""
    if judgement.rule.verdict is not Verdict.FATAL:
        return ""
    if doubt := reason_for_guess(judgement):
        return f"a guess: {doubt}"
    return (
        f"certain: {_YOUR_RULE if judgement.rule.from_config else 'this is wrong by construction'}"
    )


def is_certain(judgement: Judgement) -> bool:
    """True if the verdict is FATAL and nothing makes it doubtful."""
    return judgement.rule.verdict is Verdict.FATAL and not reason_for_guess(judgement)
