"""Tries the blocks of one page, as a reader with two terminals does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import psutil

from supervisor.prepare import prepare
from tests.cloud_tpu import CloudTpu
from tests.docs.pages import ROOT, Block
from tests.docs.shown import Position, Unlike, compare, is_ours
from tests.running import PATIENCE, UNOPTIMISED

_PATIENCE = 120.0
_CHECKOUT = "/home/you/supervise"
"""The folder in which a page begins."""
_PID = re.compile(r"(?:\bpid |\bsupervisor )(\d+)")
_EXIT_CODE = re.compile(r"\[main\] .*, exit code (\d+): ")


@dataclass
class Command:
    """A command that was started in a shell of its own."""

    text: str
    process: subprocess.Popen[bytes]
    place: Path
    """Its output goes to this file, and what the shell leaves to `.state` beside it."""
    position: Position = field(default_factory=Position)
    """How far a page has shown its output while it ran on."""

    @property
    def output(self) -> list[str]:
        """The whole lines that were printed so far."""
        whole, _, part = self.place.read_text(errors="replace").rpartition("\n")
        ended = self.process.poll() is not None
        return [*(f"{whole}\n{part}" if ended and part else whole).splitlines()]

    def wait(self) -> int:
        """Wait until it ends; returns the exit code."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.text} does not end:\n{_joined(self.output)}") from None

    def wait_for(self, text: str) -> None:
        """Wait until it has printed `text`."""
        found = _soon(lambda: any(text in line for line in self.output))
        assert found, f"{text!r} is not in:\n{_joined(self.output)}"

    def signal(self, number: signal.Signals) -> None:
        """Send the program in its shell a signal."""
        for child in psutil.Process(self.process.pid).children():
            child.send_signal(number)


