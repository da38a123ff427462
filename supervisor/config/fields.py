"""Kinds of values in `trainer.yaml`: what all of its sections are made of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from supervisor.config.sizes import parse_size
from supervisor.protocol.duration import parse_duration
from supervisor.protocol.location import Uri


def _seconds(value: Any) -> Any:
    return parse_duration(value) if isinstance(value, str) else value


def _bytes(value: Any) -> Any:
    return parse_size(value) if isinstance(value, str) else value


def _is_steps(value: Any) -> bool:
    return type(value) is int and value >= 1


def steps(value: Any) -> Any:
    """`value`, a number of steps."""
    if not _is_steps(value):
        raise ValueError("is not a number of steps")
    return value


def steps_or_duration(value: Any) -> Any:
    """`value`, a number of steps or a duration."""
    if not _is_steps(value) and not (isinstance(value, str) and parse_duration(value) > 0):
        raise ValueError("is neither a number of steps nor a duration such as 5m")
    return value


_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{\w+\})")


def no_variable(value: str) -> str:
    """`value`, a path without variables of a shell: a folder of that name would be made."""
    if (found := _VARIABLE.search(value)) is not None:
        raise ValueError(
            f"{found[0]} is not expanded here: write ~ for the home directory, or the whole path"
        )
    return value


def place(value: str) -> str:
    """`value`, a path or the URI of something in a bucket."""
    no_variable(value)
    if Uri.parse(value) is not None:
        return value
    try:
        Path(value).expanduser()
    except RuntimeError:
        raise ValueError("names the home directory of nobody here") from None
    return value


def local_place(value: str) -> str:
    """`value`, a path on this machine."""
    if Uri.parse(place(value)) is not None:
        raise ValueError("is in a bucket; give a file on this machine")
    return value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0, le=7 * 86400)]
"""At most a week: more is a slip, and beyond what a wait of the operating system can hold."""


Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=0, le=1 << 60)]


StageName = Literal[
    "STARTING",
    "INITIALIZING",
    "RESTORING",
    "COMPILING",
    "TRAINING",
    "EVALUATING",
    "SAVING",
    "FINISHING",
]


class Section(BaseModel):
    """A mapping of the config: what it holds is checked strictly, and never changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)
