"""Runs one contestant at a time, and leaves nothing of it behind."""

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
    """A contestant did not do what it was asked to; the text says what."""


@contextmanager
def running(
    argv: list[str], environ: Mapping[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """`argv`, with `environ` beside what is inherited; its output is in `folder`."""
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
    """SIGKILL what has `mark` in its environment; returns how many there were."""
    found = []
    for pid in tree.pids():
        seen = tree.stat(pid)
        with suppress(OSError):  # it is gone, or another user's
            if seen is not None and mark in Path(f"/proc/{pid}/environ").read_bytes():
                found.append((pid, seen))
    return sum(tree.send(pid, seen, SIGKILL) for pid, seen in found)


def wait_for(
    what: str, condition: Callable[[], bool], process: subprocess.Popen[bytes], timeout: float
) -> None:
    """Wait until `condition` holds.

    Raises:
        FailedError: it does not in time, or the contestant has ended before.
    """
    end = time.monotonic() + timeout
    while not condition():
        ended = process.poll()
        if ended is not None and not condition():
            raise FailedError(f"it ended with {ended} before {what}")
        if time.monotonic() > end:
            raise FailedError(f"no {what} within {timeout:g} s")
        time.sleep(_LOOK)


def supervise(config: Mapping[str, Any], folder: Path) -> list[str]:
    """The command line that supervises what `config` says."""
    path = folder / "trainer.yaml"
    path.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    return [sys.executable, "-m", "supervisor", "run", str(path), "--log-format", "json"]


class Told:
    """What supervise has told so far in a file with its output; what else is there is left out."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._read = 0
        self._events: list[dict[str, Any]] = []

    def events(self, name: str | None = None, **keys: object) -> list[dict[str, Any]]:
        """The events of this name (None: all but the program's own output), with these keys."""
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
