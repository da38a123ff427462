"""The job in the storm, as a bystander sees it: by what the supervisor and the trainer print.

The bystander starts the command and reads its standard output. It knows nothing else: it neither
imports the supervisor's state nor asks for it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.running import MARK, marked

_STEP = re.compile(r"step (\d+)  loss ")
SECRET = "hunter2-hunter2-hunter2"
"""The value of a variable that the job inherits; a drill puts it into the message of a trainer that
dies."""
_WITNESS = Path(__file__).parent / "witness"


class StormError(Exception):
    """Something that the storm waited for did not happen."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the command's standard output."""

    at: float
    """Seconds from the beginning of the storm until the line was read."""
    run: int
    """The number of the run of the command that printed it, counted from 1."""
    attempt: int
    text: str
    event: str
    """The name of the supervisor's event; `output`: the trainer says it."""
    keys: Mapping[str, Any]
    """The facts of the event, by name."""

    @property
    def is_output(self) -> bool:
        """Whether the trainer says it."""
        return self.event == "output"

    @property
    def step(self) -> int | None:
        """The optimizer step that the trainer has completed, if the line reports one."""
        match = _STEP.match(self.text) if self.is_output else None
        return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class Sign:
    """An event of the supervisor that shows something: its name, and some of its keys."""

    event: str
    keys: Mapping[str, Any] = field(default_factory=dict)

    def fits(self, line: Line) -> bool:
        """Whether the line is such an event."""
        return line.event == self.event and self.keys.items() <= line.keys.items()

    def __str__(self) -> str:
        keys = ", ".join(f"{name} {value}" for name, value in self.keys.items())
        return f"{self.event} ({keys})" if keys else self.event


