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

from supervisor.diagnosis.chain import Chain, Origin
from supervisor.diagnosis.searching import Searched

_MAX_LOOKED_AT = 500
_MAX_COUNTERS = 4
_COUNTER = r"[\"'\]]?[\s:=#(\[]{0,4}(\d{1,15}(?:\.\d{1,9})?)\b"
_STEP = re.compile(
    rf"(?i)(?:\b|_)(?:(?:step|iter(?:ation)?|epoch|batch|update|round)s?|it(?=[\"']?\s?[:=]))\b{_COUNTER}"
)
_METRIC = Searched(
    r"(?i)(?:\b|_)(?:loss|acc(?:uracy)?|ppl|perplexity|reward|grad_norm|learning_rate|lr|mfu|"
    r"(?:it|tok(?:en)?s?|samples?|examples?|images?|steps?)/s(?:ec)?)\b[\"'\]]?[\s:=]{1,4}-?\d|"
    r"\d\s?(?:it|tok(?:en)?s?|samples?|examples?|images?|steps?)/s(?:ec)?\b"
)
_PROGRESS_BAR = re.compile(
    r"\| (\d{1,15})/\d+ \[|(\d{1,3})(?:\.\d+)?% ?[|\[(]|\[[#=>*. -]{3,}\] *(\d{1,3})(?:\.\d+)?%"
)
_INFO = re.compile(
    r"I\d{4} \d\d:|[\[(]?\d{4}-\d\d-\d\d[ T][\d:.,]{1,40}Z?[\])]?[: \[(-]{1,20}(?:I|INFO|DEBUG)\b|"
    r"\[?(?:INFO|DEBUG)\b"
)
_BAD = Searched(
    r"[WEF]\d{4} \d\d:|(?:^|[\s\[:])(?:WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b|: [WEF] |"
    r"(?i:error|exception|traceback|fail|abort|fatal)"
)
_TEARDOWN = Searched(
    r"(?i)sav(?:e|ing)|check ?point|ckpt|restor|commit|finali[sz]|shut|clos|exit|terminat|cancel|"
    r"interrupt|stopp|stopping|clean|destroy|leak|finish|wait|sync|flush|upload|thread=(?!Main)|"
    r"\.(?:cc|cpp|h):\d|distributed|coordination|bye|kill|retry|disconnect|teardown|unregister"
)
"""What a program says while it ends, and what its other threads say meanwhile."""
_NO_WORK = Searched(
    r"(?i)\b(?:re-?)?tr(?:y|ies|ying)\b|attempt|sleep|back-?off|barrier|elapsed|alive|heartbeat|"
    r"\bstill\b|time-?out|remain|\bjoin|signal|wandb|\bNCCL\b|\bframe\b|^#|0x[0-9a-f]|"
    r"\b(?:rank|process|worker|host|node|device|gpu|thread|replica|pid|job|task)s?\b"
)
"""What is counted although no work is done, and what is numbered rather than counted."""
_ASIDE = re.compile(r"\([^()]{0,200}\)")
_BAR = "a progress bar"
"""Many bars look alike, and each begins anew: only what is above all before is a new step."""
_NUMBERS = re.compile(r"[\d.:,]+")
_TIMES = re.compile(
    r"\d{4}[-/]\d\d[-/]\d\d|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?|^[IWEF]\d{4}\b|^\[ *\d+\.\d+\]|"
    r"\d{9,}(?:\.\d+)?|\d+(?:\.\d+)? ?(?:s|ms|sec|seconds|min|minutes)\b"
)
_COUNTED = re.compile(r"(?<![\w.+-])\d{1,8}(?:\.\d{1,9})?(?![\w.]*[A-Za-z_])")
"""A number that stands alone: `layer_1` and `v1.2.3` are names."""
_ENOUGH = {Origin.MAIN: 2, Origin.THREAD: 10, Origin.LOGGED: 2}
"""New steps (for what was logged: healthy lines) after which a traceback counts as survived."""
_RUN = 4
"""Lines of one form with rising numbers that tell of work, whatever their words are."""


class _Step(NamedTuple):
    """A line that tells of a step: its place, what it reads like, and the step."""

    at: int
    form: str
    number: float


