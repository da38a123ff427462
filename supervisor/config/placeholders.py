"""Placeholders such as `{model_dir}` in a command; `{{` and `}}` stand for braces."""

from __future__ import annotations

import re
from collections.abc import Mapping

KNOWN = ("model_dir", "num_devices", "attempt", "resume_step", "per_device_batch", "params")
"""What may stand in braces: the job's directory, the devices of this attempt, its number, the
newest committed step (0: none), one device's part of the global batch, and the file with the
phase's resolved config."""

_TOKEN = re.compile(r"\{\{|\}\}|\{([a-z_]+)\}")


def names(text: str) -> tuple[str, ...]:
    """The placeholders in `text`."""
    return tuple(match[1] for match in _TOKEN.finditer(text) if match[1])


def expand(text: str, values: Mapping[str, str]) -> str:
    """`text` with its placeholders replaced; KeyError for one that is not in `values`."""
    return _TOKEN.sub(lambda match: values[match[1]] if match[1] else match[0][0], text)
