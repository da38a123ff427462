"""Gives a failure its signature, and decides whether the same signature again ends the job.

Every failure with an error text has a signature. The signatures of guesses are compared, and those
of failures that are not known to be transient. A transient failure may repeat and still pass later,
and a certain one ends the job at once: their signatures are only for people.
"""

from __future__ import annotations

import re

from supervisor.diagnosis.certainty import is_certain
from supervisor.diagnosis.chain import Chain, PrintedError
from supervisor.diagnosis.crash import own_calls
from supervisor.diagnosis.failure import Evidence, WorkerExit
from supervisor.diagnosis.log_lines import clean_lines
from supervisor.diagnosis.native_text import last_lines
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.own_values import is_about_a_value, matches_words_only
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
_TOLD_END = re.compile(
    r"(?:\S+: line \d+: +\d+ |g?make(?:\[\d+\])?: \*\*\* \[[^\]]{1,300}\] )"
    r"(?:Killed|Terminated|Aborted|Segmentation fault|Bus error|Error \d+)\b"
)
"""A line of a shell about a signal, or of make: it says how a program ended, not what failed."""
_LAST = 3
"""The number of last lines that identify a failure for which no error text is known."""
_SPELLED = str.maketrans({str(digit): f" {name} " for digit, name in enumerate(_DIGIT_NAMES)})


def is_compared(judgement: Judgement) -> bool:
    """True if the same signature again shows that the failure repeats."""
    match judgement.rule.compared:
        case Compared.NEVER:
            return matches_words_only(judgement.rule) and _is_own_value_error(judgement)
        case Compared.AS_A_GUESS:
            return not is_certain(judgement)
        case Compared.UNLESS_NAMED:
            return judgement.member is None or not _blames_another(judgement.member)
        case compared:
            return compared is Compared.ALWAYS


def _is_own_value_error(judgement: Judgement) -> bool:
    chain, member = judgement.chain, judgement.member
    return chain is not None and member is not None and is_about_a_value(chain, member)


def _blames_another(raised: PrintedError) -> bool:
    """True if an error blames somebody else: it names a task, rank or address, or it comes from a
    library that talks to a service. Any other error may be the program's own fault."""
    said = f"{raised.text}\n{raised.hints}"
    return raised.speaker is Speaker.IO or _PEER.search(said) is not None


def signature_of(judgement: Judgement, evidence: Evidence) -> str | None:
    """Returns the signature, which is equal if the same failure comes again; None: it has none.

    If no error text is known and the verdict is not FATAL, the signature is made of how the rank
    ended, the last lines of the output and the user's own functions on the stack of a crash. It is
    None if there are neither lines nor functions, or if the rule is transient. The signature of a
    FATAL leaves out the step: a new checkpoint need not have changed what is wrong.
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
        return _signature_of_exit(rule, rank.exit)
    said = last_lines(clean_lines(rank.output)) if rank.output and not rank.exit.clean else None
    calls = own_calls(rank)
    if rule.transient or (said is None and not calls):
        return None
    kind = (signal_of(rank.exit) or "") if calls else ""
    told = _complaint(said) if said is not None else ""
    return signature(kind, told, calls, stage, step, codes=_codes_of_exit(rank.exit))


def tells_only_the_end(line: str) -> bool:
    """True if a shell or make says how a program ended; the lines before it say what failed."""
    return _TOLD_END.match(line) is not None


def _complaint(said: Chain) -> str:
    """Returns the last lines that speak of a failure, else the last lines with digits as words.

    A signature has a placeholder for each number. As words the digits stay in it, so that the last
    lines of a healthy job give another signature at each step. Several lines are taken, because the
    very last one may say nothing.
    """
    lines = [each.text for each in said.members]
    others = [line for line in lines if not tells_only_the_end(line)]
    complaints = [line for line in others if _COMPLAINT.search(line)]
    if complaints:
        return "\n".join(complaints[-_LAST:])
    return "\n".join(lines[-_LAST:]).translate(_SPELLED)


def _codes_of_exit(ended: WorkerExit) -> tuple[str, ...]:
    """Returns how a rank ended, as a code: a program may say by its exit code alone what failed."""
    how = signal_of(ended) or ended.code
    return () if how is None else (f"exit:{how}",)


def _signature_of_exit(rule: Rule, ended: WorkerExit) -> str:
    """Returns the signature of a FATAL without an error text: its rule and how the rank ended."""
    how = ended.signal if ended.code is None else ended.code
    return rule.name if how is None else f"{rule.name}-{how}"
