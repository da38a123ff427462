"""A request to stop that comes while a function of the user is at work."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from trainer.checkpoint import newest_step
from trainer.termination import StopRequested, Termination

from .harness import MakeTrainer, Trainer, assert_same_bits


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_it_breaks_off_only_what_may_be_broken_off_and_only_once() -> None:
    termination = Termination(environ={"SUPERVISE_JOB": "job"})
    broken_off = 0
    try:
        with termination.interrupts():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:  # as a function of the user that cleans up
                signal.raise_signal(signal.SIGTERM)
                broken_off += 1
    except StopRequested:
        broken_off += 1
    assert broken_off == 2
    assert termination.requested()
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(StopRequested), termination.interrupts():
        pytest.fail("there was a request before")


def swallows() -> None:
    with suppress(BaseException):
        signal.raise_signal(signal.SIGTERM)


def wraps() -> None:
    try:
        signal.raise_signal(signal.SIGTERM)
    except BaseException as error:
        raise ValueError("the judge has no answer") from error


@pytest.mark.parametrize("judge", [swallows, wraps])
def test_a_function_that_handles_it_has_no_result(judge: Callable[[], None]) -> None:
    termination = Termination(environ={"SUPERVISE_JOB": "job"})
    with pytest.raises(StopRequested), termination.interrupts():
        judge()


def test_it_breaks_nothing_off_where_several_processes_stop_together() -> None:
    termination = Termination(preempted=lambda: True, environ={"SUPERVISE_JOB": "job"})
    assert termination.requested()
    with termination.interrupts():
        pass


def test_a_stop_does_not_wait_for_a_slow_judge_and_a_final_save_is_gone_on_from(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    """The stop comes at the second batch of completions, in a judge that waits for ten minutes: all
    steps before it are saved, and none of the prompts is passed over. Then the job ends in the
    middle of a batch, where no save is due, and goes on."""
    data = tmp_path / "prompts.jsonl"
    data.write_text("".join(json.dumps({"ask": f"{n}+{n}="}) + "\n" for n in range(8)))

    def rewarded(name: str, reward: str, max_steps: int) -> Trainer:
        made = make_trainer(name, max_steps=max_steps)
        trainer = made.mapping["trainer"]
        loader = {"paths": str(data), "sequence_length": 9, "prompt_field": "ask"}
        trainer["fit"] = {"train_dataloader": loader}
        trainer["init"]["optimizer"]["final_learning_rate_fraction"] = 1.0  # whatever max_steps is
        trainer["init"]["checkpoint"]["every"] = 100
        trainer["init"]["grpo"] = {
            "reward": f"tests.training.rewarding:{reward}",
            "completion_length": 4,
            "group_size": 4,
            "num_iterations": 3,
        }
        return made

    stopped = rewarded("stopped", "of_ascii_or_late", 5)
    stopped.extra = {"JUDGE_WAITS_AT": "2"}
    process = stopped.start()
    assert process.stdout is not None
    said = ""
    while "the judge waits\n" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate()
    assert process.returncode == -signal.SIGTERM, rest
    assert time.monotonic() - began < 60, "far less than the judge takes"
    assert "step 3  the completions that were being rewarded are lost" in rest
    assert newest_step(stopped.checkpoints) == 3
    stopped.extra = {}
    assert "restored step 3" in stopped.finish()
    stopped.mapping["trainer"]["init"]["loop"]["max_steps"] = 7
    assert "restored step 5" in stopped.finish()

    whole = rewarded("whole", "of_ascii", 7)
    whole.finish()
    assert_same_bits(stopped.state(7), whole.state(7))
