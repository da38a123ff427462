"""Builds everything from a config and runs the training loop, in the stages of the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax

from supervisor.config.training.layout import Rung
from supervisor.config.training.resolved import InitConfig, TrainerConfig
from supervisor.protocol.adjustments import ACCUMULATION, INFLIGHT, SKIP_STEPS, Adjustments
from supervisor.protocol.failure_history import FailureHistory
from supervisor.protocol.fault_injection import FaultInjector
from supervisor.protocol.messages import Stage
from supervisor.protocol.reporter import Reporter
from supervisor.protocol.save_request import SaveRequests
from supervisor.protocol.simulated import HeldDevices
from trainer import deterministic_reduction, distributed
from trainer.checkpoint import CheckpointSaver
from trainer.checkpoint_steps import Keep, steps_in
from trainer.config_fingerprint import fingerprint
from trainer.corruption_check import CorruptionCheck
from trainer.evaluation import Evaluation
from trainer.evaluation_job import evaluate
from trainer.evaluation_progress import EvaluationProgress
from trainer.first_state import first_state
from trainer.flipped_bits import FlippedBits
from trainer.flops import peak_flops, step_flops
from trainer.held_state import HeldState
from trainer.host_time import HostTime
from trainer.inflight import InFlight
from trainer.log import Warn, WorkerLog, log
from trainer.metrics import MetricsWriter
from trainer.save_policy import AutomaticPolicy, save_policy
from trainer.snapshot import SnapshotWriter
from trainer.step import jit_all_finite, jit_skipped_step
from trainer.throughput import Throughput
from trainer.train_state import TrainState, TrainStateSpec
from trainer.training_loop import TrainingLoop
from trainer.training_setup import TrainingSetup, set_up


def train(
    config: TrainerConfig,
    reporter: Reporter,
    faults: FaultInjector,
    num_devices: int | None,
    setup: TrainingSetup | None = None,
) -> None:
    """Train `config` to its end, or evaluate if that is all it says, from the newest committed
    checkpoint if there is one.

    `setup` is what a standby has prepared for this config and these devices.

    Raises:
        DevicesDiffer: the backend does not have `num_devices` (None: any number will do).
        ConfigError: the config cannot be trained on the devices found.
    """
    worker_log = setup.log if setup is not None else WorkerLog()
    worker_log.reporter = reporter
    metrics = MetricsWriter.of(config.name, worker_log.warn)
    automatic = _automatic(config.init, worker_log)
    checkpoints = _checkpoints(config, worker_log.warn, metrics, automatic)
    reporter.stage(Stage.INITIALIZING)
    if setup is None:
        deterministic_reduction.same_threads(config.init)
        distributed.initialize()
    if _is_complete(config, checkpoints, reporter):
        distributed.shut_down()
        return
    if config.fit.train_dataloader is None:
        evaluate(config, reporter, faults, num_devices, checkpoints, metrics, worker_log)
        distributed.shut_down()
        return
    if (held := HeldDevices.from_environment()) is not None:
        held.initialise()
    device = jax.devices()[0]
    reporter.devices(device.platform, jax.device_count(), device.device_kind)
    adjustments = Adjustments.from_environment()
    if setup is None:
        setup = set_up(config, num_devices, adjustments, worker_log)
    spec, sharder, batches = setup.spec, setup.sharder, setup.data().batches
    rollouts = setup.rollouts()
    loop = config.init.loop
    inflight = max(1, loop.max_inflight_computations // adjustments.inflight)
    reporter.saves_on_request()
    reporter.adjustable(list(_adjustable(config, sharder.rung, inflight, adjustments)))
    _tell_meshes(setup, device.platform, worker_log)

    reporter.stage(Stage.RESTORING)
    snapshots = SnapshotWriter.of(spec, worker_log.warn)
    begun = _resume(snapshots, checkpoints, batches)
    snapshot = begun is not None
    begun = begun or _start(config, checkpoints, spec, batches, worker_log.warn)
    reporter.restored(begun.restored, snapshot=snapshot)
    step = begun.restored or 0
    validation = config.fit.validation
    broken_off = begun.broken_off if validation is not None else None
    metrics.begin(
        step, evaluates=broken_off is not None, tensorboard=config.init.metrics.tensorboard
    )

    reporter.stage(Stage.COMPILING, step)
    train_step = setup.compiled_step()
    checkpoints.read_frozen(begun.state)
    flipped = FlippedBits(spec, held) if held is not None else None
    if flipped is not None:
        train_step = flipped.train_step(train_step)

    TrainingLoop(
        held=HeldState(begun.state),
        step=step,
        max_steps=config.max_steps,
        train_step=train_step,
        skipped_step=jit_skipped_step(spec),
        all_finite=jit_all_finite(spec),
        skip_steps=adjustments.skip_steps,
        batches=batches,
        sharder=sharder,
        evaluation=(
            None
            if validation is None
            else Evaluation(
                validation,
                spec,
                sharder,
                setup.executables,
                setup.log.has_read,
                setup.rollout_mesh,
            )
        ),
        checkpoints=checkpoints,
        in_flight=InFlight(
            inflight,
            loop.log_every,
            reporter,
            metrics,
            faults,
            _throughput(config, spec, device, worker_log.warn),
        ),
        metrics=metrics,
        reporter=reporter,
        faults=faults,
        rollouts=rollouts,
        corruption_check=_corruption_check(setup, checkpoints, step, reporter, flipped),
        host_time=HostTime(reporter) if distributed.is_one_of_several() else None,
        snapshots=snapshots,
        simulated=held,
        broken_off=broken_off,
        save_stalled=automatic.stalled if automatic is not None else None,
    ).run()
    reporter.stage(Stage.FINISHING, config.max_steps)
    checkpoints.close()
    setup.executables.close()
    distributed.shut_down()


def _throughput(
    config: TrainerConfig, spec: TrainStateSpec, device: jax.Device, warn: Warn
) -> Throughput:
    length = config.fit.decisive.sequence_length
    peak = peak_flops(device.device_kind, jax.device_count())
    return Throughput(warn, step_flops(config.init, spec.objective, length), peak)


def _corruption_check(
    setup: TrainingSetup,
    checkpoints: CheckpointSaver,
    step: int,
    reporter: Reporter,
    flipped: FlippedBits | None,
) -> CorruptionCheck | None:
    """Return what checks steps after `step` for silent corruption; None: the config does not say
    so."""
    sdc = setup.spec.config.sdc
    if sdc is None:
        checkpoints.end_checks()
        return None
    checkpoints.begin_checks(step)
    if flipped is None:
        return CorruptionCheck(sdc.every, setup, reporter, step)
    return CorruptionCheck(sdc.every, setup, reporter, step, flipped.devices, flipped.is_drill)


def _automatic(init: InitConfig, worker_log: WorkerLog) -> AutomaticPolicy | None:
    """Return the policy that chooses the time between saves; None: the config says when."""
    if not init.checkpoint.is_automatic:
        return None
    return AutomaticPolicy(FailureHistory.from_environment(), worker_log.chose_save_interval)


def _checkpoints(
    config: TrainerConfig, warn: Warn, metrics: MetricsWriter, automatic: AutomaticPolicy | None
) -> CheckpointSaver:
    init, where = config.init, config.init.checkpoint
    steps, policy = steps_in(where.directory), save_policy(where, SaveRequests(), automatic)
    keep = Keep(where.keep, where.keep_every, where.keep_best)
    return CheckpointSaver(
        steps,
        keep,
        fingerprint(init),
        warn,
        policy,
        metrics.sync,
        saves_frozen=where.save_frozen,
        has_state=config.fit.train_dataloader is not None,
    )


def _is_complete(config: TrainerConfig, checkpoints: CheckpointSaver, reporter: Reporter) -> bool:
    max_steps = config.max_steps
    if (checkpoints.newest() or 0) < max_steps:
        return False
    reporter.stage(Stage.RESTORING)
    step = checkpoints.newest_verified()
    if step is None or step < max_steps:
        return False
    validates = config.fit.validation is not None and config.fit.train_dataloader is not None
    if validates and checkpoints.broken_off_evaluation(step) is not None:
        return False
    log.info("already-complete", step=step, max_steps=max_steps)
    reporter.restored(step)
    reporter.stage(Stage.FINISHING, step)
    return True


def _tell_meshes(setup: TrainingSetup, platform: str, worker_log: WorkerLog) -> None:
    log.info("mesh-chosen", platform=platform, **_mesh(setup.sharder.rung))
    if setup.rollout_mesh.is_separate:
        worker_log.chose_rollout_mesh(setup.rollout_mesh.shown)


def _mesh(rung: Rung) -> dict[str, int]:
    """Return the keys of the event `mesh-chosen` for `rung`."""
    names = ("num_devices", "data", "fsdp", "per_device_batch", "accumulation")
    return {name: getattr(rung, name) for name in names}


def _adjustable(
    config: TrainerConfig, rung: Rung, inflight: int, adjustments: Adjustments
) -> Iterator[str]:
    """Yield the adjustments that the next attempt could still make beyond those of this one."""
    if inflight > 1:
        yield INFLIGHT
    if rung.per_device_batch > 1 and not config.init.is_bitwise:
        yield ACCUMULATION
    if len(adjustments.skip_steps) < config.init.loop.skip_bad_batches:
        yield SKIP_STEPS


@dataclass(frozen=True, slots=True)
class _Begun:
    """What training goes on from."""

    state: TrainState
    restored: int | None
    """The step at which `state` was saved; None: a fresh state."""
    broken_off: EvaluationProgress | None = None
    """The evaluation of that step which was broken off; None: none is due."""


def _resume(
    snapshots: SnapshotWriter | None, checkpoints: CheckpointSaver, batches: Any
) -> _Begun | None:
    """Resume from the snapshot in memory, which is taken after the evaluation of its step. None:
    there is none to resume from."""
    found = snapshots.restore(checkpoints.newest()) if snapshots is not None else None
    if found is None:
        return None
    step, state, position = found
    batches.set_state(position)
    log.info("snapshot-restored", step=step)
    return _Begun(state, step)


def _start(
    config: TrainerConfig,
    checkpoints: CheckpointSaver,
    spec: TrainStateSpec,
    batches: Any,
    warn: Warn,
) -> _Begun:
    """Return what training goes on from without a snapshot, and set `batches` to the position that
    belongs to it."""
    directory = config.init.checkpoint.directory
    restored = checkpoints.restore(
        spec.abstract, lambda: first_state(config.start_from, spec, warn).frozen
    )
    if restored is not None:
        batches.set_state(restored.position)
        log.info("checkpoint-restored", step=restored.step, directory=str(directory))
        return _Begun(restored.state, restored.step, restored.evaluation)
    if config.start_from is None:
        log.info("started-afresh", directory=str(directory))
    return _Begun(first_state(config.start_from, spec, warn), None)
