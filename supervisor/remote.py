"""Handles a job that is kept in a bucket: reaches the bucket, copies the job to this host, and
mirrors it back while it runs."""

from __future__ import annotations

from functools import partial
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
from supervisor.host.notice import Tell
from supervisor.model_dir_ownership import ModelDirError
from supervisor.ports import Clock, Objects, UnavailableError
from supervisor.protocol.location import Uri

_LEASE_BOUND = 10.0
"""Seconds for one request: equal to the lease's renewal period, so that the lease is renewed soon
after the bucket answers again."""


def reach_bucket(job: Job, patience: float) -> Objects | None:
    """Returns the bucket of the job after it has answered a request; None if the job is in a
    directory. A request may take `patience` seconds.

    Raises:
        ConfigError: the bucket cannot be used until a person mends it.
        ModelDirError: the bucket does not answer now.
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
    """Returns the URI of the job's bucket and the place of its lease; None if the job is in a
    directory."""
    if job.remote is None:
        return None
    return job.remote, LeaseObject(bucket(job.remote, _LEASE_BOUND))


def cache_trust(job: Job) -> Trust:
    """Returns whose compiled programs the job takes from its bucket.

    Raises:
        ConfigError: the key file cannot be read, or has no valid key.
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


def bring_job(
    objects: Objects,
    job: Job,
    trust: Trust,
    epoch: int,
    clock: Clock,
    say: Tell,
) -> Mirror:
    """Copy the job from its bucket to this host; returns the mirror that will keep it in the
    bucket. The caller must `begin` it.

    `epoch` is our lease's; `say` tells a person.

    Raises:
        ModelDirError: the bucket cannot be read, or the folder cannot be written.
    """
    folder, limit = job.model_dir, job.phases[0].init.limits.compile_cache
    try:
        fetch(objects, folder, f"{clock.wall():%Y%m%d_%H%M%S}", say)
        programs = SharedPrograms(objects, folder, trust)
        programs.fetch(limit, say)
        newest = max(epoch, epoch_after(objects))
        return Mirror(objects, folder, newest, say, partial(programs.update, say))
    except OSError as error:
        text = f"the job cannot be brought to {folder}: {error.strerror or error}"
        raise ModelDirError(text) from error
