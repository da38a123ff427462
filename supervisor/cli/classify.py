"""`supervise classify`: the verdict for given logs.

It uses the same digest, rules and texts as `supervise run`; only the evidence comes from a person.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from supervisor.adapters.stores.log_input import STDIN, digest_of, is_log
from supervisor.cli.arguments import Commands, add_explaining, with_own_message
from supervisor.cli.explained import (
    OwnRules,
    comparison,
    explanation_body,
    explanation_lines,
    own_rules_of,
)
from supervisor.diagnosis.doubt import doubt
from supervisor.diagnosis.explanation import explain
from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.log_lines import clean_lines
from supervisor.diagnosis.native_text import last_lines
from supervisor.diagnosis.outcome import Charge, Verdict
from supervisor.diagnosis.redaction import Redactor
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import in_time, judge_in_time, one_line
from supervisor.narrative.failure_text import success_warning
from supervisor.protocol.messages import Stage

NO_INPUT = 66
"""The exit code of sysexits.h for an input that is missing or cannot be read."""

_HINT = (
    "; give the path of a log (LOG:70 and LOG:SIGABRT also give the exit code or signal), or - for "
    "stdin"
)
_STDIN_WITH_END = re.compile(r"-:")
"""How standard input with an exit code or signal begins."""
_NEVER_REACHED = Success(step=sys.maxsize)
"""A success that no log shows: without an exit code, a person asks about a failure."""
STAGES = {
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
_CERTAIN = "FATAL (certain): another try would fail the same way; `supervise run` exits 70 at once"
_GUESS = (
    "FATAL (a guess): `supervise run` makes one more attempt; if it fails the same way, it exits 70"
)
_POLICY = "POLICY: this cause has a treatment of its own"
_RESTART = "RESTART: another attempt may succeed"
_SPENDS = {
    Charge.RESTARTS: "it spends one of max_num_restarts",
    Charge.PREEMPTIONS: "it spends one of max_num_preemptions",
    Charge.NOTHING: "it spends no budget",
}


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser("classify", help="judge a failure by its logs")
    parser._negative_number_matcher = _STDIN_WITH_END  # argparse: this is a value, and no option
    ended = parser.add_mutually_exclusive_group()
    ended.add_argument(
        "--exit-code",
        type=with_own_message(parse_code),
        metavar="N",
        help="the exit code of the program",
    )
    ended.add_argument(
        "--signal",
        type=with_own_message(parse_signal),
        metavar="NAME",
        help="the signal that killed it",
    )
    parser.add_argument(
        "--stage",
        type=with_own_message(parse_stage),
        metavar="S",
        help="the stage in which it failed",
    )
    parser.add_argument(
        "logs",
        nargs="+",
        metavar="LOG",
        type=with_own_message(parse_log),
        help="a log file for each rank; - is standard input; LOG:70 and LOG:SIGABRT also give the "
        "exit code or signal of the rank (if a file has that whole name, it is read)",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="also print every error with every rule that matches it, and what would change it",
    )
    add_explaining(parser)


def run(options: Namespace) -> int:
    """Judge the failure and print what was found; returns the exit code."""
    return classify(
        options.logs,
        code=options.exit_code,
        signal_name=options.signal,
        stage=options.stage,
        own=own_rules_of(options.config),
        as_json=options.json,
        with_explanation=options.explain,
    )


def parse_stage(text: str) -> Stage:
    """Returns the stage that a person means.

    Raises:
        ValueError: there is no such stage; the message names all.
    """
    if text.lower() in STAGES:
        return STAGES[text.lower()]
    try:
        return Stage(text.upper())
    except ValueError:
        raise ValueError(f"{text!r} is not a stage: {', '.join(Stage)}") from None


def parse_signal(text: str) -> str:
    """Returns the name of the signal that a person means: SIGKILL for SIGKILL, kill and 9.

    Raises:
        ValueError: there is no such signal.
    """
    try:
        if text.isdecimal():
            return signal.Signals(int(text)).name
        return signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"].name
    except (KeyError, ValueError):
        raise ValueError(f"{text!r} is not a signal such as SIGKILL") from None


class Log(NamedTuple):
    """The name of a log, and how its rank ended if the argument says so."""

    name: str
    code: int | None = None
    signal: str | None = None


def parse_code(text: str) -> int:
    """Returns the exit code that a person means.

    Raises:
        ValueError: it is no number from 0 to 255.
    """
    if not text.isdecimal() or int(text) > 255:
        raise ValueError(f"{text!r} is not an exit code from 0 to 255")
    return int(text)


def parse_log(text: str) -> Log:
    """Returns the log that a person means: LOG, LOG:70 or LOG:SIGABRT.

    If the whole text is the name of a file, it is that file.

    Raises:
        ValueError: there is no such file, and after the colon is no valid exit code or signal.
    """
    name, _, end = text.rpartition(":")
    if is_log(text) or not name:
        return Log(text)
    try:
        if end.isdecimal():
            return Log(name, code=parse_code(end))
        if end.upper().startswith("SIG"):
            return Log(name, signal=parse_signal(end))
    except ValueError as error:
        raise ValueError(f"{text}: there is no such file, and {error}") from None
    return Log(text)


def classify(
    given: Sequence[Log],
    *,
    code: int | None,
    signal_name: str | None,
    stage: Stage | None,
    own: OwnRules,
    as_json: bool,
    with_explanation: bool,
) -> int:
    """Judge a failure from its logs and print the verdict; returns the exit code.

    `given` has one log for each rank. `code` and `signal_name` hold for logs that have neither.
    `with_explanation`: also print how the verdict came about.
    """
    ranks = []
    logs = [log.name for log in given]
    redact = Redactor(os.environ).text
    for rank, name in enumerate(logs):
        try:
            output = digest_of(name)
        except OSError as error:
            hint = "" if error.filename is None else _HINT
            print(redact(f"supervise: {name}: {error.strerror}{hint}"), file=sys.stderr)
            return NO_INPUT
        _, own_code, own_signal = given[rank]
        if own_code is None and own_signal is None:
            own_code, own_signal = code, signal_name
        ended = WorkerExit(rank, code=own_code, signal=own_signal)
        ranks.append(RankEvidence(ended, output=output, stage=stage))

    def warn(text: str) -> None:
        print(redact(f"supervise: WARNING: {text}"), file=sys.stderr)

    evidence = Evidence(tuple(ranks))
    says_code = any(rank.exit.code is not None for rank in ranks)
    success = Success() if says_code else _NEVER_REACHED
    rules = (*own.rules, *RULES)
    if with_explanation:
        found = in_time(lambda rules: explain(evidence, success, rules, redact), rules, warn)
        failure = found.failure if found is not None else None
    else:
        found, failure = None, judge_in_time(evidence, success, rules, warn, redact)
    body: dict[str, object]
    lines: Iterable[str]
    if failure is not None:
        body, lines = _body(failure), _verdict_lines(failure, logs, evidence, redact)
        if found is not None:
            body["explanation"] = explanation_body(found, own)
            lines = (*lines, *explanation_lines(found, logs, own))
    else:
        doubtful = doubt(evidence)
        body = {"verdict": "SUCCESS", "cause": "exit code 0", "output_ends_in": doubtful}
        lines = _success_lines(doubtful)
    if as_json:
        body = {name: redact(v) if isinstance(v, str) else v for name, v in body.items()}
        print(json.dumps(body, ensure_ascii=False), flush=True)
    else:
        print(redact("\n".join(lines)), flush=True)
    return 0


def _success_lines(doubtful: str | None) -> Iterator[str]:
    yield "what happened: nothing failed: exit code 0"
    yield (
        "verdict:       SUCCESS, unless the config declares `command.success` (a step, pattern or "
        "file), and that is not met"
    )
    if doubtful is not None:
        yield f"what to do:    {success_warning(doubtful)}"


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


def _verdict_lines(
    failure: Failure, logs: Sequence[str], evidence: Evidence, redact: Callable[[str], str]
) -> Iterator[str]:
    """Yields lines that say what happened, the verdict and its reason, and what to do."""
    name = "standard input" if logs[failure.rank] == STDIN else logs[failure.rank]
    where = f" (rank {failure.rank}: {name})" if len(logs) > 1 else ""
    yield f"what happened: {failure.cause}{where}"
    rank = evidence.ranks[failure.rank]
    if failure.root_cause == str(rank.exit):
        yield from _end_lines(rank, redact)
    else:
        yield f"    {failure.root_cause}"
    if failure.where:
        yield f"    at {failure.where}"
    yield f"verdict:       {_does(failure)}"
    grounds = f"; {failure.grounds}" if failure.grounds else ""
    yield f"why:           {failure.reason} (rule {failure.rule!r}{grounds})"
    yield f"what to do:    {failure.advice}"
    if failure.signature is not None:
        yield f"signature:     {failure.signature} ({comparison(failure)})"


def _end_lines(rank: RankEvidence, redact: Callable[[str], str]) -> Iterator[str]:
    """Yields how a process without a known error ended, and the last line of its log."""
    if rank.exit.code is None and rank.exit.signal is None:
        yield (
            "    no rule matches an error in this log: give the exit code (--exit-code N) or the "
            "signal (--signal NAME)"
        )
    else:
        yield f"    {rank.exit}; no rule matches an error in this log"
    if last := last_lines(clean_lines(rank.output)):
        yield f"    the log ends with: {one_line(redact(last.members[-1].line))}"


def _does(failure: Failure) -> str:
    """Returns the verdict, and what `supervise run` does about it."""
    if failure.verdict is Verdict.FATAL:
        return _CERTAIN if failure.is_certain else _GUESS
    spends = _SPENDS[failure.charge]
    if failure.verdict is Verdict.RESTART:
        return f"{_RESTART}; {spends}"
    how = f" ({failure.remedy}: see docs/reference/rules.md)" if failure.remedy is not None else ""
    return f"{_POLICY}{how}, then it is restarted; {spends}"
