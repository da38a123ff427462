"""The types of values that the sections of `trainer.yaml` share."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
)

from supervisor.config.quantities import (
    DURATION_SCHEMA,
    POSITIVE_DURATION_SCHEMA,
    SIZE_SCHEMA,
    parse_duration,
    parse_size,
)
from supervisor.config.schema_clauses import Keywords
from supervisor.protocol.location import Uri
from supervisor.protocol.messages import Stage


def _seconds(value: Any) -> Any:
    return parse_duration(value) if isinstance(value, str) else value


def _bytes(value: Any) -> Any:
    return parse_size(value) if isinstance(value, str) else value


_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{\w+\})")


def checked_path(value: str) -> str:
    """Returns `value`, a path. ValueError: it has a shell variable.

    Nothing expands variables here, so a directory called `$NAME` would be created.
    """
    if (found := _VARIABLE.search(value)) is not None:
        raise ValueError(
            f"{found[0]} is not expanded here: write ~ for the home directory, or the whole path"
        )
    return value


def checked_place(value: str) -> str:
    """Returns `value`, a path or the URI of something in a bucket. ValueError: it has a shell
    variable, is no valid URI, or names the home directory of an unknown user."""
    checked_path(value)
    if Uri.parse(value) is not None:
        return value
    try:
        Path(value).expanduser()
    except RuntimeError:
        raise ValueError("names the home directory of an unknown user") from None
    return value


def checked_local_place(value: str) -> str:
    """Returns `value`, a path on this machine. ValueError: it is a URI, or see `checked_place`."""
    if Uri.parse(checked_place(value)) is not None:
        raise ValueError("is in a bucket; give a file on this machine")
    return value


_ANY_URI = r"[A-Za-z][A-Za-z0-9+.-]*://"
_NO_VARIABLE = r"^(?![\s\S]*\$(?:[A-Za-z_]|\{\w+\}))"
PLACE_FORM = Keywords(
    {
        "pattern": rf"{_NO_VARIABLE}(?:(?:[gG][sS]|[sS]3)://[^/]|(?!{_ANY_URI}))",
        "errorMessage": "Give a path without $VARIABLES, gs://BUCKET/PATH or s3://BUCKET/PATH.",
    }
)
"""The JSON Schema of what `checked_place` accepts."""
LOCAL_PLACE_FORM = Keywords(
    {
        "pattern": rf"{_NO_VARIABLE}(?!{_ANY_URI})",
        "errorMessage": "Give a path on this machine, without $VARIABLES.",
    }
)
"""The JSON Schema of what `checked_local_place` accepts."""

Seconds = Annotated[
    float,
    BeforeValidator(_seconds),
    Field(ge=0, le=7 * 86400),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0, "maximum": 7 * 86400}, DURATION_SCHEMA]}
    ),
]
"""A duration in seconds, at most a week: a longer one is a mistake, and more than a timeout of the
operating system can hold."""


def _deadline(value: float) -> float:
    """Returns `value`, the time limit of a stage. ValueError: it is 0."""
    if value == 0:
        raise ValueError(
            "every attempt would be a hang at once: leave it out for a learned limit, or raise it"
        )
    return value


Deadline = Annotated[
    Seconds,
    AfterValidator(_deadline),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": 7 * 86400},
                POSITIVE_DURATION_SCHEMA,
            ]
        }
    ),
]

_SHORTEST_LOST_AFTER = 1.0
"""Seconds. With less, a busy host would count as lost."""


def _lost_after(value: float) -> float:
    """Returns `value`, the silence after which a host is lost. ValueError: it is too short."""
    if value < _SHORTEST_LOST_AFTER:
        raise ValueError("is less than 1 s: a host that is only busy would count as lost")
    return value


LostAfter = Annotated[
    Seconds,
    AfterValidator(_lost_after),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": _SHORTEST_LOST_AFTER, "maximum": 7 * 86400},
                POSITIVE_DURATION_SCHEMA,
            ]
        }
    ),
]

_EARLIEST, _LATEST = 10**9, 10**11
"""Bounds of a Unix time in seconds. What is larger counts milliseconds."""


def _unix_time(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(
            "is no time: write an ISO time such as 2026-11-30T08:00:00Z, or a Unix time"
        ) from None
    if moment.tzinfo is None:
        raise ValueError(
            f"has no time zone: write {value}Z for UTC, or an offset such as {value}+01:00"
        )
    return moment.timestamp()


UnixTime = Annotated[
    float,
    BeforeValidator(_unix_time),
    Field(ge=_EARLIEST, le=_LATEST),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": _EARLIEST, "maximum": _LATEST},
                {
                    "type": "string",
                    "pattern": r"^\d{4}-?\d\d-?\d\d[T ]\d\d.*(?:Z|[+-]\d\d(?::?\d\d)?)$",
                    "errorMessage": "Give a time with its time zone, such as 2026-11-30T08:00:00Z.",
                },
            ]
        }
    ),
]
"""A moment in seconds since 1970, given so or as an ISO time."""

Bytes = Annotated[
    int,
    BeforeValidator(_bytes),
    Field(ge=0, le=1 << 60),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0, "maximum": 1 << 60}, SIZE_SCHEMA]}),
]


StageName = Annotated[Stage, Field(strict=False)]
"""A stage, given by its name. Without `strict=False` a strict model accepts only members of an
enum."""


class Section(BaseModel):
    """A mapping of the config. Its values are checked strictly and never change."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)
