"""What comes from a worker or goes to a person: no flood, garbage or full disk stops either."""

from __future__ import annotations

import errno
import os
import resource
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.adapters.processes.output import OutputPatterns, OutputPump, read_evidence
from supervisor.adapters.processes.progress import ProgressPipe
from supervisor.adapters.stores.checkpoint_watcher import (
    CheckpointPoller,
    CheckpointWatcher,
    Pace,
    newest_committed,
)
from supervisor.adapters.telling.console import PlainConsole
from supervisor.config.patterns import Pattern
from supervisor.host.notice import Notice
from supervisor.protocol.messages import MAX_LINE, Message, SavedMessage, Stage, StepMessage, encode
from supervisor.protocol.reporter import Reporter
from tests.running import PATIENCE, eventually

# --- the progress pipe ----------------------------------------------------------------------------


class Heard:
    """A progress pipe, and what came out of it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.refused: list[str] = []
        self.pipe = ProgressPipe(self.messages.append, self.refused.append)
        self.open = True

    def say(self, data: bytes) -> None:
        """Write as a worker, read as the supervisor."""
        for start in range(0, len(data), 4096):
            os.write(self.pipe.write_end, data[start : start + 4096])
            self.open = self.pipe.read()

    def close(self) -> None:
        self.pipe.close_write_end()
        self.open = self.pipe.read()
        self.pipe.close()


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    yield heard
    if heard.open:
        heard.close()


def line(step: int) -> bytes:
    return encode(SavedMessage(step))


def saved(heard: Heard) -> list[int]:
    return [message.step or 0 for message in heard.messages if isinstance(message, SavedMessage)]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_lines_come_in_pieces(size: int, heard: Heard) -> None:
    data = b"".join(line(step) for step in range(50))
    for start in range(0, len(data), size):
        heard.say(data[start : start + size])
    assert saved(heard) == list(range(50))
    assert heard.refused == []


def test_a_flood_is_read_by_parts_and_the_rest_of_a_dead_worker_at_once(heard: Heard) -> None:
    """A pipe's worth of messages in one turn kept the main loop from its signals for a second."""
    steps = list(range(1000, 1000 + 60_000 // len(line(1000))))
    for step in steps:
        os.write(heard.pipe.write_end, line(step))
    assert heard.pipe.read()
    told = saved(heard)
    assert told == steps[: len(told)]
    assert len(told) <= 4 * MAX_LINE // len(line(1000))
    assert not heard.pipe.is_calm, "so that it is not left for a while"
    assert heard.pipe.is_behind
    heard.pipe.drain()
    assert saved(heard) == steps
    assert not heard.pipe.is_behind
    assert heard.pipe.read()
    assert not heard.pipe.is_behind, "there is nothing"


def test_steps_in_one_read_are_one_observation(heard: Heard) -> None:
    for step in range(31, 100):
        os.write(heard.pipe.write_end, encode(StepMessage(step, {"loss": 1.0 / step})))
    os.write(heard.pipe.write_end, line(99) + encode(StepMessage(100)))
    assert heard.pipe.read()
    together = StepMessage(99, {"loss": 1.0 / 99}, first=31)
    assert heard.messages == [together, SavedMessage(99), StepMessage(100)]
    assert together.earliest == 31


def test_garbage_is_told_once_and_passed_over(heard: Heard) -> None:
    heard.say(line(1) + b"garbage\n\xff\xfe\n\n{}\n" + line(2))
    assert saved(heard) == [1, 2]
    assert heard.refused == ["not JSON"]


@pytest.mark.parametrize("size", [MAX_LINE, MAX_LINE + 1, 3 * MAX_LINE + 5, 1 << 20])
def test_a_line_without_an_end_is_passed_over(size: int, heard: Heard) -> None:
    heard.say(line(1) + b"x" * size + b"\n" + line(2))
    assert saved(heard) == [1, 2]
    assert len(heard.refused) == 1


def test_the_end_of_such_a_line_is_no_message(heard: Heard) -> None:
    heard.say(b"x" * (MAX_LINE + 1))
    heard.say(line(1) + line(2))
    assert saved(heard) == [2]


def test_the_longest_line_is_taken(heard: Heard) -> None:
    body = line(1).rstrip(b"\n")
    heard.say(body + b" " * (MAX_LINE - len(body) - 1) + b"\n")
    assert saved(heard) == [1]


def test_the_end_is_seen_and_a_torn_line_is_nothing(heard: Heard) -> None:
    heard.say(line(1) + b'{"v": 1')
    assert heard.open
    heard.close()
    assert not heard.open
    assert saved(heard) == [1]
    assert heard.refused == []


@given(st.lists(st.binary(max_size=300) | st.just(b"\n") | st.just(b"x" * 2000)))
def test_anything_may_come(chunks: list[bytes]) -> None:
    heard = Heard()
    for chunk in chunks:
        heard.say(chunk)
    heard.say(b"\n" + line(7))
    heard.close()
    assert saved(heard) == [7]


def test_a_reporter_finds_the_pipe(heard: Heard) -> None:
    reporter = Reporter.connect(heard.pipe.to_environment())
    reporter.stage(Stage.SAVING)
    reporter.saved(3)
    assert heard.pipe.read()
    assert saved(heard) == [3]


# --- the output pump ------------------------------------------------------------------------------


class Pumped:
    """A pump with what it told."""

    def __init__(
        self,
        path: Path,
        step: str | None = None,
        success: str | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps: list[int] = []
        self.firsts: list[int] = []
        self.losses: list[float | None] = []
        self.errors: list[Notice] = []
        self.sigterms: list[int] = []
        self.mirrored = b""
        patterns = OutputPatterns(
            step=Pattern(step) if step else None,
            on_step=self._step,
            on_sigterm=lambda: self.sigterms.append(1),
            success=Pattern(success) if success else None,
        )
        self.pump = OutputPump(path, patterns, self._mirror, self.errors.append, now)
        self.worker = os.dup(self.pump.write_end)
        self.pump.start()

    def _step(self, first: int, last: int, loss: float | None) -> None:
        self.firsts.append(first)
        self.steps.append(last)
        self.losses.append(loss)

    def _mirror(self, chunk: bytes) -> None:
        self.mirrored = (self.mirrored + chunk)[-1_000_000:]

    def say(self, *chunks: bytes) -> None:
        for chunk in chunks:
            os.write(self.worker, chunk)

    def end(self) -> None:
        os.close(self.worker)
        assert self.pump.finish(PATIENCE)


def test_all_output_is_kept_and_passed_on(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"before\n")
    pumped = Pumped(tmp_path / "log")
    pumped.say(b"one\n", b"\xff\xfe\x00\x1b[2J", b"no end")
    pumped.end()
    assert (tmp_path / "log").read_bytes() == b"before\none\n\xff\xfe\x00\x1b[2Jno end"
    assert pumped.mirrored == b"one\n\xff\xfe\x00\x1b[2Jno end"
    assert read_evidence(tmp_path / "log").endswith("no end")
    assert read_evidence(tmp_path / "nothing") == ""
    assert pumped.errors == []


def test_a_million_empty_lines_are_searched_once(tmp_path: Path) -> None:
    """And a line that tells a step, or the success, counts wherever it stands."""
    pumped = Pumped(tmp_path / "log", step=r"step (\d+)", success="done")
    began = time.process_time()
    pumped.say(b"step 1\nstep 1\n", *[b"\n" * 65536] * 16, b"step 2\n\n\ndone\ndone\nstep 3\n")
    pumped.end()
    assert time.process_time() - began < 1.5
    assert (pumped.steps[0], pumped.steps[-1]) == (1, 3)
    assert pumped.pump.reader.success_seen
    assert pumped.pump.reader.lines > 1 << 20


CAUGHT = b"W1122 13:59:05.468181   29360 preemption_notifier.cc:90] SIGTERM caught at 2026-11-22T"


@pytest.mark.parametrize(
    ("chunks", "told"),
    [
        ([b"before\n" + CAUGHT + b"13:59:05\nafter"], True),
        ([CAUGHT[:60], CAUGHT[60:], b"\n"], True),
        ([CAUGHT[:60], b" and ", CAUGHT[60:]], False),
        ([b"preemption_notifier.cc:90] Reporting\n", b"SIGTERM caught at noon\n"], False),
        ([b"x" * 70_000, CAUGHT], True),
    ],
)
def test_what_jax_says_of_a_sigterm(chunks: list[bytes], told: bool, tmp_path: Path) -> None:
    pumped = Pumped(tmp_path / "log")
    pumped.say(*chunks)
    pumped.end()
    assert bool(pumped.sigterms) == told


@pytest.mark.parametrize(
    ("chunks", "steps"),
    [
        ([b"step: 1\n"], [1]),
        ([b"st", b"ep", b": 1", b"2\nst", b"ep: 13\n"], [12, 13]),
        ([b"step: 1\nstep: 2\nstep: 3\n"], [3]),
        ([b"step: 4"], [4]),
        ([b"\xff\xfe step: 5 \xff\n"], [5]),
        ([b"  6% step: 6\r 7% step: 7\r"], [7]),
        ([b"step: 8\r\n"], [8]),
        ([b"step: " + b"9" * 5000 + b"\nstep: 9\n"], [9]),
        ([b"step: 10\nstep: " + b"9" * 5000 + b"\n"], [10]),
        ([b"step: \nstep: x\nstep: 0\n"], [0]),
        ([b"x" * 60_000] * 10 + [b" step: 11\n"], [11]),
        ([b"nothing\n"], []),
    ],
)
def test_steps_in_the_output(chunks: list[bytes], steps: list[int], tmp_path: Path) -> None:
    pumped = Pumped(tmp_path / "log", step=r"step: ?(\d+)?")
    for chunk in chunks:
        pumped.say(chunk)
    pumped.end()
    # How the chunks are read is up to the kernel: of several steps the newest counts.
    assert pumped.steps[-1:] == steps[-1:]
    assert set(pumped.steps) <= set(steps) | {1, 2, 6}


def test_a_lump_of_steps_is_one_observation(tmp_path: Path) -> None:
    """8 KiB is what Python collects before it writes."""
    pumped = Pumped(tmp_path / "log", step=r"step (\d+)")
    lump = b"".join(b"epoch 0, step %d, loss 0.123456789012\n" % step for step in range(31, 231))
    assert len(lump) > 4096
    pumped.say(lump)
    pumped.end()
    assert (pumped.firsts, pumped.steps) == ([31], [230])
    assert pumped.losses == [0.123456789012]


@pytest.mark.parametrize(
    ("chunks", "seen"),
    [
        ([b"training do", b"ne\n"], True),
        ([b"training done"], True),
        ([b"training\ndone\n"], False),
        ([], False),
    ],
)
def test_the_success_pattern(chunks: list[bytes], seen: bool, tmp_path: Path) -> None:
    pumped = Pumped(tmp_path / "log", success="training done$")
    pumped.say(*chunks)
    pumped.end()
    assert pumped.pump.reader.success_seen is seen


def test_a_pattern_that_takes_for_ever_is_given_up(tmp_path: Path) -> None:
    """Of `(?:a|aa)+ ` in 60 letters, `re` would not come back."""
    pumped = Pumped(tmp_path / "log", step=r"(?:a|aa)+ (\d+)", success="^done")
    slow = b"a" * 60 + b"!\n"
    pumped.say(b"a 7\n" + slow + b"a 8\n" + slow * 2 + b"a 9\ndone\n")
    pumped.end()
    assert pumped.steps == [8]
    assert pumped.pump.reader.success_seen
    first, last = pumped.errors
    assert "takes too long in text that begins 'aaaa" in first
    assert [first.event, last.event] == ["pattern-slow", "pattern-off"]


def test_a_pattern_that_is_slow_in_each_line_gets_a_part_of_the_time(tmp_path: Path) -> None:
    """The pattern takes some milliseconds for a line: of a moment that lasts, it gets a second."""
    pumped = Pumped(tmp_path / "log", step=r"(\d+)\s*$", success="^done", now=lambda: 7.0)
    pumped.say(b"1\n", *[b"1" * 500 + b"x\n"] * 2000, b"2\ndone\n")
    pumped.end()
    assert pumped.steps == [1]
    assert pumped.pump.reader.success_seen, "each pattern has a time of its own"
    assert (tmp_path / "log").read_bytes().count(b"\n") == 2003, "only searches are left out"
    (told,) = pumped.errors
    assert told.event == "pattern-slow"


def test_only_the_ends_of_a_long_line_are_searched(tmp_path: Path) -> None:
    """Where the time is the square of the length, no line takes long."""
    pumped = Pumped(tmp_path / "log", step=r"\s+step\s+(\d+)")
    pumped.say(b"".join(b" step %d" % n + b" " * 60_000 + b"|\n" for n in range(20)))
    pumped.say(b"x" * 9000 + b" step 20\n")
    pumped.end()
    assert pumped.steps[-1] == 20
    assert pumped.errors == []


def test_a_flood_is_taken_quickly_and_in_little_memory(tmp_path: Path) -> None:
    """100 MB, most of it one endless line, through a pump that also looks for patterns."""
    program = (
        "import os, re, resource, sys, threading, time\n"
        "from pathlib import Path\n"
        "from supervisor.adapters.processes.output import OutputPatterns, OutputPump\n"
        "began, step = time.process_time(), re.compile(rb'step (\\d+)')\n"
        "matched = sum(1 for _ in range(700_000) if step.match(b'step 3 of many'))\n"
        "matching = time.process_time() - began\n"
        "from supervisor.config.patterns import Pattern\n"
        "patterns = OutputPatterns(step=Pattern(r'step (\\d+)'), success=Pattern('done'))\n"
        "pump = OutputPump(Path(sys.argv[1]), patterns, None, print)\n"
        "worker = os.dup(pump.write_end)\n"
        "pump.start()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "lines, endless = (b'step 3 of many\\n' * 70_000)[:1 << 20], b'x' * (1 << 20)\n"
        "for chunk, times in ((lines, 10), (endless, 90)):\n"
        "    for _ in range(times):\n"
        "        rest = memoryview(chunk)\n"
        "        while rest: rest = rest[os.write(worker, rest):]\n"
        "os.close(worker)\n"
        "assert pump.finish(60)\n"
        "grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024\n"
        "print(grown, (time.process_time() - began - matching) / matching)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "rank0.log"],  # a device would be renamed
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    grown, times = done.stdout.split()
    assert float(times) < 100, "of the CPU time that matching each of its lines takes"
    assert int(grown) < 20


@pytest.mark.parametrize("path", ["/dev/full", "nowhere/rank0.log", "folder"])
def test_a_file_that_cannot_be_written_stops_no_reader(path: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    pumped = Pumped(tmp_path / path, step=r"step (\d+)")
    for _ in range(100):
        pumped.say(b"x" * 10_000 + b"\n")
    pumped.say(b"step 3\n")
    pumped.end()
    assert len(pumped.errors) == 1
    assert "cannot be written" in pumped.errors[0]
    assert pumped.mirrored.endswith(b"step 3\n")
    assert pumped.steps == [3]


def test_a_disk_that_fills_up_keeps_what_fitted(tmp_path: Path) -> None:
    program = (
        "import os, resource, sys\n"
        "from pathlib import Path\n"
        "from supervisor.adapters.processes.output import OutputPatterns, OutputPump\n"
        "pump = OutputPump(Path(sys.argv[1]), OutputPatterns(), None, print)\n"
        "worker = os.dup(pump.write_end)\n"
        "pump.start()\n"
        "for _ in range(100): os.write(worker, b'y' * 10_000)\n"
        "os.close(worker)\n"
        "assert pump.finish(20)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")],
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (12_345, 12_345)),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "log cannot be written: File too large\n"
    assert (tmp_path / "log").read_bytes() == b"y" * 12_345


def test_somebody_who_keeps_the_pipe_open_is_told(tmp_path: Path) -> None:
    pumped = Pumped(tmp_path / "log")
    assert not pumped.pump.finish(0.01)
    pumped.end()


# --- the console ----------------------------------------------------------------------------------


class Reader:
    """The other end of our standard output."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.read_end, self.write_end = os.pipe()
        self.console = PlainConsole(self.write_end, self.told.append)

    def all(self) -> bytes:
        """Everything up to the end."""
        data = b""
        closing = threading.Thread(target=self.console.close, args=(PATIENCE,))
        closing.start()
        while closing.is_alive() or select.select([self.read_end], [], [], 0)[0]:
            if select.select([self.read_end], [], [], 0.01)[0]:
                data += os.read(self.read_end, 1 << 16)
        closing.join()
        return data

    def close(self) -> None:
        for descriptor in (self.read_end, self.write_end):
            with suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.close()


def test_lines_of_ours_stand_alone(reader: Reader) -> None:
    console = reader.console
    console.line("first")
    console.mirror(1, b"whole line\n")
    console.line("second")
    console.mirror(1, b"worker says")
    console.line("ours \udcff")
    assert reader.all() == b"first\nwhole line\nsecond\nworker says\nours ?\n"
    assert reader.told == []


def test_a_reader_that_stops_holds_nobody_up_and_drops_are_told(reader: Reader) -> None:
    total = 200 * 10_000
    start = time.monotonic()
    for _ in range(200):
        reader.console.mirror(1, b"x" * 10_000)
    reader.console.line("ours")
    assert time.monotonic() - start < 60, "not a second for each"
    shown = reader.all()
    dropped = total - shown.count(b"x")
    assert 0 < dropped < total
    told = f"[supervise: {dropped} bytes were not shown: standard output did not take them]\nours\n"
    assert shown.decode().endswith("x\n" + told), "our own lines have room of their own"


def test_a_reader_that_is_gone_is_told_once_and_no_error(reader: Reader) -> None:
    os.close(reader.read_end)
    for _ in range(3):
        reader.console.line("to nobody")
        reader.console.mirror(1, b"x" * 100_000)
    reader.console.close(PATIENCE)
    assert reader.told == ["standard output is not used any more: Broken pipe"]


def test_a_full_disk_is_told_once_and_tried_again(tmp_path: Path) -> None:
    """As standard output in a file; RLIMIT_FSIZE would kill, and a quota needs root."""
    told: list[str] = []
    full = os.open("/dev/full", os.O_WRONLY)
    console = PlainConsole(full, told.append)
    for _ in range(3):
        console.line("to nobody")
    assert eventually(lambda: told)
    room = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(room, full)
    console.line("there is room again")
    console.close(PATIENCE)
    os.close(room)
    os.close(full)
    assert told == ["standard output cannot be written: No space left on device"]
    assert (tmp_path / "log").read_text().endswith("there is room again\n")


# --- the checkpoint watcher -----------------------------------------------------------------------


def commit(root: Path, step: int) -> None:
    """As Orbax does: all that is in it first, then its name."""
    temporary = root / f"{step}.orbax-checkpoint-tmp"
    temporary.mkdir(parents=True)
    (temporary / "commit_success.txt").write_text("x")
    temporary.rename(root / str(step))


class Watched:
    """A watcher with what it told."""

    def __init__(self, root: Path, interval: float) -> None:
        self.commits: Queue[int] = Queue()
        self.errors: Queue[str] = Queue()
        commits, errors, pace = self.commits.put, self.errors.put, Pace(interval, interval)
        poller = CheckpointPoller(root, lambda: newest_committed(root), commits, errors, pace)
        self.watcher = CheckpointWatcher(poller)

    def stop(self) -> None:
        self.watcher.stop()


Watch = Callable[[Path, float], Watched]


@pytest.fixture
def watch() -> Iterator[Watch]:
    watched: list[Watched] = []

    def start(root: Path, interval: float) -> Watched:
        watched.append(Watched(root, interval))
        return watched[-1]

    yield start
    for one in watched:
        one.stop()


def test_a_new_commit_is_seen(watch: Watch, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    assert newest_committed(root) is None
    watched = watch(root, 0.01)  # before there is a directory
    commit(root, 5)
    assert watched.commits.get(timeout=PATIENCE) == 5
    commit(root, 12)
    assert watched.commits.get(timeout=PATIENCE) == 12
    assert newest_committed(root) == 12
    assert watched.errors.empty()


def test_what_is_being_written_is_not(watch: Watch, tmp_path: Path) -> None:
    (tmp_path / "7.orbax-checkpoint-tmp").mkdir()
    (tmp_path / "8").mkdir()
    commit(tmp_path, 3)
    assert watch(tmp_path, 0.01).commits.get(timeout=PATIENCE) == 3


def test_the_worker_can_have_it_look_at_once(watch: Watch, tmp_path: Path) -> None:
    commit(tmp_path, 1)
    watched = watch(tmp_path, 3600)
    assert watched.commits.get(timeout=PATIENCE) == 1
    commit(tmp_path, 2)
    watched.watcher.poll_now()
    assert watched.commits.get(timeout=PATIENCE) == 2


def test_a_directory_that_cannot_be_read_is_told_once(watch: Watch, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    root.symlink_to(root)  # unreadable for root too
    watched = watch(root, 0.001)
    assert "cannot be watched: Too many levels" in watched.errors.get(timeout=PATIENCE)
    with pytest.raises(Empty):
        watched.errors.get(timeout=0.3)  # hundreds of looks
    root.unlink()
    commit(root, 4)
    assert watched.commits.get(timeout=PATIENCE) == 4  # it went on looking
    root.rename(tmp_path / "away")
    root.symlink_to(root)
    assert "cannot be watched" in watched.errors.get(timeout=PATIENCE)  # that is another time


def test_an_old_checkpoint_is_not_new_after_a_look_that_failed(tmp_path: Path) -> None:
    found: list[int | OSError] = [OSError(errno.EIO, "Input/output error"), 7, 8]

    def look() -> int:
        first = found.pop(0)
        if isinstance(first, OSError):
            raise first
        return first

    commits: list[int] = []
    poller = CheckpointPoller(tmp_path, look, commits.append, lambda told: None)
    poller.poll()
    poller.poll()
    assert (commits, poller.has_new_checkpoint) == ([7], False)
    poller.poll()
    assert (commits, poller.has_new_checkpoint) == ([7, 8], True)


def test_after_stop_nothing_is_told(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    watched = Watched(tmp_path, 3600)
    watched.stop()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
    assert set(threading.enumerate()) <= before
    commit(tmp_path, 1)
    watched.watcher.poll_now()
    assert watched.commits.empty()