class Job:
    """A job whose command is run, watched, and run again."""

    def __init__(
        self, folder: Path, config: dict[str, Any], environ: dict[str, str], patience: float = 1.0
    ) -> None:
        """The config and the output go into `folder`; `environ` is added to the inherited
        environment. Each wait may last `patience` times as long as on an idle machine."""
        self.folder = folder
        self._patience = patience
        self.model_dir = Path(config["trainer"]["init"]["model_dir"])
        self.checkpoints = self.model_dir / "checkpoints"
        self.witness = folder / "witness"
        self.witness.mkdir(parents=True)
        self.mark = f"{MARK}={uuid.uuid4().hex}"
        self._config = config
        name, _, value = self.mark.partition("=")
        path = os.pathsep.join(filter(None, (str(_WITNESS), os.environ.get("PYTHONPATH"))))
        self._environ = {
            **os.environ,
            **environ,
            name: value,
            "PYTHONPATH": path,
            "STORM_DB_PASS": SECRET,
            "CHAOS_WITNESS": str(self.witness),
            "CHAOS_CHECKPOINTS": str(self.checkpoints),
        }
        self._began = time.monotonic()
        self._born = time.time()
        self._news = threading.Condition()
        self.lines: list[Line] = []
        self.runs = 0
        self.attempt = 0
        self.pid: int | None = None
        """The pid of the living trainer."""
        self.step: int | None = None
        """The last step that this attempt has completed."""
        self.damaged: set[tuple[int, int]] = set()
        """The identities of checkpoints that were damaged: no attempt may resume from them."""
        self.foreign: list[tuple[tuple[int, int], dict[str, tuple[int, str]]]] = []
        """The planted folders that belong to no job: device and inode, and fingerprint of each."""
        self._process: subprocess.Popen[bytes] | None = None

    def now(self) -> float:
        """Seconds since the storm began."""
        return time.monotonic() - self._began

    def began(self, wall: float) -> bool:
        """Whether the storm had begun at that time of the wall clock, in seconds since 1970."""
        return wall >= self._born - 1.0

    # --- the command ------------------------------------------------------------------------

    def run(self, injected: list[dict[str, Any]]) -> None:
        """Run the command with these `faults` in the config."""
        self.runs += 1
        self.pid = self.step = None
        self._write_config(injected)
        self._process = self._start(subprocess.PIPE, self.folder / f"run{self.runs}.stderr")
        reader = threading.Thread(target=self._read, args=(self._process, self.runs), daemon=True)
        reader.start()

    def run_second(self) -> int:
        """Run the same command beside the one that runs; returns its exit code."""
        process = self._start(subprocess.DEVNULL, self.folder / "second.stderr")
        return process.wait(60 * self._patience)

    @property
    def running(self) -> bool:
        """Whether the command runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def supervisor(self) -> psutil.Process:
        """The process of the command."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send the supervisor a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def exit_code(self, timeout: float = 60.0) -> int:
        """Wait until the command ends; returns its exit code."""
        assert self._process is not None
        timeout *= self._patience
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise StormError(f"the command did not end within {timeout:g} s") from None

    def end(self) -> None:
        """Kill the command if it still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait_until_gone(self, timeout: float = 30.0) -> None:
        """Wait until no process of the job lives."""
        self._poll(lambda: not marked(self.mark), timeout, "a process of the job lives on")

    # --- what it prints ---------------------------------------------------------------------

    def wait_for(self, what: str, holds: Callable[[], bool], timeout: float = 60.0) -> None:
        """Wait until `holds` returns True; it is called at every new line."""
        timeout *= self._patience
        with self._news:
            if self._news.wait_for(lambda: holds() or not self.running, timeout) and holds():
                return
        ended = "" if self.running else f"; the command ended: {self.exit_code()}"
        shown = [line.text for line in self.lines[-15:]]
        shown += (self.folder / f"run{self.runs}.stderr").read_text().splitlines()[-15:]
        raise StormError("\n      ".join([f"waited {timeout:g} s for {what}{ended}", *shown]))

    def wait_for_event(self, sign: Sign, after: int, timeout: float = 60.0) -> None:
        """Wait for an event of the supervisor that fits, from index `after` on."""
        self.wait_for(str(sign), lambda: self.find(sign, after) is not None, timeout)

    def find(self, sign: Sign, after: int) -> Line | None:
        """Return the first event of the supervisor that fits, from index `after` on."""
        return next(filter(sign.fits, self.lines[after:]), None)

    def _read(self, process: subprocess.Popen[bytes], run: int) -> None:
        assert process.stdout is not None
        for raw in process.stdout:
            self._take(raw.decode("utf-8", "replace").rstrip("\n"), run)
        with self._news:
            self._news.notify_all()

    def _take(self, raw: str, run: int) -> None:
        told = json.loads(raw)
        event = told["event"]
        with self._news:
            if event == "attempt-started":
                self.attempt, self.pid, self.step = told["attempt"], None, None
            elif event == "workers-started":
                self.pid = told["pids"][0]
            elif event == "rank-ended" and told["rank"] == 0:
                self.pid = self.step = None
            line = Line(self.now(), run, self.attempt, told["text"], event, told)
            self.lines.append(line)
            self.step = line.step if line.step is not None else self.step
            self._news.notify_all()

    # --- starting ---------------------------------------------------------------------------

    def _write_config(self, injected: list[dict[str, Any]]) -> None:
        config = {"trainer": {**self._config["trainer"], "faults": injected}}
        (self.folder / "trainer.yaml").write_text(yaml.safe_dump(config))

    def _start(self, stdout: int, stderr: Path) -> subprocess.Popen[bytes]:
        config = str(self.folder / "trainer.yaml")
        with stderr.open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "supervisor", "run", config, "--log-format", "json"],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=errors,
                env=self._environ,
            )

    def _poll(self, holds: Callable[[], bool], timeout: float, what: str) -> None:
        end = time.monotonic() + timeout * self._patience
        while not holds():
            if time.monotonic() > end:
                raise StormError(what)
            time.sleep(0.02)
