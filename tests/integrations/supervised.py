"""Runs a command under `supervise run` by its events, and strikes when its schedule says so."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from tests.integrations.schedule import MOST_IN_A_ROW, Schedule
from tests.running import JSON

MODEL_DIR = "job"
"""The model_dir of the job, in the working directory."""
Event = dict[str, Any]


@dataclass
class Run:
    """A finished `supervise run`."""

    events: list[Event] = field(default_factory=list)
    kills: int = 0
    code: int = -1

    def all(self, *names: str) -> list[Event]:
        """Return the events with one of these names, in order."""
        return [event for event in self.events if event["event"] in names]

    def output(self) -> list[str]:
        """Return the lines that the program wrote."""
        return [event["text"] for event in self.all("output")]

    def log(self) -> str:
        """Return what a person would read, without the output of the program."""
        told = (event for event in self.events if event["event"] != "output")
        return "\n".join(f"{each['time']} [{each['source']}] {each['text']}" for each in told)


def run_supervised(
    command: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    limit: float,
    options: Sequence[str] = (),
    schedule: Schedule | None = None,
) -> Run:
    """Run the command in `folder` under `supervise run` until that ends, at most `limit` seconds.

    With a `schedule`, the program is killed as it says, and at last the supervisor gets SIGTERM.
    """
    own = ("--model-dir", MODEL_DIR, "--max-restarts", str(MOST_IN_A_ROW), *JSON, *options)
    argv = [sys.executable, "-m", "supervisor", "run", *own, "--", *command]
    run = Run()
    with (
        (folder / "errors").open("ab") as errors,
        subprocess.Popen(
            argv,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        patience = threading.Timer(limit, process.kill)
        patience.start()
        try:
            _follow(run, process, schedule)
        finally:
            patience.cancel()
            process.kill()
    run.code = process.returncode
    return run


def _follow(run: Run, process: subprocess.Popen[bytes], schedule: Schedule | None) -> None:
    """Take note of each event until the output ends, and strike in between."""
    events: SimpleQueue[Event | None] = SimpleQueue()
    reader = threading.Thread(target=_read, args=(process, events), daemon=True)
    reader.start()
    due = math.inf
    pids: list[int] = []
    while True:
        if schedule is not None and time.monotonic() >= due:  # also while there is much to read
            due = math.inf
            _strike(run, process, schedule, pids)
            continue
        try:
            event = events.get(timeout=_left(due))
        except Empty:
            continue
        if event is None:
            break
        run.events.append(event)
        if event["event"] == "workers-started":
            pids = event["pids"]
        if event["event"] == "rank-ended":
            due = math.inf
        if schedule is not None and (seconds := schedule.seen(event)) is not None:
            due = min(due, time.monotonic() + seconds)
    process.wait()
    reader.join()


def _left(due: float) -> float | None:
    return None if due == math.inf else max(0.0, due - time.monotonic())


def _strike(
    run: Run, process: subprocess.Popen[bytes], schedule: Schedule, pids: Sequence[int]
) -> None:
    """Kill the program; without kills left, ask the supervisor to stop."""
    if not schedule.kills:
        process.send_signal(signal.SIGTERM)
        schedule.stopped()
        return
    with suppress(ProcessLookupError):  # it has ended by itself: then a kill is missing at the end
        os.kill(pids[0], signal.SIGKILL)
        run.kills += 1
        schedule.killed()


def _read(process: subprocess.Popen[bytes], events: SimpleQueue[Event | None]) -> None:
    assert process.stdout is not None
    try:
        for line in process.stdout:
            events.put(json.loads(line))
    finally:
        events.put(None)
