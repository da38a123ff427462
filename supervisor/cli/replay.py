"""`supervise replay`: runs a step of our trainer again, and shows what happens inside it.

What is run again is decided here, from the journal, the config and the checkpoints; a process of
`trainer.replay` computes it. Both only read model_dir.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from math import inf
from pathlib import Path
from typing import Any

from supervisor.cli.arguments import Commands, add_model_dir
from supervisor.cli.complaints import complain
from supervisor.cli.job_view import JobView, print_line, run_and_report, view
from supervisor.cli.told_failure import failure_that_counts
from supervisor.core.decisions import StartWorkers
from supervisor.core.exit_codes import ExitCode
from supervisor.engines.launch import Launch
from supervisor.engines.worker_environment import placement_variables
from supervisor.files.attempts import attempt_folder
from supervisor.prepare import Prepared, prepare
from supervisor.protocol import environment, metrics_file, reading
from supervisor.protocol.committed import committed_steps
from supervisor.protocol.location import Uri
from supervisor.protocol.messages import printable
from supervisor.protocol.reading import UnreadableError

_MAX_METRICS = 1 << 30
_SEQUENCES = 3
"""Sequences of the batch that are shown: those with the highest losses."""
_TEXT = 300
"""Characters of a sequence that are shown."""


@dataclass(frozen=True, slots=True)
class Span:
    """The steps to run again."""

    begin: int
    """The checkpoint to restore; 0: what the phase starts from."""
    step: int
    """The step to look into."""


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
        names = sorted((one.keys() | other.keys()) - {"time", "attempt", "phase", "step"})
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
    launch = _launch(place, job, attempt_of(options, job))
    checkpoints = _checkpoints(launch)
    steps = [step for step, _ in committed_steps(checkpoints)]
    last = launch.plan.max_steps
    wanted = span(_step_of(options, job, steps, last), steps, last)
    if not options.json:
        print_line(_head(wanted, launch))
    what = (launch.params, checkpoints, wanted.begin, wanted.step)
    argv = [sys.executable, "-P", "-m", "trainer.replay", *map(str, what)]
    env = _environment(launch)
    if options.pdb:
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the debugger alone
        code = subprocess.run([*argv, "--pdb"], env=env, check=False).returncode
        return code if code == ExitCode.CANNOT_WRITE else 0
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, check=False)
    told = [reading.parse_object(line, "the replay") for line in done.stdout.splitlines()]
    records = _recorded(place, launch.plan.name)
    recorded = of_same_config(records, _starts(job), launch.attempt)
    if options.json:
        print(json.dumps({"v": 1, "begin": wanted.begin, "code": done.returncode, "told": told}))
    else:
        for line in report(told, recorded):
            print_line(line)
    if not done.returncode:
        return 0
    is_damaged = done.returncode == ExitCode.CANNOT_WRITE
    code = ExitCode.CANNOT_WRITE if is_damaged else ExitCode.FAILED
    return complain(code, f"the replay ended with {done.returncode}; what it printed is above")


def report(
    told: Sequence[Mapping[str, Any]], recorded: Mapping[int, Mapping[str, Any]]
) -> Iterator[str]:
    """Yields what a replay has `told`, in lines; `recorded` has what the run measured, by step."""
    for each in told:
        if "gradient_norms" in each:
            yield from _inside(each)
        elif each.get("skipped"):
            yield f"step {each['step']}: its batch is skipped, as in the attempt"
        else:
            yield _measured_line(each, recorded.get(each["step"]))


def _measured_line(told: Mapping[str, Any], recorded: Mapping[str, Any] | None) -> str:
    names = [name for name in told if name != "step"]
    numbers = ", ".join(f"{name} {_shown(told[name])}" for name in names)
    if recorded is None:
        return f"step {told['step']}: {numbers} (the run has no record of this step)"
    differs = [name for name in names if name in recorded and told[name] != recorded[name]]
    how = "as recorded"
    if differs:
        how = ", ".join(f"{name} was {_shown(recorded[name])}" for name in differs)
        how = f"DIFFERS from the run: {how}"
    return f"step {told['step']}: {numbers} ({how})"


def _shown(number: float | None, digits: str = "") -> str:
    """Returns a number; null stands for NaN and Inf, which JSON does not have."""
    return "NaN or Inf" if number is None else f"{number:{digits}}"


def _inside(told: Mapping[str, Any]) -> Iterator[str]:
    norms = ", ".join(
        f"{name} {_shown(norm, '.4g')}" for name, norm in told["gradient_norms"].items()
    )
    yield f"gradient norms: {norms}"
    for name, found in told["activations"].items():
        bad = f", {found['not_finite']} of them NaN or Inf" if found["not_finite"] else ""
        least, most = _shown(found["min"], ".4g"), _shown(found["max"], ".4g")
        yield f"activations of {name}: {least} to {most}{bad}"
    sequences = sorted(told["sequences"], key=lambda each: _rank(each["loss"]), reverse=True)
    yield f"batch: {len(sequences)} sequences; those with the highest losses:"
    for each in sequences[:_SEQUENCES]:
        text = printable(each["text"][:_TEXT])
        yield f"  sequence {each['sequence']}, loss {_shown(each['loss'], '.4g')}: {text}"


def _rank(loss: float | None) -> float:
    return inf if loss is None else loss


def _head(wanted: Span, launch: Launch) -> str:
    first = wanted.begin + 1
    steps = f"step {wanted.step}" if first == wanted.step else f"steps {first} to {wanted.step}"
    start = f"the checkpoint of step {wanted.begin}" if wanted.begin else "the phase's start"
    devices = f", on {launch.devices} devices" if launch.devices is not None else ""
    return f"replays {steps} from {start}, as attempt {launch.attempt} ran them{devices}"


def attempt_of(options: Namespace, job: JobView) -> int | None:
    """Returns the attempt that is wanted; None: the last one. A failure is looked for where it
    came: the attempts after it may be in another phase, or skip its batch."""
    if options.attempt is not None or options.step is not None:
        return None if options.attempt is None else int(options.attempt)
    return job.history.past.last_failed


def _step_of(options: Namespace, job: JobView, committed: Sequence[int], last: int | None) -> int:
    """Returns the step that is wanted, of a phase of `last` steps.

    Raises:
        ValueError: none is named, and the last failure is of no known step.
    """
    if options.step is not None:
        return int(options.step)
    failure = failure_that_counts(job.history, job.history.state)
    if failure is None or failure.step is None:
        kept = ", ".join(map(str, sorted(committed))) or "none"
        why = "the job has not failed" if failure is None else "the last failure names no step"
        raise ValueError(
            f"{why}: give --step N. Quickest are steps soon after a checkpoint (those of steps "
            f"{kept})"
        )
    return failure.step + 1 if last is None else min(failure.step + 1, last)


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


def _launch(place: Path, job: JobView, attempt: int | None) -> Launch:
    """Returns the launch of an attempt, as far as it decides what is computed.

    Raises:
        OSError: its params.yaml cannot be read.
        ValueError: the program is not our trainer, or the attempt is not known.
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
    return Launch(
        job=job.history.state.job,
        lineage="",
        attempt=start.attempt,
        phase=0,
        plan=replace(plan, workers=1),
        success=prepared.policy.phases[0].success,
        rules=(),
        model_dir=place,
        directory=place / start.directory / attempt_folder(start.attempt),
        params=params,
        adjustments=start.adjustments,
        num_devices=start.num_devices,
        units=start.units if plan.workers == 1 else (),
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


def _environment(launch: Launch) -> dict[str, str]:
    """Returns the environment of the replay: that of a worker, without what connects it."""
    inherited = environment.without_supervisor_variables(os.environ)
    env = launch.inherited(inherited, launch.values(None))
    env |= placement_variables(launch, 0, (), env)
    env.pop(environment.SIMULATED_DEVICES, None)
    return {**env, **launch.adjustments.to_environment()}


def _recorded(place: Path, phase: str) -> list[dict[str, Any]]:
    """Returns what the run measured in `phase`, as far as that is known."""
    try:
        return _phases_of(place).get(phase, [])
    except (OSError, ValueError):
        return []
