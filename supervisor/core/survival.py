"""Which tracebacks a program survived: it printed them, and then went on with its work.

After an uncaught exception of the main program comes nothing but teardown: threads, exit handlers
and native code print what they like, but no new step is made. So new steps after a traceback prove
that somebody caught it. A few of them do not: other processes that print into the same output make
one more step before they wait for the one that failed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from supervisor.core.chain import Chain, Origin

_MAX_LOOKED_AT = 500
_MAX_COUNTERS = 4
_STEP = re.compile(
    r"(?i)\b(?:global[_ ]?step|train[_ ]?step|step|iter(?:ation)?|epoch|batch|update|round)s?"
    r"\b[\s:=#(\[]{0,4}(\d{1,15})\b"
)
_PROGRESS_BAR = re.compile(r"\| (\d{1,15})/\d+ \[")
_INFO = re.compile(
    r"I\d{4} \d\d:|[\[(]?\d{4}-\d\d-\d\d[ T][\d:.,]+Z?[\])]?[: \[(-]+(?:I|INFO|DEBUG)\b|"
    r"\[?(?:INFO|DEBUG)\b"
)
_BAD = re.compile(
    r"[WEF]\d{4} \d\d:|(?:^|[\s\[:])(?:WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b|: [WEF] |"
    r"(?i:error|exception|traceback|fail|abort|fatal)"
)
_TEARDOWN = re.compile(
    r"(?i)sav(?:e|ing)|check ?point|ckpt|restor|commit|finali[sz]|shut|clos|exit|terminat|cancel|"
    r"interrupt|stopp|stopping|clean|destroy|leak|finish|wait|sync|flush|upload|thread=(?!Main)|"
    r"\.(?:cc|cpp|h):\d|distributed|coordination|bye|kill|retry|disconnect|teardown|unregister"
)
"""What a program says while it ends, and what its other threads say meanwhile."""
_BAR = "a progress bar"
"""Many bars look alike, and each begins anew: only what is above all before is a new step."""
_NUMBERS = re.compile(r"[\d.:,]+")
_ENOUGH = {Origin.MAIN: 2, Origin.THREAD: 10, Origin.LOGGED: 2}
"""New steps (for what was logged: healthy lines) after which a traceback counts as survived."""


class _Step(NamedTuple):
    """A line that tells of a step: its place, what it reads like, and the step."""

    at: int
    form: str
    number: int


class Progress:
    """What the lines of one process tell of its work."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._steps: list[_Step] = []
        self._told: list[int] = []
        for at, line in enumerate(lines):
            if _TEARDOWN.search(line) or _BAD.search(line):
                continue
            steps = list(_steps(at, line))
            self._steps += steps
            if steps or _INFO.match(line):
                self._told.append(at)

    def resumed_after(self, chain: Chain) -> int | None:
        """The first line of the work with which the process went on after it had printed the
        errors; None: it did not go on."""
        first = bisect_left(self._told, chain.end)
        return self._told[first] if self._goes_on_after(chain) else None

    def _goes_on_after(self, chain: Chain) -> bool:
        first = bisect_left(self._steps, (chain.end, "", 0))
        later = self._steps[first : first + _MAX_LOOKED_AT]
        if chain.origin is Origin.LOGGED:
            told = len(self._told) - bisect_left(self._told, chain.end)
            return bool(later) or told >= _ENOUGH[Origin.LOGGED]
        if chain.origin not in _ENOUGH:
            return False
        reached: dict[str, int] = {}
        for step in self._steps[max(0, first - _MAX_LOOKED_AT) : first]:
            reached[step.form] = max(step.number, reached.get(step.form, -1))
        made: dict[str, set[int]] = {}
        for step in later:
            if step.form != _BAR or step.number > reached.get(step.form, -1):
                made.setdefault(step.form, set()).add(step.number)
        return any(len(numbers) >= _ENOUGH[chain.origin] for numbers in made.values())


def _steps(at: int, line: str) -> Iterator[_Step]:
    """The steps that a line tells of: `epoch 3 batch 17` tells of two counters."""
    if (bar := _PROGRESS_BAR.search(line)) is not None:
        yield _Step(at, _BAR, int(bar[1]))
    elif not line.startswith((" ", "\t")):
        for match in islice(_STEP.finditer(line), _MAX_COUNTERS):
            yield _Step(at, _NUMBERS.sub("", line[: match.start(1)])[-40:], int(match[1]))
