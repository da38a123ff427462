"""Real runs of the command, and what they leave for a person to see."""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import yaml

from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.adapters.stores.journal import FileJournal
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.core.decisions import StartWorkers
from supervisor.narrative.catalogue import COMMON, KEYS, kinds

TOY = str(Path(__file__).parent / "processes" / "toy.py")
MARK = "SUPERVISE_TEST_RUN"
TEXT = ("--log-format", "text")
"""Options of a run whose standard output is for people; else `Result.events` reads it."""
JSON = ("--log-format", "json")
CATALOGUE = kinds()
PATIENCE = 300.0
"""Seconds for what happens anyhow: so slow a machine may be. Only a failure takes them."""


@dataclass
class Result:
    """What a finished `supervise run` leaves for a person to see."""

    code: int
    raw: str
    """Its standard output as it is: events, unless it was started with `*TEXT`."""
    err: str
    model_dir: Path

    @property
    def out(self) -> str:
        """Its standard output as people read it."""
        return "".join(map(as_text, self.raw.splitlines(keepends=True)))

    @property
    def log(self) -> str:
        """All run.logs, in order."""
        return "".join(p.read_text() for p in sorted(self.model_dir.glob("*_restartable/run.log")))

    @property
    def summary(self) -> dict[str, Any]:
        """The last phase's summary."""
        path = max(self.model_dir.glob("*_restartable/summary.json"))
        return dict(json.loads(path.read_text()))

    @property
    def attempts(self) -> int:
        """How many attempts were started in all, as the journal tells."""
        journal = FileJournal(LocalStorage(self.model_dir))
        decisions = (turn.decisions for turn in journal.everything(journal.look()))
        return sum(isinstance(each, StartWorkers) for each in chain.from_iterable(decisions))

    def events(self, *names: str, **keys: object) -> list[dict[str, Any]]:
        """What the supervisor told, of these names (none: all) and with these keys, in order."""
        return [each for each in events_in(self.raw) if _is_one(each, names, keys)]

    def told(self, name: str, **keys: object) -> bool:
        """Whether there is such an event."""
        return bool(self.events(name, **keys))

    def names(self, *names: str) -> list[str]:
        """These events, in order, by their names."""
        return [event["event"] for event in self.events(*names)]

    def event(self, name: str, **keys: object) -> dict[str, Any]:
        """The one event of this name and with these keys."""
        (event,) = self.events(name, **keys)
        return event

    def rank_log(self, attempt: int) -> bytes:
        """Rank 0's output in an attempt."""
        (path,) = self.model_dir.glob(f"*_restartable/attempts/{attempt:04d}/rank0.log")
        return path.read_bytes()


def events_in(out: str) -> list[dict[str, Any]]:
    """The events that a supervisor told with `--log-format json`; each is in the catalogue."""
    told = [json.loads(line) for line in out.splitlines()]
    for event in told:
        keys = event.keys() - COMMON.keys()
        assert keys <= set(CATALOGUE[event["event"]].keys), f"not in the catalogue: {event}"
        for key in event:
            assert _is_of_its_type(key, event[key]), (
                f"{key} is not what the catalogue says: {event}"
            )
        assert COMMON.keys() <= event.keys()
    return told


_EVENT = '{"time": '
"""How the line of an event begins."""
_TYPES: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "texts": lambda value: all(isinstance(each, str) for each in value),
    "number": lambda value: _is_number(value),
    "numbers": lambda value: all(map(_is_number, value)),
    "text or number": lambda value: isinstance(value, str) or _is_number(value),
    "truth": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
}


def _is_number(value: Any) -> bool:
    """Whether it is a number; JSON has no word for some."""
    return type(value) in (int, float) or value in ("nan", "inf", "-inf")


def _is_of_its_type(key: str, value: Any) -> bool:
    told_type = {**COMMON, **KEYS}[key].partition(":")[0]
    return value is None or _TYPES[told_type](value)


