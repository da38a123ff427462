"""What a job's config calls the success of a phase."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Success:
    """When an attempt that ended has done the work of its phase.

    At most one of `step`, `pattern` and `file` is set, each besides the exit code. `committed`: the
    step counts only once it is in a committed checkpoint (our own trainer's contract).
    """

    exit_code: int = 0
    step: int | None = None
    committed: bool = False
    pattern: str | None = None
    file: str | None = None

    @property
    def is_proof(self) -> bool:
        """Whether it tells finished work from an early end with the right exit code."""
        return self.step is not None or self.pattern is not None or self.file is not None
