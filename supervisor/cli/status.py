"""`supervise status`: prints where a job stands, from its journal alone."""

from __future__ import annotations

import json
import shlex
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from supervisor.adapters.stores.journal import History
from supervisor.cli.arguments import Commands, add_model_dir
from supervisor.cli.job_view import (
    JobView,
    NoJobError,
    goodput_of,
    print_line,
    quarantined,
    run_and_report,
    view,
)
from supervisor.core.decisions import TellRecovery, TellStages
from supervisor.core.policy import PhasePolicy
from supervisor.core.state import JobState, Status
from supervisor.diagnosis.failure import Failure
from supervisor.files.attempts import attempt_folder
from supervisor.goodput.goodput_text import goodput_record, goodput_text
from supervisor.narrative.device_text import missing_units, obstacle_seen, unit
from supervisor.narrative.event_line import budget_used, count
from supervisor.narrative.failure_text import certainty, place_of_failure, record, success_warning
from supervisor.narrative.findings import straggler_in_words
from supervisor.narrative.standing import standing, standing_line
from supervisor.protocol.location import Uri

_NOT_ENDED = 3
"""What `--exit-code` returns of a job that has not ended, as `systemctl status` does of a service
that is not active: no job ends with it."""
_NO_JOB = 66
"""What `--exit-code` returns where there is no job: EX_NOINPUT of sysexits.h."""
_ENDED_EARLY = (
    "; the last supervisor ended before the job (it was killed, or the end of run.log says why): "
    "run the same command again to go on"
)


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser("status", help="print where the job in a model_dir stands")
    add_model_dir(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    parser.add_argument(
        "--exit-code",
        action="store_true",
        help=f"exit as the job did; {_NOT_ENDED}: it has not ended, {_NO_JOB}: there is none",
    )


def run(options: Namespace) -> int:
    """Print where the job stands; returns the exit code."""
    place: Path | Uri = options.model_dir
    codes: list[int] = []

    def show() -> None:
        try:
            job = view(place)
        except NoJobError:
            codes.append(_NO_JOB)
            raise
        ended = job.history.state.exit_code
        codes.append(_NOT_ENDED if ended is None else ended)
        if options.json:
            print(json.dumps(as_json(job, place), indent=2))
        else:
            print_status(job, place)

    code = run_and_report(show, place)
    return codes[0] if options.exit_code and codes else code


def show_status(place: Path | Uri) -> None:
    """Print where the job in `place`, its model_dir, stands.

    Raises:
        JournalError, OSError, ImportError: see `view`.
    """
    print_status(view(place), place)


def as_json(job: JobView, place: Path | Uri) -> dict[str, Any]:
    """Returns where a job stands, for programs: see `docs/reference/cli.md`."""
    state = job.history.state.durable()
    failure = failure_that_counts(job.history, state)
    told = None
    if failure is not None:
        told = {**record(failure), "log": _log_of(job.history, state, failure, place)}
    quarantine = [
        {"unit": each.unit, "reason": each.reason, "until": each.until + state.epoch}
        for each in state.quarantine.entries
    ]
    goodput = goodput_of(job)
    return {
        "v": 1,
        "model_dir": str(place),
        "supervisor": job.owner,
        "standstill": job.standstill or None,
        **asdict(standing(state, job.policy)),
        "failure": told,
        "checkpoints": state.checkpoints,
        "quarantine": quarantine,
        "goodput": None if goodput is None else goodput_record(goodput),
        "stragglers": [asdict(each) for each in state.stragglers],
    }


def print_status(job: JobView, place: Path | Uri) -> None:
    """Print where a job stands, for people."""
    policy = job.policy
    state = job.history.state.durable()  # the journal has the rest only by chance
    print_line(f"job {state.job} in {place}")
    is_orphan = job.owner is None and state.exit_code is None
    if job.history.snapshot is not None and (repaired := job.history.snapshot.repaired):
        print_line(f"repaired: {repaired}")
    why = _ENDED_EARLY if is_orphan else f"; {job.standstill}" if job.standstill else ""
    print_line(f"supervisor: {job.owner or 'none runs here'}{why}")
    print_line(f"{'last known: ' if why else ''}{standing_line(standing(state, policy))}")
    for line in _last_step(job.history, state):
        print_line(line)
    if state.exit_code is not None:
        print_line(f"exit code {state.exit_code}")
    for line in _last_end(job.history, state, place):
        print_line(line)
    print_line(budget_used(state, policy, with_preemptions=True))
    if state.checkpoints is not None:
        print_line(f"checkpoints: {state.checkpoints} (found; checkpoint.directory would set it)")
    if state.num_damaged:
        what = count(state.num_damaged, "damaged checkpoint")
        print_line(f"{what} moved aside: run.log says where and why")
    if state.announced and state.exit_code is None:
        print_line(f"announced: {state.announced}")
    if state.livelock.is_one:
        again = f"{state.livelock.times} times, each time after a new checkpoint"
        print_line(f"the same failure came {again}: {state.livelock.failure}")
    phase = policy.phases[state.phase]
    for line in (
        *map(goodput_text, filter(None, (goodput_of(job),))),
        *(straggler_in_words(each) for each in state.stragglers if state.exit_code is None),
        *_rung(state, phase),
        *_missing_units(job.history, phase),
        *quarantined(state, phase),
    ):
        print_line(line)


def _last_step(history: History, state: JobState) -> Iterator[str]:
    """Yields the last step that the journal has: some reports of the attempt that runs are in it,
    and the end of each attempt."""
    end = history.past.last_end
    if (step := step_of_running_attempt(history, state)) is not None:
        yield f"last completed step: {step} or later (few steps are in the journal)"
    elif end is not None and end.step is not None:
        of = "" if end.attempt == state.attempt else f" of attempt {end.attempt}"
        how = "recognised in its output" if end.step_recognised else "reported"
        yield f"last completed step: {end.step}{of} ({how})"


def step_of_running_attempt(history: History, state: JobState) -> int | None:
    """Returns the last step that the attempt which has not ended has told to the journal; None: it
    told none, or has ended."""
    end = history.past.last_end
    if end is not None and end.attempt == state.attempt:
        return None
    decisions = (decision for each in history.transitions for decision in each.decisions)
    told = (each for each in decisions if isinstance(each, TellRecovery | TellStages))
    steps = [each.step for each in told if each.attempt == state.attempt and each.step is not None]
    return steps[-1] if steps else None


def _last_end(history: History, state: JobState, place: Path | Uri) -> Iterator[str]:
    """Yields the last failure with its verdict and what to do, or the doubt about a success."""
    end = history.past.last_end
    if state.status is Status.SUCCEEDED:
        if end is not None and end.doubt is not None:
            yield success_warning(end.doubt)
        return
    failure = failure_that_counts(history, state)
    if failure is None:
        return
    yield f"last failure: {failure.cause}: {failure.root_cause}{place_of_failure(failure)}"
    grounds = f" ({failure.grounds})" if failure.grounds else ""
    yield f"verdict {failure.verdict}{certainty(failure)} (rule {failure.rule!r}){grounds}"
    yield f"what to do: {failure.advice}"
    yield f"more: supervise explain {shlex.quote(str(place))}; supervise rules {failure.rule}"
    if (log := _log_of(history, state, failure, place)) is not None:
        yield f"log: {log}"


def failure_that_counts(history: History, state: JobState) -> Failure | None:
    """Returns the last failure; None: there was none, or the job has succeeded since.

    An attempt that was asked to end, and left nothing but its exit, did not fail.
    """
    end, failure = history.past.last_end, state.last_failure
    if failure is None or state.status is Status.SUCCEEDED:
        return None
    stopped = history.past.was_asked and end is not None and end.failure == failure
    return None if stopped and failure.root_cause == failure.exit else failure


def _log_of(history: History, state: JobState, failure: Failure, place: Path | Uri) -> str | None:
    """Returns the path of what the rank has printed that the failure was judged by; None: not
    known, or it is not there any more."""
    end = history.past.last_end
    if end is None or end.failure is None or state.directory is None:
        return None
    if (end.failure.rule, end.failure.root_cause) != (failure.rule, failure.root_cause):
        return None
    log = f"{state.directory}/{attempt_folder(end.attempt)}/rank{failure.rank}.log"
    if isinstance(place, Path):
        return str(place / log) if (place / log).exists() else None
    return f"{place}/{log}"


def _missing_units(history: History, phase: PhasePolicy) -> Iterator[str]:
    if obstacle := obstacle_seen(history.transitions, history.state):
        yield f"no {unit(phase)} can be used: {obstacle}"
    for name, why in missing_units(history.transitions, history.state, phase).items():
        yield f"not seen by the last probe: {unit(phase)} {name}: {why}"


def _rung(state: JobState, phase: PhasePolicy) -> Iterator[str]:
    rung = state.ladder.num_devices(phase)
    if rung is not None:
        units = ", ".join(state.ladder.units(phase))
        which = f" ({unit(phase)}s {units})" if units else ""  # a cluster was not asked yet
        yield f"rung: {rung} of {phase.rungs[0]} devices{which}"
    for struck in state.ladder.struck:
        yield f"disabled rung: {struck.num_devices} devices: {struck.reason}"
