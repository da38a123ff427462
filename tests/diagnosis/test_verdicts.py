"""From evidence to a verdict: success, the first matching rule, and what misleads."""

from __future__ import annotations

import errno
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from supervisor.diagnosis.failure import Evidence, HostFacts, RankEvidence, Verdict, WorkerExit
from supervisor.diagnosis.outcome import Charge
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge, launch_failure, succeeded, with_target
from supervisor.protocol.failure_record import ExceptionInfo, FailureRecord, record_of
from supervisor.protocol.messages import Stage
from trainer.token_store import DamagedTokensError, stored

CLEAN = RankEvidence(WorkerExit(0, code=0))
ANY = Success()


def died(
    code: int | None = 1,
    signal: str | None = None,
    *,
    output: str = "",
    types: tuple[str, ...] = (),
    message: str = "",
    rank: int = 0,
    time: float = 0.0,
) -> RankEvidence:
    record = None
    if types:
        bases = (*types, "builtins.Exception", "builtins.BaseException", "builtins.object")
        chain = (ExceptionInfo(types[0], bases, message, "raised"),)
        record = FailureRecord(rank, time, "TRAINING", 3, chain, "Traceback ...")
    return RankEvidence(WorkerExit(rank, code=code, signal=signal), record, output)


def rule_of(*ranks: RankEvidence) -> str:
    failure = judge(Evidence(ranks, step=3), Success(step=10))
    assert failure is not None
    return failure.rule


@pytest.mark.parametrize(
    ("success", "evidence", "expected"),
    [
        (Success(), Evidence((CLEAN,)), True),
        (Success(), Evidence((died(1),)), False),
        (Success(exit_code=3), Evidence((died(3),)), True),
        (Success(exit_code=3), Evidence((CLEAN,)), False),
        (Success(step=10), Evidence((CLEAN,), step=10), True),
        (Success(step=10), Evidence((CLEAN,), step=9, committed=9), False),
        (Success(step=10), Evidence((CLEAN,), committed=10), True),
        (Success(step=10), Evidence((CLEAN,), step=10, committed=8), True),
        (Success(step=10), Evidence((died(1),), step=10), False),
        (Success(step=10, committed=True), Evidence((CLEAN,), step=10, committed=9), False),
        (Success(step=10, committed=True), Evidence((CLEAN,), committed=10), True),
        (Success(pattern="done"), Evidence((CLEAN,)), False),
        (Success(pattern="done"), Evidence((CLEAN,), pattern_seen=True), True),
        (Success(file="f"), Evidence((CLEAN,)), False),
        (Success(file="f"), Evidence((CLEAN,), file_exists=True), True),
        (Success(), Evidence(()), False),
    ],
)
def test_success(success: Success, evidence: Evidence, expected: bool) -> None:
    assert succeeded(evidence, success) is expected
    assert (judge(evidence, success) is None) is expected


