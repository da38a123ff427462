"""Asks our trainer's schema, in a process of its own, what it thinks of its part of the config."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from supervisor.protocol.environment import scrubbed
from supervisor.protocol.reading import UnreadableError, parse_object

_TIMEOUT = 120.0


class TrainerCheckError(Exception):
    """The check itself did not work; the text says how."""


def check_trainer(trainer: dict[str, Any], device_counts: list[int]) -> dict[str, Any]:
    """What `python -m trainer.check` answers: `errors`, `resolved`, `rungs` and `unusable`.

    Raises:
        TrainerCheckError: it gave no answer.
    """
    question = {"trainer": trainer, "device_counts": device_counts}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "trainer.check"],
            input=json.dumps(question).encode(),
            capture_output=True,
            env=scrubbed(os.environ),
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TrainerCheckError(f"python -m trainer.check did not run: {error}") from error
    try:
        answer = parse_object(done.stdout, "its answer")
    except UnreadableError:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
        raise TrainerCheckError(
            f"python -m trainer.check ended with code {done.returncode} and said: {said[-1]}; "
            "is the [trainer] extra installed?"
        ) from None
    return answer
