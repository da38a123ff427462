"""Splits an output into the lines of each process, as the process printed them.

Terminals, launchers and log collectors change what a program printed: they colour it, put a prefix
before every line, pack each line into JSON, and mix the lines of several processes. This file
removes all of that, and separates the processes.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from supervisor.diagnosis.line_forms import GAP, HEADER, MAX_LINE
from supervisor.diagnosis.line_prefix import NEARLY_ALL, Prefixes, writer
from supervisor.protocol.shortening import keep_beginning

_MAX_LAYERS = 4
_MAX_PARTS = 64 * 1024
"""Characters: parts into which a container runtime cut a line are joined up to this length."""
_FEW = 3
"""Lines per process on average: with fewer, the prefixes number the lines and name no process."""
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|[@-Z\\^_])")
_CRI = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-][\d:]+) std(?:out|err) ([FP]) ")
_KNOWN = re.compile(
    rf"(?:{_CRI.pattern}|\[rank ?\d+\]:? ?|\([\w.:]+ (?:pid=\d+|pid=\d+, ip=[\d.]+)\) )"
)
"""Prefixes that are recognised in a single line, because nothing else looks like them."""
_GROUP_BAR = re.compile(r"^[ +|-]*[+|] (?=\S|  )")
_BARS = re.compile(r"(?:\r*[ \t]*\d{1,3}%\|[^\r]*\r)+(?![^\r]*%\|)")
"""Progress bars that another text replaced on the same line. No prefix stands before them."""
_START_ERROR = re.compile(r"Error in (?:site|user)customize; set PYTHONVERBOSE for traceback:\s*")
"""What Python's `site` prints before the exception of such a module, which is on the next line."""

_WORD = re.compile(r"\w")
_GROUP = re.compile(r"\+ Exception Group Traceback|\+-\+?-{4}|^[-+| ]*-{5} ?\d+ ?-{5}")

_TEXT_KEYS = ("log", "textPayload", "jsonPayload", "MESSAGE", "message", "msg", "event")
_ERROR_KEYS = ("exc_info", "exception", "exc_text", "stack_trace", "traceback", "error")
_WRITER_KEYS = ("pod_name", "pod", "container_name", "rank", "process_index", "pid", "_PID")
_WRITER_IN = ("resource", "labels", "kubernetes", "jsonPayload")
_PROPERTY = re.compile(r'\s*"(?:log|textPayload|MESSAGE|message)": ("(?:[^"\\]|\\.)*"),?\s*$')
_OTHER_PROPERTY = re.compile(r'\s*(?:"[^"]+": .*|[\[\]{}]+,?)\s*$')
_HALF = re.compile("[\ud800-\udfff]")
"""A surrogate: half of a character in UTF-16."""
_MOST = 0.6


class LogLine(NamedTuple):
    """A line of the output: its index there, its writer, and the text that is left of it."""

    number: int
    writer: str
    text: str
    is_quoted: bool = False
    """Whether a quotation mark such as `> ` stood before it, but not before nearly all lines."""


def processes(text: str) -> list[list[LogLine]]:
    """Returns the lines of each process in the output, as the process printed them."""
    text = _ANSI.sub("", text) if "\x1b" in text else text
    parts = text.replace("\ufeff", "").split("\n")
    lines = [LogLine(number, "", _without_bars(part)) for number, part in enumerate(parts)]
    if lines and not lines[-1].text:
        lines.pop()
    for _ in range(_MAX_LAYERS):
        peeled = list(_without_prefix(list(_unpacked(lines))))
        if peeled == lines:
            break
        lines = peeled
    groups = (list(_pieces(_without_margin(group))) for group in _by_writer(lines))
    return [list(_without_start_errors(group)) for group in groups]


def clean_lines(text: str) -> list[str]:
    """Returns the lines of all processes, in the order of the output."""
    lines = [line for group in processes(text) for line in group]
    return [line.text for line in sorted(lines, key=itemgetter(0))]


