"""The failure record: what a dying worker writes about the exception that ends it.

Text on stderr misleads (teardown noise, C++ stacks, several ranks at once). A record from the
process that raised the exception does not. It is JSON, bounded in size whatever the exception
holds, and written atomically. Its reader trusts nothing in it.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from . import environment, removal
from .messages import Stage
from .reading import UnreadableError, parse_object
from .removal import Place
from .shortening import keep_beginning, keep_end

MAX_RECORD = 256 * 1024
_MAX_MESSAGE = 8 * 1024
_MAX_TRACEBACK = 64 * 1024
_MAX_EXCEPTIONS = 16
_MAX_BASES = 32


@dataclass(frozen=True, slots=True)
class ExceptionInfo:
    """One exception of the chain. `bases` is its MRO: qualified names, most derived first."""

    type: str
    bases: tuple[str, ...]
    message: str
    relation: str
    """Its relation to the exception before it: raised, cause, context, or member (of a group)."""


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Why a worker died, in its own words. `time` is seconds since the epoch."""

    rank: int
    time: float
    stage: str | None
    step: int | None
    exceptions: tuple[ExceptionInfo, ...]
    traceback: str

    @property
    def is_mere_exit(self) -> bool:
        """True if it records only `sys.exit(3)` or the like, which says no more than the exit code.

        So does `sys.exit(child.wait() != 0)`, whose message is `True`.
        For an exit code that means a signal, such as `sys.exit(143)`, this holds even if another
        exception was being handled: the program obeyed the signal, wherever that interrupted it.
        """
        of_signal = self.exceptions[:1] if _is_exit(self.exceptions[:1], least=129) else ()
        return _is_exit(of_signal or self.exceptions)


_CODES = {"True": "1", "False": "0", "None": "0", "": "0"}
"""The exit code for each message of a SystemExit that is neither a number nor a text."""


def _is_exit(exceptions: tuple[ExceptionInfo, ...], least: int = -(1 << 31)) -> bool:
    return all(
        exception.type == "builtins.SystemExit"
        and re.fullmatch(r"-?\d{1,9}|True|False|None|", exception.message) is not None
        and int(_CODES.get(exception.message, exception.message)) >= least
        for exception in exceptions
    )


def record_of(
    error: BaseException, *, rank: int, stage: Stage | None, step: int | None
) -> FailureRecord:
    """Return the record of `error`; every part of it is bounded in size."""
    return FailureRecord(
        rank=rank,
        time=time.time(),
        stage=stage,
        step=step,
        exceptions=tuple(_chain(error)),
        traceback=_bounded(_traceback(error), _MAX_TRACEBACK),
    )


def write_failure_record(
    error: BaseException,
    *,
    stage: Stage | None,
    step: int | None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Write the record of `error` for the supervisor; without a supervisor, do nothing."""
    path = environ.get(environment.FAILURE_FILE)
    if not path:
        return
    identity = environment.WorkerIdentity.from_environment(environ)
    rank = identity.rank if identity else 0
    save_record(record_of(error, rank=rank, stage=stage, step=step), path)


def save_record(record: FailureRecord, path: str) -> None:
    """Write `record` to `path`, whole or not at all."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with removal.create_temporary(temporary, below=target.parent) as file:
            file.write(_encoded(record))
        temporary.replace(target)
    except OSError:
        with suppress(OSError):
            removal.remove_file(Place.TEMPORARY, temporary, below=target.parent)
        raise


def _encoded(record: FailureRecord) -> bytes:
    """Encode `record` as JSON of at most `MAX_RECORD` bytes, shortening its parts until it fits."""
    share = 1
    while len(data := json.dumps(asdict(record)).encode()) > MAX_RECORD:
        share *= 2
        message, text = _MAX_MESSAGE // share, _MAX_TRACEBACK // share
        record = replace(
            record,
            exceptions=tuple(
                replace(item, bases=item.bases[:8], message=_bounded(item.message, message))
                for item in record.exceptions[: 16 * _MAX_EXCEPTIONS // share]
            ),
            traceback=_bounded(record.traceback, text),
        )
    return data


def parse_failure_record(data: bytes, name: str | Path = "the failure record") -> FailureRecord:
    """Parse the record in `data`, which is the content of the file `name`.

    Raises:
        UnreadableError: it is not a failure record; the text says why.
    """
    if len(data) > MAX_RECORD:
        raise UnreadableError(name, f"has {len(data)} bytes, more than {MAX_RECORD}")
    body = parse_object(data, name)
    try:
        exceptions = tuple(_parse_exception(item) for item in body["exceptions"][:_MAX_EXCEPTIONS])
        return FailureRecord(
            rank=int(body["rank"]),
            time=_finite(body["time"]),
            stage=None if body["stage"] is None else Stage(body["stage"]).value,
            step=None if body["step"] is None else int(body["step"]),
            exceptions=exceptions,
            traceback=_bounded(_text(body["traceback"]), _MAX_TRACEBACK),
        )
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise UnreadableError(name, f"is malformed ({type(error).__name__})") from error


def _parse_exception(item: Any) -> ExceptionInfo:
    return ExceptionInfo(
        type=_text(item["type"])[:200],
        bases=tuple(_text(name)[:200] for name in item["bases"][:_MAX_BASES]),
        message=_bounded(_text(item["message"]), _MAX_MESSAGE),
        relation=_text(item["relation"])[:20],
    )


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not a time")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value.encode("utf-8", "replace").decode()


def _chain(error: BaseException) -> Iterator[ExceptionInfo]:
    """Yield the exception, then its causes, contexts and group members, outermost first."""
    queue: list[tuple[BaseException, str]] = [(error, "raised")]
    seen: set[int] = set()
    while queue and len(seen) < _MAX_EXCEPTIONS:
        current, relation = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield ExceptionInfo(
            type=_name(type(current)),
            bases=tuple(_name(base) for base in type(current).__mro__[:_MAX_BASES]),
            message=_bounded(_message(current), _MAX_MESSAGE),
            relation=relation,
        )
        if isinstance(current, BaseExceptionGroup):
            queue += [(member, "member") for member in current.exceptions]
        if current.__cause__ is not None:
            queue.append((current.__cause__, "cause"))
        elif current.__context__ is not None and not current.__suppress_context__:
            queue.append((current.__context__, "context"))


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"[:200]


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"<its message cannot be shown: {type(broken).__name__}>"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception as broken:
        return f"<its traceback cannot be shown: {type(broken).__name__}>"


def _bounded(text: str, limit: int) -> str:
    """Return `text`; of a text longer than `limit` characters, its first and its last part."""
    clean = text.encode("utf-8", "replace").decode()
    if len(clean) <= limit:
        return clean
    half = limit // 2 - 40
    first, last = keep_beginning(clean, half), keep_end(clean, half)
    left_out = len(clean) - len(first) - len(last)
    return f"{first}\n[... {left_out} characters left out ...]\n{last}"
