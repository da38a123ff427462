"""Finds the prefix that a launcher, a log collector or a logger put before the lines of an output.

No list of launchers is complete, so the lines themselves must show it. A frame of a traceback reads
`  File "...", line N, in F` wherever it was printed: the text before that is a prefix, and lines
that begin in the same form have the prefix too. If an output has no frame, the text that nearly all
lines begin with is a prefix, unless it belongs to a log statement of the program itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

_MAX_PREFIX = 300
_SAMPLE = 400
"""The number of lines that are compared, about: a longer output is sampled."""
NEARLY_ALL = 0.95
_MAX_FORMS = 200
_AT_ONCE = 50
"""Forms in one regular expression."""

_FRAME = re.compile(r'  File "[^"]*", line \d+(?:, in .*)?$')
_NATIVE = re.compile(
    r"[IWEF]\d{4} \d\d:\d\d:\d{2,10}\.\d{6} +\d+ [\w./+-]+:\d+\] |"
    r"terminate called after throwing an instance of '|    @ +0x[0-9a-f]{6,}  "
)
"""What native code writes at the beginning of a line."""
_GROUP_BAR = re.compile(r"[ +|-]*[+|] $")
_LEVEL = r"(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_TOKEN = re.compile(
    rf"(?P<clock>{_CLOCK})|(?P<glog>[IWEF](?=\d{{4}} ))|(?P<level>\b{_LEVEL}\b)|"
    r"(?P<stream>\bstd(?:out|err)\b)|(?P<partial>(?<=std(?:out|err) )[FP](?= ))|"
    rf"(?P<month>\b{_MONTH}\b)|(?P<digits>\d+)|(?P<letters>[A-Za-z]+)|(?P<space>[ \t]+)|"
    r"(?P<other>.)"
)
_PATTERNS = {
    "clock": _CLOCK,
    "glog": "[IWEF]",
    "level": _LEVEL,
    "stream": "std(?:out|err)",
    "partial": "[FP]",
    "month": _MONTH,
    "digits": r"\d+",
    "space": r"[ \t]+",
}
_HASH = re.compile(r"\b(?=[a-z0-9]*\d[a-z])(?=[a-z0-9]*[a-z]\d)[a-z0-9]{5,}\b")
"""A random part of a name, with letters and digits."""
_ENDS = re.compile(r"[:|>)\]][ \t]?$|(?:\d[Z\d]|\d) $")
"""How a prefix may end if only its frequency shows that it is one."""
_STATEMENT = re.compile(rf"[IWEF]\d{{4}} |\b{_LEVEL}\b|: [IWEF] $")
_EXCEPTION = re.compile(r"\w*(?:Error|Exception|Warning)\b")
_PROSE = re.compile(r"(?:(?<![\w.-])[A-Za-z]+ ){4}")
"""Words of a message, not of a name: a message that is repeated is no prefix."""
_BEFORE_LEVEL = re.compile(rf"[\s\[(:-]*(?:[IWEF] |{_LEVEL}\b)")
_DIGITS = re.compile(r"\d+")
_RAW = re.compile(
    r"\s|$|usage: |\S+: (?:error|line \d+|\d+): |[\w.]*(?:Error|Exception): |terminate called |"
    r"LLVM ERROR|FATAL Flags"
)
"""The beginnings of lines that no log statement wrote."""
_PASSING = re.compile(
    rf"(?:{_MONTH} +\d+ |\d{{4}}[-/]\d\d[-/]\d\d[ T]?|[IWEF]\d{{4}} |\b\d{{9,}}\.\d+)?{_CLOCK}Z?"
    rf"(?:[+-]\d\d:?\d\d)?|std(?:out|err)(?: [FP]\b)?|\b{_LEVEL}\b|"
    r"(?<![\w./-])[\w./-]+\.(?:py|cc|h|cpp):\d+"
)
"""Parts of a prefix that say when, how and from where a line was written, not by whom."""


class Prefixes:
    """The forms of the prefixes in an output."""

    def __init__(self, lines: Sequence[str]) -> None:
        forms = Counter(_form(prefix) for prefix in _before_frames(lines))
        if not forms and not any(_FRAME.match(line) for line in lines):
            forms.update(_shared(lines) or _before_native(lines))
        found = sorted((form for form, _ in forms.most_common(_MAX_FORMS)), key=len, reverse=True)
        parts = [found[at : at + _AT_ONCE] for at in range(0, len(found), _AT_ONCE)]
        self._patterns = [re.compile("|".join(f"(?:{form})" for form in part)) for part in parts]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def length(self, line: str) -> int:
        """Returns the length of the line's prefix; 0: it has none."""
        ends = (match.end() for pattern in self._patterns if (match := pattern.match(line)))
        return max(ends, default=0)


