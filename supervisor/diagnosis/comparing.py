"""What a repetition of a failure proves: by what name it is known when it comes again, and whether
that is compared.

Every failure with a text has a signature. Compared are those of guesses, and of failures that do
not pass by themselves as far as anybody knows. A transient one may come again and still pass, and a
certain one ends the job at once: theirs are for people.
"""

from __future__ import annotations

import re

from supervisor.diagnosis.certainty import is_certain
from supervisor.diagnosis.chain import Chain, Raised
from supervisor.diagnosis.crash import own_calls
from supervisor.diagnosis.failure import Evidence, WorkerExit
from supervisor.diagnosis.log_lines import clean_lines
from supervisor.diagnosis.native_text import last_lines
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.own_values import is_about_a_value, knows_words_alone
from supervisor.diagnosis.rules import Rule
from supervisor.diagnosis.rules.rule import Compared
from supervisor.diagnosis.signals import signal_of
from supervisor.diagnosis.signature import signature
from supervisor.diagnosis.speakers import Speaker
from supervisor.diagnosis.weighing import Judgement

_DIGIT_NAMES = ("nil", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_PEER = re.compile(
    r"(?i)/task:\d|\b(?:task|rank|process|worker|node|host|peer|replica|participant|member|slice|"
    r"pid|actor|incarnation|incarnation id)s?[ =:#-]{1,3}\[?\d|"
    r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b|\[[0-9a-f]{0,4}:[0-9a-f:]{2,40}\]|ipv[46]:|"
    r"(?<![\w.:/])[a-z][\w-]{0,62}(?:\.[a-z][\w.-]{0,190})?:\d{2,5}\b"
)
_COMPLAINT = re.compile(
    r"(?i)error|fail|cannot|can't|could not|unable|invalid|fatal|abort|denied|refuse|not found|"
    r"missing|unknown|unsupported|exception|panic|no such"
)
_LAST = 3
"""So many last lines tell one failure from another."""
_SPELLED = str.maketrans({str(digit): f" {name} " for digit, name in enumerate(_DIGIT_NAMES)})


def is_compared(judgement: Judgement) -> bool:
    """Whether its signature proves something when it comes again."""
    match judgement.rule.compared:
        case Compared.NEVER:
            return knows_words_alone(judgement.rule) and _is_about_a_value(judgement)
        case Compared.AS_A_GUESS:
            return not is_certain(judgement)
        case Compared.UNLESS_NAMED:
            return judgement.member is None or not _is_of_another(judgement.member)
        case compared:
            return compared is Compared.ALWAYS


def _is_about_a_value(judgement: Judgement) -> bool:
    chain, member = judgement.chain, judgement.member
    return chain is not None and member is not None and is_about_a_value(chain, member)


def _is_of_another(raised: Raised) -> bool:
    """Whether an error says who else is gone: by task, rank or address, or as the service that a
    library talks to. Where it does not, it may be the program's own doing."""
    said = f"{raised.text}\n{raised.beside}"
    return raised.speaker is Speaker.IO or _PEER.search(said) is not None


def signature_of(judgement: Judgement, evidence: Evidence) -> str | None:
    """The name by which the failure is known when it comes again; None: nothing was said, nor is
    it known where native code crashed.

    That of a FATAL does not tell the step: a new checkpoint need not have changed what is wrong.
    """
    rule, rank, chain, member = judgement.rule, judgement.rank, judgement.chain, judgement.member
    record = rank.record
    fatal = rule.verdict is Verdict.FATAL
    stage = (record.stage if record is not None else None) or rank.stage
    step = record.step if record is not None and record.step is not None else evidence.step
    if chain is not None and member is not None:
        at = None if fatal else step
        return signature(member.type, member.stated, chain.frames, stage, at, codes=member.codes)
    if fatal:
        return _of_the_end(rule, rank.exit)
    said = last_lines(clean_lines(rank.output)) if rank.output and not rank.exit.clean else None
    calls = own_calls(rank)
    if rule.transient or (said is None and not calls):
        return None
    kind = (signal_of(rank.exit) or "") if calls else ""
    return signature(kind, _complaint(said) if said is not None else "", calls, stage, step)


def _complaint(said: Chain) -> str:
    """The last lines that speak of a failure; else the last ones, with each digit as a word: those
    of a healthy job differ from step to step. Several, because the very last one may only say
    goodbye."""
    lines = [each.text for each in said.members]
    complaints = [line for line in lines if _COMPLAINT.search(line)]
    if complaints:
        return "\n".join(complaints[-_LAST:])
    return "\n".join(lines[-_LAST:]).translate(_SPELLED)


def _of_the_end(rule: Rule, ended: WorkerExit) -> str:
    """That of a failure of which nothing was said."""
    how = ended.signal if ended.code is None else ended.code
    return rule.name if how is None else f"{rule.name}-{how}"
