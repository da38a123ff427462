"""The worker's end of the pipe: it never blocks, never breaks a trainer, and keeps stages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from supervisor.protocol.environment import PROGRESS_FD, PROGRESS_PIPE
from supervisor.protocol.messages import (
    DevicesMessage,
    EvaluatedMessage,
    Message,
    RestoredMessage,
    SavedMessage,
    Stage,
    StageMessage,
    StepMessage,
    decode,
)
from supervisor.protocol.reporter import Reporter

ALWAYS = 0.0
NEVER_AGAIN = 1e9


class Pipe:
    """A real progress pipe, both ends in this process."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)

    def environment(self) -> dict[str, str]:
        status = os.fstat(self.write_end)
        return {
            PROGRESS_FD: str(self.write_end),
            PROGRESS_PIPE: f"{status.st_dev}:{status.st_ino}",
        }

    def reporter(self, step_interval: float) -> Reporter:
        os.set_blocking(self.write_end, False)
        return Reporter(self.write_end, step_interval=step_interval)

    def fill(self) -> None:
        """Leave no room at all, as a supervisor that does not read."""
        os.set_blocking(self.write_end, False)
        for size in (4096, 1):
            with suppress(BlockingIOError):
                while True:
                    os.write(self.write_end, b"\n" * size)

    def messages(self) -> list[Message | None]:
        data = b""
        with suppress(BlockingIOError):
            while chunk := os.read(self.read_end, 1 << 20):
                data += chunk
        return [decode(line) for line in data.split(b"\n") if line]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    for descriptor in (pipe.read_end, pipe.write_end):
        with suppress(OSError):
            os.close(descriptor)


def test_everything_is_said(pipe: Pipe) -> None:
    reporter = Reporter.connect(pipe.environment())
    reporter.devices("cpu", 4, "cpu")
    reporter.stage(Stage.RESTORING)
    reporter.restored(None)
    reporter.stage(Stage.TRAINING, 5)
    reporter.step(6, {"loss": 0.5})
    reporter.evaluated(6, {"accuracy": 1})
    reporter.saved(6)
    reporter.saved(9, 1.5)
    assert pipe.messages() == [
        DevicesMessage("cpu", 4, "cpu"),
        StageMessage(Stage.RESTORING),
        RestoredMessage(None),
        StageMessage(Stage.TRAINING, 5),
        StepMessage(6, {"loss": 0.5}),
        EvaluatedMessage(6, {"accuracy": 1.0}),
        SavedMessage(6),
        SavedMessage(9, 1.5),
    ]


def test_steps_are_throttled_and_a_stage_opens_the_gate(pipe: Pipe) -> None:
    reporter = pipe.reporter(NEVER_AGAIN)
    for step in range(1, 1000):
        reporter.step(step)
    reporter.stage(Stage.EVALUATING)
    reporter.step(1000)
    reporter.step(1001)
    assert pipe.messages() == [StepMessage(1), StageMessage(Stage.EVALUATING), StepMessage(1000)]
    assert reporter.current == (Stage.EVALUATING, 1001)
    for _ in range(2):
        reporter.catch_up()
    assert pipe.messages() == [StepMessage(1001)]


def test_metrics_are_converted_only_if_they_are_sent(pipe: Pipe) -> None:
    class Expensive:
        asked = 0

        def __float__(self) -> float:
            Expensive.asked += 1
            return 0.5

    reporter = pipe.reporter(NEVER_AGAIN)
    for step in range(100):
        reporter.step(step, {"loss": Expensive()})
    assert Expensive.asked == 1
    Reporter(None).step(1, {"loss": Expensive()})
    assert Expensive.asked == 1


def test_a_full_pipe_drops_steps_and_keeps_the_rest_in_order(pipe: Pipe) -> None:
    reporter = pipe.reporter(ALWAYS)
    pipe.fill()
    reporter.stage(Stage.COMPILING)
    for step in range(1, 500):
        reporter.step(step)
    reporter.saved(9)
    assert pipe.messages() == []
    reporter.step(500)
    assert pipe.messages() == [StageMessage(Stage.COMPILING), SavedMessage(9), StepMessage(500)]


def test_what_is_kept_for_a_full_pipe_is_bounded(pipe: Pipe) -> None:
    reporter = pipe.reporter(ALWAYS)
    pipe.fill()
    for step in range(10_000):
        reporter.saved(step)
    assert pipe.messages() == []
    reporter.stage(Stage.FINISHING)
    told = pipe.messages()
    assert told[-1] == StageMessage(Stage.FINISHING)
    assert len(told) < 100
    saved = [message.step or 0 for message in told[:-1] if isinstance(message, SavedMessage)]
    assert saved[-1] == 9999
    assert all(after == before + 1 for before, after in pairwise(saved))


def test_it_says_no_more_once_nobody_listens(pipe: Pipe) -> None:
    reporter = pipe.reporter(ALWAYS)
    os.close(pipe.read_end)
    reporter.stage(Stage.TRAINING)
    other = Pipe()
    os.dup2(other.write_end, pipe.write_end)  # were it still writing, this would get it
    reporter.stage(Stage.SAVING)
    reporter.step(3)
    reporter.saved(3)
    assert other.messages() == []
    assert reporter.current == (Stage.SAVING, 3)


def test_a_forked_child_is_silent(pipe: Pipe) -> None:
    program = (
        "import os\n"
        "from supervisor.protocol.messages import Stage\n"
        "from supervisor.protocol.reporter import Reporter\n"
        "reporter = Reporter.connect()\n"
        "if os.fork() == 0:\n"
        "    reporter.stage(Stage.SAVING, 99)\n"
        "    reporter.step(99)\n"
        "    os._exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "reporter.step(1)\n"
    )
    environ = {**os.environ, **pipe.environment()}
    subprocess.run(
        [sys.executable, "-c", program], env=environ, pass_fds=(pipe.write_end,), check=True
    )
    assert pipe.messages() == [StepMessage(1)]


def test_without_a_supervisor_it_is_silent_and_still_knows_the_step() -> None:
    assert Reporter.connect({}).current == (Stage.STARTING, None)
    reporter = Reporter.connect({})
    reporter.stage(Stage.TRAINING)
    reporter.step(3, {"loss": 1.0})
    reporter.saved(3)
    assert reporter.current == (Stage.TRAINING, 3)
    reporter.stage(Stage.SAVING, 4)
    assert reporter.current == (Stage.SAVING, 4)


def test_a_descriptor_that_is_not_the_pipe_is_left_alone(pipe: Pipe, tmp_path: Path) -> None:
    good = pipe.environment()
    other = Pipe()
    file = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    status = os.fstat(file)
    for environ in (
        {**good, PROGRESS_PIPE: other.environment()[PROGRESS_PIPE]},
        {**good, PROGRESS_FD: "-1"},
        {**good, PROGRESS_FD: "1000000"},
        {**good, PROGRESS_FD: "three"},
        {PROGRESS_FD: good[PROGRESS_FD]},
        {PROGRESS_PIPE: good[PROGRESS_PIPE]},
        {PROGRESS_FD: str(file), PROGRESS_PIPE: f"{status.st_dev}:{status.st_ino}"},
    ):
        Reporter.connect(environ).stage(Stage.TRAINING)
    assert pipe.messages() == []
    assert (tmp_path / "file").read_bytes() == b""
    assert os.get_blocking(file)
    Reporter.connect(good).stage(Stage.TRAINING)
    assert pipe.messages() == [StageMessage(Stage.TRAINING)]
