"""`supervise gang`: runs one job on all hosts of an allocation, where no Ray cluster stands."""

from __future__ import annotations

import math
import os
import sys
from argparse import Namespace

from supervisor.cli.arguments import Commands, add_config
from supervisor.cli.complaints import complain
from supervisor.cli.run import add_service_options
from supervisor.config.load import Job, load_job
from supervisor.config.problems import ConfigError
from supervisor.core.exit_codes import ExitCode
from supervisor.gang.gang_record import RecordPlace
from supervisor.gang.launcher import Launcher, find_ray
from supervisor.gang.which_host import place_of
from supervisor.host.gang_config import digest_of

_MARGIN = 5
"""Seconds for the leader to notice that a host is drained."""


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "gang",
        help="run a job on all hosts of an allocation",
        description="Run a job on all hosts of an allocation (Slurm, JobSet, TPU VMs): start the "
        "same command on each.",
    )
    add_config(parser)
    add_service_options(parser)
    parser.add_argument(
        "--index",
        type=int,
        metavar="N",
        help="the index of this host; the first one, 0, leads. Without it: what Slurm, an indexed "
        "Kubernetes Job or GKE tells",
    )
    parser.add_argument(
        "--head",
        metavar="HOST[:PORT]",
        help="the first host, as the others reach it. Without it: what Slurm or GKE tells, and "
        "port 6379",
    )
    parser.add_argument(
        "--launch",
        metavar="ID",
        help="what all hosts of one start have in common, and no other start. With it, a host that "
        "comes after the end of the job ends too. Without it: the job of Slurm, if there is one",
    )


def run(options: Namespace) -> int:
    """Run the job with the other hosts; returns the exit code of the leader, as it maps it."""
    job = load_job(options.config, options.set)
    _check(job)
    try:
        place = place_of(os.environ, options.index, options.head, options.launch)
    except ValueError as error:
        return complain(ExitCode.USAGE, str(error))
    if (ray := find_ray()) is None:
        text = "the command `ray` is missing: install the [ray] extra on each host"
        return _mapped(job, complain(ExitCode.INVALID_CONFIG, text))
    grace = math.ceil(job.phases[0].init.autorestart.grace_period) + _MARGIN
    try:
        record = RecordPlace(job.shown_model_dir)
        config = digest_of(job.source.data)
        leader, codes = _leader(options), job.exit_codes
        return Launcher(place, record, leader, ray, grace, codes, config).work()
    except ImportError as error:
        return _mapped(job, complain(ExitCode.INVALID_CONFIG, str(error)))
    except OSError as error:
        return _mapped(job, complain(ExitCode.CANNOT_WRITE, f"model_dir: {error}"))


def _check(job: Job) -> None:
    hosts = job.phases[0].init.hosts
    if hosts is not None and hosts.address != "auto":
        message = (
            f"is {hosts.address}, but `supervise gang` starts a cluster for the job: use auto, or "
            "run the job in your cluster by `supervise run`"
        )
        raise ConfigError([job.problem(0, ("init", "hosts", "address"), message)])


def _mapped(job: Job, code: int) -> int:
    return job.exit_codes.get(code, code)


def _leader(options: Namespace) -> list[str]:
    """Returns the command that leads, with our own options."""
    command = [sys.executable, "-m", "supervisor", "run", "--log-format", options.log_format]
    if options.once:
        command.append("--once")
    if options.alive_file is not None:
        command += ["--alive-file", str(options.alive_file)]
    for override in options.set:
        command += ["--set", override]
    return [*command, str(options.config)]
