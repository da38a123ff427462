"""The live view in a terminal: where the job stands, below what scrolls by.

Our own lines and the output of rank 0 scroll. Of the output only text is shown: an escape sequence
could do harm, and of a progress bar only what it comes to is worth a line. All that is written to
the terminal is written by the thread of an `Outlet`.
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
from supervisor.protocol.messages import StepMessage, printable

_RATE_WINDOW = 20.0
_PERIOD = 0.25
"""Seconds between two pictures."""
_MAX_LINE = 64 * 1024
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
"""Colours, movements of the cursor, titles and links."""
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
class _Picture:
    """What the view shows of the job."""

    standing: Standing
    phase: int = 0
    step: int | None = None
    loss: float | None = None
    rate: float | None = None
    """Steps a second."""
    backoff_until: float | None = None
    """When the next attempt starts, on our clock; None: it waits for no time."""
    quarantine: tuple[str, ...] = ()


class TerminalView:
    """Shows the state of the job, and what happened last, until it is closed."""

    def __init__(
        self,
        plans: Sequence[PhasePlan],
        policy: RestartPolicy,
        clock: Clock,
        tell: Tell,
        descriptor: int = 1,
    ) -> None:
        """`descriptor` is the terminal; `tell` is told once why it cannot be used any more."""
        self._plans = plans
        self._policy = policy
        self._clock = clock
        self._steps: deque[tuple[float, int]] = deque()
        self._picture = _Picture(standing(JobState(), policy))
        """Made in the main thread, shown in the other."""
        self._last = ""
        self._unfinished = b""
        """The output after its last whole line."""
        self._recent = b""
        """The output of late, which people see above what the supervisor says of it."""
        screen = cast("IO[str]", _Screen(descriptor))
        self._live = Live(
            get_renderable=self._render,
            console=_Console(file=screen, highlight=False),
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._outlet = Outlet(self._show, tell, period=_PERIOD, end=self._end)

    def close(self, patience: float = FLUSH_PATIENCE) -> None:
        """Leave the last picture on the screen and give the terminal back."""
        self._outlet.close(patience)

    def line(self, text: str, level: Level = "info") -> None:
        """Show a log line above the picture."""
        self._last = text.partition("] ")[2]
        self._outlet.line(text.encode("utf-8", "replace"), level)

    def mirror(self, attempt: int, chunk: bytes) -> None:
        """Show a part of a worker's output above the picture; an empty one is its end."""
        if chunk and self._outlet.output(chunk):
            self._recent = (self._recent + chunk)[-_MAX_LINE:]

    def has_shown(self, lines: Sequence[str]) -> bool:
        """Whether all of `lines` are in the worker's output of late."""
        recent = {_shown(line).rstrip() for line in self._recent.split(b"\n")}
        return all(_shown(line.encode("utf-8", "replace")).rstrip() in recent for line in lines)

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        step, loss = self._picture.step, self._picture.loss
        match transition.event:
            case WorkerReported(at, _, _, StepMessage(done, metrics)):
                step, loss = done, metrics.get("loss", loss)
                self._steps.append((at, step))
                while at - self._steps[0][0] > _RATE_WINDOW:
                    self._steps.popleft()
            case WorkersGone():
                self._steps.clear()
            case PhaseBegun():
                step = loss = None
        state = transition.after
        now, until = standing(state, self._policy), state.backoff.until if state.backoff else None
        units = tuple(sorted(state.quarantine.units))
        self._picture = _Picture(now, state.phase, step, loss, self._rate(), until, units)

    def _rate(self) -> float | None:
        if len(self._steps) < 2:
            return None
        (start, first), (end, last) = self._steps[0], self._steps[-1]
        return (last - first) / (end - start) if end > start else None

    def _show(self, parts: Sequence[Part]) -> Iterator[int]:
        self._live.start()  # nothing where it has started
        lines = [line for part in parts for line in self._lines(part)]
        if lines:
            self._live.console.print(Text("\n").join(lines), soft_wrap=True)
        self._live.refresh()
        yield sum(len(part.data) for part in parts)

    def _end(self) -> None:
        if self._unfinished:
            self._live.console.print(Text(_shown(self._unfinished)), soft_wrap=True)
        self._live.stop()

    def _lines(self, part: Part) -> Iterator[Text]:
        """The lines to show of `part`, all that is no text taken out."""
        if part.is_ours:
            text = part.data.decode()
            yield Text(text, style=_LEVELS.get(part.level, "default"))
            return
        *lines, rest = (self._unfinished + part.data).split(b"\n")
        self._unfinished = rest[-_MAX_LINE:]
        for line in lines:
            yield Text(_shown(line))

    def _render(self) -> Panel:
        picture = self._picture
        now, plan = picture.standing, self._plans[picture.phase]
        table = Table.grid(padding=(0, 3))
        phase = f"{now.phase} ({picture.phase + 1} of {len(self._plans)})"
        table.add_row("phase", phase, "step", _steps_done(picture, plan))
        table.add_row("attempt", str(now.attempt), "loss", _number(picture.loss, ".4f"))
        table.add_row("status", self._status(picture), "steps/s", _number(picture.rate, ".2f"))
        used = f"{now.restarts} of {now.max_num_restarts}"
        newest = "-" if now.newest_checkpoint is None else f"step {now.newest_checkpoint}"
        table.add_row("restarts used", used, "last committed", newest)
        if now.max_num_devices is not None:
            devices = f"{now.num_devices} of {now.max_num_devices}"
            quarantine = ", ".join(picture.quarantine) or "-"
            table.add_row("devices", devices, "quarantine", quarantine)
        last = Text(self._last, style="dim", no_wrap=True, overflow="ellipsis")
        return Panel(Group(table, last), title=f"supervise · job {now.job}", title_align="left")

    def _status(self, picture: _Picture) -> Text:
        now = picture.standing
        status = Text(now.status.value, style=_STYLES.get(now.status, "bold"))
        if now.stage is not None:
            status.append(f" · {now.stage.value}", style="default")
        if picture.backoff_until is not None:
            left = max(0.0, picture.backoff_until - self._clock.now())
            status.append(f" · next attempt in {left:.0f} s", style="default")
        return status


class _Console(Console):
    """Leaves the cursor where people can see it: a terminal that is paused, or a supervisor that is
    killed, takes no last word that would show it again."""

    def show_cursor(self, show: bool = True) -> bool:
        """Change nothing, whatever is asked for."""
        return False


class _Screen(io.TextIOBase):
    """A terminal as rich wants it. Nothing waits in it: what is to be written at the very end of
    this process would make that wait for its reader."""

    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_terminal = os.isatty(descriptor)  # one that is closed is none any more

    def write(self, text: str) -> int:
        for _ in write(self._descriptor, text.encode(self.encoding, "replace")):
            pass
        return len(text)

    def isatty(self) -> bool:
        return self._is_terminal

    def fileno(self) -> int:
        return self._descriptor


def _steps_done(picture: _Picture, plan: PhasePlan) -> str:
    step = picture.standing.step
    step = step if step is not None else picture.step
    of = f" of {plan.max_steps}" if plan.max_steps is not None else ""
    return "-" if step is None else f"{step}{of}"


def _shown(line: bytes) -> str:
    """What a line of output leaves on the screen: the last of what was written over one another."""
    over = line.rstrip(b"\r").rpartition(b"\r")[2]
    text = _ESCAPE.sub("", over.decode("utf-8", "replace"))
    return printable(text.expandtabs())


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
