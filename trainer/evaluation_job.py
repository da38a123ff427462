"""A phase that only evaluates: its steps are the batches of its validation.

Its state is how far the evaluation has come, so a checkpoint holds nothing else, and a restart goes
on with the next batch. What is evaluated (the weights, the batches) is named in each checkpoint: an
evaluation never goes on with other weights, or with other batches.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import NoReturn

import jax
import jax.numpy as jnp

from supervisor.config.training.resolved import TrainerConfig
from supervisor.protocol.fault_injection import FaultInjector
from supervisor.protocol.messages import Stage
from supervisor.protocol.reporter import Reporter
from supervisor.protocol.simulated import HeldDevices
from trainer import distributed
from trainer.batch_sharder import BatchSharder
from trainer.checkpoint import CheckpointSaver, Position
from trainer.evaluation import Evaluation
from trainer.evaluation_progress import EvaluationProgress
from trainer.first_state import first_state
from trainer.inflight import NotFiniteError
from trainer.log import WorkerLog, log
from trainer.mesh import make_mesh
from trainer.metrics import MetricsWriter
from trainer.objective import NextToken
from trainer.objective_choice import objective_of
from trainer.termination import Termination
from trainer.train_state import TrainState, TrainStateSpec
from trainer.training_setup import executables_of, rung_here
from trainer.weights_fingerprint import weights_fingerprint

_WEIGHTS = "weights"
"""The key in a checkpoint's position of the fingerprint of what is evaluated."""


def evaluate(
    config: TrainerConfig,
    reporter: Reporter,
    faults: FaultInjector,
    num_devices: int | None,
    checkpoints: CheckpointSaver,
    metrics: MetricsWriter,
    worker_log: WorkerLog,
) -> None:
    """Evaluate what `config` says, to its end. The backend can be initialised.

    Raises:
        DevicesDiffer, ConfigError: as `training_setup.set_up`.
        CheckpointMismatchError: its checkpoints are about other weights, or other batches.
        NotFiniteError: the loss of a batch is NaN or Inf.
    """
    if (held := HeldDevices.from_environment()) is not None:
        held.initialise()
    device = jax.devices()[0]
    reporter.devices(device.platform, jax.device_count(), device.device_kind)
    found = rung_here(config, num_devices)
    sharder = BatchSharder(make_mesh(found), found)
    objective = objective_of(config.init, config.fit.decisive)
    if objective.rollout is not None:  # completions are only rewarded: there is no reference
        objective = NextToken()
    spec = TrainStateSpec.of(config.init, sharder.mesh, objective)
    executables = executables_of(config, found, worker_log)
    reporter.saves_on_request()
    reporter.stage(Stage.RESTORING)
    state = first_state(config.start_from, spec, worker_log.warn)
    position = {_WEIGHTS: weights_fingerprint(state.params)}
    assert config.fit.validation is not None
    evaluation = Evaluation(config.fit.validation, spec, sharder, executables, worker_log.has_read)
    progress = _begin(evaluation, checkpoints, position)
    reporter.restored(progress.next_batch or None)
    metrics.begin(progress.next_batch, tensorboard=config.init.metrics.tensorboard)
    _Job(
        state, position, evaluation, config.max_steps, checkpoints, metrics, reporter, faults, held
    ).run(progress)
    reporter.stage(Stage.FINISHING, config.max_steps)
    checkpoints.close()
    executables.close()


def _begin(
    evaluation: Evaluation, checkpoints: CheckpointSaver, position: Position
) -> EvaluationProgress:
    """Return where to begin: at the newest checkpoint, else at the first batch.

    Raises:
        CheckpointMismatchError: the checkpoint is about other weights, or other batches.
    """
    found, first = checkpoints.restore_progress(), evaluation.begin()
    if found is None:
        return first
    step, saved, progress = found
    if saved[_WEIGHTS] != position[_WEIGHTS]:
        raise checkpoints.mismatch(
            step,
            f"it is about other weights (fingerprint {saved[_WEIGHTS]}) than start_from or "
            f"init.seed give now ({position[_WEIGHTS]}): put those back, or use another model_dir",
        )
    if progress.of != first.of:
        raise checkpoints.mismatch(
            step,
            "it is about other batches than fit.validation and loop.global_batch_size name now: "
            "take those back, or use another model_dir",
        )
    log.info("evaluation-resumed", **_how_far(progress, evaluation))
    return progress


def _how_far(progress: EvaluationProgress, evaluation: Evaluation) -> dict[str, int]:
    done = progress.next_batch
    return {"step": done, "done": done, "batches": evaluation.num_batches}


@dataclass(slots=True)
class _Job:
    state: TrainState
    position: Position
    evaluation: Evaluation
    num_batches: int
    checkpoints: CheckpointSaver
    metrics: MetricsWriter
    reporter: Reporter
    faults: FaultInjector
    simulated: HeldDevices | None
    reached: EvaluationProgress | None = None
    """How far this attempt has come; None: it has done no batch."""

    def run(self, progress: EvaluationProgress) -> None:
        """Evaluate from `progress` on, and save the end. When asked to stop, save, and end by the
        signal that asked."""
        termination = Termination(distributed.preemption_notice())
        self.reporter.stage(Stage.EVALUATING, progress.next_batch)
        try:
            found = self.evaluation.run(
                self.state,
                progress,
                termination.requested,
                self._after_batch,
                termination.interrupts,
            )
            if isinstance(found, EvaluationProgress):
                self._stop(found, termination)
            log.info("evaluated", step=self.num_batches, loss=found)
            self.reporter.evaluated(self.num_batches, {"loss": found})
            self.metrics.evaluated(self.num_batches, found)
            self._save_now(self.reached or progress)
        finally:
            self.metrics.flush()

    def _after_batch(self, progress: EvaluationProgress, loss: float) -> None:
        self.reached, step = progress, progress.next_batch
        if not isfinite(loss):
            raise NotFiniteError(f"batch {step}: NaN or Inf in the evaluation (loss {loss})")
        self.reporter.step(step, {"loss": loss})
        self.metrics.step(step, {"loss": jnp.float32(loss)})
        self.faults.after_step(step)
        if self.simulated is not None:
            self.simulated.fail_if_broken()
        if step < self.num_batches and self.checkpoints.due(step):
            self._tell_committed(wait=True)
            self._save(progress)
        self._tell_committed()

    def _stop(self, progress: EvaluationProgress, termination: Termination) -> NoReturn:
        log.info("evaluation-broken-off", **_how_far(progress, self.evaluation))
        self._save_now(progress)
        distributed.shut_down()
        termination.die()

    def _save_now(self, progress: EvaluationProgress) -> None:
        """Save how far it has come, unless that is committed already; return when it is."""
        step = progress.next_batch
        self.reporter.stage(Stage.SAVING, step)
        self._tell_committed(wait=True, saves_next=True)
        while step and not self.checkpoints.has(step):
            self.checkpoints.wait_for_next_try()
            self._save(progress)
            self._tell_committed(wait=True, saves_next=True)
        self.checkpoints.wait_for_manifest()

    def _save(self, progress: EvaluationProgress) -> None:
        self.metrics.flush()
        self.checkpoints.save(None, progress.next_batch, self.position, None, progress)

    def _tell_committed(self, *, wait: bool = False, saves_next: bool = False) -> None:
        step = self.checkpoints.committed(wait=wait, saves_next=saves_next)
        if step is not None:
            log.info("checkpoint-committed", step=step, seconds=self.checkpoints.last_save_seconds)
            self.reporter.saved(step, self.checkpoints.last_save_seconds)
