"""`supervise provision`: keeps a TPU slice alive that runs the job (see `supervisor.provision`)."""

from __future__ import annotations

import os
from argparse import Namespace

from supervisor.cli.arguments import Commands, add_config
from supervisor.cli.complaints import complain
from supervisor.prepare import prepare
from supervisor.provision.provisioning import LoopEndedError, provision


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser("provision", help="keep a TPU slice alive that runs the job")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be asked for, and ask for nothing"
    )
    add_config(parser)


def run(options: Namespace) -> int:
    """Keep the slice alive until the job has ended; returns the exit code of the job."""
    prepared = prepare(options.config, options.set)
    try:
        return provision(prepared, dry_run=options.dry_run)
    except LoopEndedError as error:
        return complain(error.code, prepared.redactor(os.environ).text(str(error)))
