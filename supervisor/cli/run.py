"""`supervise run`: runs the job until it succeeds or cannot succeed."""

from __future__ import annotations

import os
import signal
from argparse import Namespace

from supervisor.adapters.stores.journal import DamagedJournalError, JournalError
from supervisor.adapters.stores.lease import LeaseExpiredError, LeaseHeldError, LeaseTakenError
from supervisor.adapters.stores.lock import LockHeldError
from supervisor.adapters.telling.tracebacks import redact_tracebacks
from supervisor.cli.arguments import Commands, add_config
from supervisor.cli.complaints import complain, exit_on_signal
from supervisor.core.exit_codes import ExitCode
from supervisor.guard_keeper import GuardStartError
from supervisor.host.unkillable import UnkillableError
from supervisor.job import run_job
from supervisor.model_dir_ownership import JobGoneError, ModelDirError
from supervisor.prepare import prepare
from supervisor.secret_variables import UnavailableSecretError, with_secrets

_BEFORE_RUNNING_AGAIN = (
    "the same command would begin a new job now: first move model_dir, with its journal, back, or "
    "set model_dir to its new place"
)


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser("run", help="run the job until it succeeds or cannot")
    add_config(parser)
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
        help="the format of the log on standard output, if that is not a terminal",
    )


def run(options: Namespace) -> int:
    """Run the job; returns its exit code, as the config maps it."""
    prepared = prepare(options.config, options.set)
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
        code = run_job(prepared, options.log_format, options.exclusion, once=options.once)
    except (LockHeldError, LeaseHeldError, LeaseTakenError) as error:
        code = complain(ExitCode.OWNED, redactor.text(str(error)))
    except GuardStartError as error:
        code = complain(ExitCode.INVALID_CONFIG, redactor.text(str(error)))
    except JobGoneError as error:
        code = complain(ExitCode.CANNOT_WRITE, redactor.text(f"{error}; {_BEFORE_RUNNING_AGAIN}"))
    except DamagedJournalError as error:
        text = redactor.text(error.message_for(prepared.job.shown_model_dir))
        code = complain(ExitCode.INVALID_CONFIG, text)
    except (JournalError, ModelDirError, LeaseExpiredError, UnkillableError) as error:
        text = redactor.text(f"{error}; run the same command again to resume")
        code = complain(ExitCode.CANNOT_WRITE, text)
    return prepared.job.exit_codes.get(code, code)
