"""When a save is due: by steps, and by time without asking the clock at every step."""

# mypy: disable-error-code="attr-defined"
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orbax.checkpoint.checkpoint_managers import DecisionContext
from orbax.checkpoint.options import MultiprocessingOptions

from supervisor.config.training.resolved import CheckpointConfig
from supervisor.protocol.committed import committed_steps
from supervisor.protocol.environment import SAVE_REQUEST
from supervisor.protocol.failure_history import FailureHistory
from supervisor.protocol.save_request import SaveRequests
from tests.running import Start
from trainer.checkpoint import CheckpointSaver
from trainer.checkpoint_steps import steps_in
from trainer.save_interval import SHORTEST
from trainer.save_policy import AutomaticPolicy, RequestedPolicy, TimedPolicy, save_policy

from .harness import assert_same_bits, final_state


@dataclass
class Moment:
    """A step, as Orbax tells a policy of it."""

    step: int
    time: Any = None
    metrics: Any = None


class Training:
    """Steps of one length each, by a clock that counts who looks at it."""

    def __init__(self, seconds: float, first: int = 0) -> None:
        self.now, self.looks, self.step = 100.0, 0, first
        self.policy = self.make_policy(seconds)
        self.now += 10_000.0  # to import, restore and compile takes longer than an interval
        self.step = first - 1
        assert not self.takes(0.0), "the first step of a process"
        self.looks = 0

    def make_policy(self, seconds: float) -> TimedPolicy:
        return TimedPolicy(seconds, self.clock)

    def clock(self) -> float:
        self.looks += 1
        return self.now

    def takes(self, seconds: float, *, saving: bool = False) -> bool:
        """Whether a save is due after one more step, of so many seconds."""
        self.now += seconds
        self.step += 1
        context = DecisionContext(
            is_saving_in_progress=saving,
            reached_preemption=False,
            multiprocessing_options=MultiprocessingOptions(),
        )
        asked: Any = type("Step", (), {"step": self.step, "time": None})()
        return self.policy.should_save(asked, (), context=context)