def as_text(line: str) -> str:
    """A line of standard output as people read it; one that is no event stays as it is."""
    if not line.startswith(_EVENT):
        return line
    event = json.loads(line)
    if event["event"] == "output":
        return f"{event['text']}\n"
    mark = "" if event["level"] == "info" else f"{event['level'].upper()}: "
    return f"{event['time']} [{event['source']}] {mark}{event['text']}\n"


def _is_one(event: dict[str, Any], names: Sequence[str], keys: dict[str, object]) -> bool:
    is_named = not names or event["event"] in names
    return is_named and all(event.get(key) == value for key, value in keys.items())


def attempt_records(phase: Path) -> list[dict[str, Any]]:
    """What is told of each attempt of the phase in this folder, in order."""
    records = list(json.loads((phase / "summary.json").read_bytes())["attempts"])
    with suppress(FileNotFoundError):
        for line in (phase / "attempts.jsonl").read_bytes().splitlines():
            with suppress(ValueError):  # a torn one
                records.append(json.loads(line))
    return sorted(records, key=lambda record: int(record["attempt"]))


class Running:
    """A `supervise run` in progress."""

    def __init__(self, process: subprocess.Popen[bytes], model_dir: Path) -> None:
        self.process = process
        self.model_dir = model_dir
        self._out = b""
        self._unread = b""
        """What of it is no whole line yet."""
        self._said = ""
        """What the program wrote, of the rest."""

    def wait_for(self, text: str, timeout: float = PATIENCE) -> str:
        """Read its standard output until the program has written `text`: whole lines of it."""
        end = time.monotonic() + timeout
        while text not in self._said:
            self._read(end - time.monotonic(), text)
        return self._said

    def told(self, name: str, **keys: object) -> bool:
        """Whether there is such an event in what was read so far."""
        return bool(self.events(name, **keys))

    def events(self, *names: str, **keys: object) -> list[dict[str, Any]]:
        """These events, of what was read so far."""
        whole = self._out[: self._out.rfind(b"\n") + 1].decode()
        return [each for each in events_in(whole) if _is_one(each, names, keys)]

    def wait_for_event(
        self, name: str, timeout: float = PATIENCE, **keys: object
    ) -> dict[str, Any]:
        """Read its standard output until such an event is told."""
        end = time.monotonic() + timeout
        while not (found := self.events(name, **keys)):
            self._read(end - time.monotonic(), f"event {name} {keys}")
        return found[0]

    def _read(self, timeout: float, wanted: str) -> None:
        """Read what comes next."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, timeout))
        chunk = os.read(self.process.stdout.fileno(), 65536) if ready else b""
        assert chunk, f"no {wanted!r} in:\n{self._out.decode(errors='replace')}"
        self._take(chunk)

    def _take(self, chunk: bytes) -> None:
        self._out += chunk
        whole, end, self._unread = (self._unread + chunk).rpartition(b"\n")
        for line in (whole + end).decode(errors="replace").splitlines(keepends=True):
            if not line.startswith(_EVENT) or '"event": "output"' in line:
                self._said += as_text(line)

    def listen(self, seconds: float) -> None:
        """Read its standard output for so long, or until it ends."""
        assert self.process.stdout is not None
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self.process.stdout], [], [], left)
            chunk = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if ready and not chunk:
                return
            self._take(chunk)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def result(self, timeout: float = PATIENCE) -> Result:
        """Wait for its end."""
        out, err = self.process.communicate(timeout=timeout)
        text = (self._out + out).decode(errors="replace")
        return Result(self.process.returncode, text, err.decode(), self.model_dir)


Start = Callable[..., Running]


@cache
def shared_guard() -> GuardClient:
    """A guard for what a test starts itself."""
    guard = GuardClient(print)
    atexit.register(guard.dismiss)
    return guard


def may_mount() -> bool:
    """Whether a file system can be mounted here, in a mount namespace of its own."""
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "-m", "true"]).returncode == 0


def marked(mark: str) -> dict[int, str]:
    """The living processes that inherited `mark`: their command lines by pid."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark.encode() in (entry / "environ").read_bytes():
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(entry.name)] = command
        except OSError:
            continue
    return found


