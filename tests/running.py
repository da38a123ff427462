"""Runs the real command, and reads what it leaves for a person to see."""

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
from tests.forked import Forked, start_forked

TOY = str(Path(__file__).parent / "processes" / "toy.py")
MARK = "SUPERVISE_TEST_RUN"
TEXT = ("--log-format", "text")
"""Options for standard output that people read; with `JSON`, `Result.events` can read it."""
JSON = ("--log-format", "json")
CATALOGUE = kinds()
UNOPTIMISED = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
"""`XLA_FLAGS` of trainers with which compiling, most of the time of a short run, takes a sixth of
it. (The older emitters take half of what the newer ones take.)"""
PATIENCE = 300.0
"""Seconds to wait for what always happens, even on a very slow machine. Only a failing test waits
so long."""


@dataclass
class Result:
    """What a finished `supervise run` has left."""

    code: int
    raw: str
    """Its standard output as it is: events, unless the command was started with `*TEXT`."""
    err: str
    model_dir: Path

    @property
    def out(self) -> str:
        """Its standard output as people read it."""
        return "".join(map(as_text, self.raw.splitlines(keepends=True)))

    @property
    def log(self) -> str:
        """The run.logs of all phases, in order."""
        return "".join(p.read_text() for p in sorted(self.model_dir.glob("*_restartable/run.log")))

    @property
    def summary(self) -> dict[str, Any]:
        """The last phase's summary."""
        path = max(self.model_dir.glob("*_restartable/summary.json"))
        return dict(json.loads(path.read_text()))

    @property
    def attempts(self) -> int:
        """The number of attempts that were started in all, from the journal."""
        journal = FileJournal(LocalStorage(self.model_dir))
        decisions = (turn.decisions for turn in journal.all_transitions(journal.peek()))
        return sum(isinstance(each, StartWorkers) for each in chain.from_iterable(decisions))

    def events(self, *names: str, **keys: object) -> list[dict[str, Any]]:
        """Return the supervisor's events with one of these names (none: any) and these keys, in
        order."""
        return [each for each in events_in(self.raw) if _is_one(each, names, keys)]

    def has_event(self, name: str, **keys: object) -> bool:
        """Whether there is an event with this name and these keys."""
        return bool(self.events(name, **keys))

    def names(self, *names: str) -> list[str]:
        """Return the names of these events, in order."""
        return [event["event"] for event in self.events(*names)]

    def event(self, name: str, **keys: object) -> dict[str, Any]:
        """Return the only event with this name and these keys; it is an error if there is not
        exactly one."""
        (event,) = self.events(name, **keys)
        return event

    def rank_log(self, attempt: int, rank: int = 0) -> bytes:
        """Return a rank's output in an attempt."""
        (path,) = self.model_dir.glob(f"*_restartable/attempts/{attempt:04d}/rank{rank}.log")
        return path.read_bytes()


def events_in(out: str) -> list[dict[str, Any]]:
    """Parse the events of a supervisor that ran with `--log-format json`, and check that the
    catalogue has each, with its keys and their types."""
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
    "true or false": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
}


def _is_number(value: Any) -> bool:
    """Whether `value` is a number; those that JSON cannot hold are strings."""
    return type(value) in (int, float) or value in ("nan", "inf", "-inf")


def _is_of_its_type(key: str, value: Any) -> bool:
    told_type = {**COMMON, **KEYS}[key].partition(":")[0]
    return value is None or _TYPES[told_type](value)


def as_text(line: str) -> str:
    """Return a line of standard output as people read it; a line that is no event stays as it
    is."""
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
    """Return the records of all attempts of the phase in the folder `phase`, in order."""
    records = list(json.loads((phase / "summary.json").read_bytes())["attempts"])
    with suppress(FileNotFoundError):
        for line in (phase / "attempts.jsonl").read_bytes().splitlines():
            with suppress(ValueError):  # a line that was cut off
                records.append(json.loads(line))
    return sorted(records, key=lambda record: int(record["attempt"]))


