"""The training loop, and what happens at the boundaries between its steps.

At a boundary, in this order: steps in flight complete (with their reports and injected faults),
evaluation, snapshot, save. So an evaluation that fails is run again after the restart, never
skipped, and a fault that is injected at a step comes before that step's save. A snapshot alone
waits for no step in flight.

Whoever is told to stop in an evaluation does not wait for its end: that step is saved at once, with
how far its evaluation has come, and the next attempt begins with the rest of it
(`trainer.evaluation_progress`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from supervisor.protocol.fault_injection import FaultInjector
from supervisor.protocol.messages import NoticeCode, Stage
from supervisor.protocol.reporter import Reporter
from supervisor.protocol.simulated import HeldDevices
from trainer import distributed
from trainer.batch_sharder import BatchSharder
from trainer.checkpoint import CheckpointSaver
from trainer.corruption_check import CorruptionCheck, SilentCorruptionError
from trainer.data import Batch
from trainer.evaluation import Evaluation
from trainer.evaluation_progress import EvaluationProgress
from trainer.held_state import CompiledStep, HeldState
from trainer.host_time import HostTime
from trainer.inflight import InFlight, NotFiniteError, StateNotFiniteError
from trainer.log import WorkerLog, log
from trainer.long_work import told_if_long
from trainer.metrics import MetricsWriter
from trainer.not_finite import in_words, not_finite
from trainer.rollouts import Rollouts
from trainer.snapshot import SnapshotWriter
from trainer.termination import StopRequested, Termination


@dataclass(slots=True)
class TrainingLoop:
    """Takes the `held` state from `step` to `max_steps`.

    `train_step` is the compiled step; `batches` is the iterator over the training data, at the
    position that belongs to `step`. A step in `skip_steps` takes its batch and changes only the
    step count (by `skipped_step`). A state that is not `all_finite` is not saved. `simulated` is
    set if the devices are simulated and can break; `corruption_check` if steps are checked for
    silent corruption; `host_time` if there are other hosts to compare.
    """

    held: HeldState
    step: int
    max_steps: int
    train_step: CompiledStep
    skipped_step: Any
    all_finite: Any
    skip_steps: Container[int]
    batches: Any
    sharder: BatchSharder
    evaluation: Evaluation | None
    checkpoints: CheckpointSaver
    in_flight: InFlight
    metrics: MetricsWriter
    reporter: Reporter
    faults: FaultInjector
    rollouts: Rollouts | None = None
    """What makes batches out of `batches`, which are prompts then; None: `batches` are learned."""
    corruption_check: CorruptionCheck | None = None
    host_time: HostTime | None = None
    snapshots: SnapshotWriter | None = None
    simulated: HeldDevices | None = None
    evaluated: tuple[int, float | None] = (-1, None)
    """The step that was validated last, and its loss."""
    broken_off: EvaluationProgress | None = None
    """The evaluation of `step` that an earlier attempt broke off; None: none is due at first."""
    save_stalled: Callable[[int, float], None] | None = None
    """Called with a step and for how many seconds its save has kept training from going on, if that
    matters to anybody."""

    def run(self) -> None:
        """Train to the end and save there. When asked to stop, save and end by the signal that
        asked.

        Raises:
            NotFiniteError: a step gave NaN or Inf. A save that has begun is committed first: the
                next attempt continues from there.
            SilentCorruptionError: a check of a step failed. What was saved after the last one that
                passed is taken out of use first.
        """
        try:
            self._run()
        except NotFiniteError:
            self._tell_committed(wait=True)
            self.checkpoints.wait_for_manifest()
            self.checkpoints.pin_newest()
            raise
        except SilentCorruptionError as error:
            WorkerLog(self.reporter).warn(str(error), NoticeCode.SILENT_CORRUPTION, self.step)
            self.checkpoints.roll_back()
            raise
        except Exception:
            self.checkpoints.pin_newest()
            raise
        finally:
            self.metrics.flush()

    def _run(self) -> None:
        termination = Termination(distributed.preemption_notice())
        self.reporter.stage(Stage.TRAINING, self.step)
        self.in_flight.throughput.start_over()
        if self.evaluation is not None and self.broken_off is not None:
            self._evaluate_the_rest(self.evaluation, self.broken_off, termination)
        while self.step < self.max_steps:
            if termination.requested():
                self._stop(termination)
            if self.simulated is not None:
                self.simulated.fail_if_broken()
            self._advance(termination)
            if self.evaluation is not None and self.evaluation.due(self.step):
                self._evaluate(self.evaluation, termination)
            if self.step < self.max_steps:
                self._save_if_due()
            self._tell_committed()
        self._save_now()

    def _advance(self, termination: Termination) -> None:
        if self.host_time is not None:
            self.host_time.begin()
        with self.in_flight.throughput.waiting():
            self.faults.before_batch()
        batch = self._next_batch(termination)
        self.step += 1
        if self.step in self.skip_steps:
            self.held.whole = replace(self.held.whole, step=self.skipped_step(self.held.whole.step))
            self.in_flight.skip(self.step)
            return
        if self.corruption_check is not None and self.corruption_check.due(self.step):
            self._check(self.corruption_check, batch)
            return
        tokens = self.sharder.argument(batch)
        if self.host_time is not None:
            self.host_time.end()
        metrics = self.held.advance(self.train_step, tokens)
        self.in_flight.add(self.step, metrics)

    def _next_batch(self, termination: Termination) -> Batch:
        if self.rollouts is None:
            return self._next_of_data()
        if self.rollouts.due(self.step):
            self.in_flight.drain()  # a model that is not finite is to be told as that
            position = self.batches.get_state()
            try:
                with told_if_long(self.reporter, self.step):
                    prompts = self._next_of_data()
                    self.held.whole = self.rollouts.made(
                        self.held.whole, self.step, prompts, termination.interrupts
                    )
            except StopRequested:
                self.batches.set_state(position)
                log.info("completions-broken-off", step=self.step)
                self._stop(termination)
        return self.rollouts.batch(self.held.whole)

    def _next_of_data(self) -> Batch:
        with self.in_flight.throughput.waiting():
            batch: Batch = next(self.batches)
            return batch

    def _check(self, check: CorruptionCheck, batch: Batch) -> None:
        """Take this step, and check it for silent corruption."""
        self.in_flight.drain()
        self.held.whole, metrics = check.step(self.train_step, self.held.whole, batch, self.step)
        self.in_flight.add(self.step, metrics)
        self.in_flight.drain()
        self.checkpoints.check_passed(self.step)
        log.info("check-passed", step=self.step)
        self._start_over()

    def _start_over(self) -> None:
        """What comes next is measured anew."""
        self.in_flight.throughput.start_over()
        if self.host_time is not None:
            self.host_time.start_over()

    def _evaluate(self, evaluation: Evaluation, termination: Termination) -> None:
        self.in_flight.drain()
        self.reporter.stage(Stage.EVALUATING, self.step)
        found = evaluation.run(
            self.held.whole,
            evaluation.begin(),
            termination.requested,
            interrupts=termination.interrupts,
        )
        if isinstance(found, EvaluationProgress):
            log.info("evaluation-broken-off", **self._how_far(found, evaluation))
            self._stop(termination, found)
        self._evaluated(found)

    def _evaluate_the_rest(
        self, evaluation: Evaluation, broken_off: EvaluationProgress, termination: Termination
    ) -> None:
        """Go on with the evaluation of this step, which is committed: so its note is kept."""
        note = self.checkpoints.evaluation_note(self.step)
        self.reporter.stage(Stage.EVALUATING, self.step)
        begin = evaluation.begin(broken_off)
        log.info("evaluation-resumed", **self._how_far(begin, evaluation))
        found = evaluation.run(
            self.held.whole,
            begin,
            termination.requested,
            lambda progress, _: note.update(progress),
            termination.interrupts,
        )
        if isinstance(found, EvaluationProgress):
            log.info("evaluation-broken-off", **self._how_far(found, evaluation))
            note.write(found)
            self._stop(termination)
        self._evaluated(found)
        self.checkpoints.rate(self.step, found)
        self.metrics.flush()
        self.metrics.sync()
        note.write(replace(begin, is_done=True))

    def _evaluated(self, loss: float) -> None:
        log.info("evaluated", step=self.step, loss=loss)
        self.reporter.evaluated(self.step, {"loss": loss})
        self.metrics.evaluated(self.step, loss)
        self.evaluated = self.step, loss
        self.reporter.stage(Stage.TRAINING, self.step)
        self._start_over()

    def _how_far(self, progress: EvaluationProgress, evaluation: Evaluation) -> dict[str, int]:
        done, batches = progress.next_batch, evaluation.num_batches
        return {"step": self.step, "done": done, "batches": batches}

    def _stop(
        self, termination: Termination, evaluation: EvaluationProgress | None = None
    ) -> NoReturn:
        """Save, with the `evaluation` that was broken off, and end by the signal that asked."""
        self._save_now(evaluation)
        distributed.shut_down()
        termination.die()

    def _save_if_due(self) -> None:
        if self.snapshots is not None and self.snapshots.due(self.step):
            position = self.batches.get_state()
            written = partial(self.metrics.flush, self.in_flight.pending)
            self.snapshots.take(
                self.held.whole, self.step, position, self.in_flight.finite, written
            )
        if self.checkpoints.due(self.step):
            self._save()

    def _save(self) -> None:
        self.in_flight.drain()
        self._tell_committed(wait=True)
        if not self.checkpoints.is_paused:
            began = time.monotonic()
            self._begin_save()
            if self.save_stalled is not None and not self.checkpoints.has_failed:
                self.save_stalled(self.step, time.monotonic() - began)
        self.in_flight.throughput.start_over()

    def _save_now(self, evaluation: EvaluationProgress | None = None) -> None:
        """Save this step, unless it is committed already. Return when it is committed and its
        manifest is written."""
        self.in_flight.drain()
        self.reporter.stage(Stage.SAVING, self.step)
        self._tell_committed(wait=True, saves_next=True)
        is_due = not self.checkpoints.has(self.step)
        while is_due:
            self.checkpoints.wait_for_next_try()
            self._begin_save(evaluation)
            self._tell_committed(wait=True, saves_next=True)
            is_due = self.checkpoints.has_failed and not self.checkpoints.has(self.step)
        self.checkpoints.wait_for_manifest()

    def _begin_save(self, evaluation: EvaluationProgress | None = None) -> None:
        if not self.all_finite(self.held.whole):
            raise StateNotFiniteError(
                f"step {self.step}: its state is not saved, because it holds NaN or Inf in "
                f"{in_words(not_finite(self.held.whole))}"
            )
        self.metrics.flush()
        loss = self.evaluated[1] if self.evaluated[0] == self.step else None
        position = self.batches.get_state()
        self.checkpoints.save(self.held.whole, self.step, position, loss, evaluation)

    def _tell_committed(self, *, wait: bool = False, saves_next: bool = False) -> None:
        step = self.checkpoints.committed(wait=wait, saves_next=saves_next)
        if step is not None:
            log.info("checkpoint-committed", step=step, seconds=self.checkpoints.last_save_seconds)
            self.reporter.saved(step, self.checkpoints.last_save_seconds)
