"""What a job's config says to the decision core: budgets, grace, backoff, success."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor.diagnosis.success import Success
from supervisor.protocol.messages import Stage


@dataclass(frozen=True, slots=True)
class PhasePolicy:
    """One phase's name, budgets and success."""

    name: str
    max_num_restarts: int
    max_num_preemptions: int = 20
    success: Success = field(default_factory=Success)
    reports_stages: bool = False
    """Whether the workers are known to speak the worker protocol: if so, they are watched from
    their start on, else from their first word on."""
    deadlines: Mapping[Stage, float] = field(default_factory=dict)
    """Time limits that override the defaults and what is learned, in seconds."""
    repeated_failure_limit: int | None = None
    """How often the same failure may come back without progress; 0: as often as the budget bears;
    None: twice before the phase's first checkpoint, three times after it."""
    max_total_restarts: int | None = None
    """How many charged restarts there may be in all, whatever progress is made; None: any number.
    """
    rungs: tuple[int, ...] = ()
    """The ladder: device counts, the full one first; empty: nobody knows how many there are."""
    units: tuple[str, ...] = ()
    """All that the full rung is made up of, each with as many devices as the others."""
    workers_are_units: bool = False
    """Whether each unit is a host with a worker of its own; else it is a device."""
    side_by_side: bool = False
    """Whether a rung must be made up of neighbours."""
    first_initialising: float | None = None
    """After how many seconds an initialisation is tried once more, without charge or blame, before
    it gets its whole time; None: there is no such trial."""

    def limits(self, *, tries_again: bool) -> Mapping[Stage, float]:
        """The time limits of an attempt; `tries_again`: whether its initialisation may be tried
        once more."""
        if self.first_initialising is None or not tries_again:
            return self.deadlines
        return {Stage.INITIALIZING: self.first_initialising, **self.deadlines}


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The policy of a job. Durations are seconds."""

    phases: tuple[PhasePolicy, ...]
    grace_period: float = 25.0
    """From SIGTERM to SIGKILL."""
    preemption_notice: float | None = None
    """How long the machine stays after its preemption was announced; None: nobody knows."""
    impatient_grace_period: float = 5.0
    """What is left of the grace period at most after a second request to stop."""
    stack_dump: float = 2.0
    """What the dump of a hung group's stacks may take before it is asked to stop."""
    corroboration: float = 1.0
    """After a worker died of a SIGTERM that was not ours, the time in which we may get one too, or
    hear of a preemption: before it is over, nothing is started on a host that may be doomed."""
    farewell: float = 0.1
    """What the other ranks of a dead group get to write their failure records."""
    survivors_wait: float = 5.0
    """How long the processes that workers left behind when they ended well may take to end too."""
    confirm_interval: float = 10.0
    """After this long without word that a killed group is gone, it is killed again; and without
    word that a phase has begun, it is begun again."""
    launch_timeout: float = 300.0
    """After this long without word that a group runs, it is killed and counts as failed."""
    backoff_first: float = 10.0
    backoff_max: float = 300.0
    backoff_jitter: float = 0.2
    wait_for_capacity: float = 600.0
    """How long to wait, below the smallest rung, before the job ends without having failed."""
    wait_for_replacement: float = 0.0
    """How long to wait for what was lost before it goes on with less."""
    probe_timeout: float = 450.0
    """After this long without an answer devices are looked at again."""
    look_interval: float = 10.0
    """Between two looks while it waits for devices."""
    regrow_at_checkpoint: bool = False
    """Whether a running attempt makes way for a larger rung; else it grows at the next restart."""
    regrow_interval: float = 30.0
    """Between two looks for a larger rung while a smaller one runs."""
    regrow_after: float = 60.0
    """How long a larger rung must have been well before a running attempt makes way for it; twice
    as long each time that it did not last."""
    quarantine_for: float = 3600.0
    replaceable: bool = False
    """Whether somebody replaces the machine of a job that ends with 69: `supervise provision`."""
    blame_limit: int = 3
    """So many failures of one host within `blame_window` put it in quarantine."""
    blame_window: float = 3600.0