@pytest.mark.parametrize(
    ("rank", "rule"),
    [
        (died(signal="SIGKILL", code=None), "sigkill-or-memory"),
        (died(137), "sigkill-or-memory"),
        (died(signal="SIGTERM", code=None), "sigterm"),
        (died(143), "sigterm"),
        (died(signal="SIGSEGV", code=None), "crash"),
        (died(signal="SIGABRT", code=None), "abort"),
        (died(signal="SIGUSR1", code=None), "unknown"),
        (died(1), "unknown"),
        (died(127), "not-executable"),
        (died(0), "early-exit"),
        (died(types=("builtins.AssertionError",)), "assertion"),
        (died(types=("builtins.ModuleNotFoundError", "builtins.ImportError")), "broken-program"),
        (died(types=("builtins.ValueError",), message="bad luck"), "program-error"),
        (died(types=("jax.errors.TracerBoolConversionError",)), "tracing"),
        (died(types=("x.JaxRuntimeError",), message="E1000 CompileTimeHbmOom"), "compile"),
        (died(types=("x.JaxRuntimeError",), message="RESOURCE_EXHAUSTED: x"), "out-of-memory"),
        (
            died(types=("builtins.ValueError",), message="Shutdown barrier has failed"),
            "lost-peer",
        ),
        (
            died(
                types=("builtins.ValueError",),
                message="RESOURCE_EXHAUSTED: No space left on device [os_error_code='28']",
            ),
            "disk-full",
        ),
        (died(types=("trainer.mesh.DevicesDiffer",), message="4, not 8"), "devices-differ"),
        (died(types=("builtins.FileNotFoundError",), message="x"), "missing-file"),
        (
            died(types=("builtins.FileExistsError",), message="[Errno 17] File exists"),
            "file-exists",
        ),
        (died(2, output="python: can't open file '/x.py': [Errno 2] No such"), "program-missing"),
        (died(1, output="/usr/bin/python3: No module named trainr"), "program-missing"),
        (died(127, output="run.sh: line 3: uvx: command not found"), "program-missing"),
        (
            died(types=("builtins.OSError",), message="x is not a valid model identifier"),
            "no-such-object",
        ),
        (died(1, output="ERROR: No matching distribution found for jaxx"), "package-missing"),
        (died(2, output="train.py: error: unrecognized arguments: --lr"), "usage"),
        (
            died(types=("trainer.checkpoint_steps.NoUsableCheckpointError",), message="DATA_LOSS"),
            "no-usable-checkpoint",
        ),
        (died(types=("trainer.checkpoint_steps.UnmarkedCheckpointError",)), "unmarked-checkpoint"),
        (
            died(types=("builtins.ValueError",), message="Structure mismatch: Target path ('b',)"),
            "checkpoint-structure",
        ),
        (
            died(
                134,
                output="Traceback (most recent call last):\n  File x\n"
                "AssertionError: no\nfurther teardown noise",
            ),
            "assertion",
        ),
        (died(output="AssertionError: its traceback is cut off"), "assertion"),
        (died(0, output="Traceback (most recent call last):\nValueError: caught\n"), "early-exit"),
    ],
)
def test_the_first_matching_rule(rank: RankEvidence, rule: str) -> None:
    assert rule_of(rank) == rule


def told(rank: RankEvidence, host: HostFacts | None = None) -> str:
    """What a person reads of a failure."""
    failure = judge(Evidence((rank,), host=host or HostFacts()), ANY)
    assert failure is not None
    return f"{failure.cause}: {failure.reason} {failure.advice}"


def test_a_missing_program_is_not_told_of_its_options() -> None:
    text = told(died(2, output="python: can't open file '/x.py': [Errno 2] No such file"))
    assert "the program is not there" in text
    assert "directory in which supervise was started" in text
    assert "options" not in text


@pytest.mark.parametrize("kind", ["FileNotFoundError", "PermissionError", "IsADirectoryError"])
def test_a_file_of_the_program_is_not_called_one_of_the_configuration(kind: str) -> None:
    text = told(died(types=(f"builtins.{kind}",), message="'/data/train.bin'"))
    assert "that the program uses" in text
    assert "configuration" not in text


@pytest.mark.parametrize(
    ("kills", "rule", "suspected"),
    [(None, "sigkill-or-memory", True), (0, "sigkill", False), (1, "host-oom-kill", True)],
)
def test_memory_is_suspected_unless_the_counter_says_otherwise(
    kills: int | None, rule: str, suspected: bool
) -> None:
    killed, host = died(signal="SIGKILL", code=None), HostFacts(oom_kills=kills)
    failure = judge(Evidence((killed,), host=host), ANY)
    assert failure is not None
    assert failure.rule == rule
    text = told(killed, host)
    assert ("It was not the kernel for memory" not in text) is suspected
    assert ("by the kernel" in text or "out-of-memory" in text) is suspected


def test_of_several_records_the_earliest_decides_whatever_the_exit_codes_say() -> None:
    victim = died(134, types=("x.JaxRuntimeError",), message="Socket closed", rank=0, time=9.0)
    culprit = died(134, types=("builtins.AssertionError",), message="no", rank=1, time=5.0)
    failure = judge(Evidence((victim, culprit)), ANY)
    assert failure is not None
    assert (failure.rule, failure.rank, failure.verdict) == ("assertion", 1, Verdict.FATAL)


def test_without_records_the_first_rank_that_ended_otherwise_than_success_asks_for_decides() -> (
    None
):
    failure = judge(Evidence((died(3, rank=0), died(0, rank=1))), Success(exit_code=3))
    assert failure is not None
    assert (failure.rule, failure.rank) == ("early-exit", 1)


