"""`supervise explain`: why an attempt of a job ended as it did, and what else could have been."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from supervisor.adapters.stores.journal import JournalError
from supervisor.cli.arguments import Commands, add_model_dir
from supervisor.cli.config_change import change_before
from supervisor.cli.explain_text import Explained, account_body, account_lines
from supervisor.cli.found_jobs import chosen_job
from supervisor.cli.job_view import (
    JobView,
    NoJobError,
    all_transitions,
    print_line,
    run_and_report,
    spike_notes,
    unseen_checkpoints,
    view,
)
from supervisor.cli.kept_evidence import judged_again
from supervisor.narrative.attempt_account import Account, account_of, last_that_failed
from supervisor.narrative.findings import spike_in_words
from supervisor.protocol.location import Uri

_HERE = Path()


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "explain", help="explain from the journal why an attempt ended as it did"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    add_model_dir(parser, optional=True)
    parser.add_argument(
        "attempt",
        nargs="?",
        type=int,
        metavar="ATTEMPT",
        help="the number of the attempt; default: the last one that failed",
    )


def run(options: Namespace) -> int:
    """Explain the end of an attempt; returns the exit code."""
    given: Path | Uri | None = options.model_dir
    attempt: int | None = options.attempt
    if attempt is None and _is_a_number(given):  # of an attempt of the job here
        given, attempt = None, int(str(given))
    place: Path | Uri = given if given is not None else _HERE

    def show() -> None:
        chosen = chosen_job(given)
        found = explained(view(chosen), chosen, attempt)
        if options.json:
            print(json.dumps(account_body(found), indent=2, ensure_ascii=False), flush=True)
        else:
            for line in account_lines(found):
                print_line(line)

    return run_and_report(show, place)


def _is_a_number(given: Path | Uri | None) -> bool:
    return isinstance(given, Path) and str(given).isdecimal() and not given.exists()


def explained(job: JobView, place: Path | Uri, attempt: int | None) -> Explained:
    """Returns the explanation of an attempt of the job; None: of the last one that failed.

    Raises:
        NoJobError: it has no such attempt, or none has failed, or it goes on.
        JournalError, OSError: older records cannot be read.
    """
    account, missing = _account(job, place, attempt)
    failure = account.failure
    kept = None
    if failure is not None:
        kept = judged_again(account, failure, place, job.history.config)
    known = account.loss_spikes
    spikes = (note for spike, note in spike_notes(job, place) if spike not in known)
    notes = (*unseen_checkpoints(job), *spikes)
    change = change_before(job.history.past, account.attempt)
    return Explained(job.history.state.job, str(place), account, kept, missing, notes, change)


def _account(job: JobView, place: Path | Uri, attempt: int | None) -> tuple[Account, str]:
    """Returns the account of the attempt, and which older records could not be read (empty: all
    that are needed could)."""
    history = job.history
    snapshot, recent = history.snapshot, history.transitions
    known = attempt if attempt is not None else last_that_failed(recent)
    policy = snapshot.policy if snapshot is not None else None
    found = account_of(known, recent, policy) if known is not None else None
    if found is not None and snapshot is not None and not found.version:
        found = replace(found, version=snapshot.past.version)
    is_whole = found is not None and found.started is not None
    if is_whole or snapshot is None or snapshot.archived is None:
        return _sure(found, job, attempt), ""
    try:
        every = list(all_transitions(job, place))
    except JournalError as error:
        return _sure(found, job, attempt), str(error)
    known = attempt if attempt is not None else last_that_failed(every)
    found = account_of(known, every, None) if known is not None else None
    return _sure(found, job, attempt), ""


def _sure(found: Account | None, job: JobView, attempt: int | None) -> Account:
    if found is not None:
        return found
    last = job.history.state.attempt
    if attempt is None:
        spikes = "; ".join(map(spike_in_words, job.history.state.loss_spikes))
        told = f". Yet: {spikes}. `supervise status` says how to replay that" if spikes else ""
        raise NoJobError(f"no attempt of this job has failed ({last} so far){told}")
    if attempt == last and job.history.state.exit_code is None:
        raise NoJobError(
            f"attempt {attempt} has not ended: `supervise status` says where it stands"
        )
    raise NoJobError(f"the journal has no end of attempt {attempt}: attempts are 1 to {last}")
