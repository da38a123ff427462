"""Tells of a pattern for steps that matches nothing: without steps no hang in training is seen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from supervisor.adapters.processes.output import OutputReader
from supervisor.engines.launch import Launch
from supervisor.host.notice import Notice, Tell

_FIRST_MINUTES = 180.0
"""Seconds of output without a step in it: much of that may be imports and compilation."""
_SHOWN = 120
"""Characters of a line that a person is shown."""


class Unmatched:
    """Tells it once a phase."""

    def __init__(
        self,
        tell: Tell,
        redact: Callable[[str], str],
        stepped: Collection[int] = (),
    ) -> None:
        """`redact` takes the secrets out of a line: before it is cut, because half a secret is not
        known as one. In the phases `stepped` steps were seen before: an attempt that ends well
        without one had none left to do."""
        self._tell = tell
        self._stepped = stepped
        self._redact = redact
        self._settled: set[int] = set()
        """Phases of which it was told, or whose pattern has matched."""
        self._attempt = 0
        self._since = 0.0
        """When output of that attempt was first seen."""

    def look(
        self, launch: Launch, outputs: Sequence[OutputReader], now: float, *, over: bool = False
    ) -> None:
        """Look at what `outputs` have taken in by now; `over`: no more comes, and the program ended
        well."""
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
                f"trainer.command.progress.pattern {pattern!r} found no step in the first {lines} "
                "lines of output: no step is known, and a hang in training is not noticed; "
                f"correct the pattern, whose one group is the step; the last line is {last!r}"
            )
            self._tell(Notice("pattern-unmatched", text, detail=pattern))
