"""Measures how fast `supervise classify` reads a large log, in how much memory, and what it finds.

    python -m benchmarks.classify [--quick] [--json FILE]

Writes a log of 1 GiB to a temporary directory: ordinary lines of a trainer, a root cause in the
middle, a teardown that waits for other tasks, and a flood of its noise at the end. Runs the command
on it and reports seconds, MB/s, the largest resident set and the verdict; and the seconds of `cat`
for comparison.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Report, options

ROOT = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 141, in <module>\n'
    "    main()\n"
    '  File "/app/train.py", line 64, in main\n'
    "    check(batch)\n"
    "ValueError: token id 50300 out of range for vocab_size=50257 at step 1234\n"
)
WAITING = (
    "W1121 08:56:{:02d}.{:06d}   25720 coordination_service_agent.cc:417] Shutdown barrier: {} ms "
    "since the last answer of another task\n"
)
NOISE = (
    "E1121 09:17:27.577485   25720 coordination_service_agent.cc:429] Polled an error from "
    "coordination service (this can be an error from this or another task).\n"
    "Exception ignored in: <function Pool.__del__ at 0x7f3a>\n"
    "Traceback (most recent call last):\n"
    '  File "/usr/lib/python3.11/multiprocessing/pool.py", line 271, in __del__\n'
    "RuntimeError: Event loop is closed\n"
)


def write_log(path: Path, size: int) -> None:
    """Write a log of about `size` bytes."""
    numbers = range(20_000)
    waiting = "".join(WAITING.format(n % 60, n, n) for n in numbers).encode()
    block = "".join(
        f"I1121 08:55:{n % 60:02d}.{n:06d} 140586592308096 trainer.py:129] step {n} loss 5.90{n}\n"
        for n in numbers
    ).encode()
    with path.open("wb") as file:
        while file.tell() < size // 2:
            file.write(block)
        file.write(ROOT.encode())
        while file.tell() < size * 9 // 10:
            file.write(waiting)
        while file.tell() < size:
            file.write(NOISE.encode() * 1000)


def measure(argv: list[str]) -> tuple[float, bytes]:
    """Run a command; returns the seconds that it took, and its standard output."""
    begin = time.perf_counter()
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=False)
    return time.perf_counter() - begin, done.stdout


def main() -> None:
    """Measure and report."""
    given = options(__doc__)
    report = Report("classify")
    size = (64 if given.quick else 1024) << 20
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "rank0.log"
        write_log(log, size)
        # Reads the log into the page cache.
        subprocess.run(["cat", str(log)], stdout=subprocess.DEVNULL, check=True)
        cat, _ = measure(["sh", "-c", f"cat {log} | cat > /dev/null"])
        command = [sys.executable, "-m", "supervisor", "classify", "--exit-code", "1", "--json"]
        seconds, out = measure([*command, str(log)])
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    found = json.loads(out)
    report.figure("log_mb", size / 1e6)
    report.figure("cat_s", cat)
    report.figure("classify_s", seconds)
    report.figure("classify_mb_per_s", size / 1e6 / seconds)
    report.figure("classify_memory_mib", memory)
    report.samples["found"] = {name: found[name] for name in ("verdict", "rule", "root_line")}
    report.finish(given.json)


if __name__ == "__main__":
    main()
