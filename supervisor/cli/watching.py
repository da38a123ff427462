"""Shows a job again and again until it has ended: `supervise status --watch`.

In a terminal the picture is drawn in place, in the size that the terminal has at that moment. The
lines are cut into rows here, because a terminal that cuts them itself would scroll. Elsewhere each
picture that differs is printed below the last one.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from supervisor.cli.job_view import JobView, print_line
from supervisor.files.live_status import STATUS
from supervisor.files.segments import JOURNAL
from supervisor.protocol.location import Uri
from supervisor.protocol.messages import printable

_PERIOD, _IN_BUCKET = 2.0, 10.0
"""Seconds between two pictures, if nothing changes. Each costs some requests to a bucket."""
_LOOK = 0.25
"""Seconds between two looks whether something has changed."""
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


@dataclass(frozen=True, slots=True)
class Picture:
    """A job at one moment."""

    lines: Sequence[str]
    """For people; they may contain anything."""
    essence: object
    """What must differ for another picture to be worth a print: no ages, rates and steps."""


def watch(
    look: Callable[[], JobView],
    draw: Callable[[JobView], Picture],
    place: Path | Uri,
    *,
    in_place: bool,
) -> None:
    """Show the job in `place` until it has ended, or until Ctrl-C. Errors as those of `look`.

    `in_place`: standard output is a terminal, and each picture takes the place of the last one.
    """
    show = _Drawn().show if in_place else _Printed().show
    with suppress(KeyboardInterrupt):
        while True:
            before = _stamp(place)
            job = look()
            show(draw(job))
            if job.history.state.exit_code is not None:
                return
            _wait(place, before)


def _wait(place: Path | Uri, before: object) -> None:
    """Return once the job or the terminal differs from its stamp `before`, or is to be shown
    again."""
    until = time.monotonic() + (_PERIOD if isinstance(place, Path) else _IN_BUCKET)
    while time.monotonic() < until and _stamp(place) == before:
        time.sleep(_LOOK)


def _stamp(place: Path | Uri) -> object:
    """Returns a value that changes with the job's files on this host, and the terminal's size."""
    found: list[object] = [shutil.get_terminal_size()]
    if isinstance(place, Path):
        for name in (JOURNAL, STATUS):
            with suppress(OSError):
                status = (place / name).lstat()
                found.append((status.st_size, status.st_mtime_ns))
    return found


class _Printed:
    def __init__(self) -> None:
        self._last: object = None

    def show(self, picture: Picture) -> None:
        """Print the picture, if its essence is not that of the last one."""
        if picture.essence == self._last:
            return
        if self._last is not None and len(picture.lines) > 1:
            print()
        self._last = picture.essence
        for line in picture.lines:
            print_line(line)
        sys.stdout.flush()


class _Drawn:
    """Draws each picture over the last one. What was on the screen before scrolls out of it."""

    def __init__(self) -> None:
        print("\n" * shutil.get_terminal_size().lines, end="")

    def show(self, picture: Picture) -> None:
        """Draw the picture, in the size that the terminal has now."""
        size = shutil.get_terminal_size()
        rows = [row for line in picture.lines for row in _rows(printable(line), size.columns)]
        if len(rows) >= size.lines:
            shown = max(size.lines - 2, 1)
            rows = [*rows[:shown], f"... and {len(rows) - shown} more rows"]
        drawn = "".join(f"{row[: size.columns]}{_REST_OF_LINE}\n" for row in rows)
        print(f"{_HOME}{drawn}{_REST_OF_SCREEN}", end="", flush=True)


def _rows(line: str, columns: int) -> Sequence[str]:
    """Returns a line in rows of the terminal, those after the first one indented."""
    width = max(columns - 1, 10)  # a terminal shows Ctrl-C as ^C behind the last character
    return textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False) or [""]
