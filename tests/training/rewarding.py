"""A function that rewards completions, as a user would write it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from typing import Any


def of_ascii(
    prompts: Sequence[str], completions: Sequence[str], ask: Sequence[str], **fields: Any
) -> list[float]:
    """The share of ASCII characters among the first four, with a bonus that depends on the
    prompt."""
    print("rewards", len(completions))  # as users do
    return [
        sum(map(str.isascii, text)) / 4 + len(prompt) / 100
        for text, prompt in zip(completions, ask, strict=True)
    ]


def nan_for_seven(prompts: Sequence[str], completions: Sequence[str], **fields: Any) -> list[float]:
    """No number for the prompt `7?`."""
    return [math.nan if prompt == "7?" else 1.0 for prompt in prompts]


_calls: list[int] = []


def of_ascii_or_late(
    prompts: Sequence[str], completions: Sequence[str], ask: Sequence[str], **fields: Any
) -> list[float]:
    """The same, but the call with the number JUDGE_WAITS_AT takes ten minutes."""
    _calls.append(len(completions))
    if os.environ.get("JUDGE_WAITS_AT") == str(len(_calls)):
        print("the judge waits", flush=True)
        time.sleep(600)
    return of_ascii(prompts, completions, ask, **fields)
