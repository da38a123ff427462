"""An evaluation that is broken off goes on where it was, and is told once, with the same bits."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.config.training.layout import Rung
from supervisor.config.training.resolved import parse
from tests.training.notices import Notices
from tests.training.test_foreign import commit
from tests.training.test_metrics import told, writing
from trainer.batch_sharder import BatchSharder
from trainer.checkpoint import newest_step
from trainer.checkpoint_steps import Keep, RenamedSteps
from trainer.evaluation import Evaluation
from trainer.evaluation_progress import EvaluationNote, EvaluationProgress
from trainer.executables import Executables
from trainer.log import WorkerLog
from trainer.manifest import EVALUATION_NOTE, read_manifest
from trainer.mesh import make_mesh
from trainer.objective_choice import objective_of
from trainer.train_state import TrainStateSpec

from .harness import MakeTrainer, Trainer, assert_same_bits, tiny

LAST = 16
LONG = 400
"""Batches: an evaluation that lasts long enough to be met by a signal."""

MakeEvaluating = Callable[[str], Trainer]


@pytest.fixture
def make_evaluating(make_trainer: MakeTrainer) -> MakeEvaluating:
    """Make a trainer whose last step is validated, too, and which keeps the best checkpoint."""

    def make(name: str) -> Trainer:
        trainer = make_trainer(name, max_steps=LAST)
        trainer.mapping["trainer"]["init"]["checkpoint"] |= {"keep_best": True}
        trainer.mapping["trainer"]["fit"]["validation"]["every"] = 8
        return writing(trainer)

    return make


def evaluated(trainer: Trainer) -> list[int]:
    return [line["step"] for line in told(trainer.folder) if "evaluation_loss" in line]


def kept(trainer: Trainer) -> set[str]:
    return {path.name for path in trainer.checkpoints.iterdir() if path.name.isdecimal()}


class Struck:
    """A trainer that is struck again and again; each attempt has a number of its own."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.attempts = 0

    def run(self, signal_name: str | None = None, **moment: object) -> str:
        """Run an attempt, which the signal strikes at this moment; what it printed."""
        self.attempts += 1
        writing(self.trainer, self.attempts)
        fault = {"id": f"fault-{self.attempts}", "signal": signal_name, **moment}
        done = self.trainer.run(*([fault] if signal_name is not None else []))
        code = 0 if signal_name is None else -signal.Signals[signal_name]
        assert done.returncode == code, done.stdout
        return done.stdout


def test_stopped_in_an_evaluation_it_does_it_after_the_restart(
    make_evaluating: MakeEvaluating,
) -> None:
    whole, struck = make_evaluating("whole"), Struck(make_evaluating("struck"))
    whole.finish()
    assert evaluated(whole) == [8, LAST]
    for step in (8, LAST):
        struck.run("SIGKILL", stage="EVALUATING")  # the step is not saved yet
        assert newest_step(struck.trainer.checkpoints) != step
        struck.run("SIGTERM", stage="EVALUATING")
        assert newest_step(struck.trainer.checkpoints) == step
        # Struck again in the same evaluation, by both signals.
        struck.run("SIGTERM", stage="EVALUATING")
        struck.run("SIGKILL", stage="EVALUATING")
        assert newest_step(struck.trainer.checkpoints) == step
        assert step not in evaluated(struck.trainer)
        if step < LAST:  # just after it: it must not be told twice
            struck.run("SIGKILL", step=step + 2)
    assert f"step {LAST}  validation loss" in struck.run()
    assert "nothing to do" in struck.run()
    assert told(struck.trainer.folder) == told(whole.folder)
    assert_same_bits(struck.trainer.state(LAST), whole.state(LAST))


def test_the_best_is_kept_whose_evaluation_was_broken_off(make_evaluating: MakeEvaluating) -> None:
    struck = make_evaluating("struck")
    struck.mapping["trainer"]["init"]["checkpoint"]["keep"] = 1
    struck.mapping["trainer"]["fit"]["validation"]["every"] = LAST
    struck.run({"stage": "EVALUATING", "signal": "SIGTERM"})
    struck.finish()
    assert evaluated(struck) == [LAST]
    struck.mapping["trainer"]["init"]["loop"]["max_steps"] = LAST + 2  # which is not validated
    struck.finish()
    assert kept(struck) == {f"{LAST}", f"{LAST + 2}"}


