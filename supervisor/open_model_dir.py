"""Opens the model_dir of a job: takes it, brings the job here if it is in a bucket, and reads its
journal. Until then nothing of the job may be changed or started."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from supervisor.adapters.stores.journal import FileJournal, History, phases_on_record
from supervisor.adapters.stores.lease import (
    LeaseExpiredError,
    LeaseTakenError,
    LeaseTimes,
    owner_of,
)
from supervisor.adapters.stores.lease_places import LeaseFile
from supervisor.adapters.stores.mirror import Mirror, MirroredStorage
from supervisor.adapters.stores.space import RoomMakingStorage, Space
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.core.events import StopRequested
from supervisor.host.identity import Identity
from supervisor.host.notice import Notice
from supervisor.model_dir_ownership import (
    EndProcess,
    Exclusion,
    ModelDir,
    ModelDirError,
    Ownership,
    OwnershipCheck,
    own_checkpoints,
    own_model_dir,
)
from supervisor.owners_on_record import JournaledOwners
from supervisor.ports import Objects, Storage
from supervisor.preflight import Prerequisites, make_model_dir
from supervisor.protocol.reading import UnreadableError
from supervisor.remote import bring_job, lease_place
from supervisor.supervision import Supervision

_FINAL_UPLOAD_TIMEOUT = 20.0
"""Seconds to upload the remaining files to the bucket when the job ends."""
_CACHE_NOT_SHARED = (
    "compiled programs are not kept in the bucket: they are native code, so say whom to trust, by "
    "trainer.init.compile_cache: {key_file: PATH} (whoever has a key that is not in the bucket) or "
    "{from_bucket: true} (whoever may write to the bucket)"
)


@dataclass(frozen=True, slots=True)
class OpenModelDir:
    """The model_dir that we own, and the job in it."""

    ownership: Ownership
    space: Space
    storage: Storage
    journal: FileJournal
    history: History
    job: str
    """The id of the job: from its journal, or a new one."""


def open_model_dir(
    supervision: Supervision, prerequisites: Prerequisites, end: EndProcess
) -> OpenModelDir:
    """Take model_dir for the run; if the job is in a bucket, bring it here and mirror it there.

    For `end` see `own_model_dir`.

    Raises:
        ModelDirError: model_dir cannot be used.
        LockHeldError, LeaseHeldError: another supervisor owns it.
    """
    prepared = supervision.prepared
    make_model_dir(prepared)
    model_dir = prepared.job.model_dir
    space = Space(model_dir, supervision.notice, partial(phases_on_record, LocalStorage(model_dir)))
    storage: Storage = RoomMakingStorage(LocalStorage(model_dir), space)
    ownership = _owned(supervision, storage, prerequisites.objects, end)
    saved_in = (one.checkpoint_dir for one in prepared.plans if not one.is_command)
    places = [place for place in saved_in if isinstance(place, Path)]
    own = own_checkpoints(places, model_dir, supervision.clock, supervision.notice)
    supervision.stack.enter_context(own)
    mirror = _brought(supervision, prerequisites, ownership)
    if mirror is not None:
        storage = MirroredStorage(storage, mirror, partial(_stops_waiting, supervision, ownership))
    journal = FileJournal(storage, tell=supervision.notice)
    history = journal.read()
    if mirror is not None:
        mirror.begin()
        check, complain = ownership.check, supervision.complain
        supervision.stack.callback(_finish_upload, mirror, check, complain)
    job = history.state.job or uuid.uuid4().hex[:12]
    return OpenModelDir(ownership, space, storage, journal, history, job)


def _owned(
    supervision: Supervision, storage: Storage, objects: Objects | None, end: EndProcess
) -> Ownership:
    """Own model_dir until the run ends. Raises what `open_model_dir` raises."""
    job, model_dir = supervision.prepared.job, supervision.prepared.job.model_dir
    exclusion = supervision.options.exclusion
    means = exclusion or Exclusion.needed_by(model_dir, in_bucket=objects is not None)
    record = JournaledOwners(model_dir, objects, had_lease=means.lease is not None)
    has_hosts = job.phases[0].init.hosts is not None
    if means.lease is None and (has_hosts or _has_lease(model_dir)):
        means = replace(means, lease=LeaseTimes())  # its number is the epoch that agents obey
    owning = own_model_dir(
        ModelDir(model_dir, storage, lease_place(job)),
        supervision.instance,
        supervision.clock,
        supervision.reactor,
        supervision.guard,
        means,
        supervision.complain,
        end,
        record,
    )
    try:
        return supervision.stack.enter_context(owning)
    except OSError as error:
        why = error if isinstance(error, UnreadableError) else error.strerror  # it names the file
        raise ModelDirError(f"{job.shown_model_dir} cannot be locked: {why}") from error


def _brought(
    supervision: Supervision, prerequisites: Prerequisites, ownership: Ownership
) -> Mirror | None:
    """Bring the job here, and return the mirror that will keep it in its bucket; None: the job is
    in a directory.

    Raises:
        ModelDirError: it cannot be brought.
    """
    objects, trust = prerequisites.objects, prerequisites.trust
    if objects is None:
        return None
    if not trust.shares:
        told = Notice("compiled-programs-kept-here", _CACHE_NOT_SHARED)
        supervision.notice(told, routine=True)
    job, epoch = supervision.prepared.job, ownership.epoch
    return bring_job(objects, job, trust, epoch, supervision.clock, supervision.notice)


def _stops_waiting(supervision: Supervision, ownership: Ownership) -> bool:
    """Returns True once somebody has asked the job to stop, so that a write stops waiting for the
    bucket. Notes progress for the stall watch. Raises if model_dir is not ours any more."""
    ownership.check()
    supervision.reactor.note_progress()
    return supervision.reactor.has_event(StopRequested)


def _has_lease(model_dir: Path) -> bool:
    """Whether a lease in a folder names an owner: also where no lease is needed (any more), its
    owner may be on another host."""
    try:
        return isinstance(owner_of(LeaseFile(LocalStorage(model_dir), 0.0).read().data), Identity)
    except OSError:
        return False


def _finish_upload(mirror: Mirror, check: OwnershipCheck, complain: Callable[[str], None]) -> None:
    """Upload the remaining files and end the mirror; does not wait if another supervisor may own
    model_dir."""
    try:
        check()
        timeout = _FINAL_UPLOAD_TIMEOUT
    except (LeaseTakenError, LeaseExpiredError):
        timeout = 0.0
    if (why := mirror.close(timeout)) is not None:
        complain(f"the newest files of the job are on this host only, not in the bucket: {why}")
