"""What a judged failure tells beside its rule: charge, remedy, step, confidence, signature."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.config.judgement import Remedy
from supervisor.core.budget import Charge
from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, Verdict, WorkerExit
from supervisor.diagnosis.outcome import Confidence
from supervisor.diagnosis.rules import RULES, Rule
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.protocol.failure_record import ExceptionInfo, FailureRecord

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
ODD = recorded("mine.Oddity", "well")
NOT_EXECUTABLE = tuple(rule for rule in RULES if rule.name == "not-executable")


def test_what_a_signal_alone_tells() -> None:
    failure = judged(RankEvidence(WorkerExit(0, signal="SIGTERM")))
    assert failure.charge is Charge.PREEMPTIONS
    assert failure.confidence is Confidence.MEDIUM
    assert (failure.signature, failure.remedy, failure.step) == (None, None, None)


@pytest.mark.parametrize(
    ("kind", "message", "rule"),
    [
        ("EOFError", "EOF when reading a line", "no-standard-input"),
        ("EOFError", "no more of it", "pipe"),
        ("KeyError", "'UNAVAILABLE'", "missing-key"),
    ],
)
def test_a_record_and_a_traceback_of_the_same_error_are_judged_alike(
    kind: str, message: str, rule: str
) -> None:
    of_record = judged(recorded(f"builtins.{kind}", message))
    of_text = judged(printed(TRACEBACK.format(place="<module>", error=f"{kind}: {message}")))
    assert (of_record.rule, of_text.rule) == (rule, rule)


def told_to_stop(rank: RankEvidence) -> RankEvidence:
    return replace(rank, exit=replace(rank.exit, told_to_stop=True))


DONE = RankEvidence(WorkerExit(0, code=0))
IN_THE_HANDLER = TRACEBACK.format(place="<module>", error="TypeError: on_term() takes 0 arguments")


@pytest.mark.parametrize(
    ("rank", "rule"),
    [
        (DONE, "ended-on-sigterm"),
        (RankEvidence(WorkerExit(0, code=1)), "ended-on-sigterm"),
        (recorded("train.Evicted", "by the handler"), "exception-on-sigterm"),
        (printed(IN_THE_HANDLER), "code-error-on-sigterm"),
        (recorded("builtins.AssertionError", ""), "code-error-on-sigterm"),
        (RankEvidence(WorkerExit(0, signal="SIGTERM")), "sigterm"),
    ],
)
def test_who_was_told_to_stop_is_preempted(rank: RankEvidence, rule: str) -> None:
    failure = judged(told_to_stop(rank))
    assert (failure.rule, failure.charge) == (rule, Charge.PREEMPTIONS)
    assert failure.verdict is Verdict.RESTART
    assert failure.signature is None or not failure.compared


@pytest.mark.parametrize(
    ("rank", "rule"),
    [
        (recorded("jaxlib.JaxRuntimeError", "RESOURCE_EXHAUSTED: Out of memory"), "out-of-memory"),
        (recorded("builtins.FileNotFoundError", "no"), "missing-file"),
        (RankEvidence(WorkerExit(0, signal="SIGSEGV")), "crash"),
    ],
)
def test_what_says_more_than_a_sigterm_decides(rank: RankEvidence, rule: str) -> None:
    assert judged(told_to_stop(rank)).rule == judged(rank).rule == rule


def test_how_it_ended_is_told_with_the_sigterm_before_it() -> None:
    assert judged(told_to_stop(DONE)).root_cause == "exit code 0 after SIGTERM"


@pytest.mark.parametrize("other", [0, 137])
def test_one_rank_that_was_told_to_stop_is_enough(other: int) -> None:
    ranks = (told_to_stop(DONE), RankEvidence(WorkerExit(1, code=other)))
    failure = judged(*ranks)
    assert (failure.rule, failure.rank) == ("ended-on-sigterm", 0)


def test_after_a_sigterm_a_proof_of_success_is_believed_and_an_exit_code_is_not() -> None:
    evidence = Evidence((told_to_stop(DONE),), step=5, pattern_seen=True)
    assert judge(evidence, Success(pattern="done")) is None
    assert judge(evidence, Success(step=5)) is None
    for success in (Success(), Success(step=6), Success(file="done")):
        failure = judge(evidence, success)
        assert failure is not None
        assert failure.rule == "ended-on-sigterm"
        assert "declare" not in failure.advice, "it may be declared"


@pytest.mark.parametrize("said", ["15", "Signals.SIGTERM", "SIGTERM"])
def test_what_torchrun_says_of_a_sigterm(said: str) -> None:
    error = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: "
    text = TRACEBACK.format(place="main", error=error + said)
    failure = judged(printed(text))
    assert (failure.rule, failure.charge) == ("launcher-sigterm", Charge.PREEMPTIONS)
    assert judged(printed(text.replace(said, "2"))).rule != "launcher-sigterm"


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
    assert judged(printed(thread + main)).rule == "own-assertion"


def test_mere_lines_are_judged_and_have_a_signature() -> None:
    line = "RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes"
    lines = judged(printed(line + "\n"))
    assert lines.rule == "out-of-memory"
    again = line.replace("5 bytes", "17 GiB")
    assert lines.signature is not None
    assert judged(printed(again + "\n")).signature == lines.signature
    raised = judged(printed(TRACEBACK.format(place="<module>", error=f"RuntimeError: {line}")))
    assert raised.rule == lines.rule
    assert raised.signature is not None
    assert judged(printed("the disk of node 7 is odd\n")).rule == "unknown"


@pytest.mark.parametrize("part", [{"stage": "SAVING"}, {"step": 4}])
def test_stage_and_step_of_the_record_are_a_part_of_the_signature(part: dict[str, object]) -> None:
    assert ODD.record is not None
    other = replace(ODD, record=replace(ODD.record, **part))  # type: ignore[arg-type]
    assert judged(other).signature != judged(ODD).signature
    assert judged(ODD, step=9).signature == judged(ODD).signature
    same = replace(ODD, stage="SAVING")
    assert judged(same).signature == judged(ODD).signature


def test_where_the_record_does_not_know_them_the_supervisor_does() -> None:
    assert ODD.record is not None
    silent = replace(ODD, record=replace(ODD.record, stage=None, step=None))
    told = replace(silent, stage="TRAINING")
    assert judged(told, step=3).signature == judged(ODD).signature
    assert judged(told, step=4).signature != judged(ODD).signature
    assert judged(silent, step=3).signature != judged(ODD).signature
    text = printed(TRACEBACK.format(place="<module>", error="mine.Oddity: well"))
    later = replace(text, stage="TRAINING")
    assert judged(text, step=3).signature != judged(later, step=3).signature
    assert judged(text, step=3).signature != judged(text, step=4).signature


def test_the_signature_of_a_guess_does_not_tell_the_step() -> None:
    assert BAD_VALUE.record is not None
    later = replace(BAD_VALUE, record=replace(BAD_VALUE.record, step=4))
    assert judged(BAD_VALUE).is_guess
    assert judged(later).signature == judged(BAD_VALUE).signature
    elsewhere = replace(BAD_VALUE, record=replace(BAD_VALUE.record, stage="SAVING"))
    assert judged(elsewhere).signature != judged(BAD_VALUE).signature
    text = printed(TRACEBACK.format(place="<module>", error="ValueError: no such thing"))
    assert judged(text, step=3).is_guess
    assert judged(text, step=3).signature == judged(text, step=4).signature


@pytest.mark.parametrize(
    ("evidence", "signature"),
    [
        (RankEvidence(WorkerExit(0, code=127)), "not-executable-127"),
        (RankEvidence(WorkerExit(0, code=126)), "not-executable-126"),
        (RankEvidence(WorkerExit(0, signal="SIGSEGV")), "own-SIGSEGV"),
        (RankEvidence(WorkerExit(0)), "own"),
    ],
)
def test_a_guess_without_a_text_goes_by_its_rule_and_its_end(
    evidence: RankEvidence, signature: str
) -> None:
    own = Rule("own", Verdict.FATAL, "", "", "")
    failure = judge(Evidence((evidence,)), Success(), (*NOT_EXECUTABLE, own))
    assert failure is not None
    assert (failure.is_guess, failure.signature) == (True, signature)


def test_a_guess_of_mere_lines_has_a_signature() -> None:
    failure = judged(printed("train.py: error: unrecognized arguments: --fast\n", code=2))
    assert failure.is_guess
    assert failure.signature is not None


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (TRACEBACK.format(place="load", error="KeyError: 'lr'"), False),
        ("train.py: error: unrecognized arguments: --foo\n", False),
        ("", True),
    ],
)
def test_how_the_program_chose_to_exit_is_shown_only_where_it_said_nothing_else(
    output: str, shown: bool
) -> None:
    """Below another root cause the traceback of `sys.exit(2)` misleads."""
    trace = TRACEBACK.format(place="<module>", error="SystemExit: 2")
    bases = ("builtins.SystemExit", "builtins.BaseException", "builtins.object")
    exited = (ExceptionInfo("builtins.SystemExit", bases, "2", "raised"),)
    record = FailureRecord(0, 0.0, "TRAINING", 3, exited, trace)
    failure = judged(RankEvidence(WorkerExit(0, code=2), record, output))
    assert failure.traceback == (trace if shown else "")


GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/app/train.py", line 9, in <module>
  |     main()
  | ExceptionGroup: errors (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/app/train.py", line 4, in add
    |     return a + b
    | TypeError: bad operand
    +------------------------------------
"""


def test_the_member_of_an_exception_group_has_its_place_also_by_the_record() -> None:
    group = ExceptionInfo("builtins.ExceptionGroup", ("builtins.Exception",), "errors", "raised")
    bases = ("builtins.TypeError", "builtins.Exception")
    member = ExceptionInfo("builtins.TypeError", bases, "bad operand", "member")
    record = FailureRecord(0, 0.0, "TRAINING", 3, (group, member), GROUP)
    by_record = judged(RankEvidence(WorkerExit(0, code=1), record))
    assert by_record.where == judged(printed(GROUP)).where == "/app/train.py:4 in add"
    assert by_record.is_certain


def test_an_exception_without_words_is_told_by_its_type_alone() -> None:
    assert judged(recorded("builtins.MemoryError", "")).root_cause == "MemoryError"
