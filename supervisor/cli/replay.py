"""`supervise replay`: runs a step of our trainer again, and shows what happens inside it.

What is run again is decided here, from the journal, the config and the checkpoints; processes of
`trainer.replay` compute it (`replay_processes`). Both only read model_dir.
"""

from __future__ import annotations

import json
import os
import shlex
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, zip_longest
from math import inf
from pathlib import Path
from typing import Any

from supervisor.cli.arguments import Commands, add_model_dir
from supervisor.cli.complaints import complain
from supervisor.cli.job_view import JobView, print_line, run_and_report, spike_notes, view
from supervisor.cli.replay_processes import ReplayProcesses
from supervisor.cli.told_failure import failure_that_counts
from supervisor.config.problems import ConfigError
from supervisor.core.decisions import StartWorkers
from supervisor.core.events import DeviceFoundWrong, WorkersGone
from supervisor.core.exit_codes import ExitCode
from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.rules import STATE_NOT_FINITE
from supervisor.diagnosis.rules.hardware import SILENT_CORRUPTION
from supervisor.engines.launch import Launch
from supervisor.files.attempts import attempt_folder
from supervisor.narrative.device_text import unit
from supervisor.prepare import Prepared, prepare
from supervisor.protocol import metrics_file, reading, suspect_steps
from supervisor.protocol.committed import committed_steps
from supervisor.protocol.location import Uri
from supervisor.protocol.messages import printable
from supervisor.protocol.reading import UnreadableError

_MAX_METRICS = 1 << 30
_SEQUENCES = 3
"""Sequences of the batch that are shown: those with the highest losses."""
_TEXT = 300
"""Characters of a sequence that are shown."""
_IN_SHORT = 3
"""So many steps that are as recorded, one after the other, have one line."""
_AS_RECORDED = "as recorded"
_SKIPPED = "its batch is skipped, as in the attempt"


@dataclass(frozen=True, slots=True)
class Span:
    """The steps to run again."""

    begin: int
    """The checkpoint to restore; 0: what the phase starts from."""
    step: int
    """The step to look into."""


@dataclass(frozen=True, slots=True)
class FoundWrong:
    """The steps that an attempt computed with a device that was found wrong at the last of them."""

    attempt: int
    steps: range
    what: str
    """The device, in words."""
    reason: str
    """What it computed wrongly, in brackets; empty: that is not known."""


_AS_A_ONE_PHASE_JOB = ("trainer.start_from=null",)
"""params.yaml has a phase alone, with the checkpoints that it starts from in place of the phase's
name. Only the replay itself reads those."""


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "replay",
        help="run a step of our trainer again, and show what happens inside it",
        description="The same batches, seeds and number of devices, from the newest checkpoint "
        "before the step. It changes nothing in model_dir, and works beside a running job if there "
        "are devices for both.",
    )
    parser.add_argument(
        "--step", type=int, help="the step; without it the one at which the last failure came"
    )
    parser.add_argument(
        "--attempt",
        type=int,
        help="run it as this attempt did; without it as the last one, or as the one that failed "
        "if --step is left out, too",
    )
    parser.add_argument(
        "--phase", metavar="NAME", help="the last attempt of this phase, where a job has several"
    )
    parser.add_argument("--pdb", action="store_true", help="stop before the step in the debugger")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    parser.add_argument(
        "--compare",
        metavar="OTHER_DIR",
        type=Path,
        help="find the first step at which the job in OTHER_DIR differs; nothing is run",
    )
    add_model_dir(parser, on_disk=True)


def run(options: Namespace) -> int:
    """Replay a step, or compare two jobs; returns the exit code."""
    if options.compare is not None:
        return run_and_report(partial(_compare, options), options.model_dir)
    codes: list[int] = []
    code = run_and_report(lambda: codes.append(_replay(options)), options.model_dir)
    return codes[0] if codes else code


def span(step: int, committed: Iterable[int], last: int | None = None) -> Span:
    """Returns what to run again for `step`: from the newest of the `committed` steps before it.
    `last` is the last step of the job, if that is known.

    Raises:
        ValueError: there is no such step.
    """
    if step < 1:
        raise ValueError(f"--step {step}: steps count from 1")
    if last is not None and step > last:
        raise ValueError(f"--step {step}: the last step of this job is {last}")
    return Span(max((each for each in committed if each < step), default=0), step)


