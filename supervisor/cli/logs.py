"""`supervise logs`: prints what a worker has printed, and follows it.

It reads the attempt's files alone. So it works while the job runs and afterwards, and on every host
that sees model_dir.
"""

from __future__ import annotations

import codecs
import os
import sys
import time
from argparse import Namespace
from collections.abc import Collection, Iterator
from pathlib import Path

from supervisor.adapters.stores.lock import living_owner
from supervisor.cli.arguments import Commands, add_model_dir
from supervisor.cli.complaints import complain
from supervisor.cli.found_jobs import chosen_job
from supervisor.cli.job_view import NoJobError, run_and_report
from supervisor.config.patterns import Pattern, SlowPatternError
from supervisor.core.exit_codes import ExitCode
from supervisor.files.attempts import ATTEMPTS_FOLDER, PHASE_SUFFIX, attempt_of
from supervisor.protocol.location import Uri

_CHUNK = 1 << 20
_MAX_LINE = 1 << 16
"""Characters; of a longer line without its end, `--grep` searches each part by itself."""
_PAUSE = 0.5
"""Seconds between two looks at a file that is followed."""


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser("logs", help="print what a worker has printed")
    add_model_dir(parser, optional=True, on_disk=True)
    parser.add_argument(
        "--attempt", type=int, metavar="N", help="the attempt; default: the newest one"
    )
    parser.add_argument(
        "--rank", type=int, metavar="R", default=0, help="the worker; default: rank 0"
    )
    parser.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="go on with what comes, also of later attempts, until no supervisor runs",
    )
    parser.add_argument(
        "--grep",
        metavar="PATTERN",
        help="print only the lines in which this regular expression (of Python) is found",
    )


def run(options: Namespace) -> int:
    """Print the output of a worker; returns the exit code."""
    given, source = options.model_dir, options.grep
    try:
        output = _Output() if source is None else _MatchingLines(Pattern(source))
    except ValueError as error:
        return complain(ExitCode.USAGE, f"--grep: {source!r} {error}")

    def show() -> None:
        place, attempt, rank = chosen_job(given), options.attempt, options.rank
        show_logs(place, attempt, rank, follows=options.follow, output=output)

    try:
        return run_and_report(show, given if given is not None else Path())
    except SlowPatternError as error:
        return complain(ExitCode.USAGE, f"--grep: {error}: write a simpler one")


class _Output:
    """Prints all that comes."""

    def show(self, text: str) -> None:
        """Print the next part of the output."""
        print(text, end="", flush=True)

    def end(self) -> None:
        """Print what is left of an attempt's output."""


class _MatchingLines(_Output):
    """Prints the lines in which a pattern is found."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._begun = ""
        """A line whose end has not come."""

    def show(self, text: str) -> None:
        """Print the matching lines of the next part.

        Raises:
            SlowPatternError: to search a line takes too long.
        """
        *lines, self._begun = (self._begun + text).split("\n")
        if len(self._begun) > _MAX_LINE:
            lines, self._begun = [*lines, self._begun], ""
        found = [line for line in lines if self._pattern.search(line) is not None]
        if found:
            print("\n".join(found), flush=True)

    def end(self) -> None:
        """See `_Output`."""
        if self._begun:
            self.show("\n")


def show_logs(
    place: Path | Uri, attempt: int | None, rank: int, *, follows: bool, output: _Output
) -> None:
    """Show the output of the rank `rank` in an attempt of the job in `place`, its model_dir; None:
    in the newest one. `follows`: show what comes, too, until no supervisor runs.

    Raises:
        NoJobError: there is no such job, attempt or rank.
        OSError: the output cannot be read.
        SlowPatternError: see `_MatchingLines`.
    """
    if isinstance(place, Uri):
        raise NoJobError(f"{place} is in a bucket: see docs/how-to/bucket.md for reading its logs")
    folders = _attempts(place)
    if not folders:
        raise NoJobError(f"{place} has no attempt of a job: give the job's model_dir")
    number = max(folders) if attempt is None else attempt
    if number not in folders:
        raise NoJobError(f"attempt {number} has no folder, only {_spans('attempt', folders)}")
    if not (log := _RankLog(folders[number], rank)).exists:
        ranks = _ranks_in(folders[number])
        there = f"only of {_spans('rank', ranks)}" if ranks else "nor of any other yet"
        raise NoJobError(f"attempt {number} has no output of rank {rank}, {there}")
    _show(log, output)
    while follows:
        is_over = living_owner(place) is None  # asked first: what is printed before that comes too
        _show(log, output)
        later = max(_attempts(place), default=number)
        if attempt is None and later > number:
            output.end()
            number, log = later, _RankLog(_attempts(place)[later], rank)
            print(f"--- attempt {number}", file=sys.stderr)
        elif is_over or (attempt is not None and later > number):
            break
        else:
            time.sleep(_PAUSE)
    output.end()


class _RankLog:
    """The output of one rank: the parts that were kept, the newest last, which may grow and be
    replaced by the next one."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._newest = folder / f"rank{rank}.log"
        self._older = [folder / f"rank{rank}.{part}.log" for part in ("first", "previous")]
        self._file: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def exists(self) -> bool:
        """Whether the rank has printed anything that was kept."""
        return any(path.exists() for path in (self._newest, *self._older))

    def news(self) -> Iterator[str]:
        """Yields what was not read yet.

        Raises:
            OSError: it cannot be read.
        """
        if self._file is None:
            for path in self._older:
                if (part := _opened(path)) is not None:
                    yield from self._rest_of(part)
                    os.close(part)
            self._file = _opened(self._newest)
        if self._file is None:
            return
        yield from self._rest_of(self._file)
        following = _opened(self._newest)
        if following is None or os.path.sameopenfile(self._file, following):
            if following is not None:
                os.close(following)
            return
        yield from self._rest_of(self._file)  # what came before it was replaced
        os.close(self._file)
        self._file = following
        yield from self._rest_of(following)

    def _rest_of(self, file: int) -> Iterator[str]:
        while data := os.read(file, _CHUNK):
            yield self._decoder.decode(data)


def _opened(path: Path) -> int | None:
    """Returns a descriptor of the file; None: it is not there. It never waits, as for a FIFO."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None


def _show(log: _RankLog, output: _Output) -> None:
    for text in log.news():
        output.show(text)


def _attempts(model_dir: Path) -> dict[int, Path]:
    """Returns the folders of all attempts, by number."""
    found = model_dir.glob(f"*{PHASE_SUFFIX}/{ATTEMPTS_FOLDER}/*")
    numbers = ((attempt_of(path.name), path) for path in found)
    return {number: path for number, path in numbers if number is not None}


def _ranks_in(folder: Path) -> list[int]:
    """Returns the ranks that have printed anything."""
    names = (path.name.removeprefix("rank").partition(".")[0] for path in folder.glob("rank*.log"))
    return sorted({int(name) for name in names if name.isdecimal()})


def _spans(noun: str, numbers: Collection[int]) -> str:
    """Returns the first and the last of the numbers, with the noun for what they count."""
    first, last = min(numbers), max(numbers)
    return f"{noun} {first}" if first == last else f"{noun}s {first} to {last}"
