"""Warns if the pattern for steps matches no output: without steps no hang in training is seen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from supervisor.adapters.processes.output import OutputReader
from supervisor.engines.launch import Launch
from supervisor.host.notice import Notice, Tell

_FIRST_MINUTES = 180.0
"""Seconds from the first output until the warning. Imports and compilation may take most of it."""
_SHOWN = 120
"""Most characters of a line that people are shown."""


class UnmatchedPatternWarning:
    """Warns at most once in a phase."""

    def __init__(
        self,
        tell: Tell,
        redact: Callable[[str], str],
        stepped: Collection[int] = (),
    ) -> None:
        """`redact` removes secrets from a line. It is used before the line is cut, because it does
        not recognise half a secret.

        `stepped` are the phases in which steps were seen before. If an attempt of such a phase ends
        well without a step, it had none left to do.
        """
        self._tell = tell
        self._stepped = stepped
        self._redact = redact
        self._settled: set[int] = set()
        """Phases that had a warning or a match, so they need no further look."""
        self._attempt = 0
        self._since = 0.0
        """When output of the attempt `_attempt` was first seen."""

    def look(
        self, launch: Launch, outputs: Sequence[OutputReader], now: float, *, over: bool = False
    ) -> None:
        """Warn if `outputs` have shown no step for too long. `over`: the program has ended well,
        and no more output comes."""
        pattern = launch.plan.progress_pattern
        lines = sum(output.lines for output in outputs)
        if pattern is None or not lines or launch.phase in self._settled:
            return
        if self._attempt != launch.attempt:
            self._attempt, self._since = launch.attempt, now
        matched = any(output.step_seen for output in outputs) or (
            over and launch.phase in self._stepped
        )
        if matched or over or now - self._since >= _FIRST_MINUTES:
            self._settled.add(launch.phase)
        if not matched and launch.phase in self._settled:
            last = self._redact(next(output.last_line for output in outputs if output.lines))[
                :_SHOWN
            ]
            text = (
                f"trainer.command.progress.pattern '{pattern}' matched none of the first {lines} "
                "lines of output. Without steps the supervisor cannot notice a hang in training. "
                "Correct it (--set 'trainer.command.progress.pattern=...'): its one group must be "
                f"the step. The last line is {last!r}"
            )
            self._tell(Notice("pattern-unmatched", text, detail=pattern))
