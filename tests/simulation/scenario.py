"""What one seed draws before anything happens: the job's policy, and which faults are how
likely."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from random import Random

from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.diagnosis.rules import RULES, Rule, rules_for_jobs_in_a_store
from supervisor.diagnosis.success import Success
from supervisor.protocol.adjustments import ACCUMULATION, INFLIGHT
from supervisor.protocol.messages import Stage
from tests.simulation.hazards import NO_HAZARDS, Hazards, draw_hazards


@dataclass(frozen=True, slots=True)
class Faults:
    """The probability of each kind of fault, wherever it can happen; zero: never in this world."""

    worker_fails: float = 0.0
    fatal: float = 0.0
    preempted: float = 0.0
    repeats: float = 0.0
    """A rank fails with an error of its own, perhaps the same one as before."""
    early_exit: float = 0.0
    struck: float = 0.0
    """A rank is killed from outside, by no fault of its own."""
    hangs: float = 0.0
    cascade: float = 0.0
    """A rank whose peer has died fails because of that a moment later."""
    output_held: float = 0.0
    """A process outside the job holds a worker's output open."""
    remedied: float = 0.0
    """The cause of a rank's end has a remedy."""
    launch_fails: float = 0.0
    last_commit: float = 0.0
    """A dying worker's last checkpoint is committed just before the worker ends."""
    vanishes: float = 0.0
    """A checkpoint is deleted when another one is committed."""
    ignores_sigterm: float = 0.0
    slow: float = 0.0
    """A process takes long to obey SIGTERM, to die of SIGKILL, or to answer a launch."""
    leftover: float = 0.0
    """A process of the group outlives its workers."""
    lost: float = 0.0
    late: float = 0.0
    duplicate: float = 0.0
    batch: float = 0.0
    """The supervisor looks late, and finds several events at once."""
    killed: float = 0.0
    """The supervisor is killed before or after an effect."""
    machine_dies: float = 0.0
    """If the supervisor is killed: its whole machine dies with it."""
    write_fails: float = 0.0
    """A write to the journal fails."""
    unit_lost: float = 0.0
    """A device or host is lost, or comes back; drawn at each `Devices.change_at_random`."""
    unit_wrong: float = 0.0
    """A unit computes wrong results for a while, which its worker may notice."""
    probe_fails: float = 0.0
    """A probe of the devices finds nothing out."""


_HIGHEST = Faults(
    worker_fails=0.3,
    fatal=0.2,
    preempted=0.5,
    repeats=1.0,
    early_exit=0.3,
    struck=0.15,
    hangs=0.05,
    cascade=0.7,
    output_held=0.1,
    remedied=0.7,
    launch_fails=0.3,
    last_commit=0.6,
    vanishes=0.4,
    ignores_sigterm=0.7,
    slow=0.5,
    leftover=0.3,
    lost=0.3,
    late=0.3,
    duplicate=0.3,
    batch=0.2,
    killed=0.04,
    machine_dies=0.5,
    write_fails=0.02,
    unit_lost=0.6,
    unit_wrong=0.4,
    probe_fails=0.3,
)

NONE = Faults()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A job, and the world it runs in."""

    policy: RestartPolicy
    faults: Faults
    benign: float
    """The (virtual) time from which on nothing goes wrong any more."""
    world_size: int
    num_steps: int
    """The number of steps that a phase takes."""
    commit_every: int
    """Steps between two checkpoints."""
    snapshot_every: int | None
    """Steps between two snapshots; None: the job takes none."""
    adjustable: tuple[str, ...]
    """What the workers can adjust."""
    need: int
    """The factor by which the program must use less memory until it fits; 1: it fits."""
    bad_steps: frozenset[int]
    """Steps that give NaN at every try."""
    missing: frozenset[int]
    """Steps that need a file that is missing, until somebody puts it there."""
    max_skipped: int
    too_small: frozenset[int]
    """Rungs below the full one for which the program cannot be compiled."""
    too_small_for_sure: bool
    """Whether that failure has a certain verdict, and not only a guess."""
    rules: tuple[Rule, ...]
    """The rules for a job in a directory, or for one in a bucket."""
    standby: str | None
    """The configured kind of standby."""
    max_again: int
    """How often a person runs the command again after the job has ended for good."""
    changes: int
    """How often the workers change their stage in a step: usually twice, to save."""
    seed: int = 0
    """The seed of the hazards' random streams."""
    hazards: Hazards = NO_HAZARDS

    @property
    def on_tpu(self) -> bool:
        """Whether the job runs on the chips of a TPU, and not on simulated devices."""
        is_one = self.world_size == 1 and not self.policy.phases[0].units
        return self.hazards.busy_chips and is_one


