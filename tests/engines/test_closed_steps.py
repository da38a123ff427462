"""A step that nothing commits counts once its writer closed it while alive, and never when torn."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Queue

import pytest

from supervisor.adapters.kernel.open_files import is_open_by
from supervisor.config.own_layout import OwnLayout
from supervisor.engines import checkpoint_source
from supervisor.engines.closed_steps import ClosedSteps
from supervisor.protocol.committed import committed_steps
from supervisor.protocol.epochs import SavedStep
from tests.checkpoints.samples import equinox, npz, transformers_files
from tests.running import PATIENCE, runs

WRITER = """
import sys
file = None
for line in sys.stdin:
    verb, _, rest = line.strip().partition(" ")
    if verb == "open":
        file = open(rest, "wb", buffering=0)
    elif verb == "read":
        file = open(rest, "rb")
    elif verb == "write":
        file.write(bytes.fromhex(rest))
    elif verb == "close":
        file.close()
    print("done", flush=True)
"""


class Writer:
    """A worker that writes a file as it is told."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", WRITER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, *verbs: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        for verb in verbs:
            self.process.stdin.write(f"{verb}\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == "done\n"

    def write(self, path: Path, data: bytes) -> None:
        self.do(f"open {path}", f"write {data.hex()}")

    def save(self, path: Path, data: bytes) -> None:
        self.write(path, data)
        self.do("close")

    def pids(self) -> list[int]:
        return [self.process.pid]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def writer() -> Iterator[Writer]:
    one = Writer()
    yield one
    one.kill()
    for pipe in (one.process.stdin, one.process.stdout):
        assert pipe is not None
        pipe.close()


def begun(directory: Path) -> ClosedSteps:
    steps = ClosedSteps()
    steps.begin(directory)
    return steps


def test_a_file_counts_once_it_is_closed(writer: Writer, tmp_path: Path) -> None:
    steps, path, data = begun(tmp_path), tmp_path / "ckpt-100.npz", npz()
    writer.write(path, data[:99])
    assert not steps.proves_now(path, writer.pids)
    writer.do(f"write {data[99:].hex()}")
    assert not steps.proves_now(path, writer.pids)  # complete, but open
    writer.do("close")
    assert steps.proves_now(path, writer.pids)
    writer.kill()
    assert steps.proves_now(path, writer.pids)
    assert steps.proves_later(path, closed=False)
    assert list(committed_steps(tmp_path)) == []  # without a proof, nothing like this counts


def test_what_a_reader_has_open_counts(writer: Writer, tmp_path: Path) -> None:
    steps, path = begun(tmp_path), tmp_path / "ckpt-100.npz"
    writer.save(path, npz())
    writer.do(f"read {path}")
    assert steps.proves_now(path, writer.pids)


@pytest.mark.parametrize("data", [equinox(), equinox()[:-1]], ids=["complete", "torn"])
def test_what_a_killed_writer_left_open_never_counts(
    data: bytes, writer: Writer, tmp_path: Path
) -> None:
    steps, path = begun(tmp_path), tmp_path / "ckpt-100.eqx"
    writer.write(path, data)
    assert not steps.proves_now(path, writer.pids)
    writer.kill()
    assert not steps.proves_now(path, writer.pids)
    assert not steps.proves_later(path, closed=False)
    steps.begin(tmp_path)
    other = Writer()
    assert not steps.proves_now(path, other.pids)
    assert not steps.proves_later(path, closed=True)  # another attempt's exit proves nothing of it
    other.save(path, equinox())
    assert steps.proves_now(path, other.pids)
    other.kill()


def test_without_workers_nothing_is_proven(writer: Writer, tmp_path: Path) -> None:
    steps, path = begun(tmp_path), tmp_path / "ckpt-100.npz"
    writer.save(path, npz())
    assert not steps.proves_now(path, lambda: ())
    assert not steps.proves_now(path, lambda: (*writer.pids(), 1 << 22))  # one of two is gone


def test_what_nobody_saw_counts_after_an_exit_with_code_0(writer: Writer, tmp_path: Path) -> None:
    steps, path = begun(tmp_path), tmp_path / "ckpt-100.npz"
    writer.save(path, npz())
    writer.kill()
    assert not steps.proves_later(path, closed=False)
    assert steps.proves_later(path, closed=True)
    assert steps.proves_later(path, closed=False)
    path.write_bytes(npz() + b"\0")  # it is another one now
    assert not steps.proves_later(path, closed=True)


def test_what_was_there_before_the_first_attempt_counts_if_it_is_complete(tmp_path: Path) -> None:
    steps = ClosedSteps()
    (tmp_path / "ckpt-100.npz").write_bytes(npz())
    (tmp_path / "ckpt-200.npz").write_bytes(npz()[:-1])
    assert not steps.proves_later(tmp_path / "ckpt-100.npz", closed=False)
    proven = partial(steps.proves_later, closed=True)
    assert [step for step, _ in committed_steps(tmp_path, proven=proven)] == [100]
    steps.begin(tmp_path)
    assert [step for step, _ in committed_steps(tmp_path, proven=proven)] == [100]
    assert list(committed_steps(tmp_path, posix=False, proven=proven)) == []  # a mounted bucket


def test_a_folder_counts_when_all_its_files_are_closed(writer: Writer, tmp_path: Path) -> None:
    steps, step = begun(tmp_path), tmp_path / "checkpoint-100"
    step.mkdir()
    *first, last = transformers_files().items()
    for name, data in first:
        (step / name).write_bytes(data)
        assert not steps.proves_now(step, writer.pids)
    writer.write(step / last[0], last[1])
    assert not steps.proves_now(step, writer.pids)
    writer.do("close")
    assert steps.proves_now(step, writer.pids)
    (step / "optimizer.pt").write_bytes(b"")
    assert not steps.proves_now(step, writer.pids)


def test_a_file_of_an_own_layout_is_looked_into_if_its_suffix_is_known(
    writer: Writer, tmp_path: Path
) -> None:
    steps = ClosedSteps(OwnLayout(r"gpt2-(\d+)\.\w+", None))
    steps.begin(tmp_path)
    for name, data, counts in [
        ("gpt2-1.blob", b"x", True),
        ("gpt2-2.blob", b"", False),
        ("gpt2-3.npz", npz(), True),
        ("gpt2-4.npz", b"x", False),
    ]:
        writer.write(tmp_path / name, data)
        assert not steps.proves_now(tmp_path / name, writer.pids)
        writer.do("close")
        assert steps.proves_now(tmp_path / name, writer.pids) is counts
    (tmp_path / "gpt2-5.d").mkdir()
    assert not steps.proves_now(tmp_path / "gpt2-5.d", writer.pids)


def test_the_watcher_counts_what_was_closed_and_the_last_look_what_it_saw(
    writer: Writer, tmp_path: Path
) -> None:
    commits: Queue[SavedStep] = Queue()
    (tmp_path / "ckpt-100.npz").write_bytes(npz())
    assert checkpoint_source.newest_checkpoint(tmp_path, closed=True) == 100
    watcher = checkpoint_source.watch(tmp_path, writer.pids, commits.put, print, print)
    assert commits.get(timeout=PATIENCE).number == 100  # so the first look is over
    writer.save(tmp_path / "ckpt-200.npz", npz())
    watcher.poll_now()
    assert commits.get(timeout=PATIENCE).number == 200
    writer.write(tmp_path / "ckpt-300.npz", npz())
    writer.kill()
    watcher.stop()
    assert checkpoint_source.newest_checkpoint(tmp_path) == 200
    assert checkpoint_source.unproven_step(tmp_path, None, 200) == 300
    assert checkpoint_source.unproven_step(tmp_path, None, 300) is None


def test_a_file_is_open_by_its_writer_alone(writer: Writer, tmp_path: Path) -> None:
    path = tmp_path / "ckpt-100.npz"
    writer.write(path, b"x")
    seen = path.stat()
    files = {(seen.st_dev, seen.st_ino)}
    assert is_open_by(writer.pids(), files)
    assert not is_open_by([os.getpid(), 1 << 22], files)
    writer.do("close", f"read {path}")
    assert not is_open_by(writer.pids(), files)


STORM = """
import os, sys
from pathlib import Path
from tests.checkpoints.samples import equinox, flax_msgpack, npz, pickled, safetensors, torch_zip
makers = {"eqx": equinox, "msgpack": flax_msgpack, "npz": npz, "pkl": pickled, "pt": torch_zip,
          "safetensors": safetensors}
whole = {suffix: make() for suffix, make in makers.items()}

def write(folder):
    for step in range(1, 1 << 20):
        for suffix, data in whole.items():
            with open(folder / f"{suffix}" / f"step_{step}.{suffix}", "wb", buffering=0) as file:
                for at in range(0, len(data), 64):
                    file.write(data[at:at + 64])

for line in sys.stdin:
    if (pid := os.fork()) == 0:
        write(Path(line.strip()))
    print(pid, flush=True)
    os.waitpid(pid, 0)
    print("gone", flush=True)
"""
"""A program that forks a writer for each folder: all of them together import once."""


class Storms:
    """Starts writers, one after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, folder: Path) -> int:
        """Start a writer of steps in `folder`, which never ends; returns its pid."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder}\n")
        self._process.stdin.flush()
        return int(self._answer())

    def wait(self) -> None:
        """Wait until the writer that was killed is gone."""
        assert self._answer() == "gone\n"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def storms() -> Iterator[Storms]:
    with subprocess.Popen(
        [sys.executable, "-c", STORM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Storms(process)


def looks(folder: Path, steps: ClosedSteps, prove: Callable[[Path], bool]) -> set[Path]:
    return {path for _, path in committed_steps(folder, proven=prove)}


def struck(writers: Storms, folder: Path, seconds: float) -> tuple[int, int]:
    """Kill a writer after so many seconds, and look at its steps until then and afterwards; returns
    how many counted, and in how many formats one was torn."""
    suffixes = ["eqx", "msgpack", "npz", "pkl", "pt", "safetensors"]
    for suffix in suffixes:
        (folder / suffix).mkdir(parents=True)
    of = {suffix: begun(folder / suffix) for suffix in suffixes}
    pid = writers.start(folder)
    killer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
    killer.start()
    seen: set[Path] = set()
    while runs(pid):
        for suffix in suffixes:
            prove = partial(of[suffix].proves_now, workers=partial(list, [pid]))
            seen |= looks(folder / suffix, of[suffix], prove)
    writers.wait()
    whole: dict[str, int] = {}
    torn = 0
    for suffix in suffixes:
        prove = partial(of[suffix].proves_later, closed=False)
        assert looks(folder / suffix, of[suffix], prove) <= seen
        sizes = [path.stat().st_size for path in (folder / suffix).iterdir()]
        whole[suffix] = max(sizes, default=0)
        torn += any(size < whole[suffix] for size in sizes)
    assert {path for path in seen if path.stat().st_size < whole[path.parent.name]} == set()
    return len(seen), torn


@pytest.mark.slow
def test_no_torn_step_counts_however_its_writer_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print(f"SEED={seed}")
    drawn, counted, torn = random.Random(seed), 0, 0
    with storms() as writers:
        for number in range(200):
            whole, broken = struck(writers, tmp_path / str(number), drawn.uniform(0, 0.15))
            counted += whole
            torn += broken
    print(f"{counted} whole steps counted, {torn} torn ones did not")
    assert counted
    assert torn
