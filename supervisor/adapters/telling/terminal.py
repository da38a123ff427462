"""The live view in a terminal: a panel with the state of the job, below the lines that scroll by.

Our own lines and the output of rank 0 scroll. Of the output only text is shown, because an escape
sequence could do harm. Of a progress bar only the last picture is shown, as one line. Only the
thread of an `Outlet` writes to the terminal.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from supervisor.config.plan import PhasePlan
from supervisor.core.events import PhaseBegun, WorkerReported, WorkersGone
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState, Status
from supervisor.host.notice import Tell
from supervisor.host.outlet import FLUSH_PATIENCE, Outlet, Part, write
from supervisor.narrative import Level
from supervisor.narrative.standing import Standing, standing
from supervisor.ports import Clock, Transition
from supervisor.protocol.messages import StepMessage, StepsDroppedMessage, printable

_RATE_WINDOW = 20.0
"""Seconds of reports from which the steps per second are computed."""
_PERIOD = 0.25
"""Seconds between two pictures of the panel."""
_MARGIN = 4
"""Free columns beside the panel. A terminal shows a Ctrl-C as `^C` behind the last character: in a
full line it would go to the next one, and move the panel."""
_MAX_LINE = 64 * 1024
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
"""Escape sequences: colours, movements of the cursor, titles and links."""
_STYLES = {
    Status.RUNNING: "bold green",
    Status.SUCCEEDED: "bold green",
    Status.FAILED: "bold red",
    Status.STOPPING: "bold yellow",
    Status.PROBING: "bold yellow",
    Status.WAITING: "bold yellow",
    Status.BACKOFF: "bold yellow",
    Status.DRAINED: "bold yellow",
}
_LEVELS = {"error": "red", "warning": "yellow"}


@dataclass(frozen=True, slots=True)
class _PanelState:
    """The facts of the job that one picture of the panel shows."""

    standing: Standing
    phase: int = 0
    step: int | None = None
    loss: float | None = None
    rate: float | None = None
    """Steps per second."""
    backoff_until: float | None = None
    """Time on our clock at which the next attempt starts; None: there is no backoff."""
    quarantine: tuple[str, ...] = ()


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
        self._steps: deque[tuple[float, int]] = deque()
        self._panel_state = _PanelState(standing(JobState(), policy))
        """The main thread replaces it; the outlet's thread draws it."""
        self._has_begun = False
        """Whether the state is that of the job. A run that starts nothing never reads it."""
        self._last = ""
        self._unfinished = b""
        """The output after the last whole line."""
        self._recent = b""
        """The last `_MAX_LINE` bytes of output: people still see them above our own lines."""
        stream = cast("IO[str]", _TerminalStream(descriptor))
        self._screen = _Console(file=stream, highlight=False)
        self._live = Live(
            get_renderable=self._render,
            console=self._screen,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
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
            self._recent = (self._recent + chunk)[-_MAX_LINE:]

    def has_shown(self, lines: Sequence[str]) -> bool:
        """True if the worker's recent output contains all of `lines`."""
        recent = {_shown(line).rstrip() for line in self._recent.split(b"\n")}
        return all(_shown(line.encode("utf-8", "replace")).rstrip() in recent for line in lines)

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        step, loss = self._panel_state.step, self._panel_state.loss
        match transition.event:
            case WorkerReported(at, _, _, StepMessage(done, metrics)):
                step, loss = done, metrics.get("loss", loss)
                self._steps.append((at, step))
                while at - self._steps[0][0] > _RATE_WINDOW:
                    self._steps.popleft()
            case WorkerReported(_, _, _, StepsDroppedMessage()):
                step = loss = None
                self._steps.clear()
            case WorkersGone():
                self._steps.clear()
            case PhaseBegun():
                step = loss = None
        state = transition.after
        now, until = standing(state, self._policy), state.backoff.until if state.backoff else None
        units = tuple(sorted(state.quarantine.units))
        self._panel_state = _PanelState(now, state.phase, step, loss, self._rate(), until, units)
        self._has_begun = True

    def _rate(self) -> float | None:
        if len(self._steps) < 2:
            return None
        (start, first), (end, last) = self._steps[0], self._steps[-1]
        return (last - first) / (end - start) if end > start else None

    def _show(self, parts: Sequence[Part]) -> Iterator[int]:
        if self._has_begun:
            self._live.start()  # does nothing once it has started
        lines = [line for part in parts for line in self._lines(part)]
        if lines:
            self._screen.print(Text("\n").join(lines), soft_wrap=True)
        if self._live.is_started:
            self._live.refresh()
        yield sum(len(part.data) for part in parts)

    def _end(self) -> None:
        if self._unfinished:
            self._screen.print(Text(_shown(self._unfinished)), soft_wrap=True)
        self._live.stop()

    def _lines(self, part: Part) -> Iterator[Text]:
        """Yields the lines of `part` to show, without what is not text."""
        if part.is_ours:
            text = part.data.decode()
            yield Text(text, style=_LEVELS.get(part.level, "default"))
            return
        *lines, rest = (self._unfinished + part.data).split(b"\n")
        self._unfinished = rest[-_MAX_LINE:]
        for line in lines:
            yield Text(_shown(line))

    def _render(self) -> Panel:
        panel = self._panel_state
        now, plan = panel.standing, self._plans[panel.phase]
        table = Table.grid(padding=(0, 3))
        phase = f"{now.phase} ({panel.phase + 1} of {len(self._plans)})"
        table.add_row("phase", phase, "step", _steps_done(panel, plan))
        table.add_row("attempt", str(now.attempt), "loss", _number(panel.loss, ".4f"))
        table.add_row("status", self._status(panel), "steps/s", _number(panel.rate, ".2f"))
        used = f"{now.restarts} of {now.max_num_restarts}"
        newest = "-" if now.newest_checkpoint is None else f"step {now.newest_checkpoint}"
        table.add_row("restarts used", used, "last committed", newest)
        if now.max_num_devices is not None:
            devices = f"{now.num_devices} of {now.max_num_devices}"
            quarantine = ", ".join(panel.quarantine) or "-"
            table.add_row("devices", devices, "quarantine", quarantine)
        last = Text(self._last, style="dim", no_wrap=True, overflow="ellipsis")
        title, width = f"supervise · job {now.job}", max(_MARGIN, self._screen.width - _MARGIN)
        return Panel(Group(table, last), title=title, title_align="left", width=width)

    def _status(self, panel: _PanelState) -> Text:
        now = panel.standing
        status = Text(now.status.value, style=_STYLES.get(now.status, "bold"))
        if now.stage is not None:
            status.append(f" · {now.stage.value}", style="default")
        if panel.backoff_until is not None:
            left = max(0.0, panel.backoff_until - self._clock.now())
            status.append(f" · next attempt in {left:.0f} s", style="default")
        return status


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


def _steps_done(panel: _PanelState, plan: PhasePlan) -> str:
    step = panel.standing.step
    step = step if step is not None else panel.step
    of = f" of {plan.max_steps}" if plan.max_steps is not None else ""
    return "-" if step is None else f"{step}{of}"


def _shown(line: bytes) -> str:
    """Returns the text that a terminal shows in the end for a line of output: what follows the last
    carriage return, without escape sequences."""
    over = line.rstrip(b"\r").rpartition(b"\r")[2]
    text = _ESCAPE.sub("", over.decode("utf-8", "replace"))
    return printable(text.expandtabs())


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
