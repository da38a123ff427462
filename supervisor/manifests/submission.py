"""What a batch system has to know of a job, made from its config."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from supervisor.config.generations import CHIPS_PER_HOST_OF_SEVERAL
from supervisor.config.load import Job
from supervisor.config.problems import ConfigError, Problem
from supervisor.config.schema import Hosts
from supervisor.config.topology import SliceShape, parse_slice
from supervisor.core.exit_codes import ExitCode

_MARGIN = 35
"""Seconds that a host gets beyond the grace period: for the commit, the journal and Ray's end."""


@dataclass(frozen=True, slots=True)
class Codes:
    """The exit codes of `supervise run` other than 0, in the config's numbers."""

    for_good: tuple[int, ...]
    """A person has to change something first."""
    again: tuple[int, ...]
    """The same command goes on with the job."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job, as a batch system sees it."""

    name: str
    config: str
    """The path of the config where the job is submitted."""
    overrides: tuple[str, ...]
    """The `--set` options."""
    model_dir: str | None
    """None: it is in a bucket, so that no volume is needed."""
    hosts: Hosts | None
    """None: the job runs on one host, without Ray."""
    platform: str | None
    """The kind of accelerators; None: the config does not say."""
    devices_per_host: int | None
    """None: the config does not say how many devices there are."""
    slice: SliceShape | None
    """The TPU slice of which the job has one or several."""
    grace: int
    """Seconds between SIGTERM and SIGKILL of a host: the grace period and a margin."""
    codes: Codes

    @property
    def num_hosts(self) -> int:
        """How many hosts to ask for, with the spares."""
        return 1 if self.hosts is None else self.hosts.count + self.hosts.spares

    @property
    def hosts_per_slice(self) -> int:
        """How many hosts are lost together; 1 where no slice spans several."""
        if self.slice is None or self.slice.is_part_of_a_host:
            return 1
        return self.slice.chips // CHIPS_PER_HOST_OF_SEVERAL


def submission_of(job: Job, name: str | None, config: str, overrides: Sequence[str]) -> Submission:
    """Returns the submission of `job`. `name` is None: that of the model_dir.

    Raises:
        ConfigError: no batch system could start the job.
    """
    init = job.phases[0].init
    devices, count = init.devices, init.hosts.count if init.hosts is not None else 1
    number = devices.num_devices if devices is not None else None
    found = Submission(
        name=name or _name(str(job.shown_model_dir)),
        config=config,
        overrides=tuple(overrides),
        model_dir=init.model_dir if job.remote is None else None,
        hosts=init.hosts,
        platform=devices.platform if devices is not None else None,
        devices_per_host=number // count if number is not None else None,
        slice=parse_slice(devices.type) if devices is not None and devices.type else None,
        grace=math.ceil(init.autorestart.grace_period) + _MARGIN,
        codes=codes_of(job.exit_codes),
    )
    if problems := [*_problems(job, found)]:
        raise ConfigError(problems)
    return found


def codes_of(exit_codes: Mapping[int, int]) -> Codes:
    """Returns the exit codes other than 0, as `exit_codes` maps them. A number that stands for both
    kinds is for good: to run a job again that cannot succeed costs machines."""
    failures = [code for code in ExitCode if code is not ExitCode.SUCCEEDED]
    for_good = {exit_codes.get(code, int(code)) for code in failures if not code.run_again} - {0}
    again = {exit_codes.get(code, int(code)) for code in failures if code.run_again} - {0}
    return Codes(tuple(sorted(for_good)), tuple(sorted(again - for_good)))


def _problems(job: Job, found: Submission) -> Iterator[Problem]:
    """Yields what no batch system could start; `config.many_hosts` has checked the rest."""
    hosts, slice_hosts = found.hosts, found.hosts_per_slice
    if hosts is None:
        if slice_hosts > 1:
            assert found.slice is not None
            yield job.problem(
                0,
                ("init", "devices", "type"),
                f"is {found.slice.type}, which has {slice_hosts} hosts: give init.hosts too, "
                f"such as {{engine: ray, count: {slice_hosts}}}",
            )
        return
    if hosts.address != "auto":
        yield job.problem(
            0,
            ("init", "hosts", "address"),
            f"is {hosts.address}, but what this command prints starts a cluster for the job: use "
            "auto, or run the job in your cluster by `supervise run`",
        )
    if hosts.spares % slice_hosts:
        yield job.problem(
            0,
            ("init", "hosts", "spares"),
            f"is {hosts.spares}, but slices come whole: use a multiple of {slice_hosts}",
        )


def _name(model_dir: str) -> str:
    """Returns the end of `model_dir` as a name that Kubernetes accepts (RFC 1035, 40 characters:
    what JobSet and KubeRay add to it must fit into 63)."""
    text = re.sub(r"[^a-z0-9]+", "-", posixpath.basename(model_dir.rstrip("/")).lower()).strip("-")
    return (text if text[:1].isalpha() else f"job-{text}")[:40].strip("-")