def writer(prefix: str) -> str:
    """Returns who wrote a line with this prefix: the prefix without times, levels and places."""
    return _PASSING.sub("", prefix).strip(" \t|+-")


def _before_frames(lines: Sequence[str]) -> Iterator[str]:
    """Yields the text before each frame of a traceback, if it is more than an indentation."""
    for line in lines:
        begin = line.rfind("\r") + 1  # a progress bar was at the beginning
        at = begin or line.find('  File "', 0, _MAX_PREFIX)
        if at <= 0 or _FRAME.match(line, at) is None:
            continue
        prefix = line[:at].partition("\r")[0]
        if len(prefix) > _MAX_PREFIX:
            continue
        if prefix.strip(" \t|+-") and "%|" not in prefix:
            yield prefix
            bar = _GROUP_BAR.search(prefix)
            if bar is not None and prefix[: bar.start()].strip():
                yield prefix[: bar.start()]
                yield prefix[: bar.start()] + " "


def _before_native(lines: Sequence[str]) -> list[str]:
    """Returns the form of the text before the lines of native code, if nearly all lines have it.

    Elsewhere such a text with words or a number may be the program's own. Before a line of native
    code it cannot be: the program writes nothing there.
    """
    found = ((line, _NATIVE.search(line, 1, _MAX_PREFIX)) for line in lines)
    before = (line[: native.start()] for line, native in found if native is not None)
    forms = Counter(_form(prefix) for prefix in before if prefix.strip())
    said = [line for line in lines if line.strip()]
    return [
        form
        for form, _ in forms.most_common(1)
        if sum(re.match(form, line) is not None for line in said) >= NEARLY_ALL * len(said)
    ]


def _form(prefix: str) -> str:
    """Returns a regular expression for this prefix with any numbers, times, levels and streams."""
    prefix = prefix.lstrip(" \t")
    body = prefix.rstrip(" \t")
    blank = prefix[len(body) :]
    pieces = [r"[ \t]*"]
    reached = 0
    for random in _HASH.finditer(body):
        pieces += [*map(_pattern, _TOKEN.finditer(body, reached, random.start())), "[a-z0-9]+"]
        reached = random.end()
    pieces += map(_pattern, _TOKEN.finditer(body, reached))
    end = f"(?:{re.escape(blank)}|$)" if blank else ""
    return "".join(pieces) + end


def _pattern(token: re.Match[str]) -> str:
    kind = token.lastgroup or ""
    return _PATTERNS.get(kind) or re.escape(token[0])


def _shared(lines: Sequence[str]) -> list[str]:
    """Returns the form of the text that nearly all lines begin with, if the program did not write
    that text itself; else an empty list."""
    said = [line for line in lines if line.strip()]
    sample = said[:: max(1, len(said) // _SAMPLE)]
    if len(sample) < 2:
        return []
    prefix, rest = "", [(line, 0) for line in sample]
    best = ""
    while len(prefix) < _MAX_PREFIX:
        tokens = [_TOKEN.match(line, at) for line, at in rest]
        forms = ["" if token is None else _pattern(token) for token in tokens]
        piece, count = Counter(forms).most_common(1)[0]
        if not piece or count < NEARLY_ALL * len(sample):
            break
        rest = [
            (token.string, token.end())
            for token, form in zip(tokens, forms, strict=True)
            if token is not None and form == piece
        ]
        line, at = rest[0]
        prefix = line[:at]
        if len(prefix) > _MAX_PREFIX:
            break
        if _may_end(prefix) and _is_foreign(prefix, rest):
            best = prefix
    return [_form(best)] if best else []


def _may_end(prefix: str) -> bool:
    packed = '{"' in prefix
    says = _EXCEPTION.search(prefix) or _PROSE.search(prefix)
    return not packed and bool(_ENDS.search(prefix)) and not says


def _is_foreign(prefix: str, rest: Sequence[tuple[str, int]]) -> bool:
    """True if the program did not write the prefix itself.

    A prefix with a level belongs to the program's log statements, unless it also stands before
    lines that no statement wrote (empty lines, errors), or before whole statements.
    """
    if any(_BEFORE_LEVEL.match(line, at) for line, at in rest):
        return False
    if len({_DIGITS.sub("", line[at:]) for line, at in rest}) < 2:
        return False  # one message, printed many times
    if not _STATEMENT.search(prefix):
        return True
    return any(_RAW.match(line, at) or _STATEMENT.match(line, at) for line, at in rest)
