"""The least child that a supervisor can have: says when it began, waits a little, dies by SIGKILL.

python -P benchmarks/trivial.py RECORD DEATHS HOLD

Each line of RECORD is `began` or `dies` and the monotonic clock in seconds. Once it has died DEATHS
times, it exits 0. It prints a few steps: whoever prepares a standby waits for them.
"""

from time import monotonic, sleep

began = monotonic()

import os  # noqa: E402  (the first line of the program is what is timed)
import signal  # noqa: E402
import sys  # noqa: E402


def _say(word: str, at: float) -> None:
    os.write(record, f"{word} {at}\n".encode())


record = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
_say("began", began)
died = os.pread(record, 1 << 20, 0).count(b"dies")
for step in range(10):
    os.write(1, f"step {step}\n".encode())
    sleep(float(sys.argv[3]) / 10)
if died >= int(sys.argv[2]):
    sys.exit(0)
_say("dies", monotonic())
os.kill(os.getpid(), signal.SIGKILL)
