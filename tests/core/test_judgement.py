"""What a judged failure tells beside its rule: charge, remedy, step, confidence, signature."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.budget import Charge
from supervisor.core.failure import Evidence, Failure, RankEvidence, Verdict, WorkerExit
from supervisor.core.outcome import Confidence
from supervisor.core.policy import Success
from supervisor.core.remedy import Remedy
from supervisor.core.verdicts import judge
from supervisor.protocol.failure import ExceptionInfo, FailureRecord

TRACEBACK = """Traceback (most recent call last):
  File "/home/me/train.py", line 3, in {place}
    step()
{error}
"""

MEMORY = "jaxlib.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory"


def recorded(kind: str, message: str, *, rank: int = 0, time: float = 0.0) -> RankEvidence:
    bases = (kind, "builtins.Exception", "builtins.BaseException", "builtins.object")
    chain = (ExceptionInfo(kind, bases, message, "raised"),)
    record = FailureRecord(rank, time, "TRAINING", 3, chain, "Traceback ...")
    return RankEvidence(WorkerExit(rank, code=1), record)


def printed(text: str, code: int = 1) -> RankEvidence:
    return RankEvidence(WorkerExit(0, code=code), output=text)


def judged(*ranks: RankEvidence, step: int | None = None) -> Failure:
    failure = judge(Evidence(ranks, step=step), Success())
    assert failure is not None
    return failure


BAD_VALUE = recorded("builtins.ValueError", "no such thing")


def test_what_a_signal_alone_tells() -> None:
    failure = judged(RankEvidence(WorkerExit(0, signal="SIGTERM")))
    assert failure.charge is Charge.PREEMPTIONS
    assert failure.confidence is Confidence.MEDIUM
    assert (failure.signature, failure.remedy, failure.step) == (None, None, None)


def test_what_a_record_tells() -> None:
    failure = judged(recorded("jaxlib.JaxRuntimeError", "RESOURCE_EXHAUSTED: Out of memory"))
    assert failure.verdict is Verdict.POLICY
    assert failure.remedy is Remedy.LESS_AT_ONCE
    assert (failure.charge, failure.step) == (Charge.RESTARTS, 3)
    assert failure.confidence is Confidence.HIGH


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        (TRACEBACK.format(place="<module>", error=MEMORY), Confidence.HIGH),
        (TRACEBACK.format(place="tried", error=MEMORY), Confidence.MEDIUM),
        (TRACEBACK.format(place="tried", error="ValueError: no such thing"), Confidence.LOW),
        (TRACEBACK.format(place="tried", error="mine.Oddity: well"), Confidence.LOW),
    ],
)
def test_what_was_caught_and_printed_is_less_certain(text: str, confidence: Confidence) -> None:
    assert judged(printed(text)).confidence is confidence


def test_the_certain_error_precedes_the_odd_one_although_it_is_later() -> None:
    odd = recorded("mine.Oddity", "well", rank=0, time=1.0)
    certain = recorded("builtins.AssertionError", "loss is negative", rank=1, time=2.0)
    assert judged(odd, certain).rank == 1


def test_what_ended_the_program_precedes_what_ended_a_thread() -> None:
    thread = "Exception in thread loader:\n" + TRACEBACK.format(place="run", error="KeyError: 'x'")
    main = TRACEBACK.format(place="<module>", error="AssertionError: loss is negative")
    assert judged(printed(thread + main)).rule == "assertion"


def test_mere_lines_are_judged_but_are_no_signature() -> None:
    line = "RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes"
    lines = judged(printed(line + "\n"))
    assert (lines.rule, lines.signature) == ("out-of-memory", None)
    raised = judged(printed(TRACEBACK.format(place="<module>", error=f"RuntimeError: {line}")))
    assert raised.rule == lines.rule
    assert raised.signature is not None
    assert judged(printed("the disk of node 7 is odd\n")).rule == "unknown"


@pytest.mark.parametrize("part", [{"stage": "SAVING"}, {"step": 4}])
def test_stage_and_step_of_the_record_are_a_part_of_the_signature(part: dict[str, object]) -> None:
    assert BAD_VALUE.record is not None
    other = replace(BAD_VALUE, record=replace(BAD_VALUE.record, **part))  # type: ignore[arg-type]
    assert judged(other).signature != judged(BAD_VALUE).signature
    assert judged(BAD_VALUE, step=9).signature == judged(BAD_VALUE).signature
    same = replace(BAD_VALUE, stage="SAVING")
    assert judged(same).signature == judged(BAD_VALUE).signature


def test_where_the_record_does_not_know_them_the_supervisor_does() -> None:
    assert BAD_VALUE.record is not None
    silent = replace(BAD_VALUE, record=replace(BAD_VALUE.record, stage=None, step=None))
    told = replace(silent, stage="TRAINING")
    assert judged(told, step=3).signature == judged(BAD_VALUE).signature
    assert judged(told, step=4).signature != judged(BAD_VALUE).signature
    assert judged(silent, step=3).signature != judged(BAD_VALUE).signature
    text = printed(TRACEBACK.format(place="<module>", error="ValueError: no such thing"))
    later = replace(text, stage="TRAINING")
    assert judged(text, step=3).signature != judged(later, step=3).signature
    assert judged(text, step=3).signature != judged(text, step=4).signature
