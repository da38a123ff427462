"""Owns a folder by a lease, with one worker, beside clocks and a storage that a test disturbs.

held.py FOLDER RENEW: the clocks jump by what `FOLDER/jump` says, in seconds of sleep; while
`FOLDER/hang` is there, the storage of the lease answers nothing.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from supervisor.adapters.kernel import clock_watch
from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.adapters.processes.worker_process import WorkerProcess
from supervisor.adapters.stores.lease import LeaseExpiredError, LeaseTakenError, LeaseTimes
from supervisor.adapters.stores.lease_places import LeaseFile
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.core.clock_jump import ClockReading
from supervisor.core.exit_codes import ExitCode
from supervisor.engines.guard_watch import keep_guard
from supervisor.model_dir_ownership import Exclusion, ModelDir, own_model_dir
from supervisor.ports import StoredObject
from supervisor.protocol.location import Uri

TOKEN = "a" * 32


class HangingPlace:
    """A lease in a file that hangs on request."""

    def __init__(self, folder: Path) -> None:
        self._file = LeaseFile(LocalStorage(folder), settle=0.01)
        self._hang = folder / "hang"

    def read(self) -> StoredObject:
        """See `lease.LeasePlace`."""
        self._wait()
        return self._file.read()

    def write(self, data: bytes, expected: str) -> str:
        """See `lease.LeasePlace`."""
        self._wait()
        return self._file.write(data, expected)

    def _wait(self) -> None:
        while self._hang.exists():
            time.sleep(0.01)


def clocks(folder: Path) -> ClockReading:
    """The clocks of this machine, and the sleep that the test has it sleep."""
    now = clock_watch.read_clocks()
    jumps = folder / "jump"
    slept = float(jumps.read_text()) if jumps.exists() else 0.0
    return replace(now, boot=now.boot + slept, wall=now.wall + slept)


def end(code: ExitCode, why: str) -> None:
    print(why, flush=True)
    os._exit(code)


def main(folder: Path, renew: float) -> int:
    clock = SystemClock()
    reactor = Reactor(clock)
    model_dir = ModelDir(folder, LocalStorage(folder), (Uri("gs", "b"), HangingPlace(folder)))
    times = LeaseTimes(duration=60.0, renew=renew)
    exclusion = Exclusion(flock=False, lease=times, clocks=lambda: clocks(folder))
    with keep_guard(reactor, clock) as guard:
        worker = WorkerProcess(guard, ["sleep", "60"], env=os.environ, output=2)
        try:
            with own_model_dir(model_dir, TOKEN, clock, reactor, guard, exclusion, print, end):
                print(f"worker {worker.pid}", flush=True)
                while True:
                    for event in reactor.wait(None):
                        print(event, flush=True)
        except (LeaseTakenError, LeaseExpiredError) as error:
            print(f"lost: {error}", flush=True)
            # what loses the lease kills it, in another thread
            return 9 if worker.wait().signal == "SIGKILL" else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))
