"""Fuzzes for a number of seconds, one sample after the other, each from a seed of its own.

Each finding is printed with the options that repeat it (`--seed K --only N`), and its input is
kept.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import socket
import stat
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.fuzz.mutations import mutated
from tests.fuzz.target import Target
from tests.fuzz.targets import targets

HANGS = 60.0
"""Seconds after which a reader counts as hung; then the process ends with a traceback."""
SLOW = 10.0
"""Seconds of processor time that no read may exceed."""
GROWTH = 256 << 20
"""Bytes by which this process may grow, whatever it reads."""


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def memory(path: Path) -> None:
    path.symlink_to("/proc/self/mem")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def listening(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(path.name)
    finally:
        os.chdir(here)


def directory(path: Path) -> None:
    path.mkdir()


def terabyte(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def device(path: Path) -> None:
    with suppress(PermissionError):  # only root can make one
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))


CLASSICS: tuple[Callable[[Path], None], ...] = (
    fifo, zeros, memory, loop, listening, directory, terabyte, device,
)  # fmt: skip


def main() -> int:
    """Run the command line. Returns the exit code: 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, help="the number of one sample of that seed")
    parser.add_argument("--target", help="the name of one format")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="fuzz") as place, targets(Path(place)) as found:
        chosen = [one for one in found if options.target in (None, one.name)]
        run = _Run(options.seed)
        for target in chosen:
            run.warm_up(target)
        run.begin()
        if options.only is not None:
            run.sample(chosen, options.only)
        else:
            for target in chosen:
                run.plant(target)
            end, number = time.monotonic() + options.seconds, 0
            while time.monotonic() < end:
                run.sample(chosen, number)
                number += 1
    return run.told()


class _Run:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._count: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._took: defaultdict[str, float] = defaultdict(float)
        self._wrong: dict[str, str] = {}
        self._before = 0

    def warm_up(self, target: Target) -> None:
        """Read the valid sample: it must be readable, and lazy imports happen now."""
        target.read(target.sample)

    def begin(self) -> None:
        self._before = _resident()

    def plant(self, target: Target) -> None:
        """Put things that are no regular files in place of the file, and read them."""
        for classic in CLASSICS if target.file is not None else ():
            assert target.file is not None
            _remove(target.file)
            classic(target.file)
            self._read(target, f"{target.name} is a {classic.__name__}", b"", target.look)
            _remove(target.file)

    def sample(self, chosen: list[Target], number: int) -> None:
        """Read one changed sample of one format."""
        rng = Random(f"{self._seed} {number}")
        target = rng.choice(chosen)
        data = mutated(target.sample, rng)
        what = f"{target.name}, --seed {self._seed} --only {number}"
        self._read(target, what, data, lambda: target.read(data))

    def _read(self, target: Target, what: str, data: bytes, read: Callable[[], object]) -> None:
        self._count[target.name] += 1
        faulthandler.dump_traceback_later(HANGS, exit=True)
        began = time.process_time()
        try:
            read()
        except target.refused as error:
            self._refused[target.name] += 1
            ours = type(error).__module__.startswith("supervisor.")
            if ours and not all(line.isprintable() for line in str(error).split("\n")):
                self._found(what, data, f"an error that would move a cursor: {str(error)[:500]!r}")
        except Exception:
            self._found(what, data, traceback.format_exc())
        took, grown = time.process_time() - began, _resident() - self._before
        self._took[target.name] += took
        if took > SLOW:
            self._found(what, data, f"took {took:.1f} s")
        if grown > GROWTH:
            self._found(what, data, f"this process has grown by {grown >> 20} MiB")
            self._before += grown
        if target.file is not None and not target.file.is_file():
            _remove(target.file)
            target.file.parent.mkdir(parents=True, exist_ok=True)

    def _found(self, what: str, data: bytes, text: str) -> None:
        last = text.strip().splitlines()[-1]
        place = next((line for line in reversed(text.splitlines()) if "/supervisor/" in line), "")
        if (key := f"{last[:60]} {place}") in self._wrong:
            return
        with tempfile.NamedTemporaryFile(prefix="fuzz-", suffix=".bin", delete=False) as file:
            file.write(data)
        self._wrong[key] = f"{what} ({len(data)} bytes, kept in {file.name})\n{text}"
        print(self._wrong[key], file=sys.stderr, flush=True)

    def told(self) -> int:
        faulthandler.cancel_dump_traceback_later()
        for name, count in sorted(self._count.items()):
            each = f"{self._took[name] / count * 1e3:.1f} ms each"
            print(f"{name}: {count} read, {self._refused[name]} of them refused, {each}")
        grown = max(0, _resident() - self._before) >> 20
        total = sum(self._count.values())
        print(f"{total} samples, grown by {grown} MiB, {len(self._wrong)} things wrong")
        return 1 if self._wrong else 0


def _resident() -> int:
    pages = Path("/proc/self/statm").read_bytes().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()


if __name__ == "__main__":
    sys.exit(main())
