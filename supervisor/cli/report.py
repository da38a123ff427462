"""`supervise report`: writes a page about a job, from its journal; or text, or JSON."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from io import BufferedReader, BytesIO
from pathlib import Path

from supervisor.adapters.stores.bucket import bucket
from supervisor.adapters.stores.journal import JournalError
from supervisor.cli.arguments import Commands, add_model_dir, parse_file_name, with_own_message
from supervisor.cli.complaints import complain
from supervisor.cli.job_view import (
    JobView,
    all_transitions,
    goodput_of,
    print_line,
    replay_command,
    run_and_report,
    view,
)
from supervisor.cli.told_failure import failure_that_counts
from supervisor.core.exit_codes import ExitCode
from supervisor.goodput.goodput_text import goodput_record, goodput_text
from supervisor.narrative.failure_text import place_of_failure
from supervisor.narrative.standing import standing, standing_line
from supervisor.protocol.location import Uri
from supervisor.protocol.reading import open_file
from supervisor.report.job_fold import report_of_transitions, with_losses
from supervisor.report.job_report import Head, Report
from supervisor.report.loss_curves import MAX_LINE, loss_curves

METRICS = "metrics.jsonl"
"""The file in model_dir that has the losses."""
_PAGE = Path("report.html")


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "report", help="write one page about a job: timeline, failures, goodput, losses"
    )
    add_model_dir(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "-o",
        "--output",
        type=with_own_message(parse_file_name),
        default=_PAGE,
        metavar="FILE",
        help=f"the page to write (default: {_PAGE})",
    )
    form.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    form.add_argument("--text", action="store_true", help="print text")


def run(options: Namespace) -> int:
    """Write the report; returns the exit code."""
    place: Path | Uri = options.model_dir
    codes: list[int] = []

    def show() -> None:
        report = report_of(place)
        if options.json:
            print(json.dumps(report.as_json(), indent=2, allow_nan=False))
        elif options.text:
            from supervisor.report.text import text_of

            for line in text_of(report).splitlines():
                print_line(line)
        else:
            from supervisor.report.page import html_of

            codes.append(_write(options.output, html_of(report)))

    code = run_and_report(show, place)
    return codes[0] if codes else code


def _write(file: Path, page: str) -> int:
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        text = f"{file} cannot be written ({error.strerror}): name another file with -o"
        return complain(ExitCode.CANNOT_WRITE, text)
    print_line(f"written: {file}")
    return 0


def report_of(place: Path | Uri) -> Report:
    """Returns the report of the job in `place`, its model_dir.

    Raises:
        NoJobError, JournalError, OSError, ImportError: see `view`.
    """
    job = view(place)
    history, missing = job.history, ""
    now = time.time()
    lives = job.owner is not None and history.state.exit_code is None
    goodput = goodput_of(job)
    make = partial(
        report_of_transitions,
        head=_head(job, place, now, goodput_text(goodput) if goodput is not None else ""),
        until=now if lives else None,
        goodput=goodput_record(goodput) if goodput is not None else None,
    )
    try:
        report = make(all_transitions(job, place), None)
    except JournalError as error:
        snapshot = history.snapshot
        missing = str(error)
        report = make(history.transitions, snapshot.policy if snapshot is not None else None)
    return _with_losses(replace(report, missing=missing), place, job)


def _head(job: JobView, place: Path | Uri, now: float, goodput: str) -> Head:
    history, state = job.history, job.history.state.durable()
    failure = failure_that_counts(history, state)
    stands = standing(state, job.policy)
    found = "" if failure is None else f"{failure.cause}: {failure.root_cause}"
    return Head(
        job=state.job,
        model_dir=str(place),
        made=now,
        status=str(stands.status),
        standing=standing_line(stands),
        supervisor=job.owner,
        exit_code=stands.exit_code,
        ended_because="",
        cause=found + (place_of_failure(failure) if failure is not None else ""),
        code=failure.rule if failure is not None else "",
        advice=failure.advice if failure is not None else "",
        goodput=goodput,
    )


def _with_losses(report: Report, place: Path | Uri, job: JobView) -> Report:
    """Returns the report with the losses in `metrics.jsonl`, or why there are none."""
    phases = {each.number: each.phase for each in report.attempts}
    try:
        with _metrics(place) as file:
            curves, unusable = loss_curves(_lines(file), phases)
    except FileNotFoundError:
        return with_losses(report, (), f"there is no {METRICS} in {place}")
    except OSError as error:
        return with_losses(report, (), f"{METRICS} cannot be read: {error.strerror or error}")
    what = f"{unusable} lines of {METRICS} are not used, because they have no step"
    curves = [
        replace(each, replay=replay_command(job, place, each.phase, "N") or "") for each in curves
    ]
    why = what if unusable else "" if curves else f"{METRICS} has no losses"
    return with_losses(report, curves, why)


def _metrics(place: Path | Uri) -> BufferedReader | BytesIO:
    if isinstance(place, Path):
        return BufferedReader(open_file(place / METRICS, below=place))
    return BytesIO(bucket(place).read(METRICS).data)


def _lines(file: BufferedReader | BytesIO) -> Iterator[bytes]:
    """Yields the lines, each of a bounded length; the rest of a longer one counts as another."""
    while line := file.readline(MAX_LINE + 1):
        yield line
