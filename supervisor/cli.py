"""The command line: `supervise run`, `validate`, `provision`, `status`, `quarantine`, `classify`,
`rules`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

from supervisor import __version__
from supervisor.adapters.processes.ahead_of_time import CompileAheadError
from supervisor.adapters.processes.trainer_check import TrainerCheckError
from supervisor.adapters.stores.journal import DamagedJournalError, JournalError
from supervisor.adapters.stores.lease import LeaseExpiredError, LeaseHeldError, LeaseTakenError
from supervisor.adapters.stores.lock import LockHeldError
from supervisor.adapters.telling.printing import UnprintableError, printing
from supervisor.adapters.telling.runlog import LogFormat
from supervisor.adapters.telling.tracebacks import redact_tracebacks
from supervisor.classify import classify, parse_code, parse_log, parse_signal, parse_stage
from supervisor.config.load import load_job
from supervisor.config.problems import ConfigError
from supervisor.config.secret_names import without_secrets
from supervisor.config.topology import parse_topology
from supervisor.core.exit_codes import ExitCode
from supervisor.diagnosis.redaction import Redactor
from supervisor.exclusion import Exclusion, JobGoneError, ModelDirError
from supervisor.explained import OwnRules
from supervisor.given import UnavailableSecretError, with_env_files, with_secrets
from supervisor.guarded import NoGuardError
from supervisor.host.outlet import say_on_stderr
from supervisor.host.unkillable import UnkillableError
from supervisor.job import run_job
from supervisor.preflight import check
from supervisor.prepare import Prepared, own_rules, places_of_rules, prepare
from supervisor.protocol.location import Uri
from supervisor.rule_list import UnknownRuleError, list_rules
from supervisor.status import clear_quarantine, show_quarantine, show_status
from supervisor.validate import compile_ahead, show

_Parsed = TypeVar("_Parsed")
_GONE = (
    "the same command begins a new job now: move model_dir, with its journal, back first, or set "
    "model_dir to where it is now"
)


class _Parser(argparse.ArgumentParser):
    """argparse with the exit code of sysexits.h for wrong usage."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        text = without_secrets(Redactor(os.environ).text(message))
        self.exit(ExitCode.USAGE, f"{self.prog}: {text}\n")


def main(argv: Sequence[str] | None = None, exclusion: Exclusion | None = None) -> int:
    """Run the command line; returns the exit code.

    `exclusion` takes the place of what the file system of model_dir asks for.
    """
    code = 0
    try:
        with printing():
            code = _main(argv, exclusion)
    except UnprintableError as error:
        if not str(error):
            return code
        text = f"standard output cannot be written: {error}"
        return _complain(ExitCode.CANNOT_WRITE, text)
    return code


def _main(argv: Sequence[str] | None, exclusion: Exclusion | None) -> int:
    options = _parser().parse_args(argv)
    redact_tracebacks(Redactor(os.environ).text)
    signal.signal(signal.SIGTERM, _terminated)  # until the job has a handler of its own
    try:
        if options.command in ("classify", "rules"):
            return _explain(options)
        if options.command in ("status", "quarantine"):
            return _look_on(options)
        if options.command == "validate":
            return _validate(options)
        prepared = prepare(options.config, options.set)
        if options.command == "provision":
            return _provision(prepared, dry_run=options.dry_run)
        return _run(prepared, options.log_format, exclusion, once=options.once)
    except ConfigError as error:
        return _tell(ExitCode.INVALID_CONFIG, map(Redactor(os.environ).problem, error.problems))
    except TrainerCheckError as error:
        return _complain(ExitCode.INVALID_CONFIG, str(error))
    except KeyboardInterrupt:
        return _complain(ExitCode.STOPPED, "interrupted before anything was started")


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(_complain(ExitCode.DRAINED, "told to stop before anything was started"))


