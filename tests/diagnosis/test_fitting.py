"""An error that was printed is certain only where it can be what ended the process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.protocol.failure_record import ExceptionInfo, FailureRecord
from tests.diagnosis.test_aborts import SPMD

CAUGHT = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 3, in <module>\n'
    "    import apex\n"
    "ModuleNotFoundError: No module named 'apex'\n"
)
EXIT = FailureRecord(
    rank=0,
    stage="TRAINING",
    step=3,
    time=1.0,
    exceptions=(ExceptionInfo("builtins.SystemExit", ("builtins.BaseException",), "3", ""),),
    traceback="",
)


def failure(output: str, rank: RankEvidence) -> Failure:
    found = judge(Evidence((replace(rank, output=output),)), Success(step=9))
    assert found is not None
    return found


def test_it_is_certain_where_it_ended_python_and_is_the_last_word() -> None:
    assert failure(f"step 1\n{CAUGHT}", RankEvidence(WorkerExit(0, code=1))).certain


@pytest.mark.parametrize(
    "rank",
    [
        RankEvidence(WorkerExit(0, signal="SIGKILL")),
        RankEvidence(WorkerExit(0, signal="SIGSEGV")),
        RankEvidence(WorkerExit(0, signal="SIGABRT")),
        RankEvidence(WorkerExit(0, code=3)),
        RankEvidence(WorkerExit(0, code=137)),
        RankEvidence(WorkerExit(0, code=1), record=EXIT),
    ],
    ids=str,
)
def test_it_is_a_guess_where_the_process_ended_otherwise(rank: RankEvidence) -> None:
    assert not failure(f"{CAUGHT}slow path\n", rank).certain


def test_it_is_a_guess_where_much_was_printed_after_it() -> None:
    after = "".join(f"uploading {name}\n" for name in "abcdefghijklmnop")
    caught = failure(CAUGHT + after, RankEvidence(WorkerExit(0, code=1)))
    assert (caught.is_certain, caught.verdict) == (False, Verdict.FATAL)
    assert "16 lines were printed after it" in caught.grounds


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM", "SIGHUP"])
def test_it_does_not_count_where_somebody_else_ended_the_process(signal: str) -> None:
    fell = RankEvidence(WorkerExit(0, signal=signal), ended_before_kill=True)
    assert failure(f"{CAUGHT}slow path\n", fell).verdict is not Verdict.FATAL


def test_it_counts_where_we_ended_a_process_that_hung_after_it() -> None:
    hung = RankEvidence(WorkerExit(0, signal="SIGKILL"))
    assert failure(CAUGHT, hung).is_guess


@pytest.mark.parametrize(
    ("code", "certain"), [(134, True), (139, True), (137, False), (143, False)]
)
def test_native_code_ends_a_process_by_its_own_signals_also_as_a_shell_tells_them(
    code: int, *, certain: bool
) -> None:
    assert failure(SPMD, RankEvidence(WorkerExit(0, code=code))).certain is certain
