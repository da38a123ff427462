"""The fingerprint of a failure: the same for the same, another for another."""

from __future__ import annotations

import pytest

from supervisor.core.failure import Evidence, RankEvidence, WorkerExit
from supervisor.core.policy import Success
from supervisor.core.signature import signature
from supervisor.core.verdicts import judge

FRAMES = (("/app/train.py", "main"), ("/opt/lib/site-packages/jax/_src/api.py", "jit"))


def of(message: str = "bad token 17 in '/data/a.bin'", **changes: object) -> str:
    given: dict[str, object] = {"frames": FRAMES, "stage": "TRAINING", "step": 4, **changes}
    return signature("ValueError", message, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message",
    [
        "bad token 18 in '/data/a.bin'",
        "bad token 17 in '/mnt/other/b.bin'",
        "bad  token 1.5e3 in '/data/a.bin'",
    ],
)
def test_numbers_paths_and_blanks_make_no_difference(message: str) -> None:
    assert of(message) == of()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("buffer 0x7f3a is gone", "buffer 0x11 is gone"),
        ("at 2026-11-21 08:55:30.936 it broke", "at 2027-01-02 01:02:03 it broke"),
        ("run 3f2a9c1d7e6b4a58 ended", "run 00112233445566aa ended"),
    ],
)
def test_what_differs_from_attempt_to_attempt_is_taken_out(first: str, second: str) -> None:
    assert of(first) == of(second)


@pytest.mark.parametrize(
    "other",
    [
        of("another thing"),
        of(step=5),
        of(stage="SAVING"),
        of(frames=(("/app/train.py", "evaluate"),)),
        signature("KeyError", "bad token 17 in '/data/a.bin'", FRAMES, "TRAINING", 4),
    ],
)
def test_another_error_place_stage_or_step_is_another_failure(other: str) -> None:
    assert other != of()


def test_the_frames_of_libraries_make_no_difference() -> None:
    assert of(frames=(("/app/train.py", "main"), ("/x/site-packages/jax/new.py", "f"))) == of()


@pytest.mark.parametrize(
    ("line", "signed"),
    [
        ("RuntimeError: something odd", True),
        ("ValueError: bad", True),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", False),
        ("OSError: [Errno 28] No space left on device", False),
        ("RuntimeError: TPU initialization failed: open(/dev/vfio/0): busy", False),
    ],
)
def test_only_what_does_not_pass_by_itself_is_signed(line: str, signed: bool) -> None:
    output = f'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n{line}\n'
    rank = RankEvidence(WorkerExit(0, code=1), output=output)
    failure = judge(Evidence((rank,)), Success())
    assert failure is not None
    assert (failure.signature is not None) is signed


@pytest.mark.parametrize("code", [0, 1, 9, 134, 137, 139])
def test_an_exit_alone_is_not_signed(code: int) -> None:
    rank = RankEvidence(WorkerExit(0, code=code))
    failure = judge(Evidence((rank,)), Success(step=9))
    assert failure is not None
    assert failure.signature is None