def draw(seed: int, rng: Random) -> Scenario:
    """Draw a scenario. Each kind of fault is absent from about half of all worlds."""
    drawn = {
        field.name: rng.choice((0.0, 1.0)) * rng.random() * getattr(_HIGHEST, field.name)
        for field in fields(Faults)
    }
    num_steps = rng.randint(3, 12)
    size = rng.choice((1, 1, 2, 3))
    count = rng.choice((1, 1, 2, 3))
    has_ladder = rng.choice((False, True))
    phases = tuple(
        _on_ladder(rng, _phase(rng, f"p{n}", num_steps), size if has_ladder else 0)
        for n in range(count)
    )
    policy = RestartPolicy(
        phases=phases,
        grace_period=rng.choice((5.0, 25.0)),
        preemption_notice=rng.choice((None, None, 30.0, 120.0)),
        wait_for_capacity=rng.choice((60.0, 600.0)),
        wait_for_replacement=rng.choice((0.0, 0.0, 50.0)),
        regrow_at_checkpoint=rng.choice((False, True)),
        regrow_after=rng.uniform(10.0, 60.0),
        quarantine_for=rng.choice((100.0, 1000.0)),
        replaceable=rng.choice((False, True)),
    )
    benign = rng.uniform(100.0, 1500.0)
    return Scenario(
        seed=seed,
        policy=policy,
        faults=Faults(**drawn),
        hazards=draw_hazards(seed, benign),
        benign=benign,
        world_size=size,
        num_steps=num_steps,
        commit_every=rng.randint(1, 4),
        snapshot_every=rng.choice((None, 1, 1, 2)),
        adjustable=rng.choice(((), (INFLIGHT,), (ACCUMULATION,), (INFLIGHT, ACCUMULATION))),
        need=rng.choice((1, 1, 1, 2, 4)),
        bad_steps=frozenset(rng.choices(range(1, num_steps + 1), k=rng.choice((0, 0, 1, 2)))),
        missing=frozenset(rng.choices(range(1, num_steps + 1), k=rng.choice((0, 0, 1, 4)))),
        max_skipped=rng.choice((0, 1, 2)),
        too_small=frozenset(rng.choices((1, 2, 3), k=rng.choice((0, 0, 1)))),
        too_small_for_sure=rng.choice((False, True)),
        rules=rng.choice((RULES, rules_for_jobs_in_a_store(RULES))),
        standby=rng.choice((None, "off", "imports", "ready")),
        max_again=rng.choice((0, 0, 1, 3)),
        changes=rng.choice((0, 0, 2, 2, 2, 2, 2, 40)),
    )


def _phase(rng: Random, name: str, target: int) -> PhasePolicy:
    success = rng.choice(
        (
            Success(step=target, committed=True),
            Success(step=target),
            Success(pattern="is done"),
            Success(file="done"),
            Success(),
            Success(exit_code=3),
        )
    )
    deadlines = {Stage.STARTING: 40.0, Stage.TRAINING: rng.uniform(20.0, 100.0)}
    restarts = rng.randint(0, 4)
    return PhasePolicy(
        name,
        restarts,
        rng.randint(0, 3),
        success,
        reports_stages=rng.choice((False, True)),
        deadlines=rng.choice(({}, deadlines)),
        first_initialising=rng.choice((None, 30.0)),
        repeated_failure_limit=rng.choice((None, None, 0, 1, 2)),
        max_total_restarts=rng.choice((None, None, restarts, restarts + 3)),
        finds_checkpoints=restarts > 0,
    )


def _on_ladder(rng: Random, phase: PhasePolicy, workers: int) -> PhasePolicy:
    """Return `phase` with devices that can be lost: four of one worker, or two of each of several
    workers."""
    if workers == 0:
        return phase
    if workers == 1:
        return replace(
            phase,
            rungs=rng.choice(((4,), (4, 2), (4, 2, 1), (4, 3, 2, 1))),
            units=("0", "1", "2", "3"),
            side_by_side=rng.choice((False, True)),
        )
    least = rng.randint(1, workers)
    return replace(
        phase,
        rungs=tuple(2 * hosts for hosts in range(workers, least - 1, -1)),
        units=tuple(f"host{n}" for n in range(workers)),
        workers_are_units=True,
    )


def grown(policy: RestartPolicy, rng: Random) -> RestartPolicy:
    """Return what a person may ask of a job that has succeeded: a higher target, or one more
    phase."""
    last = policy.phases[-1]
    if last.success.step is None or rng.random() < 0.3:
        return replace(policy, phases=(*policy.phases, replace(last, name="added")))
    success = replace(last.success, step=last.success.step + rng.randint(1, 4))
    return replace(policy, phases=(*policy.phases[:-1], replace(last, success=success)))