@pytest.mark.parametrize(
    ("evidence", "success", "reason"),
    [
        (Evidence((CLEAN,), 45, 40), Success(step=50), "at step 45 (the last step), before succ"),
        (Evidence((CLEAN,), None, 40), Success(step=50), "at step 40 (the newest committed step)"),
        (Evidence((CLEAN,), 50, 40), Success(step=50, committed=True), "at step 40 (the newest"),
        (Evidence((CLEAN,)), Success(file="x"), "the success criterion does not hold"),
    ],
)
@pytest.mark.parametrize("recognised", [None, 49, 50])
def test_an_early_end_tells_the_steps_that_were_compared(
    evidence: Evidence, success: Success, reason: str, recognised: int | None
) -> None:
    failure = judge(evidence, success)
    assert failure is not None
    told = with_target(failure, evidence, success, recognised)
    assert reason in told.reason
    is_shown = recognised == 50 and success.step is not None and not success.committed
    assert ("The output shows step 50" in told.advice) == is_shown


LOST_PEER = died(types=("x.JaxRuntimeError",), message="Socket closed", rank=0)


@pytest.mark.parametrize(
    ("signal", "rule"), [("SIGKILL", "sigkill-or-memory"), ("SIGTERM", "sigterm")]
)
def test_a_rank_that_was_struck_down_is_what_its_victims_speak_of(signal: str, rule: str) -> None:
    struck = replace(died(None, signal, rank=1), ended_before_kill=True)
    for ranks in ((struck, LOST_PEER), (LOST_PEER, struck)):
        failure = judge(Evidence(ranks), ANY)
        assert failure is not None
        assert (failure.rule, failure.rank) == (rule, 1)
    genuine = died(types=("builtins.RuntimeError",), message="bad luck", rank=2)
    assert rule_of(struck, LOST_PEER, genuine) == "plain-error"


_MISMATCHES = [
    # gloo transport/tcp/pair.cc: rank 1 of 2 was killed in an all-reduce
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at gloo/transport/tcp/pair.cc:459] op.preamble.length <= op.nbytes. "
    "24 vs 16. Received data size doesn't match expected size.\n",
    "Traceback (most recent call last):\n"
    '  File "/home/me/train.py", line 8, in <module>\n    step()\n'
    "jax.errors.JaxRuntimeError: INTERNAL: unexpected peer shows up in the launch group\n",
]


@pytest.mark.parametrize("said", _MISMATCHES)
@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM", "SIGSEGV"])
def test_messages_that_do_not_fit_are_of_the_rank_that_was_struck_down(
    said: str, signal: str
) -> None:
    victims = [died(None, "SIGABRT", output=said), died(None, "SIGKILL", output=said)]
    for victim in victims[: 1 + ("terminate" in said)]:  # we may have killed it while it dumped
        failure = judge(
            Evidence((victim, replace(died(None, signal, rank=1), ended_before_kill=True))), ANY
        )
        assert failure is not None
        assert (failure.rank, failure.exit) == (1, f"killed by {signal}")
        assert failure.verdict is not Verdict.FATAL


@pytest.mark.parametrize(
    ("after", "signal", "rule"),
    [
        ("", "SIGINT", "interrupted"),
        ("", "SIGHUP", "hangup"),
        ("step 4\n", "SIGINT", "hangup"),
    ],
)
def test_python_ends_itself_by_sigint_after_an_interrupt_that_nobody_caught(
    after: str, signal: str, rule: str
) -> None:
    output = 'Traceback (most recent call last):\n  File "/a/train.py", line 3, in <module>\n'
    output += "    time.sleep(1)\nKeyboardInterrupt\n" + after
    assert rule_of(replace(died(None, signal, output=output), ended_before_kill=True)) == rule


@pytest.mark.parametrize("said", _MISMATCHES)
def test_ranks_of_different_programs_are_told_where_none_was_struck_down(said: str) -> None:
    first = replace(died(None, "SIGABRT", output=said), ended_before_kill=True)
    others = [
        died(None, "SIGKILL", rank=1),  # by us
        replace(died(None, "SIGABRT", rank=1, output=said), ended_before_kill=True),
    ]
    for other in others:
        failure = judge(Evidence((first, other)), ANY)
        assert failure is not None
        assert (failure.verdict, failure.cause) == (
            Verdict.FATAL,
            "the ranks run different programs",
        )


_BROKEN_PIPE = (
    "Traceback (most recent call last):\n"
    '  File "/home/me/train.py", line 8, in <module>\n    print("saved", flush=True)\n'
    "BrokenPipeError: [Errno 32] Broken pipe\n"
)
_BUG = _BROKEN_PIPE.replace(
    "BrokenPipeError: [Errno 32] Broken pipe", "ModuleNotFoundError: No module named 'optx'"
)


