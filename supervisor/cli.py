"""The command line: `supervise run` and `supervise validate`."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import yaml

from supervisor import __version__
from supervisor.adapters.journal import JournalError
from supervisor.adapters.lease import LeaseExpiredError, LeaseHeldError, LeaseTakenError
from supervisor.adapters.lock import LockHeldError
from supervisor.adapters.processes import SweepError
from supervisor.adapters.trainer_check import TrainerCheckError
from supervisor.config.placeholders import names
from supervisor.config.plan import PhasePlan
from supervisor.config.problems import ConfigError
from supervisor.core.exit_codes import ExitCode
from supervisor.core.redaction import Redactor
from supervisor.exclusion import Exclusion, ModelDirError
from supervisor.job import run_job
from supervisor.prepare import Prepared, prepare


class _Parser(argparse.ArgumentParser):
    """argparse with the exit code of sysexits.h for wrong usage."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(ExitCode.USAGE, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None, exclusion: Exclusion | None = None) -> int:
    """Run the command line; returns the exit code.

    `exclusion` takes the place of what the file system of model_dir asks for.
    """
    options = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _terminated)  # until the job has a handler of its own
    try:
        prepared = prepare(options.config, options.set)
        if options.command == "validate":
            return _validate(prepared)
        return _run(prepared, options.log_format, exclusion)
    except ConfigError as error:
        return _complain(ExitCode.INVALID_CONFIG, *(str(problem) for problem in error.problems))
    except TrainerCheckError as error:
        return _complain(ExitCode.INVALID_CONFIG, str(error))
    except KeyboardInterrupt:
        return _complain(ExitCode.STOPPED, "interrupted before anything was started")


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(_complain(ExitCode.DRAINED, "told to stop before anything was started"))


def _run(prepared: Prepared, log_format: str, exclusion: Exclusion | None) -> int:
    try:
        code = run_job(prepared, "json" if log_format == "json" else "text", exclusion)
    except (LockHeldError, LeaseHeldError, LeaseTakenError) as error:
        code = _complain(ExitCode.OWNED, str(error))
    except (JournalError, ModelDirError, LeaseExpiredError, SweepError) as error:
        code = _complain(ExitCode.CANNOT_WRITE, f"{error}; run the same command again to resume")
    return prepared.job.exit_codes.get(code, code)


def _validate(prepared: Prepared) -> int:
    """Print the resolved config of each phase, and what each device count would do."""
    redactor = prepared.redactor(os.environ)
    for plan, rungs in zip(prepared.plans, prepared.rungs, strict=True):
        print(f"# phase {plan.name}: {redactor.text(' '.join(plan.argv))}")
        params = redactor.params(plan.params)
        print(yaml.safe_dump(params, sort_keys=False, allow_unicode=True), end="")
        for rung in rungs:
            print(f"# {_rung(rung)}")
        least = plan.params["trainer"]["init"]["autorestart"]["min_num_devices"]
        for line in _preflight(plan, rungs, least):
            print(f"# {line}")
    return 0


def _preflight(plan: PhasePlan, rungs: Sequence[dict[str, object]], least: int) -> Iterator[str]:
    """What is no error, but may become one: a person should know it before the launch."""
    if plan.is_command:
        yield from _missing_programs(plan)
    elif plan.num_devices is not None:
        possible = {rung["num_devices"] for rung in rungs}
        missing = [n for n in range(plan.num_devices - 1, least - 1, -1) if n not in possible]
        if missing:
            batch = plan.params["trainer"]["init"]["loop"]["global_batch_size"]
            counts = ", ".join(map(str, missing))
            yield f"no rung: {counts} devices: global_batch_size {batch} does not divide among them"


def _missing_programs(plan: PhasePlan) -> Iterator[str]:
    """What of the command is not to be found from here; what has placeholders is not looked for."""
    program, script = plan.argv[0], plan.argv[1] if len(plan.argv) > 1 else ""
    path = plan.env.get("PATH", os.environ.get("PATH"))
    if not names(program) and shutil.which(program, path=path) is None:
        yield f"not found, or not executable: {program}"
    if script.endswith(".py") and not names(script) and not Path(script).is_file():
        yield f"no such file: {script}"


def _rung(rung: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in rung.items())


def _complain(code: int, *lines: str) -> int:
    redactor = Redactor(os.environ)
    for line in lines:
        print(f"supervise: {redactor.text(line)}", file=sys.stderr)
    return int(code)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="supervise", description="Keep a JAX training run moving.")
    parser.add_argument("--version", action="version", version=f"supervise {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    run = commands.add_parser("run", help="run the job until it succeeds or cannot")
    validate = commands.add_parser("validate", help="check the config and print it resolved")
    for command in (run, validate):
        command.add_argument("config", type=Path, metavar="trainer.yaml")
        command.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="override one key: trainer.init.seed=3 (every phase), trainer[1].init.seed=3",
        )
    run.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="form of our lines on standard output where it is no terminal",
    )
    return parser