class Session:
    """A scratch folder, and what was done in it so far."""

    def __init__(
        self,
        scratch: Path,
        blocks: Sequence[Block],
        env: Mapping[str, str],
        scenes: Mapping[str, Callable[[Session], None]],
    ) -> None:
        self.scratch = scratch
        self.blocks = blocks
        self.until_the_end = ExitStack()
        self.running: Command | None = None
        """The command in the first terminal."""
        self.cloud = CloudTpu()
        """A Cloud TPU API; a scene makes it answer."""
        self._scenes = scenes
        self._folders = {"/home/you", "/data"}
        self._files = set[Path]()
        self._steps_vary = False
        self._code = 0
        self._started: list[Command] = []
        self.cwd = Path(self.real(_CHECKOUT))
        home = self.cwd.parent
        for folder in (self.cwd, Path(self.real("/data"))):
            folder.mkdir(parents=True)
        for name in ("examples", "deploy"):
            (self.cwd / name).symlink_to(ROOT / name)
        (self.cwd / ".venv").symlink_to(sys.prefix)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {**os.environ, **env, "PATH": path, "HOME": str(home), "XLA_FLAGS": UNOPTIMISED}

    @property
    def foreground(self) -> Command:
        """The command in the first terminal, the last one if it has ended."""
        assert self.running, "no `supervise run` was started"
        return self.running

    def real(self, text: str) -> str:
        """Move the folders that pages name into the scratch folder."""
        names = "|".join(map(re.escape, sorted(self._folders, reverse=True)))
        return re.sub(rf"(?<![\w./-])(?=(?:{names})(?![\w-]))", str(self.scratch), text)

    def take(self, block: Block) -> None:
        """Try the next block."""
        self._prepare(block.notes)
        if not block.is_run:
            return
        if block.file:
            self.write(block)
        if block.language == "python":
            compile(block.text, block.place, "exec")
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "console":
            self._take_commands(block)
        elif block.language == "text" and not block.file:
            self._take_output(block)

    def _prepare(self, notes: dict[str, str]) -> None:
        if "folder" in notes:
            self._folders.add(notes["folder"])
            self.cwd = Path(self.real(notes["folder"]))
            self.cwd.mkdir(parents=True, exist_ok=True)
        if "edit" in notes:
            self._edit(*notes["edit"].split(" -> "))
        self._steps_vary |= "steps vary" in notes
        if "after" in notes:
            self.foreground.wait_for(notes["after"])
        if "first" in notes:
            for name in notes["first"].split(", "):
                self._scenes[name](self)
        if "ctrl-c" in notes:
            self.foreground.signal(signal.SIGINT)

    def write(self, block: Block) -> None:
        """Write the file that the block is, and check it if it is a config."""
        assert block.file is not None
        path = self.cwd / block.file
        path.write_text(self.real(block.text))
        self._files.add(path)
        if block.language == "yaml":
            here = Path.cwd()
            os.chdir(self.cwd)
            try:
                prepare(path, ())
            finally:
                os.chdir(here)

    def _edit(self, before: str, after: str) -> None:
        """Replace a text in the files that were written, where it is."""
        edited = {path: path.read_text() for path in self._files}
        edited = {path: text for path, text in edited.items() if before in text}
        assert edited, f"{before!r} is in no file"
        for path, text in edited.items():
            path.write_text(text.replace(before, after))

    def start(self, text: str) -> Command:
        """Start a command in a shell, where the last one left off."""
        pid = self._last_pid() if "PID" in text else ""
        place = self.scratch / f"output{len(self._started)}"
        command = self.real(text).replace("PID", pid)
        state = place.with_suffix(".state")
        script = (
            f"""trap 'pwd > {state}; env -0 >> {state}' EXIT; (exit {self._code})\n{command}\n"""
        )
        with place.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._started.append(Command(command, process, place))
        return self._started[-1]

    def run(self, text: str, until: str | None = None) -> Command:
        """Run a command until it ends.

        `until`: a `timeout` in it does its work when this was printed, however long that takes.
        """
        if until is None or not text.startswith("timeout "):
            command = self.start(text)
        else:
            # Python prints each line at once to a reader's terminal, and not to our file.
            patient = re.sub(r" \d+ ", f" {_PATIENCE * 2:.0f} ", text, count=1)
            command = self.start(f"PYTHONUNBUFFERED=1 {patient}")
            command.wait_for(until)
            command.signal(signal.SIGTERM)
        self._code = command.wait()
        folder, _, variables = command.place.with_suffix(".state").read_text().partition("\n")
        self.cwd = Path(folder)
        self.env = dict(each.split("=", 1) for each in variables.split("\0") if "=" in each)
        return command

    def run_on(self, text: str) -> Command:
        """Start a command in the first terminal, when the one before it has ended."""
        if self.running:
            self.running.wait()
        self.running = self.start(text)
        return self.running

    def end(self) -> None:
        """Reap what was started and is killed now."""
        for command in self._started:
            command.wait()
        self.until_the_end.close()

    def _last_pid(self) -> str:
        """Return the pid that was shown last."""
        for command in reversed(self._started):
            for line in reversed(command.output):
                if found := _PID.search(line):
                    return found[1]
        raise AssertionError("no pid was shown that PID could be")

    def _take_commands(self, block: Block) -> None:
        commands = list(_commands(block))
        for number, (text, shown) in enumerate(commands, 1):
            if "runs on" in block.notes and number == len(commands):
                command = self.run_on(text)
                self._await_output(command, shown, block, None)
                continue
            if "ctrl-c" in block.notes and self.running:
                self.running.wait()
            command = self.run(text, block.notes.get("until"))
            if text.startswith("supervise run"):
                self.running = command
            if shown:
                self._compare(command, shown, block, None, whole=True)
            else:
                assert self._code == 0, f"{block.place}: {command.text}\n{_joined(command.output)}"
            self._check_exit_code(command, shown)

    def _take_output(self, block: Block) -> None:
        command = self.foreground
        self._await_output(command, block.lines, block, command.position)
        self._check_exit_code(command, block.lines)

    def _await_output(
        self, command: Command, shown: Sequence[str], block: Block, start: Position | None
    ) -> None:
        """Wait until a command that may still run has printed what is shown."""

        def is_there() -> bool:
            ended = command.process.poll() is not None
            try:
                self._compare(command, shown, block, start, whole=False)
            except AssertionError:
                if ended:
                    raise
                return False
            return True

        if not _soon(is_there):
            self._compare(command, shown, block, start, whole=False)

    def _compare(
        self,
        command: Command,
        shown: Sequence[str],
        block: Block,
        start: Position | None,
        *,
        whole: bool,
    ) -> None:
        between = ["..."] if "excerpt" in block.notes else []
        wanted = [each for line in shown for each in (self.real(line), *between)]
        output = command.output
        try:
            end = compare(wanted, output, start, whole=whole, steps_vary=self._steps_vary)
            if not whole:
                command.position = end
        except Unlike as error:
            text = (
                f"{block.place} shows of {command.text}\n{error}\n\nthe output:\n{_joined(output)}"
            )
            raise AssertionError(text) from None

    def _check_exit_code(self, command: Command, shown: Sequence[str]) -> None:
        """If the end of a job is shown, wait for it: it must have that exit code."""
        said = [found[1] for line in shown if (found := _EXIT_CODE.search(line))]
        if said and re.fullmatch(r"supervise run [^;&|]*", command.text):
            code = command.wait()
            assert code == int(said[-1]), f"{command.text} ended with {code}, and shows {said[-1]}"


def _commands(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a block, each with what is shown of its output."""
    text = block.text.replace("\\\n", " ")
    assert text.startswith("$ "), f"{block.place}: the block does not begin with a command"
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, *shown = part.splitlines()
        yield command, shown


def _soon(condition: Callable[[], bool]) -> bool:
    """Wait until `condition` is true; returns False if it is not in time."""
    end = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)  # to look takes processor time
    return True


def _joined(lines: Sequence[str]) -> str:
    """Join the lines of an output; of many that programs printed in a row, the outer ones."""
    kept = []
    for _, group in groupby(lines, is_ours):
        same = [*group]
        kept += same if len(same) < 12 else [*same[:6], "...", *same[-4:]]
    return "\n".join(kept[-200:])
