"""A job in a bucket: reached, brought to this host, and from then on kept there as it goes on."""

from __future__ import annotations

from pathlib import Path

from supervisor.adapters.stores.bucket import bucket
from supervisor.adapters.stores.fetch import epoch_after, fetch
from supervisor.adapters.stores.lease import LeasePlace
from supervisor.adapters.stores.lease_places import LeaseObject
from supervisor.adapters.stores.mirror import Mirror
from supervisor.adapters.stores.shared_programs import SharedPrograms, read_key
from supervisor.config.load import Job
from supervisor.config.problems import ConfigError
from supervisor.core.cache_trust import Trust
from supervisor.exclusion import ModelDirError
from supervisor.host.notice import Tell
from supervisor.ports import Clock, Objects, UnavailableError
from supervisor.protocol.location import Uri

_LEASE_BOUND = 10.0
"""Seconds for a request: as often as the lease is renewed, so that it is soon renewed again after
the bucket was away."""


def reach(job: Job, patience: float) -> Objects | None:
    """Return the bucket that the job is in, seen to answer within `patience` seconds; None where
    the job is in a directory.

    Raises:
        ConfigError: it can never be used as it is.
        ModelDirError: it does not answer now.
    """
    if job.remote is None:
        return None
    try:
        objects = bucket(job.remote, patience)
        objects.list("")
    except UnavailableError as error:
        why = str(error.strerror).removeprefix(f"{job.remote}: ")
        raise ModelDirError(f"{job.remote} cannot be reached: {why}") from error
    except (OSError, ImportError) as error:
        location = (*job.locations[0], "init", "model_dir")
        message = f"cannot be used: {getattr(error, 'strerror', None) or error}"
        raise ConfigError([job.source.problem(location, message)]) from error
    return objects


def lease_place(job: Job) -> tuple[Uri, LeasePlace] | None:
    """The job's bucket, and where the lease on it is kept; None where it has none."""
    if job.remote is None:
        return None
    return job.remote, LeaseObject(bucket(job.remote, _LEASE_BOUND))


def cache_trust(job: Job) -> Trust:
    """Whose compiled programs the job takes from its bucket.

    Raises:
        ConfigError: the key cannot be used.
    """
    given = job.phases[0].init.compile_cache
    if job.remote is None or given.key_file is None:
        return Trust(from_bucket=given.from_bucket)
    try:
        return Trust(read_key(Path(given.key_file).expanduser()))
    except (OSError, ValueError) as error:
        location = (*job.locations[0], "init", "compile_cache", "key_file")
        message = f"cannot be used: {error if isinstance(error, ValueError) else error.strerror}"
        raise ConfigError([job.source.problem(location, message)]) from error


def brought(
    objects: Objects,
    job: Job,
    trust: Trust,
    epoch: int,
    clock: Clock,
    say: Tell,
) -> Mirror:
    """Bring the job to this host; what keeps it in the bucket from there on, not begun yet.

    `epoch` is that of our lease; `say` is for what a person should know.

    Raises:
        ModelDirError: the bucket cannot be read, or the folder not be written.
    """
    folder, limit = job.model_dir, job.phases[0].init.limits.compile_cache
    try:
        fetch(objects, folder, f"{clock.wall():%Y%m%d_%H%M%S}", say)
        programs = SharedPrograms(objects, folder, trust)
        programs.fetch(limit, say)
        newest = max(epoch, epoch_after(objects))
        return Mirror(objects, folder, newest, say, programs.update)
    except OSError as error:
        text = f"the job cannot be brought to {folder}: {error.strerror or error}"
        raise ModelDirError(text) from error
