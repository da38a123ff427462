"""`supervise validate`: prints the resolved config, and what to know before the launch.

Everything but the config is printed as comments, so that the output is YAML.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from supervisor.adapters.processes import ahead_of_time
from supervisor.adapters.processes.ahead_of_time import CompileAheadError
from supervisor.cli.arguments import Commands, add_config, with_own_message
from supervisor.cli.complaints import complain
from supervisor.config.feasible_rungs import FeasibleRungs, RungLayout
from supervisor.config.plan import PhasePlan
from supervisor.config.topology import SliceShape, parse_topology
from supervisor.core.exit_codes import ExitCode
from supervisor.diagnosis.redaction import Redactor
from supervisor.model_dir_ownership import ModelDirError
from supervisor.preflight import check, hang_warnings, start_warnings
from supervisor.prepare import Prepared, prepare
from supervisor.protocol.shortening import keep_beginning
from supervisor.secret_variables import with_env_files

_MAX_PROBLEM = 400
"""Characters of a compiler's message that are printed."""

_BUCKET_TIMEOUT = 6.0
"""Seconds that a bucket gets to answer. `run` waits longer; here a person waits."""


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser("validate", help="check the config and print it resolved")
    add_config(parser)
    parser.add_argument(
        "--aot",
        type=with_own_message(parse_topology),
        metavar="TOPOLOGY",
        help="also compile for each rung of a TPU slice that is not there, such as v5e:2x4",
    )


def run(options: Namespace) -> int:
    """Check the config and print it resolved; returns the exit code.

    With --aot, the given slice replaces the devices that the config names.
    """
    if options.aot is None:
        return _validate_here(with_env_files(prepare(options.config, options.set)))
    devices = f"trainer.init.devices={{platform: tpu, type: {options.aot.type}}}"
    prepared = prepare(options.config, [*options.set, devices])
    show(prepared)
    try:
        good = compile_ahead(prepared, options.aot)
    except CompileAheadError as error:
        return complain(ExitCode.USAGE, str(error))
    return 0 if good else int(ExitCode.INVALID_CONFIG)


def _validate_here(prepared: Prepared) -> int:
    """Make the checks that `run` makes on this machine before it starts anything, and print the
    config; returns the exit code."""
    try:
        check(prepared, _BUCKET_TIMEOUT)
    except ModelDirError as error:
        code = complain(ExitCode.CANNOT_WRITE, prepared.redactor(os.environ).text(str(error)))
        return prepared.job.exit_codes.get(code, code)
    show(prepared)
    return 0


def show(prepared: Prepared) -> None:
    """Print the resolved config of each phase, its ladder, and remarks on what may go wrong."""
    redactor = prepared.redactor(os.environ)
    for plan, ladder in zip(prepared.plans, prepared.ladders, strict=True):
        print(f"# phase {plan.name}: {redactor.text(' '.join(plan.argv))}")
        params = redactor.params(plan.params)
        print(yaml.safe_dump(params, sort_keys=False, allow_unicode=True), end="")
        for line in (*describe(ladder), *_remarks(plan)):
            print(f"# {redactor.text(line)}")
    for line in (*start_warnings(prepared), *hang_warnings(prepared)):
        print(f"# {redactor.text(line)}")


def compile_ahead(prepared: Prepared, whole: SliceShape) -> bool:
    """Compile our trainer's steps for each rung of the slice `whole`, and print the results.

    Returns True if the full rung of every phase can be compiled.

    Raises:
        CompileAheadError: nothing can be compiled here.
    """
    good, redactor = True, prepared.redactor(os.environ)
    for plan, ladder in zip(prepared.plans, prepared.ladders, strict=True):
        print(f"# phase {plan.name}, compiled for {whole.type} without running it:", flush=True)
        if plan.is_command:
            print("#   nothing: supervise cannot know what a command compiles")
            continue
        parts = [SliceShape(whole.generation, rung.num_devices) for rung in ladder.rungs]
        answers = ahead_of_time.compile_ahead(plan.params, [part.described() for part in parts])
        found = [*zip(ladder.rungs, answers, strict=True)]
        for line in _table([_row(rung) | _compiled(answer, redactor) for rung, answer in found]):
            print(f"#   {redactor.text(line)}")
        good = good and "problem" not in found[0][1]
    return good


def _compiled(answer: Mapping[str, Any], redactor: Redactor) -> dict[str, str]:
    if "problem" in answer:
        return {
            "result": f"FAILED: {keep_beginning(redactor.text(answer['problem']), _MAX_PROBLEM)}"
        }
    used = f"{answer['bytes'] / 2**30:.3f} GiB"
    return {"result": f"{used} on each device, compiled in {answer['seconds']:.1f} s"}


def describe(ladder: FeasibleRungs) -> Iterator[str]:
    """Yields the ladder as a table, and the numbers of devices between its rungs that are no rungs,
    with the reasons."""
    if not ladder.rungs:
        yield "no ladder: init.devices does not say how many devices there are"
        return
    yield "ladder:"
    yield from (f"  {line}" for line in _table([_row(rung) for rung in ladder.rungs]))
    for reason, counts in ladder.gaps.items():
        yield f"no rung: {_ranges(counts)} device{'s' * (counts != (1,))}: {reason}"


def _row(rung: RungLayout) -> dict[str, str]:
    row = {"devices": str(rung.num_devices)}
    if rung.topology is not None:
        row["topology"] = rung.topology
    mesh: Mapping[str, int] = rung.layout.get("mesh", {})
    if mesh:
        row["mesh"] = " x ".join(f"{axis} {size}" for axis, size in mesh.items())
    for key in ("per_device_batch", "accumulation", "rollout_devices"):
        if key in rung.layout:
            row[key] = str(rung.layout[key])
    return row


def _table(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yields the lines of a table of `rows` below a head; numbers are aligned to the right."""
    columns = dict.fromkeys(name for row in rows for name in row)
    texts = [[name, *(row.get(name, "") for row in rows)] for name in columns]
    widths = [max(map(len, column)) for column in texts]
    for line in zip(*texts, strict=True):
        cells = zip(line, texts, widths, strict=True)
        yield "  ".join(
            text.rjust(width) if column[1].isdecimal() else text.ljust(width)
            for text, column, width in cells
        ).rstrip()


def _ranges(counts: Sequence[int]) -> str:
    """Returns descending counts as ranges: `7-5, 3` for 7, 6, 5 and 3."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][-1] == count + 1:
            runs[-1].append(count)
        else:
            runs.append([count])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _remarks(plan: PhasePlan) -> Iterator[str]:
    """Yields the names of the variables that a command gets from outside the config (no secret
    store is asked), and what `checkpoint.verify` does."""
    if plan.secrets:
        yield f"command.env_file holds {', '.join(plan.secrets)}"
    for name, version in plan.env_secrets.items():
        yield f"{name} comes from {version}"
    if plan.verifies_checkpoints:
        yield (
            "checkpoint.verify: before each launch the newest checkpoint is compared with its "
            "manifest, and a damaged one is moved to damaged_checkpoints in model_dir"
        )
