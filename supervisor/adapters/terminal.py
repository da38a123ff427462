"""The live view in a terminal: where the job stands, below the log lines that scroll by."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from supervisor.config.plan import PhasePlan
from supervisor.core.events import PhaseBegun, WorkerReported, WorkersGone
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState, Status
from supervisor.ports import Clock, Transition
from supervisor.protocol.messages import StepMessage

_RATE_WINDOW = 20.0
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


class TerminalView:
    """Shows the state of the job, and what happened last, until it is closed."""

    def __init__(self, plans: Sequence[PhasePlan], policy: RestartPolicy, clock: Clock) -> None:
        self._plans = plans
        self._policy = policy
        self._clock = clock
        self._state = JobState()
        self._loss: float | None = None
        self._steps: deque[tuple[float, int]] = deque()
        self._step: int | None = None
        self._last = ""
        self._console = Console(highlight=False)
        self._live = Live(
            get_renderable=self._render, console=self._console, refresh_per_second=4, screen=False
        )
        self._live.start()

    def close(self) -> None:
        """Leave the last picture on the screen and give the terminal back."""
        self._live.stop()

    def line(self, text: str) -> None:
        """Print a log line above the picture."""
        self._last = text.partition("] ")[2]
        self._live.console.print(Text(text, style=_line_style(text)))

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        self._state = transition.after
        match transition.event:
            case WorkerReported(at, _, _, StepMessage(step, metrics)):
                self._step = step
                self._loss = metrics.get("loss", self._loss)
                self._steps.append((at, step))
                while at - self._steps[0][0] > _RATE_WINDOW:
                    self._steps.popleft()
            case WorkersGone():
                self._steps.clear()
            case PhaseBegun():
                self._step = self._loss = None

    def _render(self) -> Panel:
        state = self._state
        plan = self._plans[state.phase]
        limits = self._policy.phases[state.phase]
        table = Table.grid(padding=(0, 3))
        phase = f"{plan.name} ({state.phase + 1} of {len(self._plans)})"
        table.add_row("phase", phase, "step", self._steps_done(plan))
        table.add_row("attempt", str(state.attempt), "loss", _number(self._loss, ".4f"))
        table.add_row("status", self._status(), "steps/s", _number(self._rate(), ".2f"))
        table.add_row(
            "restarts used",
            f"{state.budget.restarts} of {limits.max_num_restarts}",
            "last committed",
            "-" if state.budget.highest is None else f"step {state.budget.highest}",
        )
        if limits.rungs:
            devices = f"{state.ladder.num_devices(limits)} of {limits.rungs[0]}"
            quarantine = ", ".join(sorted(state.quarantine.units)) or "-"
            table.add_row("devices", devices, "quarantine", quarantine)
        last = Text(self._last, style="dim", no_wrap=True, overflow="ellipsis")
        return Panel(Group(table, last), title=f"supervise · job {state.job}", title_align="left")

    def _status(self) -> Text:
        status = Text(self._state.status.value, style=_STYLES.get(self._state.status, "bold"))
        if self._state.liveness.stage is not None:
            status.append(f" · {self._state.liveness.stage.value}", style="default")
        if self._state.backoff is not None:
            left = max(0.0, self._state.backoff.until - self._clock.now())
            status.append(f" · next attempt in {left:.0f} s", style="default")
        return status

    def _steps_done(self, plan: PhasePlan) -> str:
        step = self._state.liveness.step
        step = step if step is not None else self._step
        of = f" of {plan.max_steps}" if plan.max_steps is not None else ""
        return "-" if step is None else f"{step}{of}"

    def _rate(self) -> float | None:
        if len(self._steps) < 2:
            return None
        (start, first), (end, last) = self._steps[0], self._steps[-1]
        return (last - first) / (end - start) if end > start else None


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _line_style(text: str) -> str:
    if "] ERROR: " in text:
        return "red"
    return "yellow" if "] WARNING: " in text else "default"