STAYS = re.compile(rb"multiprocessing.resource_tracker|tests/\w+_emulator.py|tests.forked")


def children() -> dict[int, str]:
    """The living children of this process, less those that may stay to its end: command lines by
    pid. The guard that tests share may stay, too."""
    guard = shared_guard().pid if shared_guard.cache_info().currsize else None
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread is gone
            for pid in map(int, (task / "children").read_text().split()):
                with suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                    if runs(pid) and pid != guard and not STAYS.search(command):
                        found[pid] = command.decode(errors="replace")
    return found


def descriptors() -> set[tuple[str, str]]:
    """The open file descriptors of this process, each with what it is. Whether a test leaves one:
    `descriptors() <= before`, because those that others have left may be closed meanwhile."""
    found = set()
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(FileNotFoundError):  # the one that listed them
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))  # noqa: PTH115
    return found


def lives(pid: int) -> bool:
    """Whether there is such a process, not only its zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def runs(pid: int) -> bool:
    """Whether a process can run code of its own: it lives, and the kernel is not ending it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and not int(fields[6]) & 0x4  # PF_EXITING


def power_off(mark: str) -> None:
    """Kill every process that inherited `mark`; none gets to say a last word."""

    def killed() -> bool:
        left = marked(mark)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    assert eventually(killed), f"cannot be killed: {marked(mark)}"


def eventually(condition: Callable[[], object], timeout: float = 60.0) -> bool:
    """Whether `condition` comes true in time."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def gone(mark: str) -> bool:
    """Whether every process that inherited `mark` is gone, or soon is."""
    return eventually(lambda: not marked(mark))


@contextmanager
def leaving_nothing() -> Iterator[dict[str, str]]:
    """The mark for the environment of what is started; at the end nothing of it may be left."""
    mark = uuid.uuid4().hex
    yield {MARK: mark}
    assert gone(f"{MARK}={mark}"), f"outlived the supervisor: {marked(f'{MARK}={mark}')}"


def written(folder: Path, config: object) -> Path:
    """The file of a config: a mapping, or the text of the file."""
    path = folder / "trainer.yaml"
    path.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    return path


@contextmanager
def starting(folder: Path) -> Iterator[Start]:
    """Starts `supervise run` on a config; at the end nothing of what was started may be left."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(
        config: object,
        *options: str,
        env: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Running:
        command = [sys.executable, "-m", "supervisor", "run", str(written(folder, config))]
        process = subprocess.Popen(
            [*prefix, *command, *JSON, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **mark, **(env or {})},
        )
        started.append(process)
        return Running(process, folder / "run")

    with leaving_nothing() as mark:
        try:
            yield begin
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                process.communicate()


class Preloaded:
    """Supervisors that need not import anything, one after the other (see `preloaded.py`)."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, *arguments: str) -> int:
        """Start one; returns its pid."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> int:
        """The pid of the one that started, or how it ended."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@contextmanager
def preloaded(folder: Path) -> Iterator[Preloaded]:
    """Supervisors that write what they say to a file in `folder`; in the end none may be left."""
    value = uuid.uuid4().hex
    with (
        (folder / "said.txt").open("wb") as said,
        subprocess.Popen(
            [sys.executable, str(Path(TOY).with_name("preloaded.py"))],
            env={**os.environ, MARK: value},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as process,
    ):
        yield Preloaded(process)
    assert gone(f"{MARK}={value}")


def command_config(
    model_dir: Path, *toy: str, restart: dict[str, Any] | None = None, **command: Any
) -> dict[str, Any]:
    """A config that supervises the toy trainer with these arguments."""
    restart = {"max_num_restarts": 1, "backoff": {"first": 0.05}, **(restart or {})}
    argv = [sys.executable, TOY, str(model_dir), *toy]
    return {
        "trainer": {
            "init": {"model_dir": str(model_dir), "autorestart": restart},
            "command": {"argv": argv, **command},
        }
    }
