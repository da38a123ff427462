"""Writes the metrics of one attempt as an event file for TensorBoard.

Each attempt has a file of its own, which begins with the step that it goes on from. TensorBoard
then hides what earlier files have of later steps, so it shows each step once. The events are
written by this thread: the writer that tensorboardX recommends does it in another one, where a full
disk ends it unseen.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary


class TensorBoardFile:
    """The event file of an attempt."""

    def __init__(self, folder: Path, attempt: int, restored: int) -> None:
        """The attempt goes on from the step `restored`. Nothing is written yet."""
        self._folder = folder
        self._attempt = attempt
        self._first = restored + 1
        self._writer: EventsWriter | None = None

    def add(self, points: Sequence[tuple[float, int, Mapping[str, float]]]) -> None:
        """Write `points`, given as Unix time, step and numbers. Returns once a kill of this process
        loses none of them.

        Raises:
            OSError: the file cannot be written.
        """
        if self._writer is None:
            self._writer = self._begun()
        for at, step, measured in points:
            values = [Summary.Value(tag=name, simple_value=one) for name, one in measured.items()]
            self._writer.write_event(Event(wall_time=at, step=step, summary=Summary(value=values)))
        self._writer.flush()

    def _begun(self) -> EventsWriter:
        self._folder.mkdir(parents=True, exist_ok=True)
        # Two attempts may begin within the second that is in the file's name.
        writer = EventsWriter(str(self._folder / "events"), f".{self._attempt:06d}")
        start = SessionLog(status=SessionLog.START)
        writer.write_event(Event(step=self._first, session_log=start))
        return writer