def _run(prepared: Prepared, log_format: str, exclusion: Exclusion | None, *, once: bool) -> int:
    redact_tracebacks(prepared.redactor(os.environ).text)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _terminated)
    try:
        prepared = with_secrets(prepared)
    except UnavailableSecretError as error:
        code = _complain(ExitCode.CANNOT_WRITE, f"{error}; run the same command again")
        return prepared.job.exit_codes.get(code, code)
    redactor = prepared.redactor(os.environ)
    redact_tracebacks(redactor.text)
    try:
        form: LogFormat = "json" if log_format == "json" else "text"
        code = run_job(prepared, form, exclusion, once=once)
    except (LockHeldError, LeaseHeldError, LeaseTakenError) as error:
        code = _complain(ExitCode.OWNED, redactor.text(str(error)))
    except NoGuardError as error:
        code = _complain(ExitCode.INVALID_CONFIG, redactor.text(str(error)))
    except JobGoneError as error:
        text = redactor.text(f"{error}; {_GONE}")
        code = _complain(ExitCode.CANNOT_WRITE, text)
    except DamagedJournalError as error:
        text = redactor.text(f"{prepared.job.place}: {error}")
        code = _complain(ExitCode.INVALID_CONFIG, text)
    except (JournalError, ModelDirError, LeaseExpiredError, UnkillableError) as error:
        text = redactor.text(f"{error}; run the same command again to resume")
        code = _complain(ExitCode.CANNOT_WRITE, text)
    return prepared.job.exit_codes.get(code, code)


def _provision(prepared: Prepared, *, dry_run: bool) -> int:
    # Here alone, because `run` keeps in memory whatever is imported above.
    from supervisor.provision.command import ProvisionError, provision

    try:
        return provision(prepared, dry_run=dry_run)
    except ProvisionError as error:
        return _complain(error.code, prepared.redactor(os.environ).text(str(error)))


def _validate(options: argparse.Namespace) -> int:
    """Check the config; with --aot for that slice instead of the devices that it names."""
    if options.aot is None:
        return _validate_here(with_env_files(prepare(options.config, options.set)))
    devices = f"trainer.init.devices={{platform: tpu, type: {options.aot.type}}}"
    prepared = prepare(options.config, [*options.set, devices])
    show(prepared)
    try:
        good = compile_ahead(prepared, options.aot)
    except CompileAheadError as error:
        return _complain(ExitCode.USAGE, str(error))
    return 0 if good else int(ExitCode.INVALID_CONFIG)


def _validate_here(prepared: Prepared) -> int:
    """Also check what `run` checks on this machine before it starts anything."""
    try:
        check(prepared)
    except ModelDirError as error:
        code = _complain(ExitCode.CANNOT_WRITE, prepared.redactor(os.environ).text(str(error)))
        return prepared.job.exit_codes.get(code, code)
    show(prepared)
    return 0


def _explain(options: argparse.Namespace) -> int:
    """What neither starts a job nor needs one."""
    own = OwnRules()
    if options.config is not None:
        job = load_job(options.config)
        own = OwnRules(own_rules(job.phases[0]), places_of_rules(job, 0))
    if options.command == "rules":
        return _list_rules(options, own)
    return _classify(options, own)


def _look_on(options: argparse.Namespace) -> int:
    """Where a job stands, and what a person asks of it."""
    try:
        if options.command == "status":
            show_status(options.model_dir)
        elif options.action == "list":
            show_quarantine(options.model_dir)
        else:
            clear_quarantine(options.model_dir, tuple(options.units))
    except DamagedJournalError as error:
        return _complain(ExitCode.INVALID_CONFIG, f"{options.model_dir}: {error}")
    except (JournalError, ValueError, ImportError) as error:
        return _complain(ExitCode.USAGE, str(error))
    except OSError as error:
        return _complain(ExitCode.CANNOT_WRITE, f"{options.model_dir}: {error}")
    return 0


def _classify(options: argparse.Namespace, own: OwnRules) -> int:
    return classify(
        options.logs,
        code=options.exit_code,
        signal_name=options.signal,
        stage=options.stage,
        own=own,
        as_json=options.json,
        with_explanation=options.explain,
    )


