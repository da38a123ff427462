"""Makes sure that a model_dir has one supervisor: by a lock on this host, and by a lease if other
hosts see model_dir too."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from supervisor.adapters.kernel import clock_watch
from supervisor.adapters.kernel.clock_watch import ClockWatch
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.adapters.stores.lease import (
    Lease,
    LeasePlace,
    LeaseTakenError,
    LeaseTimes,
    OwnersOnRecord,
    is_shared,
    owner_of,
)
from supervisor.adapters.stores.lease_places import LEASE, LeaseFile
from supervisor.adapters.stores.lock import OWNER, DirectoryLock, LockUnsupportedError
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.core.clock_jump import ClockReading
from supervisor.core.events import Noticed, SilenceExcused
from supervisor.core.exit_codes import ExitCode
from supervisor.files.segments import JOURNAL
from supervisor.host.aside import aside
from supervisor.host.notice import Notice, Tell
from supervisor.host.unwritable import UnwritableOnce
from supervisor.ports import Clock, Storage
from supervisor.protocol.environment import Owner
from supervisor.protocol.location import Uri
from supervisor.protocol.this_machine import real_path

_CHECK_INTERVAL = 1.0
_NO_OWNER_FILE = (
    "was changed or deleted, and cannot be written again ({}): until it is, workers that compare "
    "it commit nothing; move away what has its name"
)
_MAIN_THREAD_TIMEOUT = 10.0
"""Seconds that the main thread gets to end the supervisor itself after the lease is lost."""


class ModelDirError(Exception):
    """model_dir cannot be used (read, written or locked), so nothing can be started."""


class JobGoneError(Exception):
    """model_dir disappeared while the job ran: the same command would begin a new job."""


EndProcess = Callable[[ExitCode, str], None]
"""Ends this process with an exit code, and tells people why."""
OwnershipCheck = Callable[[], None]
"""Raises if model_dir may not be ours any more. Call it after every wait."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The means that keep a model_dir to one supervisor."""

    flock: bool = True
    lease: LeaseTimes | None = None
    clocks: Callable[[], ClockReading] = clock_watch.read_clocks
    """With a lease: reads the clocks, which show that the machine slept."""

    @classmethod
    def needed_by(cls, model_dir: Path, *, in_bucket: bool) -> Exclusion:
        """Returns the means that the directory's file system needs; a bucket always needs a
        lease."""
        others_see_it = in_bucket or is_shared(model_dir)
        return cls(lease=LeaseTimes() if others_see_it else None)


@dataclass(frozen=True, slots=True)
class Ownership:
    """Proof that this supervisor owns model_dir."""

    check: OwnershipCheck
    epoch: int = 0
    """The number of this owner of model_dir, counted by the lease; 0 without a lease."""
    owner: Owner | None = None
    """Tells workers who owns model_dir; None: there is neither a lock nor a lease."""
    quiet: float = 0.0
    """See `Lease.quiet`."""


@dataclass(frozen=True, slots=True)
class ModelDir:
    """A model_dir: its directory on this host, what writes files there once we own it, and where
    the lease is kept if not in the directory."""

    directory: Path
    files: Storage
    bucket: tuple[Uri, LeasePlace] | None = None

    @property
    def shown(self) -> str:
        """What people know it by: its path, or the URI of the bucket."""
        return str(self.directory if self.bucket is None else self.bucket[0])

    @property
    def lease_file(self) -> str:
        """The path or URI of the lease file."""
        return str(self.directory / LEASE if self.bucket is None else self.bucket[0] / LEASE)


