"""The trainer as a worker: what it tells its supervisor, alive and dying."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.protocol import simulated
from supervisor.protocol.messages import (
    DevicesMessage,
    EvaluatedMessage,
    RestoredMessage,
    SavedMessage,
    StageMessage,
    decode,
)

from .harness import MakeTrainer


def test_a_phase_without_a_source_fails_with_a_record(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    trainer.mapping["trainer"]["start_from"] = {"directory": str(trainer.folder / "nowhere")}
    assert trainer.run().returncode == 1
    assert trainer.failure().exceptions[0].type == "trainer.checkpoint.NoCheckpointError"
    assert trainer.failure().stage == "RESTORING"


def test_another_number_of_devices_fails_with_a_record(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    trainer.extra = {"SUPERVISE_JOB": "job", "SUPERVISE_NUM_DEVICES": "2"}
    assert trainer.run().returncode == 1
    exception = trainer.failure().exceptions[0]
    assert exception.type == "trainer.mesh.DevicesMissing"
    assert "started for 2 devices, but the cpu backend has 1" in exception.message


def test_an_invalid_config_fails_with_a_record(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(max_stepps=3)
    assert trainer.run().returncode == 1
    exception = trainer.failure().exceptions[0]
    assert exception.type == "supervisor.config.problems.ConfigError"
    assert "trainer.init.loop.max_stepps" in exception.message


def test_an_exception_in_the_loop_leaves_stage_and_step(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(max_inflight_computations=1)
    done = trainer.run({"step": 2, "exception": "builtins.FloatingPointError"})
    assert done.returncode == 1
    assert "FloatingPointError" in done.stdout
    record = trainer.failure()
    assert (record.stage, record.step) == ("TRAINING", 2)


def test_progress_is_told_in_order(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(max_steps=5)
    reading, writing = os.pipe()
    identity = os.fstat(writing)
    trainer.extra = {
        "SUPERVISE_PROGRESS_FD": str(writing),
        "SUPERVISE_PROGRESS_PIPE": f"{identity.st_dev}:{identity.st_ino}",
    }
    trainer.finish(pass_fds=(writing,))
    os.close(writing)
    with Path(f"/proc/self/fd/{reading}").open("rb") as lines:
        messages = [decode(line) for line in lines]
    os.close(reading)

    stages = [(m.stage.value, m.step) for m in messages if isinstance(m, StageMessage)]
    assert stages == [
        ("INITIALIZING", None),
        ("RESTORING", None),
        ("COMPILING", 0),
        ("TRAINING", 0),
        ("EVALUATING", 4),
        ("TRAINING", 4),
        ("SAVING", 5),
        ("FINISHING", 5),
    ]
    assert DevicesMessage("cpu", 1, "cpu") in messages
    assert RestoredMessage(None) in messages
    (saved,) = [m for m in messages if isinstance(m, SavedMessage)]
    assert saved.step == 5
    assert saved.seconds is not None
    assert saved.seconds > 0
    assert [m.step for m in messages if isinstance(m, EvaluatedMessage)] == [4]


def test_simulated_devices_that_break_end_the_training_at_the_next_step(
    make_trainer: MakeTrainer,
) -> None:
    trainer = make_trainer(max_inflight_computations=1)
    file = trainer.folder / simulated.FILE
    trainer.extra = simulated.to_environment(file, ("0",))
    done = trainer.run({"step": 2, "device_returns": "0"}, {"step": 5, "device_lost": "0"})
    assert done.returncode == 1
    record = trainer.failure()
    assert (record.stage, record.step) == ("TRAINING", 5)
    (error,) = record.exceptions
    assert error.message == "INTERNAL: core halted: simulated device 0 is lost"
