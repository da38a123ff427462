"""Waits for announcements that this machine will be preempted, so that a job saves before SIGTERM.

Google's metadata server knows of a preemption earlier than the operating system, and answers a
waiting request as soon as it knows. Other systems can write a file, or answer through a command.
Each source has a thread of its own, because asking it blocks. A broken source cannot block, slow
down or end the job.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from supervisor.host.notice import Notice, Tell
from supervisor.host.retry import Pauses
from supervisor.host.waiting import has_ended
from supervisor.ports import Announcement, AnnouncementSource, ProcessStarter
from supervisor.protocol.messages import printable
from supervisor.protocol.reading import open_file

_PAUSE = 1.0
"""Seconds between two looks at a file."""
_COMMAND_PAUSE = 5.0
"""Seconds between two runs of a command."""
_MAX_BACKOFF = 60.0
"""The longest pause in seconds after a failure of a source."""
_TELL_AFTER = 3
"""The number of failures in a row after which a source is reported."""
_MAX_SHOWN = 400
_CHUNK = 1 << 16


def shown(text: str, redact: Callable[[str], str]) -> str:
    """Returns a source's text as people see it: without secrets, then cut, and printable."""
    return printable(redact(text)[:_MAX_SHOWN])


def _reason(error: Exception) -> str:
    """Returns the message of an `OSError`, which we expect; any other error with its type."""
    if isinstance(error, OSError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"


class PreemptionWatch:
    """Asks each source until it announces that the machine ends."""

    def __init__(
        self,
        sources: Sequence[AnnouncementSource],
        on_machine_end: Callable[[str, float | None], None],
        on_announced: Callable[[str], None],
        tell: Tell,
        redact: Callable[[str], str],
    ) -> None:
        """`on_machine_end` gets the text of an announcement that the machine ends, once for each
        source, and how many seconds the machine stays, if the source knows it.
        `on_announced` gets the text of any other announcement, and `tell` a notice if a source does
        not answer. All three are called in the thread of the source.

        `redact` removes the secrets from a text. It gets the whole text, because it would not
        recognise half a secret.
        """
        self._on_machine_end = on_machine_end
        self._on_announced = on_announced
        self._tell = tell
        self._redact = redact
        self._machine_end: str | None = None
        self._closed = threading.Event()
        self._first_looks: list[threading.Event] = []
        for source in sources:
            looked = threading.Event()
            if source.quick:
                self._first_looks.append(looked)
            threading.Thread(target=self._watch, args=(source, looked), daemon=True).start()

    def announced_machine_end(self, patience: float) -> str | None:
        """Returns the announcement that the machine ends, if there is one. Waits for the first
        answers of the quick sources, at most `patience` seconds in all."""
        until = time.monotonic() + patience
        for looked in self._first_looks:
            looked.wait(max(0.0, until - time.monotonic()))
        return self._machine_end

    def close(self) -> None:
        """Ask no source any more. The answer to a request under way is ignored."""
        self._closed.set()

    def _watch(self, source: AnnouncementSource, looked: threading.Event) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                announcement = source.look()
            except Exception as error:
                announcement = None
                failures += 1
                pause = Pauses(source.pause, _MAX_BACKOFF).before(failures)
                if failures == _TELL_AFTER:
                    why = shown(_reason(error), self._redact)
                    who = shown(str(source), self._redact)
                    self._tell(
                        Notice(
                            "preemption-unheard",
                            f"{who} does not answer ({why}); we keep asking it",
                            reason=why,
                        )
                    )
            else:
                failures = 0
                pause = source.pause
            if announcement is not None and not self._closed.is_set():
                text = shown(announcement.text, self._redact)
                if announcement.ends_machine:
                    self._machine_end = text
                    self._on_machine_end(text, announcement.notice)
                else:
                    self._on_announced(text)
            looked.set()
            if announcement is not None and announcement.ends_machine:
                return
            self._closed.wait(pause)


class AnnouncementFile:
    """A file that announces a preemption by its existence; its first line says why."""

    pause = _PAUSE
    quick = True

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return f"the file {self._path}"

    def look(self) -> Announcement | None:
        """See `AnnouncementSource`."""
        try:
            with open_file(self._path, linked=True) as file:
                text = file.read(_CHUNK)
        except FileNotFoundError:
            return None
        return Announcement(f"{self} is there{_quoted(text)}")


class AnnouncementCommand:
    """A command that announces a preemption by exit code 0 and a line of output that says why.

    It may take any time, and runs again after any other end. It is killed at the end of each
    attempt, like all processes of the job that are not for the next attempt.
    """

    pause = _COMMAND_PAUSE
    quick = False

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], starter: ProcessStarter
    ) -> None:
        self._starter = starter
        self._argv = list(argv)
        self._environ = dict(environ)

    def __str__(self) -> str:
        return f"the command {self._argv[0]!r}"

    def look(self) -> Announcement | None:
        """See `AnnouncementSource`."""
        reads, writes = os.pipe()
        with os.fdopen(reads, "rb") as output:
            with os.fdopen(writes, "wb") as theirs, Path(os.devnull).open("wb") as null:
                command = self._starter.start(
                    self._argv, self._environ, theirs.fileno(), null.fileno()
                )
            try:
                said = output.read(_CHUNK)
                while output.read(_CHUNK):
                    pass
                has_ended(command.pidfd, None)
                while (code := self._starter.exit_code(command)) is None:
                    pass  # `exit_code` has waited for the guard
            finally:
                os.close(command.pidfd)
        return Announcement(f"{self} says{_quoted(said)}") if code == 0 and said.strip() else None


def _quoted(text: bytes) -> str:
    line = text.decode("utf-8", "replace").partition("\n")[0].strip()
    return f": {line}" if line else ""
