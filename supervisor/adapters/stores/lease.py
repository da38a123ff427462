"""One supervisor per model_dir among many hosts: a lease in a place that all of them see.

The owner rewrites `lease.json` every `renew` seconds. A supervisor that wants the lease watches the
file: if it does not change for `duration` seconds of the watcher's own clock, the owner is dead.
Clocks of two hosts are never compared. With the numbers used (60 s, renewed every 10 s):

* An owner that cannot renew (frozen, cut off, storage gone) must not have workers any more once
  somebody may take over. The guard process, which needs neither the supervisor nor the storage,
  kills them `duration - renew` seconds after the last renewal *began*: ahead of any takeover.
* An owner finds another's token at its next look: it kills its group and gives up. That look comes
  at once where a clock shows that the host slept or was frozen, and the workers stand still until
  then (`clock_watch`, `Lease.is_ours`); at most `renew` seconds later where no clock shows it.
* Every write names the version that it replaces. How far a place can keep to that: `lease_places`.
* Somebody may delete the lease, or put an old copy in its place. The owner writes it again at its
  next renewal, unless another supervisor has taken it: then the owner gives up. The journal names
  the owners of a job. A newcomer that finds no lease, or one of an earlier owner than the last, but
  a job that is not over, watches for `duration` seconds as if the last owner lived.

Each owner has an `epoch`, which is above that of every owner before, in the lease and on record: it
tells apart what two of them wrote, whichever was later.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from supervisor.host.identity import Identity
from supervisor.ports import ConflictError, StoredObject
from supervisor.protocol.reading import UnreadableError, parse_object
from supervisor.protocol.this_machine import file_system

_LOCAL = {
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay"),
    *("tmpfs", "ramfs", "rootfs"),
}
_MAX_EPOCH = 10**8 - 1
"""Largest valid epoch of a lease: the names of segments have eight digits."""
_MAX_RECORDED = 10**7
"""Largest epoch on record that is believed: a new owner each second for months. Those after it have
room below `_MAX_EPOCH`."""
_FIRST_DAY = 1_577_836_800
"""The Unix time at which 2020 began."""
_UNREADABLE = "unreadable"
"""The token that stands for a lease that cannot be read; see also `lease_places.UNREADABLE`."""
_LOOK = 0.5
"""Seconds between two reads of another's lease, and before a failed renewal is tried again."""
_OVERDUE = 1.5
"""Renewal periods without a renewal after which people are told that the lease is overdue."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The lease's periods in seconds; equal for all supervisors that share a model_dir."""

    duration: float = 60.0
    renew: float = 10.0
    settle: float = 1.0

    @property
    def kill(self) -> float:
        """Seconds without a renewal after which the workers are killed."""
        return self.duration - self.renew


class LeasePlace(Protocol):
    """Where a lease is kept. Errors are OSErrors."""

    def read(self) -> StoredObject:
        """Read the lease; data and version are empty if there is none."""
        ...

    def write(self, data: bytes, expected: str) -> str:
        """Replace the version `expected` by `data`; returns the new version.

        Raises:
            ConflictError: the present version is another one. It may be our own, if the answer to
                an earlier write was lost.
        """
        ...


class OwnersOnRecord(Protocol):
    """What the journal of model_dir says of the owners before us."""

    def highest_epoch(self) -> int | None:
        """Returns the highest epoch of them; 0: it names none; None: it cannot be read."""
        ...

    def is_in_use(self) -> bool:
        """Returns whether there is a job that another supervisor may run under a lease: one that is
        not over, or a journal that cannot be read."""
        ...


class NoOwnersOnRecord:
    """The record of a model_dir without a job."""

    def highest_epoch(self) -> int | None:
        """See `OwnersOnRecord`."""
        return 0

    def is_in_use(self) -> bool:
        """See `OwnersOnRecord`."""
        return False


class LeaseHeldError(Exception):
    """Another supervisor has the lease and renews it; the text says who, and what to do."""


class LeaseTakenError(Exception):
    """Another supervisor has taken our lease over: model_dir is not ours any more."""


class LeaseExpiredError(Exception):
    """The lease could not be renewed in time: model_dir may not be ours any more."""


