"""A mistake in the judgement itself stops no job: the failure counts as an unknown one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from supervisor.core.events import WorkersGone
from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.outcome import Charge, Verdict
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.success import Success
from supervisor.engines.judging import Seen, SeenRank, judged
from supervisor.engines.this_host import _Files

NOTHING = Seen()
LOG = 'Traceback (most recent call last):\n  File "/a.py", line 7, in <module>\nValueError: x\n'


@dataclass
class Launched:
    """What is looked at of a launch."""

    model_dir: Path
    plan: Any
    attempt: int = 3
    success: Success = field(default_factory=Success)
    rules: Any = RULES
    world_size: int = 2

    def file(self, rank: int, name: str) -> Path:
        return self.model_dir / f"{name}-{rank}"


@dataclass
class Judge:
    folder: Path
    told: list[str] = field(default_factory=list)
    success: Success = field(default_factory=Success)
    world_size: int = 2

    def __call__(self, *codes: int, rules: Any = RULES, seen: Seen = NOTHING) -> WorkersGone:
        exits = [WorkerExit(rank, code=code) for rank, code in enumerate(codes)]
        return self.ended(exits, rules, seen)

    def ended(
        self, exits: Sequence[WorkerExit], rules: Any = RULES, seen: Seen = NOTHING
    ) -> WorkersGone:
        plan = SimpleNamespace(argv=("python", "train.py"))
        launched = Launched(
            self.folder, plan, success=self.success, rules=rules, world_size=self.world_size
        )
        launch = cast(Any, launched)
        for end in exits:
            launch.file(end.rank, "log").write_text(LOG)
        return judged(1.0, _Files(), launch, exits, seen, None, self.told.append, str)


def test_a_failure_that_cannot_be_judged_is_charged(tmp_path: Path) -> None:
    judge = Judge(tmp_path)
    failure = judge(0, 3, rules=("no rule",)).failure
    assert failure is not None
    assert (failure.verdict, failure.charge) == (Verdict.RESTART, Charge.RESTARTS)
    assert (failure.rank, failure.exit, failure.signature) == (1, "exit code 3", None)
    (told,) = judge.told
    assert told.startswith("the end of the attempt cannot be judged (AttributeError at ")


def test_a_success_is_one_whatever_the_rules_are(tmp_path: Path) -> None:
    judge = Judge(tmp_path)
    assert judge(0, 0, rules=("no rule",)).failure is None
    assert judge.told == []


def test_what_an_engine_has_seen_decides_and_is_told_with_the_end(tmp_path: Path) -> None:
    """An engine of other hosts reads no `WorkerGroup`: it says what it knows."""
    own = SeenRank(LOG.replace("ValueError: x", "ValueError: of rank 1"))
    seen = Seen({1: own}, ended_before_kill=2, step=7, adjustable=("accumulation",))
    end = Judge(tmp_path)(0, 3, seen=seen)
    assert (end.step, end.adjustable) == (7, ("accumulation",))
    assert end.failure is not None
    assert (end.failure.rank, end.failure.root_cause) == (1, "ValueError: of rank 1")


@pytest.mark.parametrize(
    ("error", "every_step", "step"),
    [
        ("FloatingPointError: invalid value (nan) encountered in jit(step)", True, 7),
        ("FloatingPointError: invalid value (nan) encountered in jit(step)", False, None),
        ("ValueError: x", True, None),
    ],
)
def test_a_step_that_gave_nan_is_known_where_the_output_tells_every_step(
    error: str, every_step: bool, step: int | None, tmp_path: Path
) -> None:
    own = SeenRank(LOG.replace("ValueError: x", error))
    end = Judge(tmp_path)(3, seen=Seen({0: own}, step=7, every_step=every_step))
    assert end.failure is not None
    assert end.failure.step == step


def test_a_recognised_step_is_told_and_proves_nothing(tmp_path: Path) -> None:
    judge = Judge(tmp_path)
    judge.success = Success(step=7)
    told = judge(0, seen=Seen({0: SeenRank("")}, step=7))
    assert (told.failure, told.step, told.step_recognised) == (None, 7, False)
    recognised = judge(0, seen=Seen({0: SeenRank("")}, step=7, step_recognised=True))
    assert recognised.failure is not None
    assert (recognised.failure.rule, recognised.step, recognised.step_recognised) == (
        "no-step-told",
        7,
        True,
    )


def test_only_what_ended_before_the_engine_killed_can_be_a_cause(tmp_path: Path) -> None:
    exits = [WorkerExit(rank, signal="SIGKILL") for rank in (1, 0)]
    silent = {end.rank: SeenRank("") for end in exits}
    struck, killed = (
        Judge(tmp_path).ended(exits, seen=Seen(silent, ended_before_kill=number)).failure
        for number in (1, 0)
    )
    assert struck is not None
    assert killed is not None
    assert (struck.rank, struck.struck) == (1, True)
    assert not killed.struck


def test_where_there_is_one_worker_no_peer_is_told_of(tmp_path: Path) -> None:
    refused = LOG.replace("ValueError: x", "ConnectionError: judge: connection refused")
    seen = Seen({0: SeenRank(refused)})
    alone, one_of_two = (Judge(tmp_path, world_size=size)(1, seen=seen).failure for size in (1, 2))
    assert alone is not None
    assert one_of_two is not None
    assert (alone.verdict, alone.rule) == (one_of_two.verdict, one_of_two.rule)
    assert one_of_two.cause == "lost a peer"
    told = f"{alone.cause} {alone.reason} {alone.advice}"
    assert "peer" not in told
    assert "rank" not in told
    assert "see what it connects to" in alone.advice
