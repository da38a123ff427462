"""What passes takes the certainty from what it brings about: in the same chain, or on another rank.

A lost peer, a cut connection or a SIGTERM breaks the user's own cleanup as well, and the error of
that is one of code.
"""

from __future__ import annotations

import pytest

from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from tests.diagnosis.test_rules_reached import ERRORS, ended, printed

PASSES = [rule.name for rule in RULES if rule.transient or rule.victim or rule.verdict == "RESTART"]
INNER = [
    *(ERRORS[name] for name in PASSES if name in ERRORS),
    "XlaRuntimeError: UNAVAILABLE: failed to connect to all addresses",
    "jax.errors.JaxRuntimeError: ABORTED: the barrier was not reached",
    "RuntimeError: Gloo all-reduce failed: Connection closed by peer",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.",
    "subprocess.CalledProcessError: Command 'gsutil' returned non-zero exit status 1.",
    "StopAsyncIteration",
]
CERTAIN = [
    "AttributeError: 'Trainer' object has no attribute 'pool'",
    "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
    "UnboundLocalError: cannot access local variable 'loss'",
    "AssertionError: two is not three",
    "SyntaxError: invalid syntax",
    "ModuleNotFoundError: No module named 'flex'",
    "ValueError: Incompatible shapes for broadcasting: (2,) and (3,)",
    "ValueError: PyTreeDef mismatch",
    "checkify.FailedCheckError: two is not three",
    "jax.errors.TracerBoolConversionError: Attempted boolean conversion",
]


def judged(evidence: Evidence) -> Failure:
    failure = judge(evidence, Success(step=9))
    assert failure is not None
    return failure


@pytest.mark.parametrize("outer", CERTAIN)
def test_what_is_certain_alone_is_not_so_after_what_passes(outer: str) -> None:
    assert judged(ended(printed(outer))).is_certain
    for inner in INNER:
        assert not judged(ended(printed(inner, outer))).is_certain, inner


@pytest.mark.parametrize(
    "line",
    [
        "XlaRuntimeError: UNAVAILABLE: lowering rule not found: the compile service is gone",
        "XlaRuntimeError: INTERNAL: Mosaic failed to compile TPU kernel: UNAVAILABLE: no service",
        "ConnectionError: PyTreeDef mismatch in RPC reply",
        "TimeoutError: PyTreeDef mismatch",
    ],
)
def test_words_that_are_certain_are_a_guess_beside_those_of_what_passes(line: str) -> None:
    assert not judged(ended(printed(line))).is_certain


@pytest.mark.parametrize(
    "peer",
    [
        WorkerExit(1, signal="SIGKILL"),
        WorkerExit(1, code=137),
        WorkerExit(1, code=0, told_to_stop=True),
        WorkerExit(1),
    ],
)
@pytest.mark.parametrize(
    "line", ["AssertionError: got 3 of 4 shards", "TypeError: unhashable type: 'list'"]
)
def test_what_another_rank_may_suffer_of_one_that_was_ended_is_a_guess(
    line: str, peer: WorkerExit
) -> None:
    own = RankEvidence(WorkerExit(0, code=1), output=printed(line), ended_before_kill=True)
    alone = judged(Evidence((own, RankEvidence(WorkerExit(1, signal="SIGKILL")))))
    assert alone.is_certain  # we killed the other one
    failure = judged(Evidence((own, RankEvidence(peer, ended_before_kill=True))))
    assert (failure.verdict, failure.is_certain) == (Verdict.FATAL, False)


@pytest.mark.parametrize(
    "said",
    [
        "    assert jax.device_count() == 8\nAssertionError",
        "    assert response.ok\nAssertionError",
        "    assert os.path.exists(folder)\nAssertionError",
        "AssertionError: only 4 TPU chips visible",
        "AssertionError: expected 8 devices, found 4",
        "AssertionError: 503",
        "AssertionError: /mnt/data is not mounted",
        "AssertionError: gsutil exited with 1",
        "AssertionError: rank 3 never joined",
        "AssertionError: Timed out after 600 s waiting for data worker",
    ],
)
def test_an_assertion_about_the_world_is_a_guess(said: str) -> None:
    failure = judged(ended(printed(said)))
    assert (failure.rule, failure.is_guess) == ("own-assertion", True)


@pytest.mark.parametrize("check", ["assert_devices_available", "assert_tpu_available"])
def test_what_chex_asserts_of_the_world_is_a_guess(check: str) -> None:
    place = 'chex/_src/asserts.py", line 7, in check'
    line = f"AssertionError: [Chex] Assertion {check} failed: No 4 TPUs available"
    assert judged(ended(printed(line, place=place))).is_guess


@pytest.mark.parametrize(
    "said",
    [
        "    assert tokens.shape == (4, 2)\nAssertionError",
        "AssertionError: 512 != 256",
        "AssertionError: d_model must be a multiple of num_heads",
        "AssertionError: [Chex] Assertion assert_rank failed: Expected 2, got 3",
    ],
)
def test_an_assertion_about_the_program_stays_certain(said: str) -> None:
    assert judged(ended(printed(said))).is_certain


@pytest.mark.parametrize("lost", [0, 5, 30])
@pytest.mark.parametrize("before", ["", "a line of the beginning\n[...]\n"])
def test_an_error_whose_cause_is_cut_off_is_a_guess(before: str, lost: int) -> None:
    log = printed("ConnectionResetError: [Errno 104] Connection reset by peer", CERTAIN[0])
    rest = log[log.index("During handling") + lost :]
    assert not judged(ended(before + rest)).is_certain
