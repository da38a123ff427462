"""The live view as a person sees it: a real supervisor in a terminal of some size, drawn by an
emulator, while it is resized."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import termios
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyte
import pytest
import yaml

from tests.running import MARK, PATIENCE, command_config, gone

STEPS = """
import os, pathlib, signal, sys
for step in range(1, 41):
    print(f"step {step} loss {100 / step:.3f}", flush=True)
    if step in (1, 20):
        while not pathlib.Path(sys.argv[1], str(step)).exists():
            signal.sigtimedwait([], 0.01)
    if step == 10 and sys.argv[2] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
"""
SIZES = [(80, 24), (200, 50), (30, 10)]


class Screen:
    """A `supervise run` in a terminal, and what the terminal shows."""

    def __init__(self, config: Path, columns: int, rows: int, environ: dict[str, str]) -> None:
        self._master, slave = os.openpty()
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.all = b""
        termios.tcsetwinsize(slave, (rows, columns))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "run", str(config)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=environ,
        )
        os.close(slave)

    @property
    def lines(self) -> list[str]:
        """The rows of the screen."""
        return [line.rstrip() for line in self._screen.display]

    def wait_for(self, pattern: str) -> None:
        """Read until the screen shows it."""
        while not re.search(pattern, "\n".join(self.lines)):
            ready, _, _ = select.select([self._master], [], [], PATIENCE)
            assert ready, "\n".join(self.lines)
            self._feed(os.read(self._master, 65536))

    def to_the_end(self) -> None:
        """Read until the supervisor has ended."""
        with suppress(OSError):  # EIO: nobody has it open any more
            while chunk := os.read(self._master, 65536):
                self._feed(chunk)

    def resize(self, columns: int) -> None:
        """Make the window wider or narrower."""
        rows, _ = termios.tcgetwinsize(self._master)
        self._screen.resize(rows, columns)
        termios.tcsetwinsize(self._master, (rows, columns))

    def close(self) -> None:
        """Close the window."""
        os.close(self._master)

    def _feed(self, chunk: bytes) -> None:
        self.all += chunk
        self._stream.feed(chunk)


@contextmanager
def running(
    model_dir: Path, columns: int, rows: int, *, attempt: str = "2", **environ: str
) -> Iterator[Screen]:
    """A job of 40 steps, which waits at steps 1 and 20; `attempt` is "{attempt}" if its first
    attempt is to fail."""
    config: dict[str, Any] = command_config(model_dir, success={"step": 40})
    (program := model_dir.with_name("steps.py")).write_text(STEPS)
    argv = [sys.executable, str(program), str(model_dir.parent), attempt]
    progress = {"pattern": r"^step (\d+)"}
    config["trainer"]["command"] |= {"argv": argv, "progress": progress}
    path = model_dir.with_name("trainer.yaml")
    path.write_text(yaml.safe_dump(config))
    mark = uuid.uuid4().hex
    base = {name: os.environ[name] for name in os.environ.keys() - {"COLUMNS", "LINES", "CI"}}
    screen = Screen(path, columns, rows, {**base, "TERM": "xterm-256color", MARK: mark, **environ})
    try:
        yield screen
    finally:
        if screen.process.poll() is None:
            screen.process.kill()
        screen.process.wait()
        screen.close()
    assert gone(f"{MARK}={mark}")


def go_on(model_dir: Path, step: int) -> None:
    model_dir.with_name(str(step)).touch()


def is_sound(screen: Screen) -> bool:
    """Whether no line is there twice, and at most one panel, which is whole."""
    steps = [line for line in screen.lines if re.match(r"step \d+ loss", line)]
    tops = [line for line in screen.lines if "╭" in line]
    bottoms = [line for line in screen.lines if "╰" in line]
    return len(steps) == len(set(steps)) and len(tops) == len(bottoms) <= 1


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_it_fits_and_shows_how_far_the_job_is(
    columns: int, rows: int, model_dir: Path, tmp_path: Path
) -> None:
    with running(model_dir, columns, rows) as screen:
        screen.wait_for(r"step 1 loss")
        go_on(model_dir, 1)
        screen.wait_for(r"[█░]+ 50%")
        screen.wait_for(r"loss (5\.\d+ )?█")
        assert is_sound(screen), "\n".join(screen.lines)
        shown = "\n".join(screen.lines)
        assert "RUNNING" in shown
        assert ("restarts used" in shown) == (columns >= 80)
        go_on(model_dir, 20)
        screen.to_the_end()
        assert is_sound(screen), "\n".join(screen.lines)
        assert "100%" in "\n".join(screen.lines)
        assert "SUCCEEDED" in "\n".join(screen.lines)


@pytest.mark.parametrize("columns", [40, 120])
def test_a_resize_leaves_nothing_behind(columns: int, model_dir: Path, tmp_path: Path) -> None:
    with running(model_dir, 80, 24) as screen:
        screen.wait_for("step 1 loss")
        go_on(model_dir, 1)
        screen.wait_for("50%")
        screen.resize(columns)
        go_on(model_dir, 20)
        screen.to_the_end()
        assert is_sound(screen), "\n".join(screen.lines)
        assert ("╭" in "\n".join(screen.lines)) == (columns >= 80)


def test_the_attempts_so_far_are_shown(model_dir: Path, tmp_path: Path) -> None:
    with running(model_dir, 100, 30, attempt="{attempt}") as screen:
        go_on(model_dir, 1)
        screen.wait_for("attempts: 1 killed.*, 2 runs")
        go_on(model_dir, 20)
        screen.to_the_end()
        assert "2 succeeded" in "\n".join(screen.lines)


def test_without_colours_none_is_sent(model_dir: Path, tmp_path: Path) -> None:
    with running(model_dir, 80, 24, NO_COLOR="1") as screen:
        go_on(model_dir, 1)
        go_on(model_dir, 20)
        screen.to_the_end()
        assert not re.search(rb"\x1b\[[0-9;]*3[0-9]m", screen.all)


@pytest.mark.parametrize("environ", [{"CI": "true"}, {"TERM": "dumb"}], ids=["CI", "dumb"])
def test_where_nothing_can_be_drawn_lines_are_printed(
    environ: dict[str, str], model_dir: Path, tmp_path: Path
) -> None:
    with running(model_dir, 80, 50, **environ) as screen:
        go_on(model_dir, 1)
        go_on(model_dir, 20)
        screen.to_the_end()
        assert b"\x1b" not in screen.all
        assert screen.all.count(b"step 40 loss") == 1
