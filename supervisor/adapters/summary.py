"""summary.json: one record for each attempt of a phase, for tools and for people with jq."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from supervisor.config.plan import PhasePlan
from supervisor.core.decisions import FinishJob, TellRecovery
from supervisor.core.events import (
    LaunchFailed,
    PhaseBegun,
    WorkersGone,
    WorkersStarted,
)
from supervisor.core.state import JobState, Status
from supervisor.ports import Storage, Transition


class Summary:
    """Keeps the records of the current phase. Follows from the transitions alone."""

    def __init__(
        self, storage: Storage, plans: Sequence[PhasePlan], on_error: Callable[[str], None]
    ) -> None:
        self._storage = storage
        self._plans = plans
        self._on_error = on_error
        self._broken = False
        self._attempts: list[dict[str, Any]] = []

    def replay(self, transitions: Sequence[Transition]) -> None:
        """Take in the transitions of earlier supervisors."""
        for transition in transitions:
            self._take(transition)

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        ends = any(isinstance(decision, FinishJob) for decision in transition.decisions)
        if (self._take(transition) or ends) and transition.after.directory is not None:
            body = {**_job(transition.after, self._plans), "attempts": self._attempts}
            data = json.dumps(body, indent=2).encode() + b"\n"
            try:
                self._storage.replace(f"{transition.after.directory}/summary.json", data)
                self._broken = False
            except OSError as error:
                if not self._broken:
                    self._on_error(f"summary.json cannot be written: {error.strerror}")
                self._broken = True

    def _take(self, transition: Transition) -> bool:
        """Update the records; whether anything changed."""
        told = [d for d in transition.decisions if isinstance(d, TellRecovery)]
        for recovery in told:
            self._record(recovery.attempt)["recovery"] = _recovery(recovery)
        return self._take_event(transition) or bool(told)

    def _take_event(self, transition: Transition) -> bool:
        wall = transition.wall.isoformat(timespec="milliseconds")
        match transition.event:
            case PhaseBegun() if transition.after.directory != transition.before.directory:
                self._attempts = []
            case WorkersStarted(_, attempt, pids):
                placement = transition.after.ladder.placement
                devices = self._plans[transition.after.phase].num_devices
                self._attempts.append(
                    {
                        "attempt": attempt,
                        "status": "RUNNING",
                        "started": wall,
                        "num_devices": placement.num_devices if placement else devices,
                        "pids": list(pids),
                    }
                )
            case WorkersGone() as event if transition.before != transition.after:
                self._end(event.attempt, wall, _outcome(event, transition))
            case LaunchFailed(_, attempt):
                self._attempts.append({"attempt": attempt, "started": wall})
                failure = _failure(transition.after)
                self._end(attempt, wall, {"status": "FAILED", "failure": failure})
            case _:
                return False
        return True

    def _end(self, attempt: int, wall: str, outcome: dict[str, Any]) -> None:
        self._record(attempt).update({"ended": wall, **outcome})

    def _record(self, attempt: int) -> dict[str, Any]:
        if not self._attempts or self._attempts[-1]["attempt"] != attempt:
            self._attempts.append({"attempt": attempt})  # its WorkersStarted was never journalled
        return self._attempts[-1]


def _job(state: JobState, plans: Sequence[PhasePlan]) -> dict[str, Any]:
    plan = plans[state.phase]
    return {
        "job": state.job,
        "phase": plan.name,
        "status": state.status,
        "exit_code": state.exit_code,
        "max_steps": plan.max_steps,
        "highest_committed_step": state.budget.highest,
        "restarts_used": state.budget.restarts,
        "preemptions_used": state.budget.preemptions,
    }


def _recovery(told: TellRecovery) -> dict[str, Any]:
    return {
        "seconds": round(told.seconds, 4),
        "parts": {part: round(seconds, 4) for part, seconds in told.parts.items()},
        "lost_steps": told.lost,
        "first_completed_step": told.step,
    }


def _outcome(event: WorkersGone, transition: Transition) -> dict[str, Any]:
    group = transition.before.group
    if group is not None and group.abandoned:
        status = "LOST"
    elif event.failure is None:
        status = "SUCCEEDED"
    else:
        status = str(Status.DRAINED) if transition.before.drains else "FAILED"
    start = event.resumed_from or 0
    return {
        "status": status,
        "starting_step": event.resumed_from,
        "from_snapshot": event.from_snapshot,
        "ending_step": event.step,
        "steps_progressed": max(0, event.step - start) if event.step is not None else 0,
        "newest_committed_step": event.committed,
        "failure": _failure(transition.after) if status == "FAILED" else None,
    }


def _failure(state: JobState) -> dict[str, Any] | None:
    return asdict(state.last_failure) if state.last_failure is not None else None
