"""The job of `supervise run`: from a config file, or from a command and the options for it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from supervisor.cli.arguments import (
    Parser,
    add_config,
    hint_of_unknown,
    parse_file_name,
    with_own_message,
)
from supervisor.config.command_line import (
    DEFAULT_RESTARTS,
    CommandLine,
    parse_count,
    parse_devices,
    source_of,
)
from supervisor.config.load import Job, job_of, load_job

_OF_A_COMMAND = {
    "model_dir": ("--model-dir", "trainer.init.model_dir=..."),
    "max_restarts": ("--max-restarts", "trainer.init.autorestart.max_num_restarts=..."),
    "devices": ("--devices", "trainer.init.devices={platform: ...}"),
    "success_step": ("--success-step", "trainer.command.success={step: ...}"),
}
"""The options that stand for keys of a config, by name; and what `--set` takes instead."""
_EXAMPLE = "supervise run -- python train.py"


class UsageError(Exception):
    """The command line is wrong; the text says how to write it."""


def add_job(parser: Parser) -> None:
    """Add a config or a command, and the options of a job without a config."""
    add_config(parser, optional=True)
    parser.add_argument(
        "words",
        nargs="*",
        metavar="-- COMMAND",
        help="the program and its arguments, in place of a config; it may have placeholders such "
        "as {model_dir}",
    )
    add_command_options(parser)
    parser.add_argument(
        "--save-config",
        type=with_own_message(parse_file_name),
        metavar="PATH",
        help="write the config that is equivalent to the command, and start nothing",
    )


def add_command_options(parser: Parser) -> None:
    """Add the options that stand for keys of a config."""
    group = parser.add_argument_group("options of a command, which has no config")
    group.add_argument(
        "--model-dir",
        metavar="DIR",
        help="the directory of the job, or its URI in a bucket. Without it, a "
        "directory below ./runs is named after the script, its arguments and the working "
        "directory, so that the same command continues the same job",
    )
    group.add_argument(
        "--max-restarts",
        type=with_own_message(parse_count),
        metavar="N",
        help="the most restarts in a row without a new committed checkpoint "
        f"(default: {DEFAULT_RESTARTS})",
    )
    group.add_argument(
        "--devices",
        type=with_own_message(parse_devices),
        metavar="DEVICES",
        help="the accelerators to train on: cpu:4 (simulated), gpu, gpu:8, tpu:4 "
        "or v5e-8. Without it: all that the program finds",
    )
    group.add_argument(
        "--success-step",
        type=with_own_message(parse_count),
        metavar="N",
        help="the step that the program must have completed, as its checkpoints or reports show "
        "it. Without it, exit code 0 means success",
    )


def job_given(options: Namespace) -> Job:
    """Returns the checked job of the command line.

    Raises:
        UsageError: the command line has no job, or two, or an option that does not fit it.
        ConfigError: the config, or what an option gives, has problems.
    """
    try:
        Path.cwd()
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"no working directory ({why}): go to one that is there") from None
    if options.words:
        words = " ".join(options.words)
        raise UsageError(
            f"unrecognized arguments: {words}{hint_of_unknown(options, options.words)}"
        )
    if options.config is not None and options.after_dashes is not None:
        raise UsageError(f"give a config ({options.config}) or a command behind --, not both")
    if options.after_dashes is not None:
        return job_of(source_of(command_line(options, options.after_dashes)), options.set)
    if options.config is None:
        raise UsageError(f"give a config, or -- and a command: {_EXAMPLE}")
    for name, (option, key) in _OF_A_COMMAND.items():
        if getattr(options, name) is not None:
            raise UsageError(f"{option} is for a command; with a config write --set '{key}'")
    if options.save_config is not None:
        raise UsageError(f"--save-config is for a command, and {options.config} is a config")
    if options.config.suffix == ".py":
        raise UsageError(
            f"{options.config} is a program, not a config: supervise run -- python {options.config}"
        )
    return load_job(options.config, options.set)


def command_line(options: Namespace, argv: list[str]) -> CommandLine:
    """Returns the job of the command `argv` with the options of `add_command_options`.

    Raises:
        UsageError: there is no command.
    """
    if not argv or not argv[0]:
        raise UsageError(f"there is no command behind --: {_EXAMPLE}")
    return CommandLine(
        argv=argv,
        directory=str(Path.cwd()),
        model_dir=options.model_dir,
        max_restarts=options.max_restarts,
        devices=options.devices,
        success_step=options.success_step,
    )
