"""`supervise status`: prints where a job stands, once or again and again.

The journal has what lasts. What changes with every step is in status.json: it is shown as of this
moment only if the supervisor that owns the job now has written it a moment ago.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from supervisor.adapters.stores.journal import History
from supervisor.cli.arguments import Commands, add_model_dir
from supervisor.cli.found_jobs import chosen_job
from supervisor.cli.job_view import (
    JobView,
    NoJobError,
    goodput_of,
    print_line,
    quarantined,
    run_and_report,
    spike_notes,
    spikes_of,
    unseen_checkpoints,
    view,
)
from supervisor.cli.live_text import progress_text, seconds_since
from supervisor.cli.past_failures import past_failures
from supervisor.cli.told_failure import (
    command_again,
    ended_line,
    failure_that_counts,
    last_failures,
    log_of,
    next_command,
    why_it_ended,
)
from supervisor.cli.watching import Picture, watch
from supervisor.core.decisions import TellRecovery, TellStages
from supervisor.core.policy import PhasePolicy
from supervisor.core.state import JobState, Status
from supervisor.files.attempts import attempt_folder
from supervisor.files.live_status import LiveStatus
from supervisor.goodput.goodput_text import goodput_record, goodput_text
from supervisor.narrative.device_text import missing_units, obstacle_seen, unit
from supervisor.narrative.durations import duration
from supervisor.narrative.event_line import budget_used, count
from supervisor.narrative.failure_text import record, success_warning, torn_in_words
from supervisor.narrative.findings import straggler_in_words
from supervisor.narrative.job_end import JobEnd, code_in_words, job_end
from supervisor.narrative.pace import last_commit
from supervisor.narrative.standing import standing_line
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
    add_model_dir(parser, optional=True)
    parser.add_argument(
        "--watch",
        action="store_true",
        help="go on until the job has ended: in a terminal in place, else whenever it changes",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    parser.add_argument(
        "--exit-code",
        action="store_true",
        help=f"exit as the job did; {_NOT_ENDED}: it has not ended, {_NO_JOB}: there is none",
    )


def run(options: Namespace) -> int:
    """Print where the job stands; returns the exit code."""
    given: Path | Uri | None = options.model_dir
    codes: list[int] = []

    def look(place: Path | Uri) -> JobView:
        job = view(place)
        ended = job.history.state.exit_code
        codes.append(_NOT_ENDED if ended is None else ended)
        return job

    def show() -> None:
        place = chosen_job(given)
        if options.watch:
            draw = partial(_picture, place=place, as_object=options.json)
            in_place = os.isatty(1) and not options.json
            watch(partial(look, place), draw, place, in_place=in_place)
        elif options.json:
            print(json.dumps(as_json(look(place), place), indent=2))
        else:
            print_status(look(place), place)

    def show_or_tell() -> None:
        try:
            show()
        except NoJobError:
            codes.append(_NO_JOB)
            raise

    code = run_and_report(show_or_tell, given if given is not None else Path())
    return codes[-1] if options.exit_code and codes else code


def _picture(job: JobView, place: Path | Uri, *, as_object: bool) -> Picture:
    """Returns the job for `--watch`. Steps, rates and ages change all the time: by themselves they
    are worth no print."""
    essence = as_json(replace(job, told=None), place)
    essence |= {"goodput": None, "stage": job.standing.stage}
    lines = [json.dumps(as_json(job, place))] if as_object else [*status_lines(job, place)]
    return Picture(lines, essence)


def show_status(place: Path | Uri) -> None:
    """Print where the job in `place`, its model_dir, stands.

    Raises:
        JournalError, OSError, ImportError: see `view`.
    """
    print_status(view(place), place)


def as_json(job: JobView, place: Path | Uri) -> dict[str, Any]:
    """Returns where a job stands, for programs: see `docs/reference/cli.md`."""
    state = job.history.state.durable()
    failure, live = failure_that_counts(job.history, state), job.live
    past = past_failures(job)
    told = None
    if failure is not None:
        told = {**record(failure), "log": log_of(past, job.history, failure, place)}
    failures = [
        {**each.failure, "attempt": each.attempt, "ended": each.ended, "log": each.log(place)}
        for each in past
    ]
    quarantine = [
        {"unit": each.unit, "reason": each.reason, "until": each.until + state.epoch}
        for each in state.quarantine.entries
    ]
    change = job.history.past.config_change
    goodput, end = goodput_of(job), job_end(job.history.transitions)
    is_over = end is not None and state.exit_code is not None
    return {
        "v": 1,
        "model_dir": str(place),
        "supervisor": job.owner,
        "standstill": job.standstill or None,
        **asdict(job.standing),
        "ended": {"at": end.at.isoformat(), "reason": end.reason} if end and is_over else None,
        "live": None if live is None else _live_json(live),
        "committed_at": None if (at := _committed_at(job)) is None else at.isoformat(),
        "failure": told,
        "failures": failures,
        "config_change": None if change is None else asdict(change),
        "checkpoints": state.checkpoints,
        "quarantine": quarantine,
        "goodput": None if goodput is None else goodput_record(goodput),
        "loss_spikes": [{"phase": phase, **asdict(each)} for phase, each in spikes_of(job)],
        "stragglers": [asdict(each) for each in state.stragglers],
    }


def _live_json(live: LiveStatus) -> dict[str, Any]:
    age = seconds_since(live.time)
    progress = live.live.model_dump(mode="json")
    return {**progress, "max_steps": live.max_steps, "age_seconds": age}


def print_status(job: JobView, place: Path | Uri) -> None:
    """Print where a job stands, for people."""
    for line in status_lines(job, place):
        print_line(line)


def status_lines(job: JobView, place: Path | Uri) -> Iterator[str]:
    """Yields where a job stands, for people, in lines that may contain anything."""
    state = job.history.state.durable()  # the journal has the rest only by chance
    failure, end = failure_that_counts(job.history, state), job_end(job.history.transitions)
    if state.status is Status.FAILED and end is not None and failure is not None:
        yield from why_it_ended(job, failure, end, place)
        yield from _standing(job, state, place)
    else:
        yield from _standing(job, state, place)
        yield from _ended(job, state, end)
        if failure is not None:
            yield from last_failures(job, failure, place)
    yield from _doubt(job, state)
    yield from _spikes(job, place)
    yield budget_used(state, job.policy, with_preemptions=True)
    yield from _checkpoints(job, state)
    yield from _units(job, state)
    yield from map(goodput_text, filter(None, (goodput_of(job),)))


def _standing(job: JobView, state: JobState, place: Path | Uri) -> Iterator[str]:
    """Yields who runs the job, and how far it has come."""
    yield f"job {state.job} in {place}"
    is_orphan = job.owner is None and state.exit_code is None
    if job.history.snapshot is not None and (repaired := job.history.snapshot.repaired):
        yield f"repaired: {repaired}"
    why = _ENDED_EARLY if is_orphan else f"; {job.standstill}" if job.standstill else ""
    if job.owner is not None or state.exit_code is None:
        yield f"supervisor: {job.owner or 'none runs here'}{why}"
    if is_orphan:
        yield from command_again(job)
    yield f"{'last known: ' if why else ''}{standing_line(replace(job.standing, step=None))}"
    yield from _progress(job)
    yield from _unended(job, state, place)


def _unended(job: JobView, state: JobState, place: Path | Uri) -> Iterator[str]:
    """Yields whether the first rank has failed while its process lives."""
    if job.live is None or state.status is not Status.RUNNING or not isinstance(place, Path):
        return
    folder = place / (state.directory or "") / attempt_folder(state.attempt)
    if (folder / "rank0.failure.json").exists():
        yield "rank 0 has failed, and its process has not ended yet: `supervise logs` shows why"


def _ended(job: JobView, state: JobState, end: JobEnd | None) -> Iterator[str]:
    """Yields how a job that has ended did so, and what comes next."""
    if state.exit_code is None:
        return
    # without an end, a later snapshot stands for its record
    yield code_in_words(state.exit_code) if end is None else ended_line(end)
    yield from next_command(job)


def _spikes(job: JobView, place: Path | Uri) -> Iterator[str]:
    """Yields the newest losses that stand out, and how to look into them."""
    yield from (note for _, note in spike_notes(job, place))


def _doubt(job: JobView, state: JobState) -> Iterator[str]:
    end = job.history.past.last_end
    if state.status is Status.SUCCEEDED and end is not None and end.doubt is not None:
        yield success_warning(end.doubt)
    told, may_be_good = job.told, state.exit_code is not None and state.status != Status.FAILED
    if told is None or told.attempt != state.attempt or not may_be_good:
        return
    if told.live.loss_not_finite:
        yield (
            f"the last loss that the program showed, at step {told.live.step}, is NaN or Inf: look "
            "at the losses before you use its checkpoints"
        )


def _checkpoints(job: JobView, state: JobState) -> Iterator[str]:
    """Yields where the checkpoints are, what is wrong with them, and what keeps coming back."""
    if state.checkpoints is not None:
        yield f"checkpoints: {state.checkpoints} (found)"
    end = job.history.past.last_end
    if end is not None and end.attempt == state.attempt and end.torn is not None:
        yield torn_in_words(end.torn)
    yield from unseen_checkpoints(job)
    if state.num_damaged:
        what = count(state.num_damaged, "damaged checkpoint")
        yield f"{what} moved aside: run.log says where and why"
    if state.announced and state.exit_code is None:
        yield f"announced: {state.announced}"
    if state.livelock.is_one:
        again = f"{state.livelock.times} times, each time after a new checkpoint"
        yield f"the same failure came {again}: {state.livelock.failure}"


def _units(job: JobView, state: JobState) -> Iterator[str]:
    """Yields what is known of the devices and hosts."""
    phase = job.policy.phases[state.phase]
    if state.exit_code is None:
        yield from map(straggler_in_words, state.stragglers)
    yield from _rung(state, phase)
    yield from _missing_units(job.history, phase)
    yield from quarantined(state, phase)


def _progress(job: JobView) -> Iterator[str]:
    """Yields how far the attempt has come, how fast, and how old the last checkpoint is."""
    told, live, state = job.told, job.live, job.history.state
    if live is not None and (line := progress_text(live)):
        yield f"progress: {line}"
    elif live is None and told is not None and told.attempt == state.attempt:
        yield from _last_seen(told, job)
    else:
        yield from _last_step(job.history, state)
    if (at := _committed_at(job)) is not None:
        ago = duration(seconds_since(at))
        yield f"last checkpoint committed: step {state.newest}, {ago} ago"


def _last_seen(told: LiveStatus, job: JobView) -> Iterator[str]:
    """Yields the last step of the attempt where nobody writes status.json any more."""
    known, state = [*_last_step(job.history, job.history.state)], job.history.state
    end = job.history.past.last_end
    if told.live.step is None or (end is not None and end.attempt == state.attempt):
        yield from known
    else:
        ago = duration(seconds_since(told.time))
        yield f"last completed step: {told.live.step}, seen {ago} ago, or later"


def _committed_at(job: JobView) -> datetime | None:
    """Returns when the newest checkpoint was seen committed; None: there is none, or it is not
    known."""
    if job.history.state.newest is None:
        return None
    if (at := last_commit(job.history.transitions)) is not None:
        return at
    is_same = job.told is not None and job.told.step == job.history.state.budget.highest
    return job.told.committed_at if job.told is not None and is_same else None


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


def _missing_units(history: History, phase: PhasePolicy) -> Iterator[str]:
    if obstacle := obstacle_seen(history.transitions, history.state, phase):
        yield obstacle
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
