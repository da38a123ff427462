"""Creates pipes, sockets and memory of the simulated machine, and numbers their ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from supervisor.adapters.processes.output import OutputPatterns, OutputReader
from supervisor.adapters.processes.progress import ProgressPipe
from supervisor.host.notice import Tell
from supervisor.protocol.messages import Message
from tests.simulation.pipes import (
    ConnectionEnds,
    End,
    Kept,
    NoteEnds,
    OutputEnds,
    ProgressEnds,
    SnapshotEnds,
)
from tests.simulation.true_host import TrueHost


class SimulatedChannels:
    """See `engines.host_port.Channels`."""

    def __init__(self, host: TrueHost) -> None:
        self.host = host
        self._numbers = itertools.count(100)
        self._ends: dict[int, End] = {}

    def ends_of(self, descriptors: Sequence[int]) -> list[End]:
        """Return the ends that these descriptors refer to."""
        return [self._ends[descriptor] for descriptor in descriptors]

    def _numbered(self, end: End, *numbers: int) -> None:
        for number in numbers:
            self._ends[number] = end

    def output(
        self,
        path: Path,
        patterns: OutputPatterns,
        mirror: Callable[[bytes], None] | None,
        on_error: Tell,
    ) -> OutputEnds:
        """See `Channels`."""
        kept = self.host.outputs.setdefault(str(path), Kept())
        reader = OutputReader(kept, patterns, mirror, on_error, self.host.clock.now)
        end = OutputEnds(self.host, next(self._numbers), reader)
        self._numbered(end, end.write_end)
        if self.host.happens(self.host.faults.output_held):
            somebody = object()
            end.inherited(somebody)
            self.host.later(self.host.between(0.0, 500.0), lambda: end.released(somebody))
        return end

    def progress(
        self, on_message: Callable[[Message], None], on_refused: Callable[[str], None]
    ) -> ProgressPipe:
        """See `Channels`."""
        end = ProgressEnds(next(self._numbers), next(self._numbers))
        self._numbered(end, end.read_end, end.write_end)
        return ProgressPipe(on_message, on_refused, end)

    def connection(self) -> ConnectionEnds:
        """See `Channels`."""
        end = ConnectionEnds(next(self._numbers), next(self._numbers))
        self._numbered(end, end.descriptor, end.theirs)
        return end

    def snapshot_memory(self) -> SnapshotEnds:
        """See `Channels`."""
        end = SnapshotEnds(next(self._numbers))
        self._numbered(end, end.descriptor)
        return end

    def output_file(self) -> NoteEnds:
        """See `Channels`."""
        end = NoteEnds(next(self._numbers))
        self._numbered(end, end.descriptor)
        return end
