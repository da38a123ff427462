"""Finds the genuine errors in the text that a dying program printed.

The last line of a log is misleading more often than not: after the error that ended a program come
threads that find their event loop closed, exit handlers, the coordination service that takes down
the other ranks, C++ stacks and abort traces. Earlier errors may have been caught and survived. So
this file reads *chains*: the exceptions of one traceback, those that led to them, and how the
traceback was printed. A traceback that begins at module level ended the program. One in a thread
may have ended it. One that was logged was caught.

It reads text line by line; every regular expression is anchored or has no nested repetition.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, takewhile
from operator import itemgetter

from supervisor.diagnosis.chain import Chain, Origin, PrintedError
from supervisor.diagnosis.faulthandler_text import without_stacks
from supervisor.diagnosis.frames import frame_in
from supervisor.diagnosis.hints import is_wordless
from supervisor.diagnosis.launcher_table import opened
from supervisor.diagnosis.line_forms import GAP, HEADER, MAX_LINE, MEMBER
from supervisor.diagnosis.log_lines import LogLine, clean_lines, processes
from supervisor.diagnosis.native_text import aborts, last_lines, speaks
from supervisor.diagnosis.survival import SignsOfWork
from supervisor.diagnosis.traceback_text import MAX_FRAMES, TracebackReader, frames_of_chain
from supervisor.protocol.failure_record import ExceptionInfo, FailureRecord

_CALLBACK = re.compile(r"(?:[Cc]allback|Generated function)\b")
_OF_TRACEBACKS = frozenset({Origin.MAIN, Origin.THREAD, Origin.LOGGED})
_ITS_ERROR = re.compile(r" error[^:]{0,300}: ")
_EMBEDDED = re.compile(r"(?:.*?[ :])??((?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (.*)")

_MAX_FENCE = 200
_FENCE = re.compile(r"(?:^|[\s:>])(```)[\w+-]*\s*$|^\s*(\"\"\"|~~~)\w*\s*$")
"""The line before and after a block of quoted text, as language models write it."""


def chains_of_text(text: str) -> list[Chain]:
    """Returns the genuine errors in an output: the tracebacks in the order they were printed, then
    the aborts of native code, then the last lines."""
    found: list[tuple[int, Chain]] = []
    fatal: list[Chain] = []
    ends: list[LogLine] = []
    for lines in map(list, map(opened, map(without_stacks, processes(text)))):
        printed, resumed = _tracebacks(lines)
        found += printed
        fatal += aborts([line.text for line in lines[resumed:]])
        ends += lines[resumed:]
    chains = [chain for _, chain in sorted(found, key=itemgetter(0))] + fatal
    if last := last_lines([line.text for line in sorted(ends, key=itemgetter(0))]):
        chains.append(last)
    return _without_launchers([chain for chain in map(_unwrapped, chains) if chain.members])


def _without_launchers(chains: list[Chain]) -> list[Chain]:
    """Returns the chains without those of a launcher, if another one ended a process."""
    others = [chain for chain in chains if not chain.is_of_a_launcher]
    return others if any(chain.origin <= Origin.ABORT for chain in others) else chains


def _tracebacks(lines: Sequence[LogLine]) -> tuple[list[tuple[int, Chain]], int]:
    """Returns the tracebacks that a process did not survive, and where it resumed its work.

    Each traceback has its line number in the output. The process resumed its work, after the last
    traceback that it survived, in the line with the returned index (0: it survived none).
    """
    texts = [line.text for line in lines]
    progress = SignsOfWork(texts)
    read = [(chain, progress.resumed_after(chain)) for chain in TracebackReader(texts).chains()]
    resumed = max((at for _, at in read if at is not None), default=0)
    ends = [(chain.end, chain) for chain, at in read if at is None and chain.end <= resumed]
    # The rest of a survived traceback must not be taken for the beginning of the next.
    ends += [(resumed + c.end, c) for c in TracebackReader(texts[resumed:]).chains()]
    speaking = [*accumulate(map(speaks, reversed(texts)), initial=0)]
    fences = _fences(texts)
    chains, since = [], 0
    for end, chain in ends:
        since = max(since, resumed) if end > resumed else since
        origin = _origin(chain, lines[since:end], since, progress, fences)
        followed = speaking[len(texts) - end]
        chains.append(replace(chain, origin=origin, followed=followed))
        since = end
    chains = [*_with_table(chains)]
    uncaught = [
        at
        for at, chain in enumerate(chains)
        if chain.origin is Origin.MAIN and not chain.is_of_a_launcher
    ]
    # A program has one uncaught exception: it caught the others, or they are of other processes.
    for at in uncaught[:-1]:
        if chains[at].members[-1].line != chains[uncaught[-1]].members[-1].line:
            chains[at] = replace(chains[at], origin=Origin.THREAD)
    places = (lines[max(0, end - 1)].number for end, _ in ends)
    return list(zip(places, chains, strict=True)), resumed


def _with_table(chains: Sequence[Chain]) -> Iterator[Chain]:
    """Yields the chains. Those that follow a launcher's error stand in its table: each of them
    ended a process."""
    is_in_table = False
    for chain in chains:
        yield replace(chain, origin=Origin.MAIN) if is_in_table else chain
        is_in_table = is_in_table or chain.is_of_a_launcher


def _fences(texts: Sequence[str]) -> list[int]:
    """Returns the indices of the lines that begin and end fenced blocks, alternating."""
    found, kind = [], ""
    for at, text in enumerate(texts):
        fence = _FENCE.search(text[-_MAX_FENCE:])
        if fence is not None and kind in ("", fence[1] or fence[2]):
            found.append(at)
            kind = "" if kind else fence[1] or fence[2]
    return found


def _origin(
    chain: Chain, lines: Sequence[LogLine], since: int, progress: SignsOfWork, fences: Sequence[int]
) -> Origin:
    """Returns how a traceback came to be printed, which the lines around it show.

    `lines` end with the traceback and begin at line `since` of their process. A quoted traceback,
    as in a text that a language model wrote, need not have ended a process. No sign of work comes
    after a traceback that ended the main program.
    """
    if chain.origin is not Origin.MAIN:
        return chain.origin
    texts = [line.text for line in lines]
    header = next((at for at, text in enumerate(texts) if HEADER in text), None)
    begin = since + (len(texts) if header is None else header)
    is_cut = header is None and GAP not in texts
    is_fenced = bisect_left(fences, begin) % 2 == 1
    is_quoted = is_fenced or any(line.is_quoted for line in lines[header or 0 :])
    if is_quoted or (is_cut and progress.began_before(begin)):
        return Origin.LOGGED
    return Origin.THREAD if progress.shows_after(since + len(lines)) else chain.origin


def chain_of_record(record: FailureRecord, output: str = "") -> Chain | None:
    """Returns the errors of a failure record; None: it names none.

    Errors without a message get hints from `output`.
    """
    lines = _lines_of(record.traceback)
    printed = [each for chain in TracebackReader(lines).chains() for each in chain.members]
    members = tuple(
        inner if inner.at else _placed(inner, printed)
        for info in reversed(record.exceptions)
        for inner in _members_of_info(info)
    )
    frames = [frame for line in lines if (frame := frame_in(line))][-MAX_FRAMES:]
    explained = tuple(_explained(member, output) for member in members)
    if not members:
        return None
    return _unwrapped(Chain(explained, Origin.MAIN, frames_of_chain(frames), is_recorded=True))


def tracebacks_before(recorded: Chain, output: str) -> list[Chain]:
    """Returns the tracebacks of an output that were printed before that of a failure record."""
    said = {(_kind(member), _message(member)) for member in recorded.members}

    def is_another(chain: Chain) -> bool:
        return all((_kind(each), _message(each)) not in said for each in chain.members)

    printed = (chain for chain in chains_of_text(output) if chain.origin in _OF_TRACEBACKS)
    return [*takewhile(is_another, printed)]


def _lines_of(traceback: str) -> list[str]:
    """Returns the lines of a traceback, without the bars of an exception group."""
    in_group = any(map(MEMBER.match, traceback.splitlines()))
    return clean_lines(traceback) if in_group else traceback.splitlines()


def _explained(raised: PrintedError, output: str) -> PrintedError:
    """Returns an error without a message with the hints that `output` has about it.

    The output shows more than the traceback alone. Other errors are returned as they are.
    """
    if not output or not is_wordless(raised.line):
        return raised
    printed = (each for chain in chains_of_text(output) for each in chain.members)
    hints = [each.hints for each in printed if _kind(each) == _kind(raised) and each.hints]
    return replace(raised, hints=hints[-1]) if hints else raised


def _placed(raised: PrintedError, printed: Sequence[PrintedError]) -> PrintedError:
    """Returns an error of the record with the place that the traceback shows for it.

    The traceback's error must have the same type. One with the same message is preferred, not
    required: a traceback prints the message of a SyntaxError without its place.
    """
    same = [each for each in printed if _kind(each) == _kind(raised)]
    same.sort(key=lambda each: _message(each) != _message(raised))
    if not same:
        return raised
    found = same[0]
    return replace(
        raised, at=found.at, raised_in=found.raised_in, hints=found.hints, code=found.code
    )


def _kind(raised: PrintedError) -> str:
    return raised.type.rpartition(".")[2]


def _message(raised: PrintedError) -> str:
    return raised.line.partition(": ")[2].rstrip()[: MAX_LINE // 2]


def _members_of_info(info: ExceptionInfo) -> Iterator[PrintedError]:
    """Yields the errors that its message holds as text (a callback's, a worker's), then itself."""
    if HEADER in info.message:
        for chain in TracebackReader(clean_lines(info.message)).chains():
            yield from chain.members
    text = f"{info.type}: {info.message}" if info.message else info.type
    line = next(iter(text.splitlines()), "").removeprefix("builtins.")  # as Python prints it
    yield PrintedError(info.type, line, text, info.bases)


def _unwrapped(chain: Chain) -> Chain:
    """Returns the chain without errors that only carry others, unless it has no others."""
    members = tuple(inner for member in chain.members for inner in _opened(member))
    genuine = tuple(
        member
        for member in members
        if not member.is_wrapper and _after_callback(member.line) is None
    )
    return replace(chain, members=genuine or members)


def _after_callback(line: str) -> str | None:
    """Returns what a line says about the error of a callback; None: it is about none."""
    callback = _CALLBACK.search(line)
    error = _ITS_ERROR.search(line, callback.end()) if callback is not None else None
    return line[error.end() :] if error is not None else None


def _opened(member: PrintedError) -> Iterator[PrintedError]:
    """Yields the exception that the error of a callback names in its own line, then the error."""
    said = _after_callback(member.line)
    if said is not None:
        inner = _EMBEDDED.match(said)
        if inner is not None:
            line = f"{inner[1]}: {inner[2]}"
            yield PrintedError(
                inner[1], line, member.text, at=member.at, raised_in=member.raised_in
            )
    yield member
