"""The user's function that rewards completions: how it is found, called and held to its word."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from supervisor.config.training.data_files import DataError
from supervisor.diagnosis.failure import Evidence, RankEvidence, Verdict, WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.protocol.failure_record import record_of
from trainer.rewards import Reward, RewardNotFiniteError, UnusableRewardError

CODE = """
import math
seen = []
def by_length(prompts, completions, **fields):
    seen.append((prompts, completions, fields))
    return [len(each) for each in completions]
def nothing(prompts, completions, **fields): return None
def too_few(prompts, completions, **fields): return [1.0]
def words(prompts, completions, **fields): return ["1", "good"]
def not_a_number(prompts, completions, **fields): return [0.5, math.nan]
def too_large(prompts, completions, **fields): return [0.5, 1e300]
def much_too_large(prompts, completions, **fields): return [0.5, 10**5000]
def a_mapping(prompts, completions, **fields): return {0: 0.5, 1: 0.7}
def a_set(prompts, completions, **fields): return {0.5, 0.7}
def a_text(prompts, completions, **fields): return "10"
def one_by_one(prompts, completions, **fields): yield from map(len, completions)
def endless(prompts, completions, **fields):
    while True: yield 1
def broken(prompts, completions, **fields):
    yield 1
    raise TypeError("the judge is broken")
def unreachable(prompts, completions, **fields): raise ConnectionError("the judge is away")
class Judge:
    @staticmethod
    def mark(prompts, completions): return [True, False]
limit = 3
"""
PLACES = ["a.jsonl:2", "a.jsonl:7"]
"""Where the records of the two prompts stand."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the job is started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "judged", raising=False)
    (tmp_path / "judged.py").write_text(CODE)
    return tmp_path


def test_it_gets_texts_and_the_fields_of_the_records() -> None:
    reward = Reward.of("judged:by_length")
    records: list[dict[str, Any]]
    records = [{"q": "a", "answer": 1, "prompts": "no argument"}, {"q": "b", "hint": [2]}]
    found = reward(["a", "b"], ["", "long"], records, PLACES)
    assert found.dtype == np.float32
    assert list(found) == [0, 4]
    fields = {"q": ["a", "b"], "answer": [1, None], "hint": [None, [2]]}
    assert sys.modules["judged"].seen == [(["a", "b"], ["", "long"], fields)]


def right(prompts: list[str], completions: list[str], truth: list[str], *, weight: int = 1) -> Any:
    return [one == other for one, other in zip(completions, truth, strict=True)]


def test_a_record_without_a_field_that_it_needs_is_named() -> None:
    reward = Reward("judged:right", right)
    reward.check([{"truth": "4"}, {"truth": None}], ["a.jsonl:1", "a.jsonl:2"])
    with pytest.raises(DataError, match=r"a\.jsonl:2: there is no field 'truth', which judged:ri"):
        reward.check([{"truth": "4"}, {"ask": "2+2="}], ["a.jsonl:1", "a.jsonl:2"])
    Reward("builtins:max", max).check([{}], ["a.jsonl:1"])


def test_a_name_may_have_dots_on_both_sides() -> None:
    assert list(Reward.of("judged:Judge.mark")(["a", "b"], ["c", "d"], [{}, {}], PLACES)) == [1, 0]
    assert list(Reward.of("judged:one_by_one")(["a", "b"], ["c", "dd"], [{}, {}], PLACES)) == [1, 2]
    assert Reward.of("os.path:join").function is not None


def test_what_is_installed_comes_before_the_folder(folder: Path) -> None:
    (folder / "json.py").write_text("raise RuntimeError('the wrong one')")
    assert Reward.of("json:dumps").name == "json:dumps"
    assert sys.path[-1] == str(folder)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere:f", "there is no module 'nowhere', neither installed nor in {here}, where the"),
        ("judged.more:f", "there is no module 'judged.more', neither installed nor in {here}"),
        ("judged:missing", "there is no function 'missing' in {here}/judged.py (value 'judged:mi"),
        ("judged:limit", "there is no function 'limit' in {here}/judged.py"),
        ("judged:nothing", "judged:nothing returned None: it must return a list with a number fo"),
        ("judged:a_mapping", "judged:a_mapping returned {{0: 0.5, 1: 0.7}}: it must return a list"),
        ("judged:a_set", "judged:a_set returned {{0.5, 0.7}}: it must return a list"),
        ("judged:a_text", "judged:a_text returned '10': it must return a list"),
        ("judged:endless", "judged:endless returned more than 2 rewards for 2 completions"),
        ("judged:too_few", "judged:too_few returned 1 rewards for 2 completions: it must return o"),
        (
            "judged:words",
            "judged:words returned 'good', which is no number, for the prompt 'b' (a.jsonl:7) with "
            "the completion 'd'",
        ),
    ],
)
def test_a_function_that_cannot_be_used_is_told(folder: Path, name: str, told: str) -> None:
    with pytest.raises(UnusableRewardError) as error:
        Reward.of(name)(["a", "b"], ["c", "d"], [{}, {}], PLACES)
    assert str(error.value).startswith("trainer.init.grpo.reward: ")
    assert told.format(here=folder) in str(error.value)


@pytest.mark.parametrize("name", ["not_a_number", "too_large", "much_too_large"])
def test_a_reward_that_is_not_finite_is_told_with_its_record_and_completion(name: str) -> None:
    told = r"for the prompt 'b' \(a\.jsonl:7\) with the completion 'd'"
    with pytest.raises(RewardNotFiniteError, match=told):
        Reward.of(f"judged:{name}")(["a", "b"], ["c", "d"], [{}, {}], PLACES)


def test_what_it_raises_is_the_cause_itself(folder: Path) -> None:
    with pytest.raises(ConnectionError) as error:
        Reward.of("judged:unreachable")(["a"], ["c"], [{}], PLACES[:1])
    assert error.value.__notes__ == [
        "raised by the reward function judged:unreachable (trainer.init.grpo.reward)"
    ]
    with pytest.raises(TypeError, match="the judge is broken") as broken:
        Reward.of("judged:broken")(["a", "b"], ["c", "d"], [{}, {}], PLACES)
    assert broken.value.__notes__ == [
        "raised by the reward function judged:broken (trainer.init.grpo.reward)"
    ]
    (folder / "needing.py").write_text("import something_else_that_is_missing")
    with pytest.raises(ModuleNotFoundError, match="something_else_that_is_missing"):
        Reward.of("needing:f")


@pytest.mark.parametrize(
    ("name", "rule", "is_guess"),
    [
        ("judged:too_few", "unusable-reward", False),
        ("judged:not_a_number", "reward-not-finite", True),
    ],
)
def test_what_can_never_succeed_ends_the_job(name: str, rule: str, is_guess: bool) -> None:
    with pytest.raises(
        ValueError, match=r"of which nothing can be learned|it must return one for each"
    ) as error:
        Reward.of(name)(["a", "b"], ["c", "d"], [{}, {}], PLACES)
    record = record_of(error.value, rank=0, stage=None, step=None)
    failure = judge(Evidence((RankEvidence(WorkerExit(0, code=1), record),)), Success())
    assert failure is not None
    assert (failure.rule, failure.verdict, failure.is_guess) == (rule, Verdict.FATAL, is_guess)