@pytest.mark.slow
def test_it_goes_on_in_the_middle(make_evaluating: MakeEvaluating) -> None:
    whole, struck = make_evaluating("whole"), make_evaluating("struck")
    for trainer in (whole, struck):
        trainer.mapping["trainer"]["fit"]["validation"]["steps"] = LONG
    whole.finish()
    middle, delay = set[int](), 0.02
    for attempt in range(1, 13):
        process = writing(struck, attempt).start_forked()
        assert process.stdout is not None
        output = ""
        for line in map(bytes.decode, process.stdout):
            output += line
            if line.startswith("evaluation step: ") and len(middle) < 2:
                time.sleep(delay)  # that decides in which batch it is met
                process.send_signal(signal.SIGTERM)
        process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGTERM, output
        (done,) = [int(line.split()[5]) for line in output.splitlines() if "stops after" in line]
        middle |= {done} - {0}
        delay *= 2 if not middle else 1
    assert process.returncode == 0, output
    assert len(middle) == 2
    assert f"validation goes on after {max(middle)} of" in output
    assert told(struck.folder) == told(whole.folder)
    assert_same_bits(struck.state(LAST), whole.state(LAST))


def test_that_its_data_are_read_is_told(tmp_path: Path) -> None:
    config, rung = parse(tiny(tmp_path)), Rung(1, 1, 1, 4, 1)
    sharder, executables = BatchSharder(make_mesh(rung), rung), Executables(None, {}, WorkerLog())
    objective = objective_of(config.init, config.fit.decisive)
    spec = TrainStateSpec.of(config.init, sharder.mesh, objective)
    read: list[int] = []
    assert config.fit.validation is not None
    evaluation = Evaluation(config.fit.validation, spec, sharder, executables, read.append)
    begin = evaluation.begin()
    state: Any = None  # no batch is evaluated
    assert evaluation.run(state, begin, stop=lambda: True) is begin
    assert read
    executables.close()


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """The folder of a committed step of this job."""
    steps = RenamedSteps(tmp_path)
    steps.begin(5, print)
    commit(steps, 5)
    return tmp_path / "5"


def test_a_note_is_written_now_and_then_and_goes_with_its_step(step: Path) -> None:
    clock = iter([0.0, 9.0, 10.0, 11.0, 12.0])
    note = EvaluationNote(step, clock=lambda: next(clock))
    assert note.read() is None
    note.update(EvaluationProgress("a", 1, 0.1))
    assert note.read() is None
    note.update(EvaluationProgress("a", 2, 0.1 + 0.2))
    note.update(EvaluationProgress("a", 3, 0.7))
    assert note.read() == EvaluationProgress("a", 2, 0.1 + 0.2)
    manifest = read_manifest(step)
    assert manifest is not None
    manifest.verify(step)
    said = Notices()
    steps = RenamedSteps(step.parent)
    steps.clear(said)
    steps.evict(Keep(0), lambda what: None, said)
    assert not step.exists()
    assert not said


def test_a_damaged_note_is_none(step: Path) -> None:
    note = EvaluationNote(step)
    note.write(EvaluationProgress("a" * 64, 7, 1.5))
    file = step / EVALUATION_NOTE
    whole = file.read_bytes()
    for place in range(len(whole) - 1):  # the last byte is the newline
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            file.write_bytes(damaged)
            assert note.read() in (None, EvaluationProgress("a" * 64, 7, 1.5))
    file.write_bytes(whole[:-5])
    assert note.read() is None


@pytest.mark.parametrize("next_batch", ["1e999", "-1e999", "NaN", "[]", "null", '"x"', "true"])
def test_a_note_with_nonsense_is_none(step: Path, next_batch: str) -> None:
    body = f'{{"of": "a", "next_batch": {next_batch}, "total": 1, "is_done": false}}'
    (step / EVALUATION_NOTE).write_text(body)
    assert EvaluationNote(step).read() is None


def test_a_note_that_cannot_be_written_is_told_in_the_log(
    step: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (step / EVALUATION_NOTE).mkdir()
    EvaluationNote(step).write(EvaluationProgress("a", 7, 1.5))
    assert "step 5  how far the validation is could not be noted" in capsys.readouterr().out