def first_difference(
    ours: Iterable[Mapping[str, Any]], theirs: Iterable[Mapping[str, Any]]
) -> tuple[int, list[str]] | None:
    """Returns the first step at which two jobs measured different things, with a sentence for each;
    None: as far as both go, all is equal. Only steps are compared, not evaluations."""
    for one, other in zip_longest(ours, theirs):
        if one is None or other is None:
            return None
        if one["step"] != other["step"]:
            return min(one["step"], other["step"]), ["only one of them has this step"]
        names = sorted((one.keys() | other.keys()) - {*metrics_file.OF_THE_RUN, "phase", "step"})
        told = [
            f"{name}: {one.get(name)} here, {other.get(name)} there"
            for name in names
            if one.get(name) != other.get(name)
        ]
        if told:
            return one["step"], told
    return None


def _compare(options: Namespace) -> None:
    ours, theirs = _phases_of(_on_disk(options.model_dir)), _phases_of(options.compare)
    common = [phase for phase in ours if phase in theirs]
    if not common:
        raise ValueError(
            f"{options.model_dir} has the phases {', '.join(ours)}, and {options.compare} has "
            f"{', '.join(theirs)}: there is no phase of the same name to compare"
        )
    for phase in common:
        found = first_difference(ours[phase], theirs[phase])
        if found is not None:
            break
    last = min(ours[phase][-1]["step"], theirs[phase][-1]["step"])
    of_phase = f" of phase {phase!r}" if len(ours) > 1 or len(theirs) > 1 else ""
    if options.json:
        step, told = found or (None, [])
        answer = {"v": 1, "phase": phase, "first_difference": step}
        print(json.dumps(answer | {"differences": told, "last": last}))
    elif found is None:
        print_line(
            f"no difference: all steps up to {last}{of_phase}, the last that both have, are equal"
        )
    else:
        print_line(f"step {found[0]}{of_phase} is the first that differs")
        for line in found[1]:
            print_line(f"  {line}")


