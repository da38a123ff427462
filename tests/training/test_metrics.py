"""metrics.jsonl of our trainer: after any kills it is that of an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from supervisor.protocol import metrics_file
from tests.training.harness import MakeTrainer, Trainer
from trainer.metrics import MetricsWriter

SEED = int(os.environ.get("SEED", random.randrange(2**32)))


def told(folder: Path) -> list[dict[str, Any]]:
    """The lines of the file, without what differs from run to run."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]
    return [{k: v for k, v in line.items() if k not in metrics_file.OF_THE_RUN} for line in lines]


def writing(trainer: Trainer, attempt: int = 1, *, tensorboard: bool = False) -> Trainer:
    """The same trainer, which writes its metrics as in this attempt of a job."""
    trainer.mapping["trainer"]["init"]["metrics"] = {"tensorboard": tensorboard}
    trainer.extra = {
        "SUPERVISE_METRICS_FILE": str(trainer.folder / "metrics.jsonl"),
        "SUPERVISE_JOB": "metrics",
        "SUPERVISE_ATTEMPT": str(attempt),
    }
    return trainer


def plotted(folder: Path) -> dict[tuple[str, int], float]:
    """The points that TensorBoard shows: a start hides what earlier files have from its step on."""
    points: dict[tuple[str, int], float] = {}
    for file in sorted((folder / "tensorboard" / "phase1").iterdir()):
        for event in events_in(file.read_bytes()):
            if event.HasField("session_log") and event.session_log.status == SessionLog.START:
                points = {key: one for key, one in points.items() if key[1] < event.step}
            for value in event.summary.value:
                points[value.tag, event.step] = value.simple_value
    return points


def events_in(data: bytes) -> list[Any]:
    """The events of a file of TFRecords: length, its checksum, the event, its checksum."""
    events, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        events.append(Event.FromString(data[at + 12 : at + 12 + size]))
        at += 16 + size
    return events


def test_killed_at_some_steps_it_has_each_step_once(make_trainer: MakeTrainer) -> None:
    whole = writing(make_trainer("whole"), tensorboard=True)
    whole.finish()
    expected = told(whole.folder)
    assert [line["step"] for line in expected if "loss" in line] == list(range(1, 18))
    assert [line["step"] for line in expected if "evaluation_loss" in line] == [4, 8, 12, 16]

    struck = make_trainer("struck")
    deaths: tuple[dict[str, Any], ...] = {"step": 3}, {"step": 9}, {"stage": "FINISHING"}
    for attempt, moment in enumerate(deaths, 1):
        writing(struck, attempt, tensorboard=True).run({**moment, "signal": "SIGKILL"})
    assert told(struck.folder) == expected, "also of the last step, once that is committed"
    writing(struck, 4, tensorboard=True).finish()
    assert told(struck.folder) == expected
    for folder in (whole.folder, struck.folder):
        shown = {
            (name, line["step"]): pytest.approx(value)
            for line in expected
            for name, value in line.items()
            if name not in ("phase", "step")
        }
        assert plotted(folder) == shown


@pytest.mark.slow
def test_killed_twenty_times_at_random_it_has_each_step_once(make_trainer: MakeTrainer) -> None:
    print(f"SEED={SEED}")
    chance = random.Random(SEED)
    whole, struck = (writing(make_trainer(name, max_steps=120)) for name in ("whole", "struck"))
    whole.finish()
    kills = attempt = 0
    while kills < 20:
        attempt += 1
        process = writing(struck, attempt).start_forked()
        assert process.stdout is not None
        left = chance.randrange(1, 12)
        while left and (line := process.stdout.readline()):
            left -= line.startswith(b"step ")
        process.kill()
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        assert attempt < 200
        if attempt > kills:  # it has come to its end: once more from an earlier step
            break
    writing(struck, attempt + 1).finish()
    assert kills > 5
    assert told(struck.folder) == told(whole.folder)


def test_a_write_that_fails_is_told_once_and_made_good(tmp_path: Path) -> None:
    warnings: list[str] = []
    file = tmp_path / "metrics.jsonl"
    file.mkdir()
    writer = MetricsWriter(file, "phase1", 1, lambda text, code, step=None: warnings.append(text))
    writer.begin(0)
    writer.evaluated(1, 0.5)
    writer.flush()
    writer.sync()
    assert len(warnings) == 1
    assert "metrics are not written now" in warnings[0]
    file.rmdir()
    writer.evaluated(2, 0.25)
    writer.flush()
    assert [line["evaluation_loss"] for line in told(tmp_path)] == [0.5, 0.25]
