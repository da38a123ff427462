"""`supervise run`: runs the job until it succeeds or cannot succeed."""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from errno import EMFILE, ENFILE
from pathlib import Path

from supervisor.adapters.stores.journal import DamagedJournalError, JournalError
from supervisor.adapters.stores.lease import LeaseExpiredError, LeaseHeldError, LeaseTakenError
from supervisor.adapters.stores.lock import LockHeldError
from supervisor.adapters.telling.tracebacks import redact_tracebacks
from supervisor.cli.arguments import Commands, Parser, with_own_message
from supervisor.cli.complaints import complain, exit_on_signal
from supervisor.cli.job_options import UsageError, add_job, job_given
from supervisor.cli.saved_config import PATHS_BEGIN, NotWrittenError, commented, write_config
from supervisor.core.exit_codes import ExitCode
from supervisor.engine_choice import NoClusterError
from supervisor.engines.guard_watch import GuardStartError
from supervisor.host.unkillable import UnkillableError
from supervisor.job import run_job
from supervisor.model_dir_ownership import JobGoneError, ModelDirError
from supervisor.prepare import Prepared, prepare_job
from supervisor.secret_variables import UnavailableSecretError, with_secrets
from supervisor.supervision import RunOptions
from supervisor.web.http_address import HttpAddress

_BEFORE_RUNNING_AGAIN = (
    "the same command would begin a new job now: first move model_dir, with its journal, back, or "
    "set model_dir to its new place"
)
_NO_THREAD = "can't start new thread"
_NO_MEMORY = (
    "no thread can be started, or no memory be had, so no job can run: raise the limit "
    "(`ulimit -v` for memory, `ulimit -u` or the container's pids.max for processes and threads), "
    "then run the same command again to resume"
)
_NO_DESCRIPTOR = (
    "too many open files: raise the limit (`ulimit -n 1024`), then run the same command again to "
    "resume"
)
_HEAD = f"Written by `supervise run --save-config` from a command.\n{PATHS_BEGIN}"


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "run",
        help="run the job until it succeeds or cannot",
        description="Run the job until it succeeds or cannot: that of a config (supervise run "
        "trainer.yaml), or any command (supervise run -- python train.py --lr 1e-3).",
    )
    add_job(parser)
    add_service_options(parser)
    parser.add_argument(
        "--http",
        type=with_own_message(HttpAddress.parse),
        metavar="ADDRESS",
        help="show the job at this IP address and port while it runs, as `supervise serve` does: "
        "127.0.0.1:9090",
    )


def add_service_options(parser: Parser) -> None:
    """Add the options for whatever starts the command by itself, and reads its log."""
    parser.add_argument(
        "--once",
        action="store_true",
        help="do nothing where the job has succeeded, also if only its exit code says so: for "
        "service managers and containers, which run the command again by themselves",
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="the format of the log on standard output; a terminal shows `text` as a live view",
    )
    parser.add_argument(
        "--alive-file",
        type=Path,
        metavar="PATH",
        help="touch this file every 5 s while the supervisor's loop turns: a health check that "
        "finds it a minute old knows that the supervisor hangs",
    )


def run(options: Namespace) -> int:
    """Run the job; returns its exit code, as the config maps it. With --save-config, write its
    config instead."""
    try:
        prepared = prepare_job(job_given(options))
    except UsageError as error:
        return complain(ExitCode.USAGE, str(error))
    if options.save_config is not None:
        return _save(prepared, options.save_config)
    redact_tracebacks(prepared.redactor(os.environ).text)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, exit_on_signal)
    try:
        prepared = with_secrets(prepared)
    except UnavailableSecretError as error:
        code = complain(ExitCode.CANNOT_WRITE, f"{error}; run the same command again")
        return prepared.job.exit_codes.get(code, code)
    redactor = prepared.redactor(os.environ)
    redact_tracebacks(redactor.text)
    try:
        code = _run_within_limits(prepared, options)
    except (LockHeldError, LeaseHeldError, LeaseTakenError) as error:
        code = complain(ExitCode.OWNED, redactor.text(str(error)))
    except (GuardStartError, NoClusterError) as error:
        is_cluster = isinstance(error, NoClusterError)
        failed = ExitCode.NO_CAPACITY if is_cluster else ExitCode.INVALID_CONFIG
        code = complain(failed, redactor.text(str(error)))
    except JobGoneError as error:
        code = complain(ExitCode.CANNOT_WRITE, redactor.text(f"{error}; {_BEFORE_RUNNING_AGAIN}"))
    except DamagedJournalError as error:
        text = redactor.text(error.message_for(prepared.job.shown_model_dir))
        code = complain(ExitCode.INVALID_CONFIG, text)
    except (JournalError, ModelDirError, LeaseExpiredError, UnkillableError) as error:
        text = redactor.text(f"{error}; run the same command again to resume")
        code = complain(ExitCode.CANNOT_WRITE, text)
    return prepared.job.exit_codes.get(code, code)


def _run_within_limits(prepared: Prepared, options: Namespace) -> int:
    """Run the job; returns its exit code, also where no thread can be started, or no file be
    opened."""
    try:
        return run_job(
            prepared,
            RunOptions(
                options.log_format,
                options.exclusion,
                options.once,
                options.alive_file,
                None if options.http is None else str(options.http),
            ),
        )
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and _NO_THREAD not in str(error):
            raise
        return complain(ExitCode.CANNOT_WRITE, _NO_MEMORY)
    except OSError as error:
        if error.errno not in (EMFILE, ENFILE):
            raise
        return complain(ExitCode.CANNOT_WRITE, _NO_DESCRIPTOR)


def _save(prepared: Prepared, path: Path) -> int:
    """Write the config of a command to `path`; returns the exit code."""
    try:
        for line in write_config(path, prepared, commented(prepared.job, _HEAD)):
            print(line)
    except NotWrittenError as error:
        code = ExitCode.USAGE if error.exists else ExitCode.CANNOT_WRITE
        return complain(code, f"--save-config: {error}")
    return 0
