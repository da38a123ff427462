"""A witness inside each trainer process. Python itself imports it before the trainer runs.

It holds a kernel lock for as long as the process lives. So two trainers that run at once are
detected without the supervisor's help. It also records which steps were committed when the process
began. A standby is not a trainer yet, and this module has run already when it becomes one, so such
attempts have no statement.

It also starts a process in a session of its own with an empty environment, so that no supervisor
can recognise it by these. None of these processes may outlive its attempt.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path


def _testify(folder: Path) -> None:
    from supervisor.protocol.committed import committed_steps

    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = True
    except BlockingIOError:
        alone = False
    checkpoints = Path(os.environ["CHAOS_CHECKPOINTS"])
    statement = {
        "attempt": int(os.environ["SUPERVISE_ATTEMPT"]),
        "pid": os.getpid(),
        "time": time.time(),
        "alone": alone,
        "committed": [
            [step, path.stat().st_ino, path.stat().st_mtime_ns]
            for step, path in committed_steps(checkpoints)
        ],
    }
    record = os.open(folder / "statements.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666)
    os.write(record, json.dumps(statement).encode() + b"\n")
    os.close(record)
    # `lock` stays open: the kernel releases it when this process is gone, however it ends.


def _hide_a_process(folder: Path) -> None:
    process = subprocess.Popen(
        ["/bin/sleep", "3600"],
        env={},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with (folder / "hidden.txt").open("a") as file:
        file.write(f"{process.pid}\n")


_is_trainer = sys.orig_argv[1:4] == ["-P", "-m", "trainer"]
if "CHAOS_WITNESS" in os.environ and _is_trainer and "SUPERVISE_STANDBY" not in os.environ:
    _testify(Path(os.environ["CHAOS_WITNESS"]))
    _hide_a_process(Path(os.environ["CHAOS_WITNESS"]))
