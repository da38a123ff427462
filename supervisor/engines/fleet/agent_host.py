"""This host as an agent's engine sees it: what one machine does for all is left to the leader.

Every rank writes into one model_dir. The agent of rank 0 watches the checkpoints there; sixty-three
others would only load the file system. What is the newest step, the leader says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from supervisor.engines.checkpoint_search import Wanted
from supervisor.engines.handles import Finder, FoundPlace, Watch
from supervisor.engines.this_host import ThisHost
from supervisor.host.notice import Tell
from supervisor.protocol.committed import OwnNames
from supervisor.protocol.epochs import SavedStep
from supervisor.protocol.location import Uri


class AgentHost(ThisHost):
    """Implements `host_port.Host`."""

    speaks = False
    """Whether this agent has rank 0 of the present attempt."""
    newest: int | None = None
    """The newest committed step when the attempt started."""

    def newest_checkpoint(
        self, place: Path | Uri, own: OwnNames | None = None, *, closed: bool = False
    ) -> int | None:
        """See `host_port.HostFiles`. At the end of an attempt the leader looks for itself."""
        return self.newest

    def unproven_step(
        self, place: Path | Uri, own: OwnNames | None, committed: int | None
    ) -> int | None:
        """See `host_port.HostFiles`. The leader looks for itself."""
        return None

    def torn_step(
        self, place: Path | Uri, own: OwnNames | None, committed: int | None, *, new: bool
    ) -> Path | None:
        """See `host_port.HostFiles`. The leader looks for itself."""
        return None

    def watch_checkpoints(
        self,
        place: Path | Uri,
        workers: Callable[[], Iterable[int]],
        on_commit: Callable[[SavedStep], None],
        on_lower: Callable[[SavedStep], None],
        on_error: Tell,
        own: OwnNames | None = None,
    ) -> Watch:
        """See `host_port.HostFiles`."""
        if not self.speaks:
            return _NoWatch()
        return super().watch_checkpoints(place, workers, on_commit, on_lower, on_error, own)

    def find_checkpoints(
        self,
        wanted: Wanted,
        on_found: Callable[[FoundPlace], None],
        on_others: Callable[[Path, Mapping[Path, int]], None],
        on_commit: Callable[[SavedStep], None],
        on_lower: Callable[[SavedStep], None],
        on_error: Tell,
    ) -> Finder:
        """See `host_port.HostFiles`."""
        if not self.speaks:
            return _NoWatch()
        found = super().find_checkpoints
        return found(wanted, on_found, on_others, on_commit, on_lower, on_error)


class _NoWatch:
    """Implements `handles.Finder`: it sees nothing."""

    has_new_checkpoint = False
    found: Path | None = None
    kinds: tuple[str, ...] = ()

    def poll_now(self) -> None:
        """See `handles.Watch`."""

    def stop(self) -> None:
        """See `handles.Watch`."""

    def last_lower(self, *, closed: bool) -> tuple[SavedStep, ...]:
        """See `handles.Watch`."""
        return ()

    def note_written(self, path: str) -> None:
        """See `handles.Finder`."""

    def last_look(self, *, closed: bool) -> Path | None:
        """See `handles.Finder`."""
        return None