class Lease:
    """The lease on a model_dir: taken, then kept by a thread of its own until released."""

    def __init__(
        self,
        place: LeasePlace,
        times: LeaseTimes,
        token: str,
        *,
        on_renewed: Callable[[float], None],
        on_lost: Callable[[Exception], None],
        say: Callable[[str], None],
        on_overdue: Callable[[float | None], None] = lambda seconds: None,
        record: OwnersOnRecord | None = None,
    ) -> None:
        """`token` is unique to this owner.

        `on_renewed` is called in the lease's thread with the seconds for which workers may live
        without another renewal. `on_lost` is called in that thread, or in the one that calls
        `is_ours`, when the workers must be killed. `say` tells a person that we wait for the lease.
        `on_overdue` is called by `check`, with the seconds since the last renewal once the next one
        is overdue, and with None once it has come. `record`: None: there is no job.
        """
        self._place = place
        self._times = times
        self._on_renewed = on_renewed
        self._on_lost = on_lost
        self._say = say
        self._on_overdue = on_overdue
        self._record = record or NoOwnersOnRecord()
        self._is_overdue = False
        self._identity = Identity.of_this_process()
        self._token = token
        self._count = 0
        self._epoch = 0
        self._quiet = 0.0
        self._version = ""
        self._before = StoredObject(b"", "")
        """The lease that was there before ours."""
        self._renewed = 0.0
        self._confirmed = 0.0
        self._answered = threading.Condition()
        self._wake = threading.Event()
        self._settled = threading.Event()
        self._settled.set()
        self._end = threading.Event()
        self._lost = threading.Event()
        self._failure = ""
        """Why the last failed renewal failed."""
        self._error: LeaseTakenError | LeaseExpiredError | None = None
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def acquire(self) -> None:
        """Take the lease and begin to renew it. Waits until the lease of a silent owner expires.

        Raises:
            LeaseHeldError: its owner is alive, or another supervisor was faster.
            OSError: the storage does not work.
        """
        first = found = self._place.read()
        highest = self._highest_on_record(self._say)
        if self._may_have_an_owner(found, highest):
            found = self._wait_until_free(found, highest)
            highest = self._highest_on_record()
            if not highest and not _epoch(first.data):  # nobody knows that of the owner before us
                highest = _epoch_of_today()
        self._epoch = 1 + max(_epoch(first.data), _epoch(found.data), highest or 0)
        self._version = found.version
        self._before = found
        try:
            self._write()
        except ConflictError:
            found = self._place.read()
            if _token(found.data) != self._token:
                raise LeaseHeldError(_who(found.data)) from None
            self._version = found.version
            self._write()
        self._on_renewed(self._renewed + self._times.kill - _now())
        self._thread.start()

    @property
    def epoch(self) -> int:
        """The number of this owner of model_dir, counted from 1; valid once acquired."""
        return self._epoch

    @property
    def quiet(self) -> float:
        """For how many seconds no owner before us has passed a `check` when we took the lease.

        An owner's `check` fails `kill` seconds after its last renewal began, and we have watched
        the lease for `duration` seconds without one. 0: it was free, or its owner is dead.
        """
        return self._quiet

    def check(self) -> None:
        """Check that model_dir is certainly ours. Call it after every wait.

        Waits while `is_ours` is renewing in doubt: until then nothing may be started or written.

        Raises:
            LeaseTakenError, LeaseExpiredError: it is not, or not certainly, ours.
        """
        self._settled.wait(self._times.renew)
        self._look_whether_overdue()
        if self._error is None and self._is_late():
            self._lost.wait(self._times.renew)  # to hear who has it; bounded: storage may hang
            self._error = self._error or self._expired()
        if self._error is not None:
            raise self._error

    def _look_whether_overdue(self) -> None:
        since = _now() - self._renewed
        is_overdue = since > _OVERDUE * self._times.renew
        if is_overdue != self._is_overdue and self._error is None:
            self._is_overdue = is_overdue
            self._on_overdue(since if is_overdue else None)

    def is_ours(self, why: str) -> bool:
        """Renews the lease now. Returns True if that succeeds; otherwise the lease is lost.

        `why` tells people what makes it doubtful. No answer within `renew` seconds counts as a
        failure. Called from another thread than the lease's, which may hang in an earlier renewal.
        """
        asked = _now()
        self._settled.clear()
        self._wake.set()
        with self._answered:
            self._answered.wait_for(lambda: self._is_known_since(asked), self._times.renew)
            known = self._is_known_since(asked)
        if not known:
            text = f"the lease on model_dir could not be renewed within {self._times.renew:g} s"
            self._lose(LeaseExpiredError(f"{why}, and {text}"))
        self._settled.set()
        return self._error is None

    def _is_known_since(self, asked: float) -> bool:
        return self._confirmed >= asked or self._error is not None or self._end.is_set()

    def release(self) -> None:
        """Stop renewing and free the lease, so that the next owner need not wait. Does nothing if
        the lease is lost."""
        self._end.set()
        self._wake.set()
        if self._error is None:
            self._thread.join(self._times.renew)  # bounded: storage may hang; then it runs out

    def _highest_on_record(self, say: Callable[[str], None] = lambda text: None) -> int | None:
        """Returns the highest epoch of an owner on record; None: it is not known, or damaged."""
        highest = self._record.highest_epoch()
        if highest is None or 0 <= highest <= _MAX_RECORDED:
            return highest
        say(
            f"the journal names an owner with the epoch {highest}, which no supervisor can have "
            "written: it is not believed"
        )
        return None

    def _may_have_an_owner(self, found: StoredObject, highest: int | None) -> bool:
        """Whether a supervisor may live that owns model_dir; `highest`: the highest epoch of an
        owner on record."""
        owner = owner_of(found.data)
        if _is_of_the_last(found, highest):
            return owner is not None and not (isinstance(owner, Identity) and owner.is_dead)
        return owner is not None or self._record.is_in_use()

    def _wait_until_free(self, found: StoredObject, highest: int | None) -> StoredObject:
        """Wait until the owner of model_dir has released the lease, or was silent for so long that
        it is dead; returns what the place holds then."""
        owner = owner_of(found.data)
        whose = f"model_dir has a lease of {owner}"
        if owner is None:
            lease = "its lease is an old copy" if found.data else "it has no lease"
            whose = f"model_dir has a job that another supervisor may run, and {lease}"
        self._say(f"{whose}: waiting up to {self._times.duration:g} s to see whether it is alive")
        end = time.monotonic() + self._times.duration  # without the time our machine sleeps
        while time.monotonic() < end:
            time.sleep(min(_LOOK, self._times.renew / 4))
            seen = self._place.read()
            if seen.version == found.version:
                continue
            if owner_of(seen.data) is not None:
                raise LeaseHeldError(_who(seen.data))
            found = seen
            if _is_of_the_last(seen, highest):
                return seen
        self._quiet = self._times.duration - self._times.kill
        return found

    def _keep(self) -> None:
        pause = self._times.renew
        while self._is_kept_for(pause):
            try:
                self._renew()
                pause = max(self._renewed + self._times.renew - _now(), 0.0)
            except (LeaseTakenError, LeaseExpiredError) as error:
                self._lose(error)
                return
            except OSError as error:
                self._failure = error.strerror or str(error)
                pause = min(_LOOK, self._times.renew / 4)
        if self._error is None:
            with suppress(OSError):
                body = {"token": None, "epoch": self._epoch}
                self._place.write(json.dumps(body).encode(), self._version)

    def _is_kept_for(self, pause: float) -> bool:
        """Pause, which `is_ours` may cut short; returns whether to renew the lease again."""
        self._wake.wait(pause)
        self._wake.clear()
        return not (self._end.is_set() or self._lost.is_set())

    def _lose(self, error: LeaseTakenError | LeaseExpiredError) -> None:
        with self._answered:
            if self._lost.is_set():
                return
            self._error = error
            self._lost.set()
            self._settled.set()
            self._answered.notify_all()
        self._on_lost(error)

    def _renew(self) -> None:
        if self._is_late():  # another supervisor may take it by now: we must not write it
            self._give_up()
        before = self._renewed
        try:
            self._write()
        except ConflictError:
            self._look()
            self._write()
        if _now() - before > self._times.kill:  # it hung: it may have replaced another's lease
            self._give_up()
        self._on_renewed(self._renewed + self._times.kill - _now())
        with self._answered:
            self._confirmed = self._renewed
            self._answered.notify_all()

    def _give_up(self) -> NoReturn:
        with suppress(OSError):  # raises a clearer error if another supervisor has it
            self._look()
        raise self._expired()

    def _look(self) -> None:
        """Read the lease after a conflict: it may be our own, none, or another supervisor's.

        If it is the one before ours, the read was late, or somebody has put a copy there. We write
        ours again, which fails if another supervisor has taken it meanwhile. A damaged lease counts
        as none: no supervisor wrote it.
        """
        found = self._place.read()
        is_ours = _token(found.data) == self._token or self._was_before(found)
        if not is_ours and _is_written_by_a_supervisor(found.data):
            owner = owner_of(found.data) or "another supervisor, which has ended since"
            raise LeaseTakenError(f"model_dir was taken over by {owner}")
        self._version = found.version

    def _was_before(self, found: StoredObject) -> bool:
        """Whether it is the lease of the owner before us, as it was when we took it or earlier, or
        one that an owner before us has released."""
        token = _token(self._before.data)
        if token is not None and _token(found.data) == token:
            return True
        is_released = owner_of(found.data) is None and _epoch(found.data) < self._epoch
        return is_released or found.version == self._before.version

    def _is_late(self) -> bool:
        return _now() - self._renewed > self._times.kill

    def _expired(self) -> LeaseExpiredError:
        why = f" ({self._failure})" if self._failure else ""
        return LeaseExpiredError(
            f"the lease on model_dir could not be renewed for {self._times.kill:g} s{why}"
        )

    def _write(self) -> None:
        began = _now()
        self._count += 1
        body = {
            "token": self._token,
            "epoch": self._epoch,
            "count": self._count,
            "owner": self._identity.to_json(),
        }
        self._version = self._place.write(json.dumps(body).encode(), self._version)
        self._renewed = began
        self._failure = ""


