"""Finds and expands placeholders such as `{model_dir}`; `{{` and `}}` stand for single braces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

KNOWN = ("model_dir", "num_devices", "attempt", "resume_step", "per_device_batch", "params")
"""The placeholders of a command, in this order: the job's directory, the number of devices of this
attempt, the number of this attempt, the newest committed step (0: none), the share of one device
of the global batch, and the file with the phase's resolved config."""

_KEPT = re.compile(r"\{\{([A-Za-z_-]+)\}\}")
_TOKEN = re.compile(r"\{\{|\}\}|\{([a-z_]+)\}")


def make_schema(known: Sequence[str]) -> dict[str, Any]:
    """Returns the JSON Schema of a text that has no placeholders but those of `known`."""
    names = ", ".join(f"{{{name}}}" for name in known)
    return {
        "pattern": rf"^(?:\{{\{{|\}}\}}|\{{(?:{'|'.join(known)})\}}"
        r"|(?!\{\{|\}\}|\{[a-z_]+\})[\s\S])*$",
        "errorMessage": f"Unknown placeholder; known: {names}. Write {{{{ for a brace.",
    }


def names(text: str) -> tuple[str, ...]:
    """Returns the names of the placeholders in `text`."""
    return tuple(match[1] for match in _TOKEN.finditer(text) if match[1])


def misspelt(text: str) -> Iterator[tuple[str, str]]:
    """Yields each word of `text` in double braces that is almost the name of a placeholder, and
    that name."""
    for match in _KEPT.finditer(text):
        name = match[1].lower()
        if name not in KNOWN and (near := get_close_matches(name, KNOWN, 1, 0.8)):
            yield match[1], near[0]


def expand(text: str, values: Mapping[str, str]) -> str:
    """Returns `text` with its placeholders replaced. KeyError: one is not in `values`."""
    return _TOKEN.sub(lambda match: values[match[1]] if match[1] else match[0][0], text)


def keep_unknown(text: str) -> str:
    """Returns a text whose expansion is `text` with the placeholders of `KNOWN` replaced, and with
    all other braces as they are.

    A word that a person types for a shell may be JSON or a template of another program. It has no
    `{{` for a single brace.
    """
    return _TOKEN.sub(
        lambda match: match[0] if match[1] in KNOWN else re.sub(r"[{}]", r"\g<0>\g<0>", match[0]),
        text,
    )
