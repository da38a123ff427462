"""The live view in a terminal: a panel with the state of the job, below the lines that scroll by.

Our own lines and the output of rank 0 scroll. Of the output only text is shown, because an escape
sequence could do harm. Of a progress bar only the last picture is shown, as one line. Only the
thread of an `Outlet` writes to the terminal. `panel` makes the picture of the panel.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import IO, cast

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.text import Text

from supervisor.config.plan import PhasePlan
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.host.notice import Tell
from supervisor.host.outlet import FLUSH_PATIENCE, Outlet, Part, write
from supervisor.narrative import Level
from supervisor.narrative.pace import PaceWatch
from supervisor.narrative.panel import AttemptsSoFar, PanelState, panel
from supervisor.narrative.recent_output import RecentOutput, text_of
from supervisor.narrative.rendered import RenderedTransition
from supervisor.narrative.standing import standing
from supervisor.ports import Clock

_PERIOD = 0.25
"""Seconds between two pictures of the panel."""
_MAX_LINE = 64 * 1024
_LEVELS = {"error": "red", "warning": "yellow"}


class TerminalView:
    """Shows the state of the job and the last event, until it is closed."""

    def __init__(
        self,
        plans: Sequence[PhasePlan],
        policy: RestartPolicy,
        clock: Clock,
        tell: Tell,
        descriptor: int = 1,
    ) -> None:
        """`descriptor` is the terminal; `tell` is called once if it cannot be written any more."""
        self._plans = plans
        self._policy = policy
        self._clock = clock
        self._pace = PaceWatch()
        self._attempts = AttemptsSoFar()
        self._panel_state = PanelState(standing(JobState(), policy), len(plans))
        """The main thread replaces it; the outlet's thread draws it."""
        self._has_begun = False
        """Whether the state is that of the job. A run that starts nothing never reads it."""
        self._last = ""
        self._unfinished = b""
        """The output after the last whole line."""
        self._recent = RecentOutput()
        stream = cast("IO[str]", _TerminalStream(descriptor))
        self._screen = _Console(file=stream, highlight=False)
        self._is_ascii = "utf" not in self._screen.encoding.lower()
        self._region = _Region(self._screen)
        self._outlet = Outlet(self._show, tell, period=_PERIOD, end=self._end)

    def close(self, patience: float = FLUSH_PATIENCE) -> None:
        """Draw the last picture, leave it on the screen, and stop writing to the terminal.

        Waits at most `patience` seconds.
        """
        self._outlet.close(patience)

    def line(self, text: str, level: Level = "info") -> None:
        """Show a line of the event log above the panel."""
        self._last = text.partition("] ")[2]
        self._outlet.line(text.encode("utf-8", "replace"), level)

    def mirror(self, attempt: int, chunk: bytes) -> None:
        """Show a part of a worker's output above the panel; an empty `chunk` is its end."""
        if chunk and self._outlet.output(chunk):
            self._recent.shown(chunk)

    def has_shown(self, lines: Sequence[str]) -> bool:
        """True if the worker's recent output contains all of `lines`."""
        return self._recent.has(lines)

    def observe(self, told: RenderedTransition) -> None:
        """See `observers.LineObserver`."""
        self._pace.observe(told)
        self._attempts.observe(told)
        state, max_steps = told.after, self._plans[told.after.phase].max_steps
        self._panel_state = PanelState(
            standing(state, self._policy),
            num_phases=len(self._plans),
            phase=state.phase,
            max_steps=max_steps,
            pace=self._pace.pace(),
            losses=self._pace.losses(),
            backoff_until=state.backoff.until if state.backoff else None,
            quarantine=tuple(sorted(state.quarantine.units)),
            attempts=self._attempts.texts(state.attempt),
        )
        self._has_begun = True

    def _show(self, parts: Sequence[Part]) -> Iterator[int]:
        lines = [line for part in parts for line in self._lines(part)]
        if self._screen.is_terminal:
            self._region.draw(lines, self._panel() if self._has_begun else None)
        elif lines:
            self._region.draw(lines, None)
        yield sum(len(part.data) for part in parts)

    def _end(self) -> None:
        rest = [Text(text_of(self._unfinished))] if self._unfinished else []
        self._region.draw(rest, self._panel() if self._has_begun else None)
        self._region.end()

    def _panel(self) -> RenderableType:
        state, now, size = self._panel_state, self._clock.now(), self._screen.size
        return panel(state, self._last, now, size.width, size.height, is_ascii=self._is_ascii)

    def _lines(self, part: Part) -> Iterator[Text]:
        """Yields the lines of `part` to show, without what is not text."""
        if part.is_ours:
            text = part.data.decode()
            yield Text(text, style=_LEVELS.get(part.level, "default"))
            return
        *lines, rest = (self._unfinished + part.data).split(b"\n")
        self._unfinished = rest[-_MAX_LINE:]
        for line in lines:
            yield Text(text_of(line))


class _Region:
    """The lower part of the screen, which is drawn again and again below the lines that scroll."""

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._widths: list[int] = []
        """The width of each line of it, as it was drawn last."""

    def draw(self, lines: Sequence[Text], below: RenderableType | None) -> None:
        """Let `lines` scroll by, above the region with `below` in it."""
        drawn = [] if below is None else self._screen.render_lines(below, pad=False)
        with self._screen.capture() as shown:
            if lines:
                self._screen.print(Text("\n").join(lines), soft_wrap=True)
            self._screen.print(Segments(_joined(drawn)), end="", soft_wrap=True)
        self._screen.file.write(self._erasure() + shown.get())
        self._widths = [Segment.get_line_length(line) for line in drawn]

    def end(self) -> None:
        """Leave the region on the screen; what comes next is shown below it."""
        if self._widths:
            self._screen.file.write("\n")

    def _erasure(self) -> str:
        """Returns what takes the region off the screen. After a resize the terminal has wrapped its
        lines anew: one may take several rows, or again only one."""
        if not self._widths:
            return ""
        width = max(1, self._screen.width)
        rows = sum(max(1, -(-each // width)) for each in self._widths)
        return (f"\x1b[{rows - 1}A" if rows > 1 else "") + "\r\x1b[J"


def _joined(lines: Sequence[Sequence[Segment]]) -> Iterator[Segment]:
    for number, line in enumerate(lines):
        if number:
            yield Segment.line()
        yield from line


class _Console(Console):
    """Never hides the cursor: on a paused terminal, or after the supervisor was killed, nothing
    could show it again."""

    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor as it is."""
        return False


class _TerminalStream(io.TextIOBase):
    """The terminal as the text stream that rich needs. It has no buffer: text left in a buffer
    would be written at the exit of this process, and the exit would wait for the reader."""

    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_terminal = os.isatty(descriptor)  # asked now: a closed one would not be a terminal

    def write(self, text: str) -> int:
        for _ in write(self._descriptor, text.encode(self.encoding, "replace")):
            pass
        return len(text)

    def isatty(self) -> bool:
        return self._is_terminal

    def fileno(self) -> int:
        return self._descriptor
