"""Fault injection: real faults that a worker causes in itself, because the config asks for them.

A fault fires once per job. Before it fires, the worker writes a file durably, which shows the
supervisor and every later attempt that it has fired.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol import environment, simulated
from supervisor.protocol.messages import Stage

SIMULATED = {
    "device_lost": simulated.mark_lost,
    "device_wrong_result": simulated.mark_wrong,
    "device_flips_bits": simulated.mark_flipping,
    "device_returns": simulated.mark_healthy,
    "host_lost": simulated.mark_lost,
}
"""Faults of simulated devices: the key in `faults:`, and the function that breaks the unit which
the key names (or makes it healthy again)."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One fault: when it fires (either `step` or `stage`), and exactly one of the fault fields."""

    id: str
    step: int | None = None
    """Fires right after this optimizer step."""
    stage: str | None = None
    """Fires when an attempt enters this stage for the first time."""
    rank: int = 0
    """The rank of the worker that causes it in itself."""
    signal: str | None = None
    exception: str | None = None
    message: str = "injected by a drill"
    exit_code: int | None = None
    hang: bool = False
    slow_input: float | None = None
    """From then on each batch of the attempt takes so many seconds more."""
    device_lost: str | None = None
    device_wrong_result: str | None = None
    device_flips_bits: str | None = None
    device_returns: str | None = None
    host_lost: str | None = None

    def describe(self) -> str:
        """Describe for people which fault fires, when and where."""
        when = f"right after step {self.step}" if self.stage is None else f"in stage {self.stage}"
        where = f" on rank {self.rank}" if self.rank else ""
        return f"{self._what()} {when}{where}"

    def _what(self) -> str:
        for kind in SIMULATED:
            if (unit := getattr(self, kind)) is not None:
                return f"{kind} {unit} (simulated)"
        if self.exit_code is not None:
            return f"exit code {self.exit_code}"
        if self.slow_input is not None:
            return f"batches that come {self.slow_input:g} s late"
        return self.signal or self.exception or "hang"


class FaultInjector:
    """Fires the faults that have not fired in this job yet."""

    def __init__(self, faults: tuple[InjectedFault, ...], records: Path) -> None:
        """`records` is the directory in which a fault is recorded before it fires."""
        self._due: dict[int | str, list[InjectedFault]] = {}
        for fault in faults:
            moment = fault.step if fault.stage is None else fault.stage
            if moment is not None:
                self._due.setdefault(moment, []).append(fault)
        self._records = records
        self._batch_delay = 0.0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> FaultInjector:
        """Return the injector with the faults that the supervisor gave to this worker. Without a
        supervisor there are no faults."""
        given = json.loads(environ.get(environment.FAULTS, "{}"))
        faults = tuple(InjectedFault(**fault) for fault in given.get("faults", []))
        return cls(faults, Path(given.get("records", ".")))

    def before_batch(self) -> None:
        """Let the next batch come late, if a fault said so."""
        if self._batch_delay:
            time.sleep(self._batch_delay)

    def after_step(self, step: int) -> None:
        """Fire the faults that are due after optimizer step `step`."""
        self._fire_due(step)

    def on_entering(self, stage: Stage) -> None:
        """Fire the faults that are due in `stage`, which was just entered and reported."""
        self._fire_due(stage.value)

    def _fire_due(self, moment: int | str) -> None:
        for fault in self._due.pop(moment, ()):
            self._record(fault)
            self._batch_delay = fault.slow_input or self._batch_delay
            _fire(fault)

    def _record(self, fault: InjectedFault) -> None:
        self._records.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._records / fault.id, os.O_CREAT | os.O_WRONLY, 0o666)
        os.fsync(descriptor)
        os.close(descriptor)
        folder = os.open(self._records, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def _fire(fault: InjectedFault) -> None:
    print(f"DRILL {fault.id} fires: {fault.describe()}", flush=True)
    if fault.signal is not None:
        os.kill(os.getpid(), signal.Signals[fault.signal])
    if fault.exit_code is not None:
        os._exit(fault.exit_code)
    if fault.exception is not None:
        module, _, name = fault.exception.rpartition(".")
        raise getattr(importlib.import_module(module or "builtins"), name)(fault.message)
    for kind, change in SIMULATED.items():
        if (unit := getattr(fault, kind)) is not None:
            change(_simulated_devices(fault), unit)
    while fault.hang:
        time.sleep(3600)


def _simulated_devices(fault: InjectedFault) -> Path:
    held = simulated.HeldDevices.from_environment()
    if held is None:
        raise RuntimeError(f"the drill {fault.id} needs simulated devices: platform cpu")
    return held.file
