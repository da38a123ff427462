"""The workbench of a check: starts processes, waits for their output, and leaves none behind.

Every wait ends at the check's own time limit. Each process leads a session and process group of its
own, is killed with the group, and dies with the acceptance run. A mark in the environment finds
processes that have left the group.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from supervisor.config.topology import SliceShape
from supervisor.protocol.environment import (
    HOST_TOPOLOGY,
    NUM_CPU_DEVICES,
    STALE_TOPOLOGY,
    without_supervisor_variables,
)

MARK = "ACCEPTANCE_RUN"
ROOT = Path(__file__).parents[2]
"""The checkout. Every process runs its code, whose commit the report names, and not the code of an
installed package, which may be older."""
DEVICE = Path(__file__).with_name("device.py")
KILLS = 20
is_asked_to_stop = threading.Event()
"""Set by the handler that raises KeyboardInterrupt. Python swallows that in a finalizer, so no
child is started from then on."""
_LOOK = 0.01
_GONE = 15.0
"""Seconds within which killed processes must be gone."""
_LAST = 300
_LINES = 15
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_Found = TypeVar("_Found")
_PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu,cpu"}


class CheckFailedError(Exception):
    """The check saw something else than it expected; the text says what."""


class CheckSkippedError(Exception):
    """The check cannot run on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The output of a `step` process on some of the devices (see `device`)."""

    up: dict[str, Any]
    done: dict[str, Any]
    files: tuple[str, ...]
    """The device files that the process had open."""


class Bench:
    """The state and the means of a check: devices, processes, time limit, observations."""

    def __init__(
        self, platform: str, count: int, kills: int = KILLS, model_dir: str | None = None
    ) -> None:
        """`count` is the number of accelerators; 0: not known yet."""
        self.platform = platform
        self.count = count
        self.kills = kills
        """How many processes the check `kills` kills."""
        self.model_dir = model_dir
        """Where the check `preempt` trains until the machine is taken away; None: skip it."""
        self.slice: SliceShape | None = None
        """The TPU slice of this machine; None: no TPU, or an unknown one."""
        self.hardware = f"{count} simulated devices" if platform == "cpu" else platform
        self.runtime = ""
        self.seen: list[str] = []
        self.step_results: dict[tuple[int, ...], StepResult] = {}
        """Results of `step` processes by their devices, reused by later checks
        (`common.run_step`)."""
        self.work = Path(tempfile.mkdtemp(prefix="supervise-acceptance-"))
        self._mark = uuid.uuid4().hex
        self._children: list[Child] = []
        self._until = 0.0

    def begin(self, seconds: float) -> None:
        """Begin a check that may take `seconds`."""
        self.seen = []
        self._until = time.monotonic() + seconds

    def see(self, text: str) -> None:
        """Add a line to what the check saw."""
        self.seen.append(text)

    @property
    def left(self) -> float:
        """Seconds until the check's time limit; negative after it."""
        return self._until - time.monotonic()

    def expect(self, condition: object, otherwise: str) -> None:
        """Raise unless `condition` holds.

        Raises:
            CheckFailedError: `condition` is false; its text is `otherwise`.
        """
        if not condition:
            raise CheckFailedError(otherwise)

    def device(self, do: str, env: Mapping[str, str] | None = None, **more: Any) -> Child:
        """Start `device.py` with the task `do` and its arguments `more`; `env` as in `start`."""
        argv = [sys.executable, "-P", str(DEVICE), json.dumps({"do": do, **more})]
        return self.start(argv, env)

    def supervise(self, *words: str | Path, env: Mapping[str, str] | None = None) -> Child:
        """Start `supervise` with the arguments `words`; `env` as in `start`."""
        argv = [sys.executable, "-P", "-m", "supervisor", *map(str, words)]
        return self.start(argv, {"JAX_PLATFORMS": "", NUM_CPU_DEVICES: "", **(env or {})})

    def run_job(self, config: Path, env: Mapping[str, str] | None = None) -> Job:
        """Start `supervise run` with the config; `env` as in `start`."""
        words = ("-P", "-m", "supervisor", "run", str(config), "--log-format", "json")
        wanted = {"JAX_PLATFORMS": "", NUM_CPU_DEVICES: "", **(env or {})}
        job = Job(self, [sys.executable, *words], self._environment_with(wanted), {})
        self._children.append(job)
        return job

    def start(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, **more: Any
    ) -> Child:
        """Start any process; returns it.

        Its environment is `environment()`, overridden by `env`; JAX_PLATFORMS and the number of CPU
        devices are removed if their value is empty. `more` is for `subprocess.Popen`.
        """
        child = Child(self, argv, self._environment_with(env), more)
        self._children.append(child)
        return child

    def _environment_with(self, env: Mapping[str, str] | None) -> dict[str, str]:
        wanted = {**self.environment(), **(env or {})}
        if env and "TPU_VISIBLE_CHIPS" in env:
            wanted = {k: v for k, v in wanted.items() if k in env or k not in HOST_TOPOLOGY}
        return {k: v for k, v in wanted.items() if v or k not in _EMPTIED}

    def environment(self) -> dict[str, str]:
        """Returns the environment of a process that uses all devices."""
        env = {
            k: v
            for k, v in without_supervisor_variables(os.environ).items()
            if k not in STALE_TOPOLOGY
        }
        env |= {"JAX_PLATFORMS": _PLATFORMS[self.platform], MARK: self._mark}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
        if self.platform == "cpu" and self.count:
            env[NUM_CPU_DEVICES] = str(self.count)
        return env

    def said(self, argv: Sequence[str]) -> str | None:
        """Returns what a short command prints; None if there is no such command or it fails."""
        if shutil.which(argv[0]) is None:
            return None
        child = self.start(argv)
        return child.text if child.wait() == 0 else None

    def last_words(self) -> list[str]:
        """Returns the last lines of output of the process that was started last."""
        lines = self._children[-1].text.splitlines() if self._children else []
        return [line[:_LAST] for line in lines[-_LINES:]]

    def end(self) -> None:
        """Kill all processes that the check has left."""
        for child in self._children:
            child.kill()
        end = time.monotonic() + _GONE
        while (left := self._marked()) and time.monotonic() < end:
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK)
        for child in self._children:
            child.close()
        self._children.clear()
        if left:
            self.see(f"processes that cannot be killed are left: {sorted(left)}")

    def close(self) -> None:
        """Kill all processes and remove the work folder."""
        self.end()
        shutil.rmtree(self.work, ignore_errors=True)

    def _marked(self) -> set[int]:
        """Returns the pids of living processes (no zombies) that have our mark."""
        wanted, found = f"{MARK}={self._mark}".encode(), set()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal() and wanted in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
        return found


