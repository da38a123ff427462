"""Problems of a config: what is wrong and where, in words for the person who has to correct it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from supervisor.config.secret_names import REDACTED, is_hidden, num_shown_parts, without_secrets
from supervisor.protocol.messages import printable
from supervisor.protocol.shortening import keep_beginning

Location = tuple[str | int, ...]
"""The path of a key in the config: ("trainer", "init", "seed")."""

_HINTS = {
    "min_num_csx": "min_num_devices",
    "num_csx": "devices",
    "num_steps": "loop.max_steps",
}
"""Keys of Cerebras' Model Zoo, and their names here."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem; `message` says what is wrong and what to do."""

    origin: str
    """`file:line`, or the `--set` option that set the value."""
    key: str
    message: str

    def __str__(self) -> str:
        parts = (self.origin, self.key, self.message)
        return printable(": ".join(part for part in parts if part))


class ConfigError(Exception):
    """The config cannot be used; `problems` has every problem found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def key_path(location: Location) -> str:
    """Returns `trainer[1].init.seed` for ("trainer", 1, "init", "seed").

    The path ends at the name of a secret (`num_shown_parts`). A key may have a `=` in it: the text
    after it is a value in the wrong place, and is redacted.
    """
    path = ""
    for part in location[: num_shown_parts(location)]:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            name, assigned, _ = part.partition("=")
            name += f"={REDACTED}" if assigned else ""
            path += f".{name}" if path else name
    return path


def shown(value: Any, location: Location = ()) -> str:
    """Returns the value at `location` of the config as text for a message: at most 80 characters,
    without secrets."""
    if is_hidden(location):
        return REDACTED
    value = without_secrets(value)
    try:
        text = json.dumps(value, default=str)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else keep_beginning(text, 77) + "..."


def unknown_key(
    location: Location, value: Any, known: Sequence[str], remedy: str | None = None
) -> str:
    """Returns the message for an unknown key: it suggests the most similar key of `known`, or gives
    the `remedy`, or lists `known`."""
    key = str(location[-1])
    near = _HINTS.get(key) or next(iter(difflib.get_close_matches(key, known, n=1)), None)
    if near:
        remedy = f"did you mean {near!r}?"
    elif remedy is None:
        remedy = f"known here: {', '.join(sorted(known))}"
    return f"unknown key (value {shown(value, location)}); {remedy}"
