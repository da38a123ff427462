"""A job in a bucket: reached, brought to this host, and from then on kept there as it goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from supervisor.adapters.bucket import bucket
from supervisor.adapters.fetch import epoch_after, fetch
from supervisor.adapters.lease import LeasePlace
from supervisor.adapters.lease_places import LeaseObject
from supervisor.adapters.mirror import Mirror
from supervisor.config.load import Job
from supervisor.config.problems import ConfigError
from supervisor.exclusion import ModelDirError
from supervisor.ports import Clock, Objects, UnavailableError

_LEASE_BOUND = 10.0
"""Seconds for a request: as often as the lease is renewed, so that it is soon renewed again after
the bucket was away."""


def reach(job: Job) -> Objects | None:
    """The bucket that the job is in, seen to answer; None where it is in a directory.

    Raises:
        ConfigError: it can never be used as it is.
        ModelDirError: it does not answer now.
    """
    if job.remote is None:
        return None
    try:
        objects = bucket(job.remote)
        objects.list("")
    except UnavailableError as error:
        raise ModelDirError(f"{job.remote} cannot be reached: {error.strerror}") from error
    except (OSError, ImportError) as error:
        location = (*job.locations[0], "init", "model_dir")
        message = f"cannot be used: {getattr(error, 'strerror', None) or error}"
        raise ConfigError([job.source.problem(location, message)]) from error
    return objects


def lease_place(job: Job) -> LeasePlace | None:
    """Where the lease on the job's bucket is kept; None where it has none."""
    return LeaseObject(bucket(job.remote, _LEASE_BOUND)) if job.remote is not None else None


def brought(
    objects: Objects, folder: Path, epoch: int, clock: Clock, say: Callable[[str], None]
) -> Mirror:
    """Bring the job to `folder`; what keeps it in the bucket from there on, not begun yet.

    `epoch` is that of our lease; `say` is for what a person should know.

    Raises:
        ModelDirError: the bucket cannot be read, or the folder not be written.
    """
    try:
        fetch(objects, folder, f"{clock.wall():%Y%m%d_%H%M%S}", say)
        return Mirror(objects, folder, max(epoch, epoch_after(objects)), say)
    except OSError as error:
        text = f"the job cannot be brought to {folder}: {error.strerror or error}"
        raise ModelDirError(text) from error
