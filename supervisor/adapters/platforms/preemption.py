"""Listens for the announcement that this machine will be taken away, to save before SIGTERM comes.

Google's metadata server knows of a preemption earlier than the operating system does, and answers
a request the moment it changes its mind; anything else that knows can write a file, or be asked by
a command. Each source has a thread of its own, because asking blocks; none of them can block, slow
down or end the job by being broken.
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
from supervisor.ports import Announcement, Source, Starter
from supervisor.protocol.messages import printable
from supervisor.protocol.reading import opened

_PAUSE = 1.0
_COMMAND_PAUSE = 5.0
_MAX_BACKOFF = 60.0
_TELL_AFTER = 3
_MAX_SHOWN = 400
_CHUNK = 1 << 16


def shown(text: str, redact: Callable[[str], str]) -> str:
    """What a person is told of a source's text: without secrets, then cut, and printable."""
    return printable(redact(text)[:_MAX_SHOWN])


def _reason(error: Exception) -> str:
    """The message of an error that a source can expect; with its type, of any other error."""
    if isinstance(error, OSError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"


class PreemptionWatch:
    """Asks sources until one of them says that the machine is doomed."""

    def __init__(
        self,
        sources: Sequence[Source],
        doomed: Callable[[str], None],
        announced: Callable[[str], None],
        tell: Tell,
        redact: Callable[[str], str],
    ) -> None:
        """`doomed` gets such an announcement, once for each source, `announced` any other, and
        `tell` what a person should know besides; all are called in a thread of the source. `redact`
        takes the secrets out of a text: before it is cut, because half a secret is not known as
        one."""
        self._doomed = doomed
        self._announce = announced
        self._tell = tell
        self._redact = redact
        self._announced: str | None = None
        self._closed = threading.Event()
        self._first_looks: list[threading.Event] = []
        for source in sources:
            looked = threading.Event()
            if source.quick:
                self._first_looks.append(looked)
            threading.Thread(target=self._watch, args=(source, looked), daemon=True).start()

    def standing(self, patience: float) -> str | None:
        """The announcement that stands already; waits `patience` for the quick sources' answers."""
        until = time.monotonic() + patience
        for looked in self._first_looks:
            looked.wait(max(0.0, until - time.monotonic()))
        return self._announced

    def close(self) -> None:
        """Ask nobody any more. A question under way gets its answer, and nobody hears it."""
        self._closed.set()

    def _watch(self, source: Source, looked: threading.Event) -> None:
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
                            f"{who} does not answer ({why}); it is asked again and again",
                            reason=why,
                        )
                    )
            else:
                failures = 0
                pause = source.pause
            if announcement is not None and not self._closed.is_set():
                text = shown(announcement.text, self._redact)
                if announcement.doomed:
                    self._announced = text
                    self._doomed(text)
                else:
                    self._announce(text)
            looked.set()
            if announcement is not None and announcement.doomed:
                return
            self._closed.wait(pause)


class AnnouncementFile:
    """A file that announces a preemption by being there; its first line says why."""

    pause = _PAUSE
    quick = True

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return f"the file {self._path}"

    def look(self) -> Announcement | None:
        """See `Source`."""
        try:
            with opened(self._path, linked=True) as file:
                text = file.read(_CHUNK)
        except FileNotFoundError:
            return None
        return Announcement(f"{self} is there{_quoted(text)}")


class AnnouncementCommand:
    """A command that announces a preemption by ending with exit code 0 and a line that says why.

    It may take as long as it likes, and is run again after any other end. It is killed with each
    attempt, as all processes of the job are that are not of the next one.
    """

    pause = _COMMAND_PAUSE
    quick = False

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], starter: Starter) -> None:
        self._starter = starter
        self._argv = list(argv)
        self._environ = dict(environ)

    def __str__(self) -> str:
        return f"the command {self._argv[0]!r}"

    def look(self) -> Announcement | None:
        """See `Source`."""
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
                    pass  # it has waited for the guard to tell
            finally:
                os.close(command.pidfd)
        return Announcement(f"{self} says{_quoted(said)}") if code == 0 and said.strip() else None


def _quoted(text: bytes) -> str:
    line = text.decode("utf-8", "replace").partition("\n")[0].strip()
    return f": {line}" if line else ""