def _list_rules(options: argparse.Namespace, own: OwnRules) -> int:
    try:
        list_rules(options.names, own, as_json=options.json)
    except UnknownRuleError as error:
        return _complain(ExitCode.USAGE, str(error))
    return 0


def _complain(code: int, text: str) -> int:
    return _tell(code, [Redactor(os.environ).text(text)])


def _tell(code: int, lines: Iterable[str]) -> int:
    """Print what ends us; `lines` hold no secrets."""
    for line in lines:
        say_on_stderr(f"supervise: {line}")
    return int(code)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="supervise", description="Keep a JAX training run moving.")
    parser.add_argument("--version", action="version", version=f"supervise {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    run = commands.add_parser("run", help="run the job until it succeeds or cannot")
    validate = commands.add_parser("validate", help="check the config and print it resolved")
    ahead = commands.add_parser("provision", help="keep a TPU slice alive that runs the job")
    ahead.add_argument(
        "--dry-run", action="store_true", help="print what would be asked for, and ask for nothing"
    )
    for command in (run, validate, ahead):
        command.add_argument("config", type=Path, metavar="trainer.yaml")
        command.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="override one key: trainer.init.seed=3 (every phase), trainer[1].init.seed=3",
        )
    validate.add_argument(
        "--aot",
        type=_word(parse_topology),
        metavar="TOPOLOGY",
        help="also compile for each rung of a TPU slice that is not there, such as v5e:2x4",
    )
    _add_explaining(commands)
    _add_looking_on(commands)
    run.add_argument(
        "--once",
        action="store_true",
        help="do nothing where the job has succeeded, also if only its exit code says so: for "
        "service managers and containers, which run the command again by themselves",
    )
    run.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="form of our lines on standard output where it is no terminal",
    )
    return parser


def _add_explaining(commands: argparse._SubParsersAction[_Parser]) -> None:
    judge = commands.add_parser("classify", help="judge the failure whose logs are given")
    ended = judge.add_mutually_exclusive_group()
    ended.add_argument(
        "--exit-code", type=_word(parse_code), metavar="N", help="with which it ended"
    )
    ended.add_argument("--signal", type=_word(parse_signal), metavar="NAME", help="that ended it")
    judge.add_argument("--stage", type=_word(parse_stage), metavar="S", help="in which it ended")
    judge.add_argument(
        "logs",
        nargs="+",
        metavar="LOG",
        type=_word(parse_log),
        help="one for each rank; - is standard input; LOG:70 and LOG:SIGABRT also say how it "
        "ended (a file whose name ends so is taken as the file)",
    )
    judge.add_argument(
        "--explain",
        action="store_true",
        help="also print every error with every rule that matches it, and what would change it",
    )
    rules = commands.add_parser(
        "rules", help="list all rules, in the order in which they are asked"
    )
    rules.add_argument("names", nargs="*", metavar="NAME", help="all about these rules alone")
    for command in (judge, rules):
        command.add_argument("--json", action="store_true", help="for programs")
        command.add_argument(
            "--config",
            type=Path,
            metavar="trainer.yaml",
            help="a config whose autorestart.rules come first",
        )


def _add_looking_on(commands: argparse._SubParsersAction[_Parser]) -> None:
    status = commands.add_parser("status", help="tell where the job in a model_dir stands")
    quarantine = commands.add_parser("quarantine", help="devices and hosts that are not used")
    actions = quarantine.add_subparsers(dest="action", required=True, parser_class=_Parser)
    listing = actions.add_parser("list", help="tell which, why and for how long")
    clear = actions.add_parser("clear", help="have them used again")
    for command in (status, listing, clear):
        command.add_argument("model_dir", type=_word(_place), metavar="MODEL_DIR")
    clear.add_argument("units", nargs="*", metavar="UNIT", help="its id; none: all of them")


def _place(text: str) -> Path | Uri:
    return Uri.parse(text) or Path(text)


def _word(parse: Callable[[str], _Parsed]) -> Callable[[str], _Parsed]:
    """`parse` as argparse wants it: its complaint in its own words."""

    def parsed(text: str) -> _Parsed:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed
