"""The policy of a job, made from its config: budgets, grace periods, backoff, success."""

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
    """Whether the workers are to report a stage or step within the limit of STARTING. If so, they
    are watched for hangs from their start, else from their first report."""
    deadlines: Mapping[Stage, float] = field(default_factory=dict)
    """Time limits in seconds, which override the default and the learned ones."""
    repeated_failure_limit: int | None = None
    """At how many times without progress the same failure ends the job; 0: only the budget does;
    None: 2 before the phase's first checkpoint, 3 after it."""
    max_total_restarts: int | None = None
    """The limit of charged restarts of the phase, whatever its progress; None: there is none."""
    rungs: tuple[int, ...] = ()
    """The ladder: device counts in descending order; empty: the number of devices is not known."""
    units: tuple[str, ...] = ()
    """The units of the full rung; all have the same number of devices. Empty if `num_hosts` is
    set."""
    num_hosts: int = 0
    """How many machines make up the full rung, if a cluster has them: each is a unit with one
    worker, and a probe says which there are. 0: the config names all units."""
    workers_are_units: bool = False
    """Whether a unit is a host with one worker; else it is a device."""
    side_by_side: bool = False
    """Whether the units of a rung must be adjacent."""
    first_initialising: float | None = None
    """Time limit in seconds of a first initialisation. After it the initialisation is tried once
    more with the normal limit, without charge or blame. None: the normal limit holds from the
    start."""
    finds_checkpoints: bool = False
    """Whether the checkpoint directory is found while the program runs; False: the config names it,
    or it is our trainer's."""

    @property
    def num_units(self) -> int:
        """How many units the full rung has."""
        return self.num_hosts or len(self.units)

    def limits(self, *, tries_again: bool) -> Mapping[Stage, float]:
        """Returns the time limits of an attempt in seconds; `tries_again`: whether its
        initialisation may still be tried once more."""
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
    """How long the machine stays after its preemption was announced; None: not known."""
    impatient_grace_period: float = 5.0
    """The most that is left of the grace period after a second request to stop."""
    stack_dump: float = 2.0
    """The time for the stack dump of a hung group before it is asked to stop; counted from the end
    of the native stacks, if a tool writes them."""
    native_stacks: float = 10.0
    """The most that a hung group is not asked to stop because a tool writes its native stacks. On
    an idle machine those of a trainer took 0.1 to 0.9 s."""
    corroboration: float = 1.0
    """The least wait before a restart after a preemption, for example after a worker died of a
    SIGTERM that the supervisor did not send. The host may be about to go: in this time the
    supervisor gets a SIGTERM too, or hears of the preemption."""
    farewell: float = 0.1
    """The time in which the other ranks may write their failure records after one has failed."""
    survivors_wait: float = 5.0
    """The time that survivors get to end after all workers ended with success."""
    confirm_interval: float = 10.0
    """The time to wait for `WorkersGone` before the group is killed again, and for `PhaseBegun`
    before the phase is begun again."""
    launch_timeout: float = 300.0
    """The time to wait for `WorkersStarted` before the group is killed and counts as failed."""
    backoff_first: float = 10.0
    backoff_max: float = 300.0
    backoff_jitter: float = 0.2
    wait_for_capacity: float = 600.0
    """How long to wait for the smallest rung before the job ends with `NO_CAPACITY`."""
    wait_for_replacement: float = 0.0
    """How long to wait for a replacement of lost units before going on with a smaller rung."""
    probe_timeout: float = 450.0
    """The time to wait for `DevicesProbed` before the devices are probed again."""
    look_interval: float = 10.0
    """The time between two probes while the job waits for devices."""
    regrow_at_checkpoint: bool = False
    """Whether a running attempt makes way for a larger rung; else it grows at the next restart."""
    regrow_interval: float = 30.0
    """The time between two probes for a larger rung while an attempt runs."""
    regrow_after: float = 60.0
    """How long a larger rung must be usable before a running attempt makes way for it. The time
    doubles with each flap (`Ladder.flaps`)."""
    quarantine_for: float = 3600.0
    replaceable: bool = False
    """Whether somebody replaces the machine of a job that ends with 69: `supervise provision`."""
    blame_limit: int = 3
    """How many failures of one host within `blame_window` put it in quarantine."""
    blame_window: float = 3600.0
