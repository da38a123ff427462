"""The simplest child of a supervisor: records when it began, waits, and kills itself with SIGKILL.

python -P benchmarks/trivial.py RECORD DEATHS HOLD

Each line of RECORD is `began` or `dies` and the monotonic clock in seconds. It waits HOLD seconds.
After DEATHS deaths it exits with 0. It prints ten steps: supervise waits for steps before it
prepares a standby.
"""

from time import monotonic, sleep

began = monotonic()

import os  # noqa: E402  (the time of the first line is measured)
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