@contextmanager
def own_model_dir(
    model_dir: ModelDir,
    token: str,
    clock: Clock,
    reactor: Reactor,
    guard: GuardClient,
    exclusion: Exclusion,
    say: Callable[[str], None],
    end: EndProcess,
    record: OwnersOnRecord | None = None,
) -> Iterator[Ownership]:
    """Own model_dir until the end of the block.

    A check once a second, in the main loop, raises in the block when model_dir is lost. `token` is
    unique to this supervisor. `say` tells a person something at once. `end` ends this process from
    another thread, if the main thread does not notice in time that model_dir is lost. For
    `record` see `Lease`.

    Raises:
        ModelDirError: model_dir was deleted or moved, or cannot be written.
        LockHeldError, LeaseHeldError: somebody else owns it.
        LeaseTakenError, LeaseExpiredError: somebody else has, or may have, taken it over.
        OSError: it cannot be locked, or the lease cannot be read or written.
    """

    def notice(told: Notice) -> None:
        reactor.post(Noticed(clock.now(), told))

    with ExitStack() as stack:
        checks: list[OwnershipCheck] = []
        ownership = Ownership(_no_check)
        if exclusion.flock:
            with suppress(LockUnsupportedError):  # then `is_shared` is true as well
                lock = stack.enter_context(_locked(model_dir.directory, model_dir.shown))
                checks.append(lambda: _check_still_there(lock, model_dir))
                if lock.ignored is not None:
                    notice(Notice("lock-ignored", lock.ignored, reason=lock.ignored))
                if exclusion.lease is None:
                    _write_owner_file(lock, model_dir, clock, token, notice)
                    restore = partial(_restore_owner_file, lock, model_dir, notice)
                    unwritable = UnwritableOnce(OWNER, _NO_OWNER_FILE, notice)
                    checks.append(partial(unwritable.attempt, restore))
                    owner = Owner(token, str(model_dir.directory / OWNER))
                    ownership = Ownership(_no_check, owner=owner)
                else:
                    files = replace(model_dir, files=LocalStorage(model_dir.directory))
                    with suppress(ModelDirError):  # only for people; model_dir may not be ours yet
                        _write_owner_file(lock, files, clock, None, notice)
        if exclusion.lease is not None:
            file = LocalStorage(model_dir.directory, writer=f".{token}")
            bucket = model_dir.bucket
            place = bucket[1] if bucket else LeaseFile(file, exclusion.lease.settle)
            times = exclusion.lease
            overdue = partial(_tell_overdue, model_dir.lease_file, times, clock, notice, say)
            lease = _lease(place, times, token, guard, say, end, overdue, record)
            lease.acquire()
            stack.callback(lease.release)
            reaction = _ClockJumpReaction(guard, lease, times, clock, reactor)
            watch = ClockWatch(exclusion.clocks, reaction)
            watch.start()
            stack.callback(watch.stop)
            owner = Owner(token, model_dir.lease_file)
            ownership = Ownership(lease.check, lease.epoch, owner, lease.quiet)
            checks.append(lease.check)

        def check_all() -> None:
            for each in checks:
                each()
            reactor.call_later(_CHECK_INTERVAL, check_all)

        check_all()
        yield ownership


@contextmanager
def own_checkpoints(
    places: Iterable[Path], model_dir: Path, clock: Clock, tell: Tell
) -> Iterator[None]:
    """Keep other jobs of this host out of those `places` of checkpoints, until the end of the
    block. Two jobs that save in one place take each other's steps for theirs. Another job may name
    a place in `model_dir`, too.

    A place that other hosts may see is not locked: a host that is lost would lock its successor
    out. Nor is one whose lock cannot be taken for another reason, which is told.

    Raises:
        LockHeldError: another job saves there.
    """
    with ExitStack() as stack:
        real = {real_path(each) for each in places}
        for place in sorted(real - {real_path(model_dir)}):
            try:
                place.mkdir(parents=True, exist_ok=True)
                if is_shared(place):
                    continue
                shown = f"{place}, where checkpoints are saved,"
                remedy = "give another trainer.init.checkpoint.directory"
                lock = DirectoryLock(place, shown=shown, remedy=remedy)
            except (OSError, LockUnsupportedError) as error:
                tell(_unlocked(place, error))
                continue
            files = LocalStorage(place)
            stack.callback(lock.release, files)
            with suppress(OSError):  # only for people
                lock.claim(files, clock.wall(), None)
        yield


def _unlocked(place: Path, error: OSError | LockUnsupportedError) -> Notice:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    text = f"{place} cannot be locked ({why}): nothing keeps another job from saving there, too"
    return Notice("checkpoints-not-locked", text, place=str(place), reason=why)


@contextmanager
def keep_supervisors_out(
    directory: Path, exclusion: Exclusion, say: Callable[[str], None], record: OwnersOnRecord
) -> Iterator[OwnershipCheck]:
    """Keep every supervisor out of model_dir for the block, which should be short.

    The lock keeps out supervisors on this host, the lease those on other hosts. The block gets an
    `OwnershipCheck`, and must call it before it writes. The lease is taken even where `exclusion`
    has none, if the lease file names an owner or `record` has a job with one.

    Raises:
        LockHeldError, LeaseHeldError: a supervisor owns model_dir.
        OSError: the lock or the lease cannot be read or written.
    """
    token = uuid.uuid4().hex
    files, times = LocalStorage(directory, writer=f".{token}"), exclusion.lease
    with ExitStack() as stack:
        try:
            if exclusion.flock:
                stack.enter_context(_locked(directory))
        except LockUnsupportedError:
            times = times or LeaseTimes()
        place = LeaseFile(files, (times or LeaseTimes()).settle)
        if times is None and owner_of(place.read().data) is None and not record.is_in_use():
            yield _no_check
            return
        lease = Lease(
            place,
            times or LeaseTimes(),
            token,
            on_renewed=lambda seconds: None,
            on_lost=lambda error: None,
            say=say,
            record=record,
        )
        lease.acquire()
        stack.callback(lease.release)
        yield lease.check


def _no_check() -> None:
    """The check without a lease: nobody can take model_dir over while we hold its lock."""


@contextmanager
def _locked(directory: Path, shown: str = "") -> Iterator[DirectoryLock]:
    lock = DirectoryLock(directory, shown=shown)
    try:
        yield lock
    finally:
        lock.release(LocalStorage(directory))