@given(
    st.floats(1.0, 1000.0),
    st.integers(0, 10**6),
    st.lists(st.floats(0.01, 2.0), min_size=1, max_size=8),
)
def test_a_save_is_due_after_its_time_and_hardly_later(
    interval: float, first: int, lengths: list[float]
) -> None:
    training = Training(interval, first)
    began, begin = training.now, training.step
    for number in range(1000):
        due = training.takes(lengths[number % len(lengths)])
        elapsed, steps = training.now - began, training.step - begin
        assert not due or elapsed >= interval - 1e-3
        assert due or elapsed < interval + 2.0 * (steps // 100 + 1)
        if due:
            began, begin = training.now, training.step


def test_no_process_saves_at_its_first_step() -> None:
    """Or else a job that fails two steps after each start would make progress each time."""
    training = Training(60.0, first=1000)
    assert not any(training.takes(1.0) for _ in range(59))
    assert training.takes(1.0)
    assert not any(training.takes(1.0) for _ in range(59))
    assert training.takes(1.0)


def test_a_save_that_still_goes_on_is_not_waited_for() -> None:
    training = Training(5.0)
    assert not any(training.takes(1.0, saving=True) for _ in range(20))
    assert training.takes(1.0)


def test_short_steps_ask_the_clock_seldom() -> None:
    training = Training(300.0)
    assert not any(training.takes(0.01) for _ in range(29_000))
    assert training.looks < 800
    assert sum(training.takes(0.01) for _ in range(1_400)) == 1


class AutomaticTraining(Training):
    """Training whose policy chooses the time between saves."""

    def __init__(self, history: FailureHistory) -> None:
        self.history, self.told = history, list[tuple[str, int]]()
        super().__init__(0.0)

    def make_policy(self, seconds: float) -> AutomaticPolicy:
        self.automatic = AutomaticPolicy(
            self.history, lambda text, step: self.told.append((text, step)), self.clock
        )
        return self.automatic

    def until_a_save(self) -> int:
        """For how many steps of a second there was none."""
        return next(number for number in range(1, 10_000) if self.takes(1.0))


def test_the_time_between_saves_follows_from_cost_and_failures() -> None:
    training = AutomaticTraining(FailureHistory(99, 154_000.0))
    assert training.until_a_save() == SHORTEST
    training.automatic.stalled(training.step, 5.0)
    assert training.until_a_save() == 50
    training.automatic.stalled(training.step, 2.0)
    # In the 10,060 s that this attempt has run there was no failure.
    assert training.until_a_save() == 87  # sqrt(2 x 2 s x 185,660 s / 100) = 86.2 s
    (_, first), (text, second) = training.told
    assert (first, second) == (10, 60)
    assert text.startswith("a checkpoint every 86 s from now on: a save stalls training for 2 s")
    training.automatic.stalled(training.step, 2.1)
    assert len(training.told) == 2, "only what changes by much is told"
    for _ in range(2):
        training.automatic.stalled(training.step, 8.0)
    assert [step for _, step in training.told] == [10, 60, training.step]
    assert 120 <= training.until_a_save() <= 176


def test_by_steps_a_save_is_due_at_each_multiple(tmp_path: Path) -> None:
    config = CheckpointConfig(directory=tmp_path, every=4)
    checkpoints = CheckpointSaver(
        steps_in(tmp_path), 3, {}, print, save_policy(config, SaveRequests({}))
    )
    assert [step for step in range(1, 13) if checkpoints.due(step)] == [4, 8, 12]
    checkpoints.close()


class Requests(SaveRequests):
    """A person who asks when a test says so."""

    def __init__(self) -> None:
        super().__init__({SAVE_REQUEST: "somewhere"})
        self.wanted, self.looks = False, 0

    def is_asked(self) -> bool:
        self.looks += 1
        return self.wanted

    def answered(self) -> None:
        self.wanted = False

    def look_again(self) -> None:
        self._next_look = 0.0


def takes(policy: RequestedPolicy, number: int, *, saving: bool = False) -> bool:
    context = DecisionContext(
        is_saving_in_progress=saving,
        reached_preemption=False,
        multiprocessing_options=MultiprocessingOptions(),
    )
    return policy.should_save(Moment(number), (), context=context)


@pytest.mark.parametrize("alone", [True, False])
def test_a_request_is_answered_by_one_save(*, alone: bool) -> None:
    requests = Requests()
    policy = RequestedPolicy(requests, alone=alone)
    assert not takes(policy, 1)
    requests.wanted = True
    requests.look_again()
    assert not takes(policy, 2, saving=True)
    requests.look_again()
    assert takes(policy, 3)
    requests.look_again()
    assert not takes(policy, 4)


def test_several_processes_look_less_and_less_often_and_at_the_same_steps() -> None:
    first, second = Requests(), Requests()
    policies = [RequestedPolicy(each, alone=False) for each in (first, second)]
    for number in range(10_000):
        assert not any(takes(policy, number) for policy in policies)
    assert first.looks == second.looks < 700


@pytest.mark.slow
def test_workers_that_save_by_time_save_the_same_steps_and_resume_to_the_bit(
    start: Start, model_dir: Path, tmp_path: Path, unoptimised: dict[str, str]
) -> None:
    from tests.end_to_end.test_training import config

    def job(place: Path, every: int | str, *faults: dict[str, Any]) -> dict[str, Any]:
        made = config(place, 2, list(faults), max_steps=60)
        made["trainer"]["init"] |= {"workers": 2, "checkpoint": {"every": every, "keep": 9}}
        return made

    killed = job(model_dir, "0.2s", {"step": 45, "signal": "SIGKILL", "rank": 1})
    result = start(killed, env=unoptimised).result(180)
    assert result.code == 0, result.log
    first, second = result.summary["attempts"]
    assert 0 < second["starting_step"] == first["newest_committed_step"] <= 45
    assert len(list(committed_steps(model_dir / "checkpoints"))) >= 2
    whole = job(tmp_path / "whole", 30)
    assert start(whole, env=unoptimised).result(180).code == 0
    assert_same_bits(final_state(killed, model_dir, 60), final_state(whole, tmp_path / "whole", 60))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_job_that_chooses_when_it_saves_is_killed_and_ends_with_the_same_bits(
    workers: int, start: Start, model_dir: Path, tmp_path: Path, unoptimised: dict[str, str]
) -> None:
    """Slow input makes attempt 1 last until its first save, and past it."""
    from tests.end_to_end.test_training import config

    def job(place: Path, every: int | str, *faults: dict[str, Any]) -> dict[str, Any]:
        made = config(place, workers, list(faults), max_steps=70)
        made["trainer"]["init"] |= {"checkpoint": {"every": every, "keep": 9}}
        if workers > 1:
            made["trainer"]["init"] |= {"workers": workers}
        return made

    slow = {"step": 1, "slow_input": 0.25}
    kill = {"step": 60, "signal": "SIGKILL", "rank": workers - 1}
    killed = job(model_dir, "auto", slow, kill)
    result = start(killed, env=unoptimised).result(180)
    assert result.code == 0, result.log
    told = result.events("save-interval-chosen", attempt=1)
    assert {one["level"] for one in told} == {"info"}
    first, second = result.summary["attempts"]
    assert second["starting_step"] == first["newest_committed_step"]
    assert second["starting_step"] in [one["step"] for one in told]
    whole = job(tmp_path / "whole", 30)
    assert start(whole, env=unoptimised).result(180).code == 0
    assert_same_bits(final_state(killed, model_dir, 70), final_state(whole, tmp_path / "whole", 70))