@pytest.mark.parametrize(
    "ended",
    [
        WorkerExit(0, signal="SIGTERM"),
        WorkerExit(0, code=143),
        WorkerExit(0, code=1, told_to_stop=True),
    ],
    ids=str,
)
@pytest.mark.parametrize(("output", "is_preemption"), [(_BROKEN_PIPE, True), (_BUG, False)])
def test_what_ended_on_sigterm_lost_its_peers_by_the_same_sigterm(
    ended: WorkerExit, output: str, is_preemption: bool
) -> None:
    failure = judge(Evidence((RankEvidence(ended, output=output),)), ANY)
    assert failure is not None
    assert (failure.charge is Charge.PREEMPTIONS) == is_preemption, failure
    assert failure.rule != "lost-peer"


def test_a_rank_that_was_killed_because_another_had_ended_is_no_cause() -> None:
    assert rule_of(LOST_PEER, died(None, "SIGKILL", rank=1)) == "lost-peer"


def test_an_end_that_nobody_saw_is_a_failure() -> None:
    failure = judge(Evidence(()), ANY)
    assert failure is not None
    assert (failure.rule, failure.verdict) == ("unknown", Verdict.RESTART)
    assert failure.exit == "ended unseen"


def test_a_long_root_cause_keeps_its_beginning_and_the_name_of_the_file() -> None:
    name = "/checkpoints/model_step_100.pkl'"
    message = f"[Errno 28] No space left on device: '{'/directory' * 60}{name}"
    failure = judge(Evidence((died(types=("builtins.OSError",), message=message),)), Success())
    assert failure is not None
    assert failure.root_cause.startswith("OSError: [Errno 28] No space left on device: '/directory")
    assert failure.root_cause.endswith(name)
    assert len(failure.root_cause) == 400


def test_the_root_cause_is_one_printable_line() -> None:
    failure = judge(
        Evidence((died(types=("builtins.ValueError",), message="a\x1b[2Jb\nsecond" + "x" * 9999),)),
        ANY,
    )
    assert failure is not None
    assert failure.root_cause == "ValueError: a\\x1b[2Jb"
    assert failure.traceback == "Traceback ..."


def test_every_rule_has_a_name_of_its_own_and_the_last_matches_anything() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    last = RULES[-1]
    assert (last.types, last.patterns, last.signals, last.exit_codes) == ((), (), (), ())


@pytest.mark.parametrize(
    ("number", "verdict"),
    [
        (errno.ENOENT, Verdict.FATAL),
        (errno.EACCES, Verdict.FATAL),
        (errno.EAGAIN, Verdict.RESTART),
        (errno.ENOMEM, Verdict.RESTART),
    ],
)
def test_a_command_that_cannot_be_started(number: int, verdict: Verdict) -> None:
    failure = launch_failure(OSError(number, "why"), ("./train",))
    assert failure.verdict is verdict
    assert failure.root_cause == "./train: why"


def test_workers_that_cannot_be_placed_may_cost_the_rung_only() -> None:
    failure = launch_failure(ValueError("one process cannot have 3 of 8 chips"), ("./train",))
    assert (failure.verdict, failure.is_guess, failure.per_rung) == (Verdict.FATAL, True, True)
    assert failure.root_cause == "./train: one process cannot have 3 of 8 chips"


def test_damaged_tokens_are_made_again_whether_they_are_recorded_or_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPERVISE_TOKENS", str(tmp_path))
    stored(iter([np.arange(9, dtype=np.int32)]), "digest")
    with (tmp_path / "digest.tokens").open("r+b") as file:
        file.write(b"\xff")
    with pytest.raises(DamagedTokensError) as raised:
        stored(iter([]), "digest").between(0, 9)
    record = record_of(raised.value, rank=0, stage=Stage.TRAINING, step=3)
    printed = "".join(traceback.format_exception(raised.value))
    for evidence in (
        RankEvidence(WorkerExit(0, code=1), record, ""),
        RankEvidence(WorkerExit(0, code=1), None, printed),
    ):
        failure = judge(Evidence((evidence,), step=3), ANY)
        assert failure is not None
        assert (failure.rule, failure.verdict) == ("damaged-tokens", Verdict.RESTART)
