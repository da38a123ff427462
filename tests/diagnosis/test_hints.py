"""An exception without words is explained by what stands beside it, as far as that can pass."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.failure import Evidence, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.protocol.failure_record import record_of
from tests.diagnosis.test_certain import LIBRARY, OWN, failure

STEP = "I1121 09:08:25.278659   32226 trainer.py:129] step 118 loss 2.8311\n"


def printed(line: str, *, source: str = "check()", path: str = LIBRARY, before: str = "") -> str:
    return (
        f"{STEP}{before}Traceback (most recent call last):\n"
        f'  File "{OWN}", line 3, in <module>\n    main()\n'
        f'  File "{path}", line 7, in read\n    {source}\n    ^^^^^^^^\n'
        f"{line}\n"
    )


NCCL = (
    "host-1:4242:4300 [0] NCCL WARN socketProgress: Connection closed by remote peer "
    "host-2<41877>\n"
)
GRPC = "E1121 09:08:32.1 7 channel.cc:1] StatusCode.UNAVAILABLE: Socket closed\n"
OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n"
WORDLESS = ["AssertionError", "RuntimeError:", "RuntimeError: ", "Exception", "KeyError"]


@pytest.mark.parametrize("line", WORDLESS)
@pytest.mark.parametrize(
    ("before", "rule"), [(NCCL, "lost-peer"), (GRPC, "lost-peer"), (OOM, "resource-limit-text")]
)
def test_the_lines_before_explain_it(line: str, before: str, rule: str) -> None:
    found = failure(printed(line, before=before))
    assert (found.rule, found.verdict is Verdict.FATAL) == (rule, False)


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("assert jnp.isfinite(loss).all()", "not-finite-text"),
    ],
)
def test_the_line_of_code_explains_it(source: str, rule: str) -> None:
    assert failure(printed("AssertionError", source=source)).rule == rule


def test_a_record_is_explained_by_the_line_of_code_of_its_traceback() -> None:
    try:
        loss_is_finite = False
        assert loss_is_finite is (1 == 1), ""  # not finite
    except AssertionError as error:
        record = record_of(error, rank=0, stage=None, step=7)
    rank = RankEvidence(WorkerExit(0, code=1), record=record)
    found = judge(Evidence((rank,)), Success(step=9))
    assert found is not None
    assert found.rule == "not-finite-text"


def test_a_record_is_explained_by_what_was_printed_before_its_traceback() -> None:
    record = record_of(RuntimeError(), rank=0, stage=None, step=7)
    output = printed("RuntimeError", before=NCCL)
    rank = RankEvidence(WorkerExit(0, code=1), record=record, output=output)
    found = judge(Evidence((rank,)), Success(step=9))
    assert found is not None
    assert found.rule == "lost-peer"


def test_a_healthy_line_between_explains_nothing() -> None:
    assert failure(printed("AssertionError", path=OWN, before=NCCL + STEP)).rule == "own-assertion"


@pytest.mark.parametrize("before", ["ERROR invalid option --lr\n", "Mosaic failed to compile\n"])
def test_nothing_beside_it_makes_it_fatal(before: str) -> None:
    assert failure(printed("RuntimeError:", before=before)).verdict is Verdict.RESTART


def test_who_has_words_is_explained_by_them() -> None:
    found = failure(printed("ValueError: bad n_layers", before=NCCL, path=OWN))
    assert found.verdict is Verdict.FATAL
