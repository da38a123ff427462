"""From the evidence of an attempt's end to success or a judged failure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from errno import EACCES, ENOENT, ENOEXEC, ENOTDIR

from supervisor.core.budget import Charge
from supervisor.core.failure import Evidence, Failure, RankEvidence, Verdict, WorkerExit
from supervisor.core.policy import Success
from supervisor.core.rules import RULES, Rule
from supervisor.core.state import Hang
from supervisor.protocol.messages import printable

_MAX_ROOT_CAUSE = 300
_EXCEPTION_LINE = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*|KeyboardInterrupt)(?:: (.*))?")
_SIGNAL_CODES = {128 + 9: "SIGKILL", 128 + 15: "SIGTERM", 128 + 6: "SIGABRT", 128 + 11: "SIGSEGV"}


@dataclass(frozen=True, slots=True)
class _Root:
    """What the rules look at: the types and messages of one rank's exceptions, and its exit."""

    types: frozenset[str]
    text: str
    line: str
    exit: WorkerExit


def succeeded(evidence: Evidence, success: Success) -> bool:
    """Whether the attempt has done the work of its phase."""
    if any(rank.exit.code != success.exit_code for rank in evidence.ranks) or not evidence.ranks:
        return False
    if success.step is not None:
        step = evidence.committed
        if not success.committed:
            step = max((s for s in (step, evidence.step) if s is not None), default=None)
        return step is not None and step >= success.step
    if success.pattern is not None:
        return evidence.pattern_seen
    return success.file is None or evidence.file_exists


def judge(evidence: Evidence, success: Success, rules: tuple[Rule, ...] = RULES) -> Failure | None:
    """The failure that the evidence shows, by the first rule that matches; None: it succeeded."""
    if succeeded(evidence, success):
        return None
    culprit = _culprit(evidence, success)
    root = _root(culprit)
    rule = next(rule for rule in rules if _matches(rule, root))
    return Failure(
        cause=rule.cause,
        verdict=rule.verdict,
        rule=rule.name,
        reason=rule.reason,
        advice=rule.advice,
        root_cause=printable(root.line[:_MAX_ROOT_CAUSE]),
        rank=culprit.exit.rank,
        exit=str(culprit.exit),
        charge=rule.charge,
        traceback=culprit.record.traceback if culprit.record is not None else "",
    )


def hang_failure(end: Failure | None, hang: Hang) -> Failure:
    """The failure of a group that was ended because it hung; `end` is how it then ended.

    None: as it does when it succeeds, which is what a trainer does that saves when it is asked to.
    """
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
        charge=Charge.RESTARTS,
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


def _culprit(evidence: Evidence, success: Success) -> RankEvidence:
    """The rank that failed first: the earliest failure record, else the first that ended badly."""
    recorded = [rank for rank in evidence.ranks if rank.record is not None]
    if recorded:
        return min(recorded, key=lambda rank: rank.record.time if rank.record else 0.0)
    return next(
        (rank for rank in evidence.ranks if rank.exit.code != success.exit_code),
        evidence.ranks[0] if evidence.ranks else RankEvidence(WorkerExit(rank=0)),
    )


def _root(rank: RankEvidence) -> _Root:
    record = rank.record
    if record is not None and not record.is_mere_exit:
        innermost = record.exceptions[-1]
        line = f"{innermost.type}: {innermost.message}".splitlines()[0]
        types = frozenset(name.rpartition(".")[2] for e in record.exceptions for name in e.bases)
        text = "\n".join(exception.message for exception in record.exceptions)
        return _Root(types, text, line, rank.exit)
    if rank.exit.clean:
        return _Root(frozenset(), "", str(rank.exit), rank.exit)
    found = _last_exception(rank.tail)
    if found is None:
        return _Root(frozenset(), rank.tail, str(rank.exit), rank.exit)
    kind, line = found
    return _Root(frozenset({kind, "BaseException"}), line, line, rank.exit)


def _last_exception(tail: str) -> tuple[str, str] | None:
    """The type and the line of the last Python exception that `tail` shows with its traceback."""
    _, marker, after = tail.rpartition("Traceback (most recent call last):")
    if not marker:
        return None
    for line in after.splitlines()[1:]:
        match = _EXCEPTION_LINE.fullmatch(line)
        if match is not None:
            return match[1].rpartition(".")[2], line
    return None


def _matches(rule: Rule, root: _Root) -> bool:
    if rule.types and root.types.isdisjoint(rule.types):
        return False
    if rule.pattern and not re.search(rule.pattern, root.text):
        return False
    code = root.exit.code
    signal = root.exit.signal or (_SIGNAL_CODES.get(code) if code is not None else None)
    if rule.signals and signal not in rule.signals:
        return False
    return not rule.exit_codes or code in rule.exit_codes
