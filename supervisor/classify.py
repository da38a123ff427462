"""`supervise classify`: verdicts for any logs.

The same digest, rules and words as in `supervise run`; only that a person brings the evidence.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence

from supervisor.adapters.logs import STDIN, digest_of
from supervisor.core.doubt import doubt
from supervisor.core.explanation import explain
from supervisor.core.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.core.outcome import Verdict
from supervisor.core.policy import Success
from supervisor.core.redaction import Redactor
from supervisor.core.rules import RULES
from supervisor.core.verdicts import in_time, judge_in_time
from supervisor.explained import OwnRules, explained, explained_body
from supervisor.narrative.failures import certainty, doubted
from supervisor.protocol.messages import Stage

NO_INPUT = 66
"""The exit code of sysexits.h for an input that is missing or cannot be read."""

_NEVER_REACHED = Success(step=sys.maxsize)
"""Whoever asks without an exit code has a failure at hand."""
_STAGES = {
    "import": Stage.STARTING,
    "config": Stage.STARTING,
    "init": Stage.INITIALIZING,
    "restore": Stage.RESTORING,
    "compile": Stage.COMPILING,
    "train": Stage.TRAINING,
    "eval": Stage.EVALUATING,
    "save": Stage.SAVING,
    "exit": Stage.FINISHING,
}
"""Short words for the stages."""
_DOES = {
    Verdict.RESTART: "RESTART: another try may well succeed; it spends the restart budget",
    Verdict.POLICY: "POLICY: this cause has a treatment of its own, then it is restarted",
}
_ENDS = "another try would fail the same way; `supervise run` ends with exit 70"
_TRIES_AGAIN = "`supervise run` tries once more; the same failure again ends it with exit 70"


def parse_stage(word: str) -> Stage:
    """The stage that a person means; ValueError names those there are."""
    if word.lower() in _STAGES:
        return _STAGES[word.lower()]
    try:
        return Stage(word.upper())
    except ValueError:
        raise ValueError(f"{word!r} is not a stage: {', '.join(Stage)}") from None


def parse_signal(word: str) -> str:
    """The name of the signal that a person means: SIGKILL for SIGKILL, kill and 9."""
    try:
        if word.isdecimal():
            return signal.Signals(int(word)).name
        return signal.Signals[f"SIG{word.upper().removeprefix('SIG')}"].name
    except (KeyError, ValueError):
        raise ValueError(f"{word!r} is not a signal such as SIGKILL") from None


def classify(
    logs: Sequence[str],
    *,
    code: int | None,
    signal_name: str | None,
    stage: Stage | None,
    own: OwnRules,
    as_json: bool,
    with_explanation: bool,
) -> int:
    """Judge the failure whose logs these are, one for each rank, and print what was found; if asked
    to, also how the verdict came about."""
    ranks = []
    redact = Redactor(os.environ).text
    for rank, name in enumerate(logs):
        try:
            output = digest_of(name)
        except OSError as error:
            hint = "" if error.filename is None else "; give the path of a log, or - for stdin"
            print(redact(f"supervise: {name}: {error.strerror}{hint}"), file=sys.stderr)
            return NO_INPUT
        ended = WorkerExit(rank, code=code, signal=signal_name)
        ranks.append(RankEvidence(ended, output=output, stage=stage))

    def told(text: str) -> None:
        print(redact(f"supervise: WARNING: {text}"), file=sys.stderr)

    evidence = Evidence(tuple(ranks))
    success = _NEVER_REACHED if code is None else Success()
    rules = (*own.rules, *RULES)
    if with_explanation:
        found = in_time(lambda rules: explain(evidence, success, rules, redact), rules, told)
        failure = found.failure if found is not None else None
    else:
        found, failure = None, judge_in_time(evidence, success, rules, told, redact)
    body: dict[str, object]
    lines: Iterable[str]
    if failure is not None:
        body, lines = _body(failure), _told(failure, logs)
        if found is not None:
            body["explanation"] = explained_body(found, own)
            lines = (*lines, *explained(found, logs, own))
    else:
        doubtful = doubt(evidence)
        body = {"verdict": "SUCCESS", "cause": "exit code 0", "output_ends_in": doubtful}
        lines = _told_success(doubtful)
    if as_json:
        body = {name: redact(v) if isinstance(v, str) else v for name, v in body.items()}
        print(json.dumps(body, ensure_ascii=False), flush=True)
    else:
        print(redact("\n".join(lines)), flush=True)
    return 0


def _told_success(doubtful: str | None) -> Iterator[str]:
    yield "what happened: nothing failed: exit code 0"
    yield (
        "verdict:       SUCCESS, unless the config declares `command.success` (a step, pattern or "
        "file), and that is not met"
    )
    if doubtful is not None:
        yield f"what to do:    {doubted(doubtful)}"


def _body(failure: Failure) -> dict[str, object]:
    return {
        "verdict": str(failure.verdict),
        "certain": failure.is_certain,
        "grounds": failure.grounds,
        "cause": failure.cause,
        "rule": failure.rule,
        "root_line": failure.root_cause,
        "where": failure.where,
        "rank": failure.rank,
        "signature": failure.signature,
        "compared": failure.compared and failure.signature is not None,
        "confidence": str(failure.confidence),
        "reason": failure.reason,
        "advice": failure.advice,
    }


def _told(failure: Failure, logs: Sequence[str]) -> Iterator[str]:
    """What happened, why we think so, what to do."""
    name = "standard input" if logs[failure.rank] == STDIN else logs[failure.rank]
    where = f" (rank {failure.rank}: {name})" if len(logs) > 1 else ""
    yield f"what happened: {failure.cause}{where}"
    yield f"    {failure.root_cause}"
    if failure.where:
        yield f"    at {failure.where}"
    yield f"verdict:       {_does(failure)}"
    grounds = f"; {failure.grounds}" if failure.grounds else ""
    yield f"why:           {failure.reason} (rule {failure.rule!r}{grounds})"
    yield f"what to do:    {failure.advice}"
    if failure.signature is not None:
        again = "" if failure.compared else " (not compared: it may come again and still pass)"
        certain = " (not compared: it ends the job)" if failure.is_certain else again
        yield f"signature:     {failure.signature}{certain}"


def _does(failure: Failure) -> str:
    """The verdict, and what `supervise run` does about it."""
    if failure.verdict is not Verdict.FATAL:
        return _DOES[failure.verdict]
    does = _ENDS if failure.is_certain else _TRIES_AGAIN
    return f"FATAL{certainty(failure)}: {does}"
