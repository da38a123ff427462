"""`supervise init`: writes a commented trainer.yaml for a training script."""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from supervisor.cli.arguments import Commands, parse_file_name, with_own_message
from supervisor.cli.complaints import complain
from supervisor.cli.frameworks import Finding, recognise
from supervisor.cli.job_options import UsageError, add_command_options, command_line
from supervisor.cli.saved_config import NOTES, PATHS_BEGIN, NotWrittenError, commented, write_config
from supervisor.cli.script_options import missing_options
from supervisor.config import placeholders
from supervisor.config.command_line import source_of
from supervisor.config.load import job_of
from supervisor.config.named_program import NamedProgram, named_program
from supervisor.config.problems import Location
from supervisor.config.yaml_source import YamlSource
from supervisor.core.exit_codes import ExitCode
from supervisor.engines.missing_jax import missing_jax
from supervisor.engines.script_imports import UnreadScriptError, parsed_script
from supervisor.prepare import prepare_job

_USUAL = "train.py"
_CHECKPOINT: Location = ("trainer", "init", "checkpoint")
_PROGRESS: Location = ("trainer", "command", "progress")


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "init",
        help="write a trainer.yaml for a training script",
        description="Write a trainer.yaml for a training script: supervise init train.py -- --lr "
        "1e-3. The script is read, and not run.",
    )
    parser.add_argument(
        "script",
        nargs="?",
        metavar="SCRIPT",
        help=f"the script to run; without it and a command: {_USUAL} in the working directory",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="-- ARGS",
        help="the arguments of the script; without SCRIPT, the whole command",
    )
    add_command_options(parser)
    parser.add_argument(
        "--output",
        type=with_own_message(parse_file_name),
        default=Path("trainer.yaml"),
        metavar="PATH",
        help="the file to write, which must not exist (default: trainer.yaml)",
    )


def run(options: Namespace) -> int:
    """Write the config; returns the exit code."""
    try:
        argv = _argv(options)
        source = source_of(command_line(options, argv))
    except UsageError as error:
        return complain(ExitCode.USAGE, str(error))
    program = named_program(argv)
    tree, unread = _script(argv, program)
    finding = recognise(tree, argv, program)
    notes = {**NOTES, **_add(finding, source)}
    prepared = prepare_job(job_of(source))
    shown = _shown(finding, finds=any(plan.finds_checkpoints for plan in prepared.plans))
    head = f"Written by `supervise init`, which recognised: {shown}.\n{PATHS_BEGIN}"
    try:
        told = write_config(options.output, prepared, commented(prepared.job, head, notes))
    except NotWrittenError as error:
        code = ExitCode.USAGE if error.exists else ExitCode.CANNOT_WRITE
        return complain(code, f"--output: {error}")
    warnings = [missing_jax(plan, os.environ) for plan in prepared.plans]
    if tree is not None:
        warnings.append(_missing(missing_options(tree, argv[program.index + 1 :]), program.name))
    noted = (f"note: {each}" for each in (*unread, *warnings) if each)
    for line in (f"recognised: {shown}", *told, *noted):
        print(line)
    return 0


def _script(argv: Sequence[str], program: NamedProgram) -> tuple[ast.Module | None, Sequence[str]]:
    """Returns the syntax tree of the program, and what keeps it from being read if it is named like
    a script of Python."""
    name = argv[program.index]
    if not program.is_script:
        return None, ()
    try:
        return parsed_script(Path(name)), ()
    except UnreadScriptError as error:
        text = f"{name} {error}; nothing in the config comes from it: check that it is your script"
        return None, (text,) if name.endswith(".py") else ()


def _argv(options: Namespace) -> list[str]:
    """Returns the command line of the program.

    Raises:
        UsageError: there is no script, or more than one.
    """
    behind: list[str] = options.after_dashes or []
    if options.words:
        script = shlex.quote(options.script)
        raise UsageError(
            f"write -- before the arguments of the script: supervise init {script} -- "
            f"{' '.join(map(shlex.quote, options.words))}"
        )
    if options.script is None and options.after_dashes is not None:
        return behind
    script = options.script or _USUAL
    if not os.access(script, os.F_OK):
        remedy = "" if options.script else "; name the script: supervise init path/to/train.py"
        raise UsageError(f"{script}: no such file in {Path.cwd()}{remedy}")
    if not script.endswith(".py") and os.access(script, os.X_OK):
        return [script if "/" in script else f"./{script}", *behind]
    return [_interpreter(), script, *behind]


def _interpreter() -> str:
    """Returns the interpreter for a script: that of the environment in the working directory or of
    the active one; then that of the PATH, then ours."""
    here = Path(".venv/bin/python")
    if here.exists() and "VIRTUAL_ENV" not in os.environ:
        return str(here)
    return next(filter(shutil.which, ("python", "python3")), sys.executable)


def _add(finding: Finding, source: YamlSource) -> Mapping[Location, str]:
    """Adds what was found to the config; returns the comments above it."""
    trainer: dict[str, Any] = source.data["trainer"]
    notes: dict[Location, str] = {}
    framework = finding.framework
    saves = framework.saves if framework is not None else "Where the program saves."
    if finding.directory is not None:
        directory = placeholders.keep_unknown(finding.directory)
        trainer["init"]["checkpoint"] = {"directory": directory}
        notes[_CHECKPOINT] = f"{saves}\nA new committed checkpoint there is progress."
    if framework is not None and framework.step_pattern is not None:
        trainer["command"]["progress"] = {"pattern": framework.step_pattern}
        notes[_PROGRESS] = "How the step is read from the output."
    return notes


def _missing(options: Sequence[str], script: str) -> str | None:
    """Returns the note about the options that the script requires and the command does not have."""
    if not options:
        return None
    return (
        f"{script} requires {', '.join(options)}: add it to command.argv, or remove the file and "
        f"run supervise init {shlex.quote(script)} -- {options[0]} ..."
    )


def _shown(finding: Finding, *, finds: bool) -> str:
    """Returns what was found, in words; `finds` says whether the run will find where it saves."""
    name = finding.framework.name if finding.framework is not None else "no known framework"
    if finding.directory is not None:
        return f"{name}; checkpoints in {finding.directory}"
    later = "where it saves is found while it runs" if finds else "set checkpoint.directory"
    return f"{name}; the folder of its checkpoints was not recognised: {later}"
