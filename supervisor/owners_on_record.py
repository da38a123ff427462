"""Who has owned a job, as its journal tells: the lease, which says it too, may be lost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from supervisor.adapters.stores.fetch import epoch_after, fetch_journal
from supervisor.adapters.stores.journal import FileJournal
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.core.doing import Ended
from supervisor.history.fold import History
from supervisor.history.record import JournalError
from supervisor.ports import Objects


@dataclass(frozen=True, slots=True)
class JournaledOwners:
    """Implements `lease.OwnersOnRecord` for a job in a folder, or in a bucket (`objects`).

    `had_lease`: every owner of the job had a lease, as other hosts see the folder. A job that only
    this host sees had one while it ran on hosts; without it, the lock is enough.
    """

    folder: Path
    objects: Objects | None
    had_lease: bool

    def highest_epoch(self) -> int | None:
        """See `lease.OwnersOnRecord`."""
        try:
            if self.objects is not None:  # the names of the segments tell it
                return epoch_after(self.objects) - 1
            return self._history().past.lease_epoch
        except (OSError, JournalError):
            return None

    def is_in_use(self) -> bool:
        """See `lease.OwnersOnRecord`."""
        try:
            history = self._history()
        except (OSError, JournalError):
            return self.had_lease
        begun = history.number > 0 and not isinstance(history.state.doing, Ended)
        on_hosts = history.past.lease_epoch > 0 or history.longest_lost_after > 0
        return begun and (self.had_lease or on_hosts)

    def _history(self) -> History:
        if self.objects is None:
            return FileJournal(LocalStorage(self.folder)).peek()
        with TemporaryDirectory() as folder:
            fetch_journal(self.objects, Path(folder), lambda told: None)
            return FileJournal(LocalStorage(Path(folder))).peek()
