"""The panel of the live view: the state of a job as a picture that fits into a terminal.

A small terminal gets a few short lines instead: the output of the program needs room, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from supervisor.core.state import Status
from supervisor.narrative.durations import duration
from supervisor.narrative.pace import LONG_AGO, Pace, Progress
from supervisor.narrative.rendered import RenderedTransition
from supervisor.narrative.standing import Standing

_MARGIN = 4
"""Free columns beside the panel. A terminal shows a Ctrl-C as `^C` behind the last character: in a
full line it would go to the next one, and move the panel."""
_SMALLEST = (72, 16)
"""Columns and rows of the smallest terminal that gets the whole panel."""
_SPARK = 24
"""Columns of the curve of the loss."""
_ATTEMPTS = 5
"""How many attempts are named."""
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


@dataclass(frozen=True, slots=True)
class PanelState:
    """The facts of the job that one picture of the panel shows."""

    standing: Standing
    num_phases: int = 1
    phase: int = 0
    max_steps: int | None = None
    pace: Pace = field(default_factory=Pace)
    losses: Sequence[float] = ()
    backoff_until: float | None = None
    """Time on our clock at which the next attempt starts; None: there is no backoff."""
    quarantine: tuple[str, ...] = ()
    attempts: Sequence[str] = ()
    """How the last attempts ended, the newest last."""

    @property
    def step(self) -> int | None:
        """The last completed step, also of an attempt that has ended."""
        step = self.standing.step
        return step if step is not None else self.pace.step


class AttemptsSoFar:
    """How the attempts ended that this supervisor has started."""

    def __init__(self) -> None:
        self._ends: dict[int, str] = {}

    def observe(self, told: RenderedTransition) -> None:
        """See `observers.LineObserver`."""
        for line in told.lines:
            if line.event in ("attempt-ended", "launch-failed"):
                failure = line.keys.get("failure")
                status = str(line.keys["status"]).lower().replace("_", " ")
                self._ends[line.keys["attempt"]] = failure["cause"] if failure else status
                for old in sorted(self._ends)[:-_ATTEMPTS]:
                    del self._ends[old]

    def texts(self, attempt: int) -> list[str]:
        """Returns each of the last attempts with its end; `attempt` is the number of the newest."""
        ended = [f"{number} {end}" for number, end in sorted(self._ends.items())]
        return ended if attempt in self._ends or not attempt else [*ended, f"{attempt} runs"]


def panel(
    state: PanelState, last: str, now: float, width: int, height: int, *, is_ascii: bool
) -> RenderableType:
    """Returns the picture of `state` at the time `now` on our clock; `last` is the last event.

    `is_ascii`: the terminal has no other characters.
    """
    progress = state.pace.at(now, state.max_steps)
    if width < _SMALLEST[0] or height < _SMALLEST[1]:
        return _small(state, progress, now, max(1, width - 1), is_ascii=is_ascii)
    inner = width - 2 * _MARGIN
    it = state.standing
    table = Table.grid(padding=(0, 3))
    phase = f"{it.phase} ({state.phase + 1} of {state.num_phases})"
    table.add_row("phase", phase, "step", _steps(state) + _age(state, now))
    table.add_row("attempt", str(it.attempt), "loss", _number(progress.loss, ".4f"))
    rate = _number(progress.steps_per_second, ".2f")
    table.add_row("status", _status(state, now), "steps/s", rate)
    newest = "-" if it.newest_checkpoint is None else f"step {it.newest_checkpoint}"
    used = f"{it.restarts} of {it.max_num_restarts}"
    table.add_row("restarts used", used, "last committed", newest)
    if it.max_num_devices is not None:
        devices = f"{it.num_devices} of {it.max_num_devices}"
        table.add_row("devices", devices, "quarantine", ", ".join(state.quarantine) or "-")
    lines: list[RenderableType] = [table]
    if len(state.attempts) > 1:
        lines.append(_cut(f"attempts: {', '.join(state.attempts)}"))
    if curve := _sparkline(state.losses, _SPARK, is_ascii=is_ascii):
        lines.append(_cut(f"loss {curve}"))
    if bar := _bar(state, progress, inner, is_ascii=is_ascii):
        lines.append(_cut(bar))
    lines.append(_cut(last, style="dim"))
    title = f"supervise · job {it.job}"
    return Panel(Group(*lines), title=title, title_align="left", width=width - _MARGIN)


def _small(
    state: PanelState, progress: Progress, now: float, width: int, *, is_ascii: bool
) -> RenderableType:
    it = state.standing
    status = Text(f"attempt {it.attempt} ", no_wrap=True, overflow="ellipsis")
    status.append_text(_status(state, now))
    loss = f"loss {_number(progress.loss, '.4f')} "
    curve = _sparkline(state.losses, max(0, width - len(loss)), is_ascii=is_ascii)
    bar = _bar(state, progress, width, is_ascii=is_ascii) or f"step {_steps(state)}"
    lines = [status, _cut(bar), *([_cut(loss + curve)] if progress.loss is not None else [])]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Group(*lines)


def _cut(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _status(state: PanelState, now: float) -> Text:
    it = state.standing
    status = Text(it.status.value, style=_STYLES.get(it.status, "bold"))
    if it.stage is not None:
        status.append(f" · {it.stage.value}", style="default")
    if state.backoff_until is not None:
        left = max(0.0, state.backoff_until - now)
        status.append(f" · next attempt in {left:.0f} s", style="default")
    return status


def _steps(state: PanelState) -> str:
    of = f" of {state.max_steps}" if state.max_steps is not None else ""
    return "-" if state.step is None else f"{state.step}{of}"


def _age(state: PanelState, now: float) -> str:
    """Returns how long ago a running attempt completed its step; "": just now, or not known."""
    age = state.pace.age(now) if state.standing.exit_code is None else None
    return f" ({duration(age)} ago)" if age is not None and age >= LONG_AGO else ""


def _bar(state: PanelState, progress: Progress, width: int, *, is_ascii: bool) -> str:
    """Returns how much of the phase is done, and the time left; "": it is not known how many steps
    it has."""
    if not state.max_steps or state.step is None:
        return ""
    share = min(1.0, max(0.0, state.step / state.max_steps))
    eta = progress.eta_seconds if state.standing.exit_code is None else None
    left = "" if eta is None else f" {duration(eta)} left"
    text = f" {share:.0%}{left}"
    room = max(0, min(width, 100) - len(text))
    done = round(share * room)
    full, empty = ("#", "-") if is_ascii else ("█", "░")
    return f"{full * done}{empty * (room - done)}{text}"


def _sparkline(values: Sequence[float], width: int, *, is_ascii: bool) -> str:
    """Returns the curve of the values in one line; "": there are fewer than two."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2 or width < 2:
        return ""
    columns = min(width, len(known))
    bounds = [index * len(known) // columns for index in range(columns + 1)]
    pieces = [known[a:b] for a, b in pairwise(bounds)]
    means = [sum(piece) / len(piece) for piece in pieces]
    levels = "_.-=^" if is_ascii else "▁▂▃▄▅▆▇█"
    low, high = min(means), max(means)
    span = high - low or 1.0
    return "".join(levels[round((mean - low) / span * (len(levels) - 1))] for mean in means)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