def _phases_of(model_dir: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the steps of the job in `model_dir` by phase, in order. A line that is no record is
    left out: a job that runs has half of one at the end now and then.

    Raises:
        ValueError: it has no metrics.
        OSError: they cannot be read.
    """
    path = model_dir / metrics_file.NAME
    remedy = "give the model_dir of a job of our trainer"
    try:
        lines = reading.read(path, _MAX_METRICS, below=model_dir).splitlines()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"there is no {path}: {remedy}") from None
    phases: dict[str, list[dict[str, Any]]] = {}
    for record in filter(_is_record, (_parsed(line, path) for line in lines)):
        if not _is_evaluation(record):
            phases.setdefault(record["phase"], []).append(record)
    if not phases:
        raise ValueError(f"{path} has no steps: {remedy}")
    return phases


def _parsed(line: bytes, path: Path) -> dict[str, Any]:
    """Returns the object in the line; empty: there is none."""
    try:
        return reading.parse_object(line, path)
    except UnreadableError:
        return {}


def _is_record(found: Mapping[str, Any]) -> bool:
    return type(found.get("step")) is int and isinstance(found.get("phase"), str)


def _is_evaluation(record: Mapping[str, Any]) -> bool:
    return any(key.startswith(metrics_file.EVALUATION) for key in record)


def _replay(options: Namespace) -> int:
    """Returns the exit code.

    Raises:
        ValueError: nothing can be run again.
        JournalError, OSError: see `view`.
    """
    place = _on_disk(options.model_dir).absolute()
    job = view(place)
    if job.told is not None and job.told.directory is not None:
        with suppress(OSError):  # it may be another machine's
            os.chdir(job.told.directory)  # where the paths of the data begin, if they are relative
    attempt, step = attempt_of(options, job), step_of(options, job)
    try:
        launch = _launch(place, job, attempt, debugs=options.pdb)
    except ConfigError:
        if isinstance(step, int):
            raise
        # the last failure may be that of the data or config: other phases can be run again
        raise ValueError(_asked(step, job, place, attempt, ())) from None
    checkpoints = _checkpoints(launch)
    steps = [each for each, _ in committed_steps(checkpoints)]
    last = launch.plan.max_steps
    if isinstance(step, str):
        raise ValueError(_asked(step, job, place, attempt, steps))
    if options.step is None and last is not None:
        step = min(step, last)
    wanted = span(step, steps, last)
    if not options.json:
        print_line(_head(wanted, launch))
    what = (launch.params, checkpoints, wanted.begin, wanted.step)
    processes = ReplayProcesses(launch, tuple(map(str, what)))
    if options.pdb:
        code = processes.in_debugger()
        return code if code == ExitCode.CANNOT_WRITE else 0
    returned, printed = processes.told()
    told = [reading.parse_object(line, "the replay") for line in printed.splitlines()]
    if options.json:
        print(json.dumps({"v": 1, "begin": wanted.begin, "code": returned, "told": told}))
    else:
        _print_report(told, job, place, launch, options.attempt)
    if not returned:
        return 0
    is_damaged = returned == ExitCode.CANNOT_WRITE
    code = ExitCode.CANNOT_WRITE if is_damaged else ExitCode.FAILED
    return complain(code, f"the replay ended with {returned}; what it printed is above")


def _print_report(
    told: Sequence[Mapping[str, Any]], job: JobView, place: Path, launch: Launch, named: int | None
) -> None:
    records = _recorded(place, launch.plan.name)
    recorded = of_same_config(records, _starts(job), launch.attempt)
    wrong = found_wrong(job, launch.attempt)
    for line in report(told, recorded, named, wrong):
        print_line(line)
    for line in doubt(told, recorded, wrong):
        print_line(line)


def report(
    told: Sequence[Mapping[str, Any]],
    recorded: Mapping[int, Mapping[str, Any]],
    attempt: int | None = None,
    wrong: FoundWrong | None = None,
) -> Iterator[str]:
    """Yields what a replay has `told`, in lines; `recorded` has what the run measured, by step.
    `attempt` is the one that a person has named, if so."""

    def how(one: Mapping[str, Any]) -> str:
        step = one["step"]
        of = wrong.attempt if wrong is not None and step in wrong.steps else attempt
        return _how_recorded(one, recorded.get(step), of)

    *before, last = [each for each in told if "gradient_norms" not in each] or [{}]
    for way, alike in groupby(before, how):
        steps = list(alike)
        if way.startswith(_AS_RECORDED) and len(steps) >= _IN_SHORT:
            yield _range_line(steps, way)
        else:
            yield from (_measured_line(each, way) for each in steps)
    if last:
        yield _measured_line(last, how(last))
    yield from chain.from_iterable(_inside(each) for each in told if "gradient_norms" in each)


def doubt(
    told: Iterable[Mapping[str, Any]],
    recorded: Mapping[int, Mapping[str, Any]],
    wrong: FoundWrong | None,
) -> Iterator[str]:
    """Yields whose numbers the steps were held against that a wrong device had computed."""
    steps = [each["step"] for each in told if "gradient_norms" not in each]
    steps = [step for step in steps if wrong is not None and step in wrong.steps]
    if wrong is None or not steps:
        return
    first, last = wrong.steps[0], wrong.steps[-1]
    which = f"step {last}" if first == last else f"steps {first} to {last}"
    yield (
        f"note: attempt {wrong.attempt} computed {which} with {wrong.what}, which was found wrong "
        f"at step {last}{wrong.reason}"
    )
    by = sorted(
        {recorded[step].get("attempt", wrong.attempt) for step in steps if step in recorded}
    )
    others = [number for number in by if number != wrong.attempt]
    if others:
        named = " and ".join(f"attempt {number}'s" for number in others)
        them = "it" if first == last else "them"
        yield (
            f"note: what is recorded of {them} is {named}, not attempt {wrong.attempt}'s: a replay "
            "on devices that compute rightly agrees with these numbers"
        )
    if wrong.attempt in by:
        yield (
            f"note: what is recorded by attempt {wrong.attempt} itself may be wrong: where the "
            "replay differs, it is right"
        )


def found_wrong(job: JobView, attempt: int) -> FoundWrong | None:
    """Returns which steps of `attempt` a device computed that was found wrong; None: none, as far
    as the journal knows."""
    device, reason = "a device that is not known", ""
    for transition in job.history.transitions:
        match transition.event:
            case DeviceFoundWrong() as found if found.attempt == attempt:
                phase = job.policy.phases[transition.before.phase]
                device, reason = f"{unit(phase)} {found.unit}", f" ({found.reason})"
            case WorkersGone(failure=Failure(rule=rule) as failure) as gone:
                steps = suspect_steps.suspect_steps(failure.root_cause)
                if gone.attempt == attempt and rule == SILENT_CORRUPTION and steps:
                    return FoundWrong(attempt, steps, device, reason)
    return None


def _how_recorded(
    told: Mapping[str, Any], recorded: Mapping[str, Any] | None, attempt: int | None
) -> str:
    """Returns how a step agrees with what the run `recorded` of it."""
    if told.get("skipped"):
        return _SKIPPED
    if recorded is None:
        return "the run has no record of this step"
    differs = [name for name in told if name in recorded and _bare(told[name]) != recorded[name]]
    if differs:
        was = ", ".join(f"{name} was {_shown(recorded[name])}" for name in differs)
        return f"DIFFERS from the run: {was}"
    if attempt is not None and recorded.get("attempt", attempt) != attempt:
        return f"{_AS_RECORDED} by attempt {recorded['attempt']}"
    return _AS_RECORDED


def _measured_line(told: Mapping[str, Any], how: str) -> str:
    if how == _SKIPPED:
        return f"step {told['step']}: {how}"
    numbers = ", ".join(f"{name} {_shown(told[name])}" for name in told if name != "step")
    return f"step {told['step']}: {numbers} ({how})"


def _range_line(told: Sequence[Mapping[str, Any]], how: str) -> str:
    first, last = told[0], told[-1]
    loss = f"loss {_shown(first['loss'])} to {_shown(last['loss'])}"
    return f"steps {first['step']} to {last['step']}: {loss} (each {how})"


def _shown(number: float | str | None, digits: str = "") -> str:
    """Returns a number as text. In JSON, which has no NaN and no Inf, a replay tells them by name,
    and the run has null for both."""
    if number is None:
        return "NaN or Inf"
    return number if isinstance(number, str) else f"{number:{digits}}"


def _bare(number: Any) -> Any:
    """Returns a number that a replay has told, as the run records it."""
    return None if isinstance(number, str) else number


def _inside(told: Mapping[str, Any]) -> Iterator[str]:
    if "instead_of" in told:
        yield (
            f"step {told['step']} is the first that gives NaN or Inf: it is looked into in place "
            f"of step {told['instead_of']}"
        )
    if told.get("held_before"):
        yield (
            f"before step {told['step']} the state holds NaN or Inf already, so its batch is not "
            f"the cause: {told['held_before']}"
        )
    elif told.get("held_after"):
        yield f"after step {told['step']} the state holds NaN or Inf: {told['held_after']}"
    norms = ", ".join(
        f"{name} {_shown(norm, '.4g')}" for name, norm in told["gradient_norms"].items()
    )
    yield f"gradient norms: {norms}"
    for name, found in told["activations"].items():
        yield f"activations of {name}: {_extent(found)}"
    sequences = sorted(told["sequences"], key=lambda each: _rank(each["loss"]), reverse=True)
    yield f"batch: {len(sequences)} sequences; those with the highest losses:"
    for each in sequences[:_SEQUENCES]:
        text = printable(each["text"][:_TEXT])
        names = [name for name in each if name not in ("sequence", "text", "records")]
        numbers = ", ".join(f"{name} {_shown(each[name], '.4g')}" for name in names)
        yield f"  sequence {each['sequence']}, {numbers}: {text}"
        if each.get("records"):
            yield f"    from {printable(', '.join(each['records']))}"


def _extent(found: Mapping[str, Any]) -> str:
    """Returns between which numbers the activations of a layer are, and how many are not finite."""
    bad = f"{found['not_finite']} of them NaN or Inf"
    if found["min"] == "Inf" or found["max"] == "-Inf":
        return f"{bad}, none is finite"
    extent = f"{_shown(found['min'], '.4g')} to {_shown(found['max'], '.4g')}"
    return f"{extent}, {bad}" if found["not_finite"] else extent


def _rank(loss: float | str | None) -> float:
    return loss if isinstance(loss, float | int) else inf


def _head(wanted: Span, launch: Launch) -> str:
    first = wanted.begin + 1
    steps = f"step {wanted.step}" if first == wanted.step else f"steps {first} to {wanted.step}"
    start = f"the checkpoint of step {wanted.begin}" if wanted.begin else "the phase's start"
    devices = f", on {launch.devices} devices" if launch.devices is not None else ""
    grpo = launch.plan.params["trainer"]["init"].get("grpo", {})
    number = grpo.get("rollout", {}).get("devices")
    apart = f", of which the last {number} only make completions" if number else ""
    return f"replays {steps} from {start}, as attempt {launch.attempt} ran them{devices}{apart}"


def attempt_of(options: Namespace, job: JobView) -> int | None:
    """Returns the attempt that is wanted; None: the last one. A failure is looked for where it
    came: the attempts after it may be in another phase, or skip its batch.

    Raises:
        ValueError: the named phase has none, or not this one.
    """
    if options.phase is not None:
        return _attempt_in_phase(options, job)
    if options.attempt is not None or options.step is not None:
        return None if options.attempt is None else int(options.attempt)
    return job.history.past.last_failed


def _attempt_in_phase(options: Namespace, job: JobView) -> int:
    names = [phase.name for phase in job.policy.phases]
    attempts = [each.attempt for each in _starts(job) if names[each.phase] == options.phase]
    failed = job.history.past.last_failed
    if options.attempt is not None:
        attempts = [each for each in attempts if each == options.attempt]
    elif options.step is None and failed in attempts:
        return failed
    if attempts:
        return attempts[-1]
    which = "an attempt" if options.attempt is None else f"attempt {options.attempt}"
    raise ValueError(
        f"{which} of phase {options.phase!r} is not in the journal (any more). The phases: "
        f"{', '.join(map(repr, names))}"
    )


def step_of(options: Namespace, job: JobView) -> int | str:
    """Returns the step that is wanted; or why none is known: none is named, and the last failure
    is of no known step."""
    if options.step is not None:
        return int(options.step)
    failure = failure_that_counts(job.history, job.history.state) or _last_of_an_attempt(job)
    if failure is None:
        return "the job has not failed"
    is_elsewhere = (
        options.phase is not None and attempt_of(options, job) != job.history.past.last_failed
    )
    if is_elsewhere:
        return "the last failure is of another attempt"
    if failure.step is None:
        return f"the last failure names no step ({failure.root_cause})"
    # the step whose state could not be saved was complete
    return failure.step + (failure.rule != STATE_NOT_FINITE)


def _asked(
    why: str, job: JobView, place: Path, attempt: int | None, committed: Sequence[int]
) -> str:
    starts = [each for each in _starts(job) if attempt in (None, each.attempt)]
    number = starts[-1].phase if starts else job.history.state.phase
    names = [phase.name for phase in job.policy.phases]
    return f"{why}: give --step N. {' '.join(choices(job, place, names[number], committed))}"


def choices(job: JobView, place: Path, phase: str, committed: Sequence[int]) -> Iterator[str]:
    """Yields sentences about the steps that can be run again. `committed` are the checkpoints of
    `phase`, the one that is taken if a person names none."""
    several = len(job.policy.phases) > 1
    try:
        phases = _phases_of(place)
    except (OSError, ValueError):
        phases = {}
    for name, records in phases.items():
        of = f" of phase {name!r} (--phase {shlex.quote(name)})" if several else ""
        yield f"There are steps 1 to {max(each['step'] for each in records)}{of}."
    if phase not in phases:
        yield f"No step of phase {phase!r} is recorded." if several else "No step is recorded."
    if committed:
        kept = ", ".join(map(str, sorted(committed)))
        of = f" of phase {phase!r}" if several else ""
        yield f"Quickest are steps soon after a checkpoint; those kept{of} are of steps {kept}."
    yield from (note for _, note in spike_notes(job, place))


def _last_of_an_attempt(job: JobView) -> Failure | None:
    """Returns the failure of the last attempt that failed, also if the job has succeeded since;
    None: none has, as far as the journal knows."""
    for transition in reversed(job.history.transitions):
        event = transition.event
        if isinstance(event, WorkersGone) and event.attempt == job.history.past.last_failed:
            return event.failure
    return None


def _starts(job: JobView) -> list[StartWorkers]:
    """Returns the starts of attempts that the journal still has, in order."""
    return [
        decision
        for transition in job.history.transitions
        for decision in transition.decisions
        if isinstance(decision, StartWorkers)
    ]


def of_same_config(
    records: Iterable[Mapping[str, Any]], starts: Iterable[StartWorkers], attempt: int
) -> dict[int, Mapping[str, Any]]:
    """Returns the `records` by step, without those of an attempt that ran another config than
    `attempt`, as far as that is known: such numbers may differ."""
    folders = {start.attempt: start.directory for start in starts}
    return {
        each["step"]: each
        for each in records
        if folders.get(each.get("attempt", attempt), folders[attempt]) == folders[attempt]
    }


def _launch(place: Path, job: JobView, attempt: int | None, *, debugs: bool) -> Launch:
    """Returns the launch of an attempt, as far as it decides what is computed.

    Raises:
        OSError: its params.yaml cannot be read.
        ValueError: the program is not our trainer, trains nothing, or the attempt is not known.
    """
    starts = [start for start in _starts(job) if attempt in (None, start.attempt)]
    if not starts:
        which = "an attempt" if attempt is None else f"attempt {attempt}"
        raise ValueError(f"{which} is not in the journal (any more)")
    start = starts[-1]
    params = place / start.directory / "params.yaml"
    reading.open_file(params, below=place).close()  # a config that a person names may be a FIFO
    prepared: Prepared = prepare(params, _AS_A_ONE_PHASE_JOB)
    plan = prepared.plans[0]
    if plan.is_command:
        raise ValueError(
            "the job runs a command: only steps of our trainer can be run again, as only there "
            "all that decides them is known"
        )
    if plan.params["trainer"]["fit"].get("train_dataloader") is None:
        raise ValueError(
            f"attempt {start.attempt} only evaluates (phase {plan.name!r}), and no step of "
            "training can be run again there: name an attempt of a phase that trains, --attempt N"
        )
    # One process has the devices of all hosts, and a debugger has one process.
    is_whole = plan.workers == 1 or not (plan.num_hosts or debugs)
    return Launch(
        job=job.history.state.job,
        lineage="",
        attempt=start.attempt,
        phase=0,
        plan=plan if is_whole else replace(plan, workers=1),
        success=prepared.policy.phases[0].success,
        rules=(),
        model_dir=place,
        directory=place / start.directory / attempt_folder(start.attempt),
        params=params,
        adjustments=start.adjustments,
        num_devices=start.num_devices,
        units=start.units if is_whole else (),
    )


def _checkpoints(launch: Launch) -> Path:
    """Returns the directory of the checkpoints, also where model_dir was moved or copied."""
    directory, was = _on_disk(launch.plan.checkpoint_dir), _on_disk(launch.plan.model_dir)
    if not directory.is_relative_to(was):
        return directory
    return launch.model_dir / directory.relative_to(was)


def _on_disk(place: Path | Uri) -> Path:
    if isinstance(place, Path):
        return place
    raise ValueError(f"{place} is in a bucket: copy it to a disk, and replay it there")


def _recorded(place: Path, phase: str) -> list[dict[str, Any]]:
    """Returns what the run measured in `phase`, as far as that is known."""
    try:
        return _phases_of(place).get(phase, [])
    except (OSError, ValueError):
        return []