class Progress:
    """What the lines of one process tell of its work."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._steps: list[_Step] = []
        self._told: list[int] = []
        self._measured: list[tuple[int, str, bool]] = []
        """Lines with a metric: the place, the form, and whether they also tell of a step."""
        self._lines = lines
        self._counts: dict[int, tuple[str, list[float]]] = {}
        """What `_counted` gives for the lines that it was asked for: many tracebacks ask again."""
        for at, line in enumerate(lines):
            metric = None if line.startswith((" ", "\t")) else _METRIC.search(line)
            if not _is_healthy(line, metric):
                continue
            steps = list(_steps(at, line))
            self._steps += steps
            if metric is not None:
                self._measured.append((at, _NUMBERS.sub("", line), bool(steps)))
            if steps or metric is not None or _INFO.match(line):
                self._told.append(at)

    def began_before(self, at: int) -> bool:
        """Whether a line before this one tells of work."""
        return bisect_left(self._steps, (at, "", 0)) > 0

    def shows_after(self, at: int) -> bool:
        """Whether there is any sign of work from this line on, be it that of another process."""
        measured = bisect_left(self._measured, (at, "", False)) < len(self._measured)
        return measured or bisect_left(self._steps, (at, "", 0)) < len(self._steps)

    def resumed_after(self, chain: Chain) -> int | None:
        """The first line of the work with which the process went on after it had printed the
        errors; None: it did not go on."""
        if self._goes_on_after(chain):
            return self._told[bisect_left(self._told, chain.end)]
        return self._run_after(chain)

    def _goes_on_after(self, chain: Chain) -> bool:
        first = bisect_left(self._steps, (chain.end, "", 0))
        later = self._steps[first : first + _MAX_LOOKED_AT]
        if chain.origin is Origin.LOGGED:
            told = len(self._told) - bisect_left(self._told, chain.end)
            return bool(later) or told >= _ENOUGH[Origin.LOGGED]
        if chain.origin not in _ENOUGH:
            return False
        reached: dict[str, float] = {}
        for step in self._steps[max(0, first - _MAX_LOOKED_AT) : first]:
            reached[step.form] = max(step.number, reached.get(step.form, -1))
        made: dict[str, set[float]] = {}
        for step in later:
            if step.form != _BAR or step.number > reached.get(step.form, -1):
                made.setdefault(step.form, set()).add(step.number)
        if any(len(numbers) >= _ENOUGH[chain.origin] for numbers in made.values()):
            return True
        measured = self._measured[bisect_left(self._measured, (chain.end, "", False)) :]
        forms = {form for _, form, _ in measured[:_MAX_LOOKED_AT]}
        return len(forms) >= _ENOUGH[chain.origin] and any(step for _, _, step in measured)

    def _run_after(self, chain: Chain) -> int | None:
        """Where a run of lines of one form with rising numbers begins."""
        if chain.origin not in _ENOUGH:
            return None
        enough = max(_RUN, _ENOUGH[chain.origin])
        runs: dict[tuple[str, int], tuple[int, int, float]] = {}
        for at in range(chain.end, min(len(self._lines), chain.end + _MAX_LOOKED_AT)):
            if at not in self._counts:
                self._counts[at] = _counted(self._lines[at])
            form, numbers = self._counts[at]
            for column, number in enumerate(numbers):
                begin, length, last = runs.get((form, column), (at, 0, -1.0))
                if number <= last:
                    begin, length = at, 0
                if length + 1 >= enough:
                    return begin
                runs[form, column] = (begin, length + 1, number)
        return None


def _is_healthy(line: str, metric: re.Match[str] | None) -> bool:
    """Whether the line complains of nothing, and is not said at the end of a program. What follows
    a metric is no matter: `loss 1.2 (checkpoint every 50)`, `loss=1.2 error_rate=0.1`."""
    if "wandb:" in line:
        return False  # the summary that it prints when the program is over
    said = _ASIDE.sub("", line) if metric is None else line[: metric.start()]
    return not (_TEARDOWN.search(said) or _BAD.search(said))


def _steps(at: int, line: str) -> Iterator[_Step]:
    """The steps that a line tells of: `epoch 3 batch 17` tells of two counters."""
    if (bar := _PROGRESS_BAR.search(line)) is not None:
        yield _Step(at, _BAR, float(bar[bar.lastindex or 1]))
    elif not line.startswith((" ", "\t")):
        for match in islice(_STEP.finditer(line), _MAX_COUNTERS):
            yield _Step(at, _NUMBERS.sub("", line[: match.start(1)])[-40:], float(match[1]))


def _counted(line: str) -> tuple[str, list[float]]:
    """The form of a line that may tell of work, and the numbers in it; times are no numbers."""
    if not line[:1].strip() or _NO_WORK.search(line) or _BAD.search(line):
        return "", []
    ends = _TEARDOWN.search(line)
    if ends is not None and not ends[0].lower().startswith("upload"):
        return "", []
    said = _TIMES.sub("", line[:_MAX_LOOKED_AT])
    numbers = [float(number) for number in islice(_COUNTED.findall(said), _MAX_COUNTERS)]
    return _NUMBERS.sub("", said), numbers