class Running:
    """A `supervise run` in progress."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked, model_dir: Path) -> None:
        self.process = process
        self.model_dir = model_dir
        self._out = b""
        self._unread = b""
        """The end of the output that is not a whole line yet."""
        self._said = ""
        """What the program itself wrote, in whole lines."""

    def wait_for(self, text: str, timeout: float = PATIENCE) -> str:
        """Read standard output until the program has written `text`; returns the whole lines that
        it wrote."""
        end = time.monotonic() + timeout
        while text not in self._said:
            self._read(end - time.monotonic(), text)
        return self._said

    def has_event(self, name: str, **keys: object) -> bool:
        """Whether such an event is in the output that was read so far."""
        return bool(self.events(name, **keys))

    def events(self, *names: str, **keys: object) -> list[dict[str, Any]]:
        """Return these events from the output that was read so far."""
        whole = self._out[: self._out.rfind(b"\n") + 1].decode()
        return [each for each in events_in(whole) if _is_one(each, names, keys)]

    def wait_for_event(
        self, name: str, timeout: float = PATIENCE, **keys: object
    ) -> dict[str, Any]:
        """Read standard output until such an event comes; returns the event."""
        end = time.monotonic() + timeout
        while not (found := self.events(name, **keys)):
            self._read(end - time.monotonic(), f"event {name} {keys}")
        return found[0]

    def wait_for_events(self, name: str, times: int, timeout: float = PATIENCE) -> None:
        """Read standard output until so many such events have come."""
        end = time.monotonic() + timeout
        while len(self.events(name)) < times:
            self._read(end - time.monotonic(), f"event {name}, {times} times")

    def _read(self, timeout: float, wanted: str) -> None:
        """Read the next bytes of standard output."""
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
        """Read standard output for `seconds`, or until it ends."""
        assert self.process.stdout is not None
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self.process.stdout], [], [], left)
            chunk = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if ready and not chunk:
                return
            self._take(chunk)

    def signal(self, number: signal.Signals) -> None:
        """Send the supervisor a signal."""
        self.process.send_signal(number)

    def result(self, timeout: float = PATIENCE) -> Result:
        """Wait until the command ends; returns its result."""
        out, err = self.process.communicate(timeout=timeout)
        text = (self._out + out).decode(errors="replace")
        return Result(self.process.wait(), text, err.decode(), self.model_dir)


Start = Callable[..., Running]


@cache
def shared_guard() -> GuardClient:
    """Return a guard for processes that a test starts itself."""
    guard = GuardClient(print)
    atexit.register(guard.dismiss)
    return guard


@cache
def may_mount() -> bool:
    """Whether a file system can be mounted here, in a separate mount namespace."""
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "-m", "true"]).returncode == 0


def marked(mark: str) -> dict[int, str]:
    """Return the command lines, by pid, of the living processes that inherited `mark`."""
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


def child_pids() -> set[int]:
    """Return the pids of all children of this process, also of those that have ended."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208
        path = f"/proc/self/task/{task}/children"
        with suppress(OSError), open(path) as file:  # noqa: PTH123  (the thread may have ended)
            found.update(map(int, file.read().split()))
    return found


def children() -> dict[int, str]:
    """Return the command lines, by pid, of the living children of this process, without those that
    may stay until it ends (`STAYS`, and the guard that tests share)."""
    guard = shared_guard().pid if shared_guard.cache_info().currsize else None
    found = {}
    for pid in child_pids() - {guard}:
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            if runs(pid) and not STAYS.search(command):
                found[pid] = command.decode(errors="replace")
    return found


def descriptors() -> set[tuple[str, str]]:
    """Return the open file descriptors of this process, each with its target. A test leaves none if
    `descriptors() <= before`: others may have closed theirs meanwhile."""
    found = set()
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(FileNotFoundError):  # the descriptor that listed them
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))  # noqa: PTH115
    return found


def lives(pid: int) -> bool:
    """Whether a process with this pid lives; a zombie does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def runs(pid: int) -> bool:
    """Whether a process can still run code of its own: it lives, and the kernel is not ending
    it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and not int(fields[6]) & 0x4  # PF_EXITING


def power_off(mark: str) -> None:
    """Kill every process that inherited `mark`, all without warning."""

    def killed() -> bool:
        left = marked(mark)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    assert eventually(killed), f"cannot be killed: {marked(mark)}"


def eventually(condition: Callable[[], object], timeout: float = 60.0) -> bool:
    """Wait until `condition` is true; returns False if it is not within `timeout` seconds."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def gone(mark: str) -> bool:
    """Whether every process that inherited `mark` has ended, or ends soon."""
    return eventually(lambda: not marked(mark))


@contextmanager
def leaving_nothing() -> Iterator[dict[str, str]]:
    """Yield an environment variable to mark what a test starts. At the end no process with it may
    live."""
    mark = uuid.uuid4().hex
    yield {MARK: mark}
    assert gone(f"{MARK}={mark}"), f"outlived the supervisor: {marked(f'{MARK}={mark}')}"


def written(folder: Path, config: object) -> Path:
    """Write a config, given as a mapping or as text, to a file; returns the file's path."""
    path = folder / "trainer.yaml"
    path.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    return path


@contextmanager
def starting(folder: Path) -> Iterator[Start]:
    """Yield a function that starts `supervise run` on a config. At the end no process of it may
    live."""
    started: list[subprocess.Popen[bytes] | Forked] = []

    def start(
        config: object,
        *options: str,
        env: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Running:
        command = ["run", str(written(folder, config)), *JSON, *options]
        environ = {**os.environ, **mark, **(env or {})}
        process: subprocess.Popen[bytes] | Forked
        if prefix or any(name.startswith("PYTHON") for name in env or {}):
            process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "supervisor", *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environ,
            )
        else:
            process = start_forked(*command, env=environ)
        started.append(process)
        return Running(process, folder / "run")

    with leaving_nothing() as mark:
        try:
            yield start
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                process.communicate()


class Preloaded:
    """Starts supervisors that need no imports of their own, one after the other (see
    `preloaded.py`)."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, *arguments: str) -> int:
        """Start a supervisor; returns its pid."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> int:
        """Return the next number: the pid of a supervisor that started, or the exit code of one
        that ended."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@contextmanager
def preloaded(folder: Path) -> Iterator[Preloaded]:
    """Yield a starter of supervisors whose output goes to a file in `folder`. At the end none may
    live."""
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
    """Return a config that supervises the toy trainer with these arguments."""
    restart = {"max_num_restarts": 1, "backoff": {"first": 0.05}, **(restart or {})}
    argv = [sys.executable, TOY, str(model_dir), *toy]
    return {
        "trainer": {
            "init": {"model_dir": str(model_dir), "autorestart": restart},
            "command": {"argv": argv, **command},
        }
    }
