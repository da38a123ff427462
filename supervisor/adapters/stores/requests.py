"""Requests of people to a job: each is a file in model_dir, which the supervisor reads and removes.

The request to end a quarantine is for whichever supervisor reads it, also the next one. Those to
stop, to restart and to save are for the supervisor that was seen when they were made: the next one
must not end, nor end an attempt, because of them. So they name that one (`Identity`), whatever the
clocks say.
"""

from __future__ import annotations

import json
import os
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from supervisor.host.identity import Identity
from supervisor.host.notice import Notice, Tell
from supervisor.protocol import removal
from supervisor.protocol.messages import printable
from supervisor.protocol.reading import UnreadableError, read_json
from supervisor.protocol.removal import Place

_FOLDER = "requests"
_CLEAR = ".clear-quarantine.json"
_STOP, _RESTART, _SAVE = ".stop.json", ".restart.json", ".save.json"
_MAX_SIZE = 64 << 10
"""Bytes of a request; enough for some thousand names."""
_MAX_NAME = 200
_MAX_REQUESTS = 100
"""The most requests that one call of `take_requests` reads."""


@dataclass(frozen=True, slots=True)
class ClearQuarantine:
    """End the quarantine of `units`; empty: of all units."""

    units: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopJob:
    """Have the supervisor `to` save, and end the job as Ctrl-C does."""

    who: str
    """Who asks, for people."""
    to: Identity


@dataclass(frozen=True, slots=True)
class RestartJob:
    """Have the supervisor `to` end the attempt, which saves, and start a fresh one."""

    who: str
    """Who asks, for people."""
    to: Identity


@dataclass(frozen=True, slots=True)
class SaveJob:
    """Have the supervisor `to` ask the program for a checkpoint, and train on."""

    who: str
    """Who asks, for people."""
    to: Identity


Request = ClearQuarantine | StopJob | RestartJob | SaveJob

_ASKED: Mapping[str, type[StopJob] | type[RestartJob] | type[SaveJob]] = {
    _STOP: StopJob,
    _RESTART: RestartJob,
    _SAVE: SaveJob,
}
"""Each request that is for one supervisor, by the end of its file's name."""
_IN_WORDS = {StopJob: "stop", RestartJob: "restart the attempt of", SaveJob: "save the job of"}


def write_request(model_dir: Path, request: Request) -> Path:
    """Write a request into `model_dir`; returns its file, which goes once the request is read.

    Whoever may change `model_dir` may read and remove the request: its supervisor may be another
    user's than ours, such as root's with `sudo`.

    Raises:
        OSError: it cannot be written; nothing of it is left, if that can be removed.
    """
    path, data = request_file(request)
    target = model_dir / path
    like = model_dir.stat()
    with suppress(FileExistsError):
        target.parent.mkdir()
        _share(target.parent, like, os.O_DIRECTORY)
    written = target.with_name(f".{target.name}.tmp")
    try:
        with removal.create_temporary(written, below=model_dir) as file:
            file.write(data)
        _share(written, like)
        written.replace(target)
    except OSError:
        with suppress(OSError):
            removal.remove_file(Place.TEMPORARY, written, below=model_dir)
        raise
    return target


def _share(path: Path, like: os.stat_result, kind: int = 0) -> None:
    """Let those use `path`, which we have just made, who may use a folder with the status `like`.

    A file system may know no owners, or not let root give files away: then it stays as it is.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | kind)
    try:
        mode = stat.S_IMODE(like.st_mode) & (0o2777 if kind == os.O_DIRECTORY else 0o666)
        if os.geteuid() == 0:
            with suppress(OSError):
                os.fchown(descriptor, like.st_uid, like.st_gid)
        with suppress(OSError):
            os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def request_file(request: Request) -> tuple[str, bytes]:
    """Returns a request as a file: its path relative to model_dir, and its content."""
    match request:
        case ClearQuarantine(units):
            suffix, told = _CLEAR, json.dumps(list(units))
        case StopJob(who, to) | RestartJob(who, to) | SaveJob(who, to):
            suffix = next(end for end, kind in _ASKED.items() if isinstance(request, kind))
            told = json.dumps({"who": who, "to": to.to_json()})
    return f"{_FOLDER}/{uuid.uuid4().hex}{suffix}", told.encode()


def take_requests(model_dir: Path, refused: Tell, us: Identity) -> Iterator[Request]:
    """Yields each request in `model_dir` that is for the supervisor `us`, and removes its file.

    A file that is no valid request stays where it is, and `refused` gets a notice about it. One
    that cannot be removed stays too, and is not heeded: it would be again and again. A request for
    another supervisor is removed.

    Raises:
        OSError: the folder cannot be read.
    """
    folder = model_dir / _FOLDER
    if not folder.is_dir():
        return
    files = [file for each in (_CLEAR, *_ASKED) for file in folder.glob(f"*{each}")]
    for file in sorted(files, key=_written_at, reverse=True)[:_MAX_REQUESTS]:
        try:
            request = _parsed(read_json(file, _MAX_SIZE, below=model_dir), file)
        except FileNotFoundError:
            continue
        except OSError as error:
            text = f"a request cannot be read: {error}"
            refused(Notice("request-unheard", text, reason=str(error)))
            continue
        try:
            removal.remove_file(Place.REQUEST, file, below=model_dir)
        except OSError as error:
            text = f"a request in {folder} cannot be removed, so it is not heeded ({error.strerror}"
            text += "): give the folder and what is in it to the user of the job, or remove it"
            refused(Notice("request-unheard", text, reason=str(error.strerror)))
            continue
        if not isinstance(request, ClearQuarantine) and request.to != us:
            what = _IN_WORDS[type(request)]
            text = f"the request of {request.who} to {what} {request.to} came too late: "
            text += "it is dropped"
            refused(Notice("request-unheard", text, reason=f"it is for {request.to}"))
            continue
        yield request


def is_stop_asked(model_dir: Path, us: Identity) -> bool:
    """Whether a person has asked the supervisor `us` to stop. The request stays, to be taken."""
    for file in (model_dir / _FOLDER).glob(f"*{_STOP}"):
        with suppress(OSError):  # `take_requests` tells of it
            request = _parsed(read_json(file, _MAX_SIZE, below=model_dir), file)
            if isinstance(request, StopJob) and request.to == us:
                return True
    return False


def _written_at(file: Path) -> tuple[int, str]:
    """Returns what sorts files by age: what stays, as it is no request, must not keep back what is
    written later."""
    try:
        return file.lstat().st_mtime_ns, file.name
    except OSError:  # it is gone
        return 0, file.name


def _parsed(told: object, file: Path) -> Request:
    if file.name.endswith(_CLEAR):
        if not isinstance(told, list) or not all(isinstance(unit, str) for unit in told):
            raise UnreadableError(file, "is not a list of names", "remove it")
        return ClearQuarantine(tuple(printable(unit[:_MAX_NAME]) for unit in told))
    who = told.get("who") if isinstance(told, dict) else None
    if not isinstance(told, dict) or not isinstance(who, str):
        raise UnreadableError(file, "does not say who asks", "remove it")
    try:
        to = Identity.from_json(told.get("to"))
    except ValueError:
        raise UnreadableError(file, "does not say whom it is for", "remove it") from None
    asked = next(kind for end, kind in _ASKED.items() if file.name.endswith(end))
    return asked(printable(who[:_MAX_NAME]), to)
