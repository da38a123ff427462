"""Tells the core of hosts that are about to go: some of the running attempt, or all of them."""

from __future__ import annotations

from supervisor.core.events import HostsLeaving, StopRequested, StopSource
from supervisor.engines.fleet.fleet_attempt import FleetAttempt
from supervisor.engines.fleet.fleet_means import Means

_HEAD_PATIENCE = 10.0
"""Seconds for which a cluster need not answer before the job saves: its head may be busy. Agents
are answered for about a minute after its end."""


class Departures:
    """What was told of hosts that are about to go."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._told: tuple[int, str] | None = None
        """The attempt that was last told of, and what."""

    def look(self, attempt: FleetAttempt) -> None:
        """Post that hosts of the running attempt are about to go: some of them, because the cluster
        drains them or they say so, or all, because the cluster is lost. If no node stays, the job
        ends."""
        means, now = self._means, self._means.clock.now()
        told = self._why(attempt, now)
        if not told or self._told == (attempt.number, told):
            return
        self._told = attempt.number, told
        if means.fleet.cluster_lost is None and means.fleet.all_leave:
            means.post(StopRequested(now, StopSource.PREEMPTION, told, notice=0.0))
        else:
            means.post(HostsLeaving(now, attempt.number, told))

    def _why(self, attempt: FleetAttempt, now: float) -> str:
        """Returns which hosts of the attempt are about to go, and why; empty: none is."""
        fleet = self._means.fleet
        if fleet.cluster_lost is not None:
            since, why = fleet.cluster_lost
            is_long = now - since >= _HEAD_PATIENCE
            return (
                f"the cluster has not answered for {_HEAD_PATIENCE:g} s: {why}" if is_long else ""
            )
        leaving = fleet.leaving(dict.fromkeys(attempt.agents))
        told = (f"host {node} is about to go: {why}" for node, why in leaving.items())
        return self._means.redact("; ".join(told))