def _without_bars(line: str) -> str:
    """Returns the text that replaced the progress bars at the beginning of the line.

    It may have a prefix that has to be found where it begins: `[rank1]: ` of a rank under torchrun.
    """
    bars = _BARS.match(line)
    return (line[bars.end() :] if bars is not None else line).rstrip("\r")


def _pieces(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yields each line, cut where a progress bar returned to the beginning of the line.

    A line that begins with a bar belongs to an exception group if the output has one; otherwise it
    is quoted.
    """
    lines = list(lines)
    has_group = any(_GROUP.search(line.text) for line in lines)
    for line in lines:
        pieces = line.text.splitlines() or [""]
        if len(pieces) > 1 and "%|" not in pieces[-1]:  # the last piece replaced the bar
            pieces = [piece for piece in pieces if piece and "%|" not in piece] or [""]
        for piece in pieces:
            text = keep_beginning(piece, MAX_LINE)  # no secret is cut in two
            is_quoted = line.is_quoted or (text.startswith("| ") and not has_group)
            yield line._replace(text=_GROUP_BAR.sub("", text, count=1), is_quoted=is_quoted)


def _without_start_errors(lines: Sequence[LogLine]) -> Iterator[LogLine]:
    """Yields the lines without those about a `sitecustomize` that failed: Python goes on after it,
    so it is never why a program ended."""
    is_next = False
    for line in lines:
        head = _START_ERROR.match(line.text)
        if head is None and not is_next:
            yield line
        is_next = head is not None and head.end() == len(line.text)


def _by_writer(lines: Sequence[LogLine]) -> list[list[LogLine]]:
    """Returns the lines of each writer; all lines together if the prefixes name no writers."""
    writers = Counter(line.writer for line in lines)
    named = len(writers) - ("" in writers)
    if named <= 1 or len(lines) < _FEW * named:
        return [list(lines)]
    groups: dict[str, list[LogLine]] = defaultdict(list)
    for line in lines:
        groups[line.writer].append(line)
    return list(groups.values())


def _without_prefix(lines: Sequence[LogLine]) -> Iterator[LogLine]:
    prefixes = Prefixes([line.text for line in lines])
    known = (_KNOWN.match(line.text) for line in lines)
    ends = [
        max(prefixes.length(line.text), match.end() if match else 0)
        for line, match in zip(lines, known, strict=True)
    ]
    quotes = _quotes([(line.text, end) for line, end in zip(lines, ends, strict=True)])
    parts: dict[str, str] = {}
    for line, end in zip(lines, ends, strict=True):
        if not end:
            yield line
            continue
        said = writer(line.text[:end])
        name = f"{line.writer} {said}" if said else line.writer
        body = parts.pop(name, "") + line.text[end:]
        partial = _CRI.search(line.text, 0, end)
        if partial is not None and partial[1] == "P" and len(body) < _MAX_PARTS:
            parts[name] = body
            continue
        yield LogLine(line.number, name, body, line.is_quoted or line.text[:end] in quotes)


def _quotes(lines: Sequence[tuple[str, int]]) -> frozenset[str]:
    """Returns the prefixes that are quotation marks, as `> ` is.

    Such a prefix holds no letter or digit, so no name or time, and stands before some lines only. A
    prefix before nearly all lines was added when the log was passed on. `lines` are texts, each
    with the length of its prefix.
    """
    marks = frozenset(text[:end] for text, end in lines if end and not _WORD.search(text, 0, end))
    if not marks:
        return marks
    heads = tuple(mark.strip() for mark in marks)
    said = [text for text, _ in lines if text.strip()]
    marked = sum(text.lstrip().startswith(heads) for text in said)
    return marks if marked < NEARLY_ALL * len(said) else frozenset()


def _without_margin(lines: list[LogLine]) -> list[LogLine]:
    """Returns the lines without the indentation that all of them share."""
    texts = [line.text for line in lines]
    gaps = {at + 1 for at, text in enumerate(texts) if text == GAP}
    whole = (text for at, text in enumerate(texts) if at not in gaps and text != GAP)
    said = [text for text in whole if text.strip()]
    frames = [_indent(text) for text in said if text.lstrip().startswith('File "')]
    others = [_indent(text) for text in said if not text.lstrip().startswith('File "')]
    margin = min(others, default=0)
    if frames and min(frames) < margin + 2:
        margin = max(0, min(frames) - 2)
    return [line._replace(text=line.text[margin:]) for line in lines] if margin else lines


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" \t"))


def _unpacked(lines: Sequence[LogLine]) -> Iterator[LogLine]:
    """Yields the lines; those that are packed in JSON are unpacked."""
    said = [line for line in lines if line.text.strip()]
    within = sum(line.text.rstrip().endswith("}") and '{"' in line.text[:300] for line in said)
    whole = sum(_OTHER_PROPERTY.match(line.text) is not None for line in said)
    pretty = whole > _MOST * len(said) and any(_PROPERTY.match(line.text) for line in said)
    before = within > _MOST * len(said)
    parts: dict[str, str] = {}
    for line in lines:
        entry = _entry(line.text, before=before)
        if entry is None:
            if not pretty:
                yield line
            elif (found := _PROPERTY.match(line.text)) is not None:
                yield from _split(line, line.writer, _string(found[1]))
            elif _OTHER_PROPERTY.match(line.text) is None:
                yield line
            continue
        who, text, is_part = entry
        name = f"{line.writer} {who}".strip() if who else line.writer
        text = parts.pop(name, "") + text
        if is_part and len(text) < _MAX_PARTS:
            parts[name] = text
        else:
            yield from _split(line, name, text)
    for name, text in parts.items():
        yield from _split(lines[-1], name, text)


def _split(line: LogLine, name: str, text: str) -> Iterator[LogLine]:
    for part in text.removesuffix("\n").split("\n"):
        yield LogLine(line.number, name, part.rstrip("\r"))


def _string(quoted: str) -> str:
    try:
        return _encodable(str(json.loads(quoted)))
    except ValueError:
        return quoted


def _encodable(text: str) -> str:
    """Returns `text` with a replacement for each surrogate: JSON may hold one, UTF-8 may not."""
    return _HALF.sub("\ufffd", text)


def _entry(line: str, *, before: bool) -> tuple[str, str, bool] | None:
    """Returns the writer and the text of an entry in a JSON log, and whether the next entry is its
    continuation; None: the line is no entry. `before`: a text may stand before the JSON."""
    begin = line.find('{"', 0, 300)
    text = line.rstrip().rstrip(",")
    if begin < 0 or not text.endswith("}") or (line[:begin].strip() and not before):
        return None
    try:
        entry = json.loads(text[begin:])
    except (ValueError, RecursionError):
        return None
    found = _text_of(entry)
    if found is None or len(entry) < 2:
        return None
    is_part = "log" in entry and "stream" in entry and not found.endswith("\n")
    who = f"{writer(line[:begin])} {_writer_of(entry)}".strip()
    return who, _encodable(found), is_part


def _text_of(entry: dict[str, object]) -> str | None:
    """Returns the text of an entry, with any traceback beside its message; None: it has no text."""
    key = next((key for key in _TEXT_KEYS if key in entry), None)
    if key is None:
        return None
    value = entry[key]
    if isinstance(value, dict):
        return _text_of(value) if key == "jsonPayload" and key not in value else None
    if not isinstance(value, str):
        return None
    errors = (entry.get(key) for key in _ERROR_KEYS)
    return "\n".join([value, *(e for e in errors if isinstance(e, str) and HEADER in e)])


def _writer_of(entry: dict[str, object], depth: int = 3) -> str:
    found = [str(entry[key]) for key in _WRITER_KEYS if isinstance(entry.get(key), (str, int))]
    for key in _WRITER_IN if depth else ():
        inner = entry.get(key)
        if isinstance(inner, dict):
            found.append(_writer_of(inner, depth - 1))
    return " ".join(found).strip()
