"""`supervise status`: prints where a job stands, from its journal alone."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from supervisor.adapters.stores.journal import History
from supervisor.cli.arguments import Commands, add_model_dir
from supervisor.cli.job_view import print_line, quarantined, run_and_report, view
from supervisor.core.decisions import TellRecovery, TellStages
from supervisor.core.policy import PhasePolicy
from supervisor.core.state import JobState, Status
from supervisor.narrative.device_text import missing_units, unit
from supervisor.narrative.event_line import budget_used, count
from supervisor.narrative.failure_text import certainty, place_of_failure, success_warning
from supervisor.narrative.standing import standing, standing_line
from supervisor.protocol.location import Uri

_ENDED_EARLY = (
    "; the last supervisor ended before the job (it was killed, or the end of run.log says why): "
    "run the same command again to go on"
)


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser("status", help="print where the job in a model_dir stands")
    add_model_dir(parser)


def run(options: Namespace) -> int:
    """Print where the job stands; returns the exit code."""
    return run_and_report(partial(show_status, options.model_dir), options.model_dir)


def show_status(place: Path | Uri) -> None:
    """Print where the job in `place`, its model_dir, stands.

    Raises:
        JournalError, OSError, ImportError: see `view`.
    """
    job = view(place)
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
    for line in _last_end(job.history, state):
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
        *_rung(state, phase),
        *_missing_units(job.history, phase),
        *quarantined(state, phase),
    ):
        print_line(line)


def _last_step(history: History, state: JobState) -> Iterator[str]:
    """Yields the last step that the journal has: some reports of the attempt that runs are in it,
    and the end of each attempt."""
    decisions = (decision for each in history.transitions for decision in each.decisions)
    told = (each for each in decisions if isinstance(each, TellRecovery | TellStages))
    steps = [each.step for each in told if each.attempt == state.attempt and each.step is not None]
    end = history.past.last_end
    if steps and (end is None or end.attempt != state.attempt):
        yield f"last completed step: {steps[-1]} or later (few steps are in the journal)"
    elif end is not None and end.step is not None:
        of = "" if end.attempt == state.attempt else f" of attempt {end.attempt}"
        how = "recognised in its output" if end.step_recognised else "reported"
        yield f"last completed step: {end.step}{of} ({how})"


def _last_end(history: History, state: JobState) -> Iterator[str]:
    """Yields the last failure with its verdict, or the doubt about a success.

    An attempt that was asked to end, and left nothing but its exit, did not fail.
    """
    end, asked = history.past.last_end, history.past.was_asked
    if state.status is Status.SUCCEEDED:
        if end is not None and end.doubt is not None:
            yield success_warning(end.doubt)
        return
    failure = state.last_failure
    if failure is None:
        return
    stopped = asked and end is not None and end.failure == failure
    if not stopped or failure.root_cause != failure.exit:
        yield f"last failure: {failure.cause}: {failure.root_cause}{place_of_failure(failure)}"
        grounds = f" ({failure.grounds})" if failure.grounds else ""
        yield f"verdict {failure.verdict}{certainty(failure)}{grounds}"


def _missing_units(history: History, phase: PhasePolicy) -> Iterator[str]:
    for name, why in missing_units(history.transitions, history.state, phase).items():
        yield f"not seen by the last probe: {unit(phase)} {name}: {why}"


def _rung(state: JobState, phase: PhasePolicy) -> Iterator[str]:
    rung = state.ladder.num_devices(phase)
    if rung is not None:
        units = ", ".join(state.ladder.units(phase))
        yield f"rung: {rung} of {phase.rungs[0]} devices ({unit(phase)}s {units})"
    for struck in state.ladder.struck:
        yield f"disabled rung: {struck.num_devices} devices: {struck.reason}"
