"""Which FATAL verdicts are certain, and which are guesses, and why."""

from __future__ import annotations

import pytest

from supervisor.core.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.core.outcome import Verdict
from supervisor.core.policy import Success
from supervisor.core.verdicts import judge

OWN = "/app/train.py"
LIBRARY = "/opt/venv/lib/python3.11/site-packages/flax/core.py"
IO = "/opt/venv/lib/python3.11/site-packages/gcsfs/core.py"
STANDARD_IO = "/usr/lib/python3.11/http/client.py"


def failure(output: str) -> Failure:
    found = judge(Evidence((RankEvidence(WorkerExit(0, code=1), output=output),)), Success(step=9))
    assert found is not None
    return found


def raised(line: str, path: str) -> str:
    return (
        "Traceback (most recent call last):\n"
        f'  File "{OWN}", line 3, in <module>\n    main()\n'
        f'  File "{path}", line 7, in read\n    f()\n'
        f"{line}\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
        "AttributeError: 'Batch' object has no attribute 'tokens'",
        "NameError: name 'batch' is not defined",
        "AssertionError: 3 != 4",
    ],
)
def test_an_error_of_code_is_certain_where_the_own_code_raised_it(line: str) -> None:
    own = failure(raised(line, OWN))
    assert (own.verdict, own.certain, own.is_guess) == (Verdict.FATAL, True, False)
    assert own.grounds.startswith("certain: ")
    for path in (LIBRARY, IO, STANDARD_IO):
        foreign = failure(raised(line, path))
        assert foreign.verdict is not Verdict.FATAL or foreign.is_guess


def test_a_type_of_an_io_library_is_not_the_own_codes_wherever_it_was_raised() -> None:
    assert not failure(raised("gcsfs.retry.AttributeError: no", OWN)).certain


@pytest.mark.parametrize(
    "line",
    [
        "SyntaxError: invalid syntax",
        "ModuleNotFoundError: No module named 'flex'",
        "jax.errors.TracerBoolConversionError: Attempted boolean conversion of traced array",
        "jax.errors.JaxRuntimeError: INTERNAL: Mosaic failed to compile TPU kernel",
        "ValueError: Incompatible shapes for broadcasting: (2,) and (3,)",
        "checkify.JaxRuntimeError: index out of bounds",
    ],
)
def test_what_cannot_be_parsed_compiled_or_traced_is_certain_wherever_it_is_found(
    line: str,
) -> None:
    assert failure(raised(line, LIBRARY)).certain


def test_other_fatal_verdicts_are_guesses_and_say_why() -> None:
    missing = failure(raised("FileNotFoundError: [Errno 2] No such file: '/data'", OWN))
    assert missing.is_guess
    assert missing.grounds.startswith("a guess: ")


def test_what_was_only_printed_is_a_guess() -> None:
    logged = failure("ERROR: SyntaxError: invalid syntax\nIncompatible shapes: (2,) and (3,)\n")
    assert logged.is_guess
    assert "printed" in logged.grounds


def test_no_grounds_are_told_where_it_is_not_fatal() -> None:
    again = failure(raised("ConnectionResetError: [Errno 104] Connection reset by peer", OWN))
    assert (again.verdict, again.grounds) == (Verdict.RESTART, "")