def is_shared(directory: Path) -> bool:
    """True if other hosts may see the directory: its file system is not known to be local."""
    return file_system(directory) not in _LOCAL


def _is_of_the_last(found: StoredObject, highest: int | None) -> bool:
    """Whether a lease is that of the last owner, as far as anybody knows: no owner on record has a
    higher epoch than it."""
    return bool(found.data) and highest is not None and _epoch(found.data) >= highest


def _parse(content: bytes) -> dict[str, Any]:
    try:
        return parse_object(content, "the lease") if content else {}
    except UnreadableError:
        return {"token": _UNREADABLE}


def _is_written_by_a_supervisor(content: bytes) -> bool:
    """Whether the content is a lease, held or released: not empty, unreadable or damaged."""
    body = _parse(content)
    token = body.get("token")
    if token is None:
        return isinstance(body.get("epoch"), int)
    return isinstance(token, str) and token != _UNREADABLE


def _token(content: bytes) -> object:
    return _parse(content).get("token")


def _epoch(content: bytes) -> int:
    epoch = _parse(content).get("epoch")
    return epoch if isinstance(epoch, int) and 0 <= epoch <= _MAX_EPOCH else 0


def _epoch_of_today() -> int:
    """Returns an epoch above that of any owner that older versions have not recorded: the minutes
    since 2020."""
    minutes = int(time.time() - _FIRST_DAY) // 60
    return max(1, min(minutes, _MAX_RECORDED // 2))


def owner_of(content: bytes) -> Identity | str | None:
    """Return who holds the lease with this content; None: it is free."""
    body = _parse(content)
    if body.get("token") is None:
        return None
    try:
        return Identity.from_json(body.get("owner"))
    except ValueError:
        return "another supervisor"


def _who(content: bytes) -> str:
    owner = owner_of(content) or "another supervisor"
    return f"model_dir is owned by {owner}; stop it there first, or use another model_dir"


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