_EMPTIED = frozenset({"JAX_PLATFORMS", NUM_CPU_DEVICES})


class Child:
    """A process of a check, and its output: stdout and stderr in one file."""

    def __init__(
        self, bench: Bench, argv: Sequence[str], env: Mapping[str, str], more: dict[str, Any]
    ) -> None:
        """Start it; `more` is for `subprocess.Popen`.

        Raises:
            KeyboardInterrupt: somebody has asked to stop.
        """
        if is_asked_to_stop.is_set():
            raise KeyboardInterrupt
        self._bench = bench
        descriptor, name = tempfile.mkstemp(dir=bench.work, suffix=".log")
        os.close(descriptor)
        self.output = Path(name)
        with self.output.open("ab") as file:
            self.process = subprocess.Popen(
                argv,
                env=env,
                cwd=bench.work,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                preexec_fn=_die_with_parent,
                **more,
            )
        self.pid = self.process.pid

    @property
    def text(self) -> str:
        """All its output so far."""
        return self.output.read_text(errors="replace")

    @property
    def last_line(self) -> str:
        """The last line of its output: an error is usually there."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        return lines[-1].strip()[:_LAST] if lines else "nothing"

    def wait_for(self, at: str) -> dict[str, Any]:
        """Wait for the first JSON line of `device.py` with this `at`; returns it.

        Raises:
            CheckFailedError: the line does not come in time, or the process has ended without it.
        """
        line = self.until(rf'^\{{"at": "{at}".*\}}$')
        return dict(json.loads(line[0]))

    def until(self, pattern: str) -> re.Match[str]:
        """Wait until a line of its output matches `pattern`; returns the match.

        Raises:
            CheckFailedError: no match in time, or the process has ended without one.
        """
        wanted = re.compile(pattern, re.MULTILINE)
        return self._until(lambda: wanted.search(self.text))

    def _until(self, find: Callable[[], _Found | None]) -> _Found:
        while (found := find()) is None:
            if self.process.poll() is not None and (found := find()) is None:
                raise CheckFailedError(f"it ended with {self.process.returncode}: {self.last_line}")
            if found is not None:
                break
            if self._bench.left <= 0:
                raise CheckFailedError(
                    f"not in time, and the last that it said was: {self.last_line}"
                )
            time.sleep(_LOOK)
        return found

    def wait(self) -> int:
        """Wait for its end; returns the exit code.

        Raises:
            CheckFailedError: it does not end in time.
        """
        try:
            return self.process.wait(max(0.0, self._bench.left))
        except subprocess.TimeoutExpired:
            raise CheckFailedError(f"did not end in time; it said last: {self.last_line}") from None

    def kill(self) -> None:
        """Kill it and its process group. If it is a supervisor, its guard kills what it started."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Reap it after its end."""
        with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: `Bench.end` reports it
            self.process.wait(1.0)


class Job(Child):
    """A `supervise run`, which prints its events as JSON."""

    @property
    def text(self) -> str:
        """All that it has told so far, as text."""
        return "".join(f"{_shown(line)}\n" for line in super().text.splitlines())

    def events(self, *names: str) -> Iterator[dict[str, Any]]:
        """Yield its events with these names so far; without names, all."""
        for line in self.output.read_text(errors="replace").splitlines():
            told = _event(line)
            if told is not None and (not names or told["event"] in names):
                yield told

    def until_event(self, *names: str, after: int = 0, **keys: object) -> dict[str, Any]:
        """Wait for an event with one of these names and these keys; returns the first one.

        `after` is an attempt: an event about it or an earlier one does not count.

        Raises:
            CheckFailedError: no such event in time, or the process has ended without one.
        """

        def found() -> dict[str, Any] | None:
            late = (told for told in self.events(*names) if told.get("attempt", after + 1) > after)
            return next((told for told in late if keys.items() <= told.items()), None)

        return self._until(found)


def _event(line: str) -> dict[str, Any] | None:
    """Returns the event in a line; None: it is whole in no such line."""
    try:
        told = json.loads(line)
    except ValueError:  # of standard error, or not complete yet
        return None
    return told if isinstance(told, dict) and {"event", "source", "text"} <= told.keys() else None


def _shown(line: str) -> str:
    told = _event(line)
    if told is None:
        return line
    return str(told["text"] if told["event"] == "output" else f"[{told['source']}] {told['text']}")


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
