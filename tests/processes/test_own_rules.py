"""A FATAL rule of the config in real runs: how sure it is, and its examples before the launch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running import Result, command_config

ARGV = ["sh", "-c", "echo no answer from the license server; exit 1"]


def config(model_dir: Path, **rule: Any) -> dict[str, Any]:
    rules = [{"regex": "license server", "verdict": "FATAL", "advice": "Ask IT.", **rule}]
    restart = {"max_num_restarts": 9, "rules": rules}
    return command_config(model_dir, restart=restart, argv=ARGV)


@pytest.mark.parametrize(
    ("rule", "attempts", "certain"),
    [({}, 1, True), ({"certain": True}, 1, True), ({"certain": False}, 2, False)],
)
def test_it_ends_the_job_at_once_unless_it_says_that_it_is_a_guess(
    supervise: Callable[..., Result],
    model_dir: Path,
    rule: dict[str, Any],
    attempts: int,
    certain: bool,
) -> None:
    result = supervise(config(model_dir, **rule))
    assert (result.code, result.attempts) == (70, attempts), result.log
    grounds = result.events("verdict-grounds", code="own-1", verdict="FATAL", certain=certain)[-1]
    assert "your rule in the config says so" in grounds["reason"]


@pytest.mark.parametrize(("rule", "code", "attempts"), [({}, 70, 2), ({"transient": True}, 76, 4)])
def test_the_same_failure_again_ends_the_job_unless_it_is_transient(
    supervise: Callable[..., Result],
    model_dir: Path,
    rule: dict[str, Any],
    code: int,
    attempts: int,
) -> None:
    restart = {"max_num_restarts": 3, "backoff": {"first": 0.01, "max": 0.02}}
    rules = [{"regex": "license server", "verdict": "RESTART", **rule}]
    result = supervise(command_config(model_dir, restart={**restart, "rules": rules}, argv=ARGV))
    assert (result.code, result.attempts) == (code, attempts), result.log


def test_an_example_that_fails_is_told_before_anything_is_started(
    supervise: Callable[..., Result], model_dir: Path
) -> None:
    secret = "hf_" + "a1" * 17
    result = supervise(config(model_dir, examples=[f"the licence server wants {secret}"]))
    assert (result.code, result.out) == (78, "")
    assert ".rules[0].examples[0]: should be decided by this rule, but rule 'unknown'" in result.err
    assert secret not in result.err
    assert not model_dir.exists() or not any(model_dir.iterdir())
