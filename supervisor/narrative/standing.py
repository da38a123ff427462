"""The standing of the job: one value, and one sentence made of it.

systemd, status.json, the live view, summary.json and `supervise status` show it.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState, Status
from supervisor.narrative.device_text import full_rung
from supervisor.protocol.messages import Stage


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a job stands."""

    job: str
    status: Status
    exit_code: int | None
    """The exit code; None: the job has not ended."""
    phase: str
    attempt: int
    """The number of the latest attempt; 0: none was started."""
    stage: Stage | None
    """The stage that the workers report; None: they report none."""
    step: int | None
    """The last completed step that the attempt reported; None: it reported none."""
    num_devices: int | None
    """The rung, as a number of devices; None: not known."""
    max_num_devices: int | None
    """The full rung, as a number of devices; None: not known."""
    newest_checkpoint: int | None
    """The newest committed step of the phase, as last seen; None: there was none."""
    highest_committed: int | None
    """The highest step ever committed in the phase: only a step above it is progress."""
    restarts: int
    max_num_restarts: int
    preemptions: int
    restarts_in_all: int

    @property
    def is_shrunk(self) -> bool:
        """True if the job is on a smaller rung than the full one."""
        rung, full = self.num_devices, self.max_num_devices
        return rung is not None and full is not None and rung < full


def standing(state: JobState, policy: RestartPolicy) -> Standing:
    """Returns where the job in `state` stands."""
    phase = policy.phases[state.phase]
    return Standing(
        job=state.job,
        status=state.status,
        exit_code=state.exit_code,
        phase=phase.name,
        attempt=state.attempt,
        stage=state.liveness.stage,
        step=state.liveness.step,
        num_devices=state.ladder.num_devices(phase),
        max_num_devices=full_rung(phase),
        newest_checkpoint=state.newest,
        highest_committed=state.budget.highest,
        restarts=state.budget.restarts,
        max_num_restarts=phase.max_num_restarts,
        preemptions=state.budget.preemptions,
        restarts_in_all=state.budget.total,
    )


def standing_line(it: Standing) -> str:
    """Returns the standing in one line."""
    parts = [f"{it.status}: phase {it.phase!r}"]
    if it.attempt:
        parts.append(f"attempt {it.attempt}")
    if it.stage is not None:
        parts.append(str(it.stage))
    if it.step is not None:
        parts.append(f"step {it.step}")
    if it.is_shrunk:
        parts.append(f"on {it.num_devices} of {it.max_num_devices} devices")
    newest, highest = it.newest_checkpoint, it.highest_committed
    parts += [] if newest is None else [f"last checkpoint: step {newest}"]
    if newest != highest:
        parts.append(f"highest committed step ever: {highest}")
    return ", ".join(parts if highest is not None else [*parts, "no checkpoint seen yet"])
