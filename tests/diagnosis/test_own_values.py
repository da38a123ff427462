"""What the user's own code states about a value comes back, though it has the words of I/O."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge

REQUIRED = (
    "ValueError: read timeout must be positive",
    "ValueError: max retries exceeded must be a number, got 'x'",
    "AssertionError: the connection timeout should be below the deadline",
    "KeyError: \"unknown option 'throttle'\"",
)
SAID = (
    "ValueError: too many open files allowed: 9",
    "ValueError: network is down-sampled",
    "IndexError: no slot 7: too many open files in the list",
)


def judged(error: str, *, own: bool = True, before: str = "") -> Failure:
    place = "/app/train.py" if own else "/venv/lib/python3.12/site-packages/lib/a.py"
    output = (
        f'{before}Traceback (most recent call last):\n  File "{place}", line 1, in <module>\n'
        f"    check(config)\n{error}\n"
    )
    rank = RankEvidence(WorkerExit(0, code=1), output=output)
    failure = judge(Evidence((rank,)), Success())
    assert failure is not None
    return failure


@pytest.mark.parametrize("error", REQUIRED)
def test_a_requirement_of_the_users_own_code_is_fatal(error: str) -> None:
    failure = judged(error)
    assert failure.verdict == "FATAL"
    assert failure.is_certain or failure.compared
    assert judged(error, own=False).verdict == "RESTART"


@pytest.mark.parametrize("error", SAID)
def test_what_it_says_of_a_value_is_compared(error: str) -> None:
    failure = judged(error)
    assert failure.verdict != "FATAL"
    assert failure.compared
    assert failure.signature is not None
    assert not judged(error, own=False).compared


CAUSED = (
    'Traceback (most recent call last):\n  File "/app/a.py", line 1, in f\n{}\n\n'
    "The above exception was the direct cause of the following exception:\n\n"
)


@pytest.mark.parametrize(
    ("error", "before"),
    [
        # of another error, and with a code
        (REQUIRED[0], CAUSED.format("TimeoutError: timed out")),
        (SAID[1], CAUSED.format("OSError: [Errno 101] Network is unreachable")),
        ("ValueError: the request timed out, status code: 503, it must be tried again", ""),
        ("ValueError: [Errno 110] connection timed out: the answer must be there", ""),
        # of a type that says nothing of values
        ("RuntimeError: read timeout: the answer must be there", ""),
        ("OSError: read timeout must be positive", ""),
        ("mylib.LoaderError: connection timed out, it must be open", ""),
    ],
)
def test_what_others_may_have_said_is_transient_as_ever(error: str, before: str) -> None:
    failure = judged(error, before=before)
    assert failure.verdict == "RESTART"
    assert not failure.compared
