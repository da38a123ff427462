"""The success of a phase, as the job's config defines it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Success:
    """The conditions under which an attempt that ended has done the work of its phase.

    At most one of `step`, `pattern` and `file` is set; the exit code must be right, too. If
    `committed`, only a step in a committed checkpoint counts (our own trainer's contract).
    """

    exit_code: int = 0
    step: int | None = None
    committed: bool = False
    pattern: str | None = None
    file: str | None = None

    @property
    def is_proof(self) -> bool:
        """True if it distinguishes finished work from an early end with the right exit code."""
        return self.step is not None or self.pattern is not None or self.file is not None
