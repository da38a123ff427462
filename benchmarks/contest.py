"""Runs one contestant at a time, and kills all its processes afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGKILL
from typing import Any

import yaml

from supervisor.host import tree

ROOT = Path(__file__).resolve().parents[1]
_MARK = "SUPERVISE_BENCHMARK"
_LOOK = 0.005


class FailedError(Exception):
    """A contestant did not do what the benchmark needs; the text says what."""


@contextmanager
def run_contestant(
    argv: list[str], environ: Mapping[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `argv` for the block, with `environ` added to our environment; stdout and stderr go to
    the file `output` in `folder`. At the end, kill all processes that have its environment."""
    mark = uuid.uuid4().hex
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, **environ, _MARK: mark}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            argv,
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        while _kill(f"\0{_MARK}={mark}\0".encode()):
            time.sleep(_LOOK)
        process.wait()


def _kill(mark: bytes) -> int:
    """Send SIGKILL to the processes that have `mark` in their environment; returns how many got
    it."""
    found = []
    for pid in tree.pids():
        seen = tree.stat(pid)
        with suppress(OSError):  # it has ended, or belongs to another user
            if seen is not None and mark in Path(f"/proc/{pid}/environ").read_bytes():
                found.append((pid, seen))
    return sum(tree.send(pid, seen, SIGKILL) for pid, seen in found)


def wait_for(
    what: str, condition: Callable[[], bool], process: subprocess.Popen[bytes], timeout: float
) -> None:
    """Wait until `condition` holds.

    Raises:
        FailedError: it does not hold in time, or the contestant ended before.
    """
    end = time.monotonic() + timeout
    while not condition():
        ended = process.poll()
        if ended is not None and not condition():
            raise FailedError(f"it ended with {ended} before {what}")
        if time.monotonic() > end:
            raise FailedError(f"no {what} within {timeout:g} s")
        time.sleep(_LOOK)


def supervise_command(config: Mapping[str, Any], folder: Path) -> list[str]:
    """Write `config` to `folder`; returns the command line that runs it under supervise."""
    path = folder / "trainer.yaml"
    path.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    return [sys.executable, "-m", "supervisor", "run", str(path), "--log-format", "json"]


class EventReader:
    """Reads supervise's events from the file with its output; skips all other lines."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._read = 0
        self._events: list[dict[str, Any]] = []

    def events(self, name: str | None = None, **keys: object) -> list[dict[str, Any]]:
        """Returns the events so far that have this name (None: any) and these keys and values. The
        program's own output is no event."""
        with self._output.open("rb") as file:
            file.seek(self._read)
            lines = file.read().rpartition(b"\n")
        self._read += len(lines[0]) + len(lines[1])
        for line in lines[0].splitlines():
            if line.startswith(b'{"time": ') and b'"event": "output"' not in line:
                self._events.append(json.loads(line))
        return [
            event
            for event in self._events
            if name in (None, event["event"])
            and all(event.get(key) == value for key, value in keys.items())
        ]
