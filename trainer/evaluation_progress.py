"""How far an evaluation has come that was broken off, and where that is kept.

Whoever is told to stop during an evaluation saves its step at once. That checkpoint says that the
evaluation after it is due, and with which batch it goes on: so the commit of the step tells both
or nothing. The next attempt goes on there. If it is stopped or killed, too, the step is committed
already and does not change any more. So from then on a note beside the files of the step says how
far the evaluation is, and at its end that it is done.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from supervisor.protocol.reading import UnreadableError, parse_object
from trainer import distributed
from trainer.log import log
from trainer.manifest import EVALUATION_NOTE
from trainer.step_files import files_in

_INTERVAL = 10.0
"""Seconds between two notes of an evaluation that goes on. A bucket takes one a second."""


@dataclass(frozen=True, slots=True)
class EvaluationProgress:
    """The batches before `next_batch` are done, and the sum of their losses is `total`."""

    of: str
    """What is evaluated, on which batches, by which loss: a digest. Another evaluation begins with
    its first batch."""
    next_batch: int = 0
    total: float = 0.0
    is_done: bool = False
    """Whether it is complete, and its loss was told and written."""

    def encoded(self) -> dict[str, Any]:
        """Return it as an object of JSON, which keeps every bit of `total`."""
        return asdict(self)

    @classmethod
    def parsed(cls, body: Mapping[str, Any]) -> EvaluationProgress:
        """Return what was encoded.

        Raises:
            LookupError, TypeError, ValueError, OverflowError: `body` is something else.
        """
        next_batch, is_done = int(body["next_batch"]), bool(body["is_done"])
        return cls(str(body["of"]), next_batch, float(body["total"]), is_done)


class EvaluationNote:
    """The note in the folder of a committed step."""

    def __init__(
        self,
        step: Path,
        allow: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`allow` is called before each write, and raises to refuse."""
        self._step = step
        self._allow = allow
        self._clock = clock
        self._written_at = clock()

    def read(self) -> EvaluationProgress | None:
        """Return what the note says; None: there is none, or it is damaged.

        Raises:
            OSError: it cannot be read now.
        """
        try:
            body = dict(parse_object(files_in(self._step).read(EVALUATION_NOTE), EVALUATION_NOTE))
            digest = body.pop("sha256", None)
            progress = EvaluationProgress.parsed(body)
        except FileNotFoundError:
            return None
        except (UnreadableError, LookupError, TypeError, ValueError, OverflowError):
            return None
        return progress if digest == _digest(progress) else None

    def update(self, progress: EvaluationProgress) -> None:
        """Write the note, if the last one is old enough."""
        if self._clock() - self._written_at >= _INTERVAL:
            self.write(progress)

    def write(self, progress: EvaluationProgress) -> None:
        """Write the note durably; of several processes only the first does. An error is only
        logged: without the note, the next attempt begins with an earlier batch."""
        if not distributed.is_first():
            return
        self._allow()
        body = progress.encoded() | {"sha256": _digest(progress)}
        try:
            files_in(self._step).replace(EVALUATION_NOTE, json.dumps(body).encode() + b"\n")
        except Exception as error:  # what a store's client raises has no type in common
            log.warning("evaluation-not-noted", step=self._step.name, error=str(error))
        self._written_at = self._clock()


def _digest(progress: EvaluationProgress) -> str:
    return hashlib.sha256(json.dumps(progress.encoded()).encode()).hexdigest()