def _write_owner_file(
    lock: DirectoryLock,
    model_dir: ModelDir,
    clock: Clock,
    token: str | None,
    notice: Tell,
) -> None:
    """Write the owner file, which tells the workers the owner's `token`; None: for people only.

    Raises:
        ModelDirError: it cannot be written.
    """
    try:
        foreign = lock.claim(model_dir.files, clock.wall(), token)
    except OSError as error:
        text = f"{model_dir.directory / OWNER} cannot be written: {error.strerror}"
        raise ModelDirError(text) from error
    if foreign is not None:
        notice(
            Notice(
                "file-set-aside",
                f"{model_dir.directory / OWNER} was not ours: renamed to {foreign.name}",
                place=str(model_dir.directory / OWNER),
            )
        )


def _check_still_there(lock: DirectoryLock, model_dir: ModelDir) -> None:
    """Check that model_dir and its lock file are still the ones we locked. Without this check a
    trainer could run on for hours in a deleted folder.

    Raises:
        ModelDirError: one of them was deleted, moved or replaced.
    """
    try:
        is_there = aside(str(model_dir.directory)).ask(lock.holds)
    except TimeoutError:  # the check failed: assume that we still own it
        return
    if not is_there:  # there may be a new one, which somebody else may own
        raise ModelDirError(
            f"{model_dir.directory}, or the lock file in it, was deleted or moved while the job ran"
        )


def is_gone(model_dir: Path) -> bool:
    """Whether the journal of model_dir is missing; False if the file system does not answer."""
    try:
        return not aside(str(model_dir)).ask(lambda: os.path.lexists(model_dir / JOURNAL))
    except TimeoutError:
        return False


def _restore_owner_file(lock: DirectoryLock, model_dir: ModelDir, notice: Tell) -> None:
    """Write the owner file again if it was changed or deleted: workers commit nothing without it.

    Raises:
        OSError: it cannot be written now.
    """
    with suppress(TimeoutError):  # nobody knows whether it was changed
        if aside(str(model_dir.directory)).ask(lambda: lock.restore(model_dir.files)):
            notice(
                Notice(
                    "file-restored",
                    f"{OWNER} was changed or deleted while the job runs: written again",
                    place=OWNER,
                )
            )


@dataclass(frozen=True, slots=True)
class _ClockJumpReaction:
    """Stops the workers (SIGSTOP) after a clock jump, until the lease confirms that model_dir is
    ours."""

    guard: GuardClient
    lease: Lease
    times: LeaseTimes
    clock: Clock
    reactor: Reactor

    def stop(self, why: str) -> None:
        """See `clock_watch.JumpHandler`."""
        wait = "the workers stand still until the lease on model_dir is renewed"
        text = f"{why}: {wait}, and are killed if it is not within {self.times.renew:g} s"
        self.reactor.post(SilenceExcused(self.clock.now(), self.times.renew, text))
        if not self.guard.stop_workers():
            text = "some of the workers wait in the kernel: they stand still once that is over"
            self.reactor.post(Noticed(self.clock.now(), Notice("workers-not-still", text)))

    def is_ours(self, why: str) -> bool:
        """See `clock_watch.JumpHandler`."""
        return self.lease.is_ours(why)

    def go_on(self, seconds: float) -> None:
        """See `clock_watch.JumpHandler`."""
        self.guard.continue_workers()
        text = (
            f"model_dir is still ours: the workers go on after they stood still for {seconds:.1f} s"
        )
        told = Notice("workers-continued", text, seconds=seconds)
        self.reactor.post(Noticed(self.clock.now(), told))


def _lease(
    place: LeasePlace,
    times: LeaseTimes,
    token: str,
    guard: GuardClient,
    say: Callable[[str], None],
    end: EndProcess,
    on_overdue: Callable[[float | None], None],
    record: OwnersOnRecord | None,
) -> Lease:
    def lost(error: Exception) -> None:
        """Kill the workers, and end this process if the main thread does not do it in time; called
        in another thread. The main thread notices by `check`, but it may hang."""
        guard.request_kill()
        time.sleep(_MAIN_THREAD_TIMEOUT)
        if isinstance(error, LeaseTakenError):
            end(ExitCode.OWNED, str(error))
        else:
            end(ExitCode.CANNOT_WRITE, f"{error}; run the same command again to resume")

    return Lease(
        place,
        times,
        token,
        on_renewed=guard.kill_unless_renewed,
        on_lost=lost,
        say=say,
        on_overdue=on_overdue,
        record=record,
    )


def _tell_overdue(
    place: str,
    times: LeaseTimes,
    clock: Clock,
    notice: Tell,
    say: Callable[[str], None],
    seconds: float | None,
) -> None:
    """Tell that the lease was renewed `seconds` ago and is not now; None: it is renewed again.

    `say` tells it at once: the main loop may be waiting for the same place.
    """
    if seconds is None:
        told = Notice("lease-renewed", "the lease on model_dir is renewed again", place=place)
    else:
        since = clock.wall() - timedelta(seconds=seconds)
        end = since + timedelta(seconds=times.kill)
        text = (
            f"the lease on model_dir was not renewed since {since:%H:%M:%S}: {place} cannot be "
            "written. What the supervisor writes there waits; if that lasts until "
            f"{end:%H:%M:%S}, it kills the workers and ends"
        )
        told = Notice("lease-overdue", text, place=place, seconds=seconds)
    notice(told)
    say(told)
