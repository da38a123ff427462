"""The failure record: bounded whatever the exception holds, written whole, read with no trust."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.environment import FAILURE_FILE, WorkerIdentity
from supervisor.protocol.failure_record import (
    MAX_RECORD,
    FailureRecord,
    parse_failure_record,
    record_of,
    write_failure_record,
)
from supervisor.protocol.messages import Stage

_E = TypeVar("_E", bound=BaseException)


def raised(error: _E, *, cause: BaseException | None = None) -> _E:
    """`error` with a traceback, and with a cause if given."""
    try:
        if cause is not None:
            raise error from cause
        raise error
    except BaseException:
        return error


def in_context(error: BaseException, context: BaseException) -> BaseException:
    try:
        try:
            raise context
        except BaseException:
            raise error  # noqa: B904
    except BaseException as caught:
        return caught


def written(error: BaseException, folder: Path) -> FailureRecord:
    """The record of `error` after its way through the file."""
    environ = {
        FAILURE_FILE: str(folder / "failure.json"),
        **WorkerIdentity("job", 2, rank=3).to_environment(),
    }
    write_failure_record(error, stage=Stage.TRAINING, step=7, environ=environ)
    assert [path.name for path in folder.iterdir()] == ["failure.json"]
    return parse_failure_record((folder / "failure.json").read_bytes())


class BadMessageError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


class OddMessageError(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]


class Outer:
    class InnerError(ValueError):
        pass


UNSHOWN = "<its message cannot be shown"


def _suppressed() -> BaseException:
    error = in_context(ValueError("shown"), KeyError("hidden"))
    error.__suppress_context__ = True
    return error


@pytest.mark.parametrize(
    ("error", "chain"),
    [
        (raised(ValueError("a")), [("builtins.ValueError", "a", "raised")]),
        (
            raised(ValueError("a"), cause=OSError(28, "full")),
            [
                ("builtins.ValueError", "a", "raised"),
                ("builtins.OSError", "[Errno 28] full", "cause"),
            ],
        ),
        (
            in_context(ValueError("a"), ZeroDivisionError("b")),
            [
                ("builtins.ValueError", "a", "raised"),
                ("builtins.ZeroDivisionError", "b", "context"),
            ],
        ),
        (_suppressed(), [("builtins.ValueError", "shown", "raised")]),
        (
            raised(
                ExceptionGroup("two", [ValueError("a"), raised(OSError("b"), cause=OSError("c"))])
            ),
            [
                ("builtins.ExceptionGroup", "two (2 sub-exceptions)", "raised"),
                ("builtins.ValueError", "a", "member"),
                ("builtins.OSError", "b", "member"),
                ("builtins.OSError", "c", "cause"),
            ],
        ),
        (
            BadMessageError(),
            [
                (
                    f"{__name__}.BadMessageError",
                    "<its message cannot be shown: RuntimeError>",
                    "raised",
                )
            ],
        ),
        (
            OddMessageError(),
            [(f"{__name__}.OddMessageError", f"{UNSHOWN}: TypeError>", "raised")],
        ),
        (Outer.InnerError("x"), [(f"{__name__}.Outer.InnerError", "x", "raised")]),
        (ValueError("\ud800\x00ü"), [("builtins.ValueError", "?\x00ü", "raised")]),
        (KeyboardInterrupt(), [("builtins.KeyboardInterrupt", "", "raised")]),
    ],
)
def test_the_chain_is_told_from_the_outside_in(
    error: BaseException, chain: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    record = written(error, tmp_path)
    assert [(item.type, item.message, item.relation) for item in record.exceptions] == chain
    assert (record.rank, record.stage, record.step) == (3, "TRAINING", 7)


def test_bases_are_told_most_derived_first(tmp_path: Path) -> None:
    (item,) = written(Outer.InnerError("x"), tmp_path).exceptions
    assert item.bases == (
        f"{__name__}.Outer.InnerError",
        "builtins.ValueError",
        "builtins.Exception",
        "builtins.BaseException",
        "builtins.object",
    )


def test_the_traceback_is_kept(tmp_path: Path) -> None:
    record = written(raised(ValueError("a"), cause=OSError("b")), tmp_path)
    assert record.traceback.rstrip().endswith("ValueError: a")
    assert "direct cause" in record.traceback
    assert "test_failure_record.py" in record.traceback


def test_a_cycle_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    record = record_of(first, rank=0, stage=None, step=None)
    assert [item.message for item in record.exceptions] == ["first", "second"]


def long_chain(message: str) -> BaseException:
    error: BaseException = ValueError(message)
    for _ in range(50):
        error = raised(ValueError(message), cause=error)
    return error


def nested_groups(message: str) -> BaseException:
    error: Exception = ValueError(message)
    for _ in range(2000):
        error = ExceptionGroup(message, [error])
    return error


WIDE = type("\U00020000" * 150, (ValueError,), {})
for number in range(40):
    WIDE = type("\U00020000" * 150 + str(number), (WIDE,), {})


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x" * 1_000_000),
        ValueError("\U0001f600" * 1_000_000),
        ValueError("\x00" * 1_000_000),
        long_chain("x" * 100_000),
        long_chain("\U0001f600" * 100_000),
        nested_groups("y"),
        ExceptionGroup("many", [ValueError("\x1b" * 10_000) for _ in range(1000)]),
        ExceptionGroup("wide", [WIDE("\U0001f600" * 10_000) for _ in range(50)]),
    ],
    ids=["ascii", "astral", "control", "chain", "astral chain", "nested", "group", "names"],
)
def test_a_record_is_bounded_and_can_be_read(error: BaseException, tmp_path: Path) -> None:
    record = written(error, tmp_path)
    assert (tmp_path / "failure.json").stat().st_size <= MAX_RECORD
    assert record.exceptions[0].type == f"{type(error).__module__}.{type(error).__qualname__}"[:200]
    assert record.traceback


def test_both_ends_of_a_long_message_are_kept(tmp_path: Path) -> None:
    (item,) = written(ValueError("begin" + "x" * 1_000_000 + "end"), tmp_path).exceptions
    assert item.message.startswith("begin")
    assert item.message.endswith("end")
    assert "characters left out" in item.message


def test_no_word_of_a_long_message_is_cut(tmp_path: Path) -> None:
    for length in range(20, 40):
        words = [f"{number:05}".ljust(length, "s") for number in range(1000)]
        (item,) = written(ValueError(" ".join(words)), tmp_path).exceptions
        first, mark, last = item.message.split("\n")
        assert "characters left out" in mark
        assert {*first.split(), *last.split()} <= {*words}
        assert len(first) + len(last) > 8000


def test_without_a_place_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_failure_record(ValueError("x"), stage=None, step=None, environ={})
    assert list(tmp_path.iterdir()) == []


def test_a_record_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """A file size limit breaks the write in the middle, as a full disk does."""
    program = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from supervisor.protocol.failure_record import write_failure_record as write\n"
        "write(ValueError('x' * 5000), stage=None, step=None)\n"
    )
    path = tmp_path / "failure.json"
    path.write_bytes(b"the one before")
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            FAILURE_FILE: str(path),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PYTHONDONTWRITEBYTECODE": "1",  # the limit would cut those files too
        },
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert b"File too large" in done.stderr
    assert path.read_bytes() == b"the one before"


GOOD: dict[str, Any] = {
    "rank": 1,
    "time": 3.5,
    "stage": "TRAINING",
    "step": 4,
    "exceptions": [{"type": "a.B", "bases": ["a.B"], "message": "m", "relation": "raised"}],
    "traceback": "t",
}


def parse(body: object) -> FailureRecord:
    return parse_failure_record(json.dumps(body).encode())


def test_a_good_record_is_read() -> None:
    record = parse(GOOD)
    assert (record.rank, record.time, record.stage, record.step) == (1, 3.5, "TRAINING", 4)
    assert record.exceptions[0].message == "m"


@pytest.mark.parametrize(
    "change",
    [
        {"rank": None},
        {"rank": []},
        {"time": "soon"},
        {"time": {}},
        {"time": float("nan")},
        {"stage": "LUNCH"},
        {"stage": 3},
        {"step": "x"},
        {"step": float("inf")},
        {"exceptions": None},
        {"exceptions": {}},
        {"exceptions": [3]},
        {"exceptions": [{}]},
        {"exceptions": [{**GOOD["exceptions"][0], "bases": 3}]},
        {"exceptions": [{**GOOD["exceptions"][0], "bases": [3]}]},
        {"exceptions": [{**GOOD["exceptions"][0], "message": None}]},
        {"traceback": 3},
    ],
)
def test_a_malformed_record_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the failure record is malformed"):
        parse({**GOOD, **change})


@pytest.mark.parametrize("key", sorted(GOOD))
def test_every_key_is_required(key: str) -> None:
    with pytest.raises(ValueError, match=r"the failure record is malformed \(KeyError\)"):
        parse({name: value for name, value in GOOD.items() if name != key})


def test_what_is_read_is_bounded() -> None:
    long = {
        "type": "t" * 999,
        "bases": ["b" * 999] * 99,
        "message": "m" * 9999,
        "relation": "r" * 99,
    }
    record = parse({**GOOD, "exceptions": [long, *GOOD["exceptions"] * 99]})
    assert len(record.exceptions) == 16
    first = record.exceptions[0]
    assert (len(first.type), len(first.bases), len(first.bases[0])) == (200, 32, 200)
    assert len(first.message) <= 8192
    assert len(first.relation) <= 20
    with pytest.raises(ValueError, match="more than"):
        parse_failure_record(b" " * (MAX_RECORD + 1))


@given(st.binary())
def test_any_bytes_are_a_record_or_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        parse_failure_record(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.sampled_from([*GOOD, *GOOD["exceptions"][0]]), inner)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), json_values))
def test_any_values_are_a_record_or_a_value_error(change: dict[str, Any]) -> None:
    with suppress(ValueError):
        parse({**GOOD, **change})
    with suppress(ValueError):
        parse_failure_record(b"[" * 100_000)


@pytest.mark.parametrize(
    ("code", "mere", "mere_in_handler"),
    [
        (3, True, False),
        (143, True, True),
        ("over", False, False),
        (-1, True, False),
        (True, True, False),
    ],
)
def test_a_mere_exit_says_no_more_than_its_code(
    code: object, mere: bool, mere_in_handler: bool
) -> None:
    error = SystemExit(code)
    assert record_of(error, rank=0, stage=None, step=None).is_mere_exit is mere
    error.__context__ = ValueError("3")
    assert record_of(error, rank=0, stage=None, step=None).is_mere_exit is mere_in_handler


def test_an_exception_that_is_not_an_exit_is_never_mere() -> None:
    assert not record_of(ValueError("143"), rank=0, stage=None, step=None).is_mere_exit


def test_a_record_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk."""
    monkeypatch.setenv(FAILURE_FILE, str(tmp_path / "rank0.failure.json"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_failure_record(ValueError("x"), stage=None, step=None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []
    write_failure_record(ValueError("x"), stage=None, step=None)
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.failure.json"]
