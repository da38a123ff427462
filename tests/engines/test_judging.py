"""A mistake in the judgement itself stops no job: the failure counts as an unknown one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from supervisor.core.events import WorkersGone
from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.outcome import Charge, Verdict
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.success import Success
from supervisor.engines.judging import judged
from supervisor.engines.this_host import _Files

LOG = 'Traceback (most recent call last):\n  File "/a.py", line 7, in <module>\nValueError: x\n'


@dataclass
class Launched:
    """What is looked at of a launch."""

    model_dir: Path
    attempt: int = 3
    success: Success = field(default_factory=Success)
    rules: Any = RULES

    def file(self, rank: int, name: str) -> Path:
        return self.model_dir / f"{name}-{rank}"


@dataclass
class Judge:
    folder: Path
    told: list[str] = field(default_factory=list)

    def __call__(self, *codes: int, rules: Any = RULES) -> WorkersGone:
        exits = tuple(WorkerExit(rank, code=code) for rank, code in enumerate(codes))
        launch = cast(Any, Launched(self.folder, rules=rules))
        for rank in range(len(codes)):
            launch.file(rank, "log").write_text(LOG)
        return judged(1.0, _Files(), launch, exits, None, None, self.told.append, str)


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
