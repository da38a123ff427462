"""Finds the tracebacks that a program survived: it printed them, and then went on with its work.

After an uncaught exception of the main program comes only teardown: threads, exit handlers and
native code may print anything, but no new step is made. So new steps after a traceback prove that
the program caught it. Very few steps do not prove it: other processes that print into the same
output make one more step before they wait for the one that failed.
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
_INFO_LINE = re.compile(
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
"""Words that a program prints while it ends, or its other threads print meanwhile."""
_NO_WORK = Searched(
    r"(?i)\b(?:re-?)?tr(?:y|ies|ying)\b|attempt|sleep|back-?off|barrier|elapsed|alive|heartbeat|"
    r"\bstill\b|time-?out|remain|\bjoin|signal|wandb|\bNCCL\b|\bframe\b|^#|0x[0-9a-f]|"
    r"\b(?:rank|process|worker|host|node|device|gpu|thread|replica|pid|job|task)s?\b"
)
"""Words of lines that count without any work, or that number things rather than count them."""
_ASIDE = re.compile(r"\([^()]{0,200}\)")
_BAR = "a progress bar"
"""The form of all progress bars. They look alike, and each begins anew: only a number above all
earlier ones is a new step."""
_NUMBERS = re.compile(r"[\d.:,]+")
_TIMES = re.compile(
    r"\d{4}[-/]\d\d[-/]\d\d|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?|^[IWEF]\d{4}\b|^\[ *\d+\.\d+\]|"
    r"\d{9,}(?:\.\d+)?|\d+(?:\.\d+)? ?(?:s|ms|sec|seconds|min|minutes)\b"
)
_COUNTED = re.compile(r"(?<![\w.+-])\d{1,8}(?:\.\d{1,9})?(?![\w.]*[A-Za-z_])")
"""A number that stands alone: `layer_1` and `v1.2.3` are names."""
_ENOUGH = {Origin.MAIN: 2, Origin.THREAD: 10, Origin.LOGGED: 2}
"""New steps after which a traceback counts as survived. A logged one counts as survived after one
step, or after this number of healthy lines."""
_RUN = 4
"""The number of lines of one form with rising numbers that show work, whatever their words are."""


class _Step(NamedTuple):
    """A step that a line reports: the index of the line, its form, and the number of the step."""

    at: int
    form: str
    number: float


class SignsOfWork:
    """The signs of work in the lines of one process."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._steps: list[_Step] = []
        self._told: list[int] = []
        self._measured: list[tuple[int, str, bool]] = []
        """Lines with a metric: the index, the form, and whether they also report a step."""
        self._lines = lines
        self._counts: dict[int, tuple[str, list[float]]] = {}
        """Results of `_counted` by index: many tracebacks ask for the same lines."""
        for at, line in enumerate(lines):
            metric = None if line.startswith((" ", "\t")) else _METRIC.search(line)
            if not _is_healthy(line, metric):
                continue
            steps = list(_steps(at, line))
            self._steps += steps
            if metric is not None:
                self._measured.append((at, _NUMBERS.sub("", line), bool(steps)))
            if steps or metric is not None or _INFO_LINE.match(line):
                self._told.append(at)

    def began_before(self, at: int) -> bool:
        """True if a line before line `at` reports a step."""
        return bisect_left(self._steps, (at, "", 0)) > 0

    def shows_after(self, at: int) -> bool:
        """True if line `at` or a later line shows work, even if it is another process's."""
        measured = bisect_left(self._measured, (at, "", False)) < len(self._measured)
        return measured or bisect_left(self._steps, (at, "", 0)) < len(self._steps)

    def resumed_after(self, chain: Chain) -> int | None:
        """Returns the index of the first line of work after the errors; None: no work follows."""
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
        """Returns where lines of one form with rising numbers begin; None: there are none."""
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
    """True if the line reports no trouble, and is not typical of the end of a program.

    Words after a metric do not count: `loss 1.2 (checkpoint every 50)`, `loss=1.2 error_rate=0.1`.
    """
    if "wandb:" in line:
        return False  # its summary, which it prints after the end of the work
    said = _ASIDE.sub("", line) if metric is None else line[: metric.start()]
    return not (_TEARDOWN.search(said) or _BAD.search(said))


def _steps(at: int, line: str) -> Iterator[_Step]:
    """Yields the steps that a line reports: `epoch 3 batch 17` has two."""
    if (bar := _PROGRESS_BAR.search(line)) is not None:
        yield _Step(at, _BAR, float(bar[bar.lastindex or 1]))
    elif not line.startswith((" ", "\t")):
        for match in islice(_STEP.finditer(line), _MAX_COUNTERS):
            yield _Step(at, _NUMBERS.sub("", line[: match.start(1)])[-40:], float(match[1]))


def _counted(line: str) -> tuple[str, list[float]]:
    """Returns the form of a line and its numbers, but times; ("", []) if it cannot show work."""
    if not line[:1].strip() or _NO_WORK.search(line) or _BAD.search(line):
        return "", []
    ends = _TEARDOWN.search(line)
    if ends is not None and not ends[0].lower().startswith("upload"):
        return "", []
    said = _TIMES.sub("", line[:_MAX_LOOKED_AT])
    numbers = [float(number) for number in islice(_COUNTED.findall(said), _MAX_COUNTERS)]
    return _NUMBERS.sub("", said), numbers
