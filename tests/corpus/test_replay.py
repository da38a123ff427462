"""Each case of the corpus as a real job: a trainer that fails so, under a real `supervise run`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from supervisor.core.exit_codes import ExitCode
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.rules.wording import advice_at_the_end
from supervisor.diagnosis.verdicts import without_peers
from tests.corpus.cases import CANNOT_BE_TOLD, Case, judge_together, read_cases
from tests.running import Preloaded, Result, preloaded

TRAINER = str(Path(__file__).with_name("trainer.py"))


@pytest.fixture(scope="module")
def supervisors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preloaded]:
    with preloaded(tmp_path_factory.mktemp("supervisors")) as one:
        yield one


def replay(case: Case, supervisors: Preloaded, model_dir: Path) -> Result:
    """The case's failure at every attempt of a job that may be restarted once."""
    log = model_dir.with_name("case.log")
    log.write_text(case.output, encoding="utf-8")
    ended = case.ended
    how = ["exit", str(ended.code)] if ended.signal is None else ["signal", ended.signal]
    budget = {"max_num_restarts": 1, "max_num_preemptions": 1, "backoff": {"first": 0.0}}
    config = {
        "trainer": {
            "init": {"model_dir": str(model_dir), "autorestart": budget},
            "command": [sys.executable, "-S", "-E", TRAINER, str(log), *how],
        }
    }
    path = model_dir.with_name("trainer.yaml")
    path.write_text(yaml.safe_dump(config))
    supervisors.start("run", str(path))
    return Result(supervisors.answer(), "", "", model_dir)


@pytest.mark.parametrize("case", read_cases(), ids=lambda case: case.id)
def test_the_job_ends_or_goes_on_as_it_should(
    case: Case, supervisors: Preloaded, model_dir: Path
) -> None:
    done = replay(case, supervisors, model_dir)
    failure = without_peers(judge_together([case]))  # the job has one worker
    if case.verdict == Verdict.FATAL and case.id not in CANNOT_BE_TOLD:
        assert (done.code, done.attempts) == (ExitCode.FAILED, 1 if failure.certain else 2)
    else:
        assert done.code in (ExitCode.BUDGET_SPENT, ExitCode.FAILED)
        assert done.attempts == 2
    counted = failure.rule == "sigkill-or-memory"  # a real job knows more: a cgroup may count
    if not case.hung and not counted:
        told = done.summary["attempts"][0]["failure"]
        names = ("rule", "verdict", "certain", "cause", "reason", "advice")
        expected = {name: getattr(failure, name) for name in names} | {
            "certain": failure.is_certain
        }
        if done.attempts == 1:  # else it is not the last one, with the advice for the end
            advice = advice_at_the_end(failure.advice, failure.cause, has_checkpoint=False)
            expected["advice"] = advice
        assert {name: told[name] for name in names} == expected
        assert told["root_cause"].startswith(failure.root_cause[:80])
