"""A bucket on this host, and machines that come and go. Each machine has a working directory, a
disk and processes of its own, and loses them in an instant."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.adapters.stores.bucket import bucket
from supervisor.adapters.stores.fetch import read_growing
from supervisor.protocol.location import Uri
from tests.running import Running, Start, power_off

_MACHINE = "SUPERVISE_TEST_MACHINE"


@dataclass(frozen=True)
class Machine:
    """The machine that runs the command now; its state folders are on `disk`."""

    disk: Path
    name: str
    running: Running

    def vanish(self) -> None:
        """Power the machine off without warning. Its disk is gone as well."""
        self.lose_power()
        shutil.rmtree(self.disk)

    def lose_power(self) -> None:
        """Power the machine off without warning. Its disk may come back."""
        power_off(f"{_MACHINE}={self.name}")
        self.running.process.wait()


@dataclass
class Cloud:
    """A job in a bucket, and the machines that run it. The environment leads all clients to the
    emulator."""

    place: Uri
    home: Path
    start: Start
    env: Mapping[str, str] = field(default_factory=dict)

    def machine(
        self,
        job: Mapping[str, Any],
        disk: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Machine:
        """Run the command in a new working directory; on a new, empty disk if `disk` is None."""
        name = uuid.uuid4().hex
        there = self.home / name
        there.mkdir(parents=True)
        disk = disk or self.home / f"disk-{name}"
        disk.mkdir(exist_ok=True)
        env = {**self.env, "XDG_STATE_HOME": str(disk), _MACHINE: name, **(environ or {})}
        running = self.start(job, env=env, prefix=("env", "-C", str(there)))
        return Machine(disk, name, running)

    def journal(self) -> list[dict[str, Any]]:
        """Return the events in the bucket's journal."""
        lines = (self._read("journal.jsonl") or b"").splitlines()
        bodies = (json.loads(line) for line in lines)
        return [body["event"] for body in bodies if "event" in body]

    def attempts(self) -> list[int]:
        """Return the numbers of the attempts that ran, in order."""
        return [e["attempt"] for e in self.journal() if e["kind"] == "WorkersStarted"]

    def log(self) -> str:
        """Return the bucket's run.log."""
        return (self._read(f"{self._phase()}/run.log") or b"").decode()

    def summary(self) -> dict[str, Any]:
        """Return the bucket's summary."""
        return dict(json.loads(bucket(self.place).read(f"{self._phase()}/summary.json").data))

    def _phase(self) -> str:
        (phase,) = (
            name for name in bucket(self.place).list("").folders if name.endswith("_restartable")
        )
        return phase

    def _read(self, name: str) -> bytes | None:
        return read_growing(bucket(self.place), name, _damaged)


def _damaged(what: str) -> None:
    raise AssertionError(what)
