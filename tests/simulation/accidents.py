"""How a rank dies: its exit, and the failure record that it leaves, if any."""

from __future__ import annotations

from collections.abc import Collection

from supervisor.config.judgement import Remedy
from supervisor.diagnosis.failure import WorkerExit
from supervisor.protocol.failure_record import ExceptionInfo, FailureRecord
from tests.simulation.chance import Chance
from tests.simulation.group import Group

_TELLS = {
    Remedy.LESS_AT_ONCE: ("JaxRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 9 B"),
    Remedy.ROLL_BACK: ("FloatingPointError", "the loss is nan"),
    Remedy.WAIT: ("JaxRuntimeError", "The TPU is already in use by process with pid 5"),
    Remedy.WAIT_LONG: ("RefreshError", "invalid_grant: Token has been expired or revoked"),
    Remedy.WAIT_FOR_CAPACITY: ("RuntimeError", "There is no more capacity in the zone"),
    Remedy.WAIT_FOR_STORAGE: ("RuntimeError", "503 Service Unavailable"),
}
"""Type and message of the exception of a rank that dies of something with this remedy."""

_TOO_SMALL = {True: "CompileTimeHbmOom: it does not fit", False: "it does not fit"}
"""The message if the program does not fit a rung; the key: whether that is certain."""

_COMPILES = """Traceback (most recent call last):
  File "/site-packages/jax/compiler.py", line 1, in backend_compile
jax.errors.JaxRuntimeError: it does not fit
"""

_HARDWARE = "observed errors are: [Hardware]"

Death = tuple[WorkerExit, FailureRecord | None]


class Accidents:
    """Draws how ranks die."""

    def __init__(self, chance: Chance) -> None:
        self.scenario = chance.scenario
        self._chance = chance

    def any(self, group: Group, rank: int) -> Death:
        """Return the end of a rank, of one of many kinds."""
        chance, faults = self._chance, self._chance.faults
        if chance.happens(faults.fatal):
            return self._fatal(rank)
        if chance.happens(faults.preempted):
            if chance.happens(0.5):
                return WorkerExit(rank, signal="SIGTERM"), None
            return WorkerExit(rank, code=143), None
        if chance.happens(faults.repeats):
            word = chance.rng.choice(("wrong", "odd", "strange"))
            record = self._record(rank, "OddError", f"this is {word}", group.step)
            return WorkerExit(rank, code=chance.rng.choice((1, 134))), record
        if chance.happens(faults.remedied):
            completed = group.step if chance.happens(0.5) else None
            return self.with_remedy(rank, chance.rng.choice([*Remedy]), completed)
        kind = chance.rng.randrange(5)
        if kind == 0:
            return self.peer_failure(rank)
        if kind == 1:
            return WorkerExit(rank, code=chance.rng.choice((1, 134, 137))), None
        return WorkerExit(rank, signal=chance.rng.choice(("SIGKILL", "SIGSEGV", "SIGABRT"))), None

    def _fatal(self, rank: int) -> Death:
        """Return an end that looks as if it would always come again. Only one kind of these is
        certain to."""
        rng = self._chance.rng
        kind = rng.randrange(3)
        if kind == 0:
            return WorkerExit(rank, code=rng.choice((126, 127))), None
        if kind == 1:
            return self._failed(rank, "SyntaxError", "invalid syntax")
        return WorkerExit(rank, code=134), self._record(rank, "AssertionError", "no")

    def with_remedy(self, rank: int, remedy: Remedy, completed: int | None) -> Death:
        """Return the end of a rank that dies of something with a remedy, and says so."""
        kind, message = _TELLS[remedy]
        return self._failed(rank, kind, message, completed)

    def disk_failure(self, group: Group, *, is_full: bool) -> Death:
        """Return the end of a rank that cannot save: the disk is full, or cannot be reached."""
        words = ["[Errno 5] Input/output error"]
        if is_full:
            words = ["[Errno 28] No space left on device", "short write: saving failed"]
        word = self._chance.stream("disk").rng.choice(words)
        return self._failed(group.ranks[0], "OSError", word, group.step)

    def peer_failure(self, rank: int) -> Death:
        """Return the end of a rank that fails because another one has died."""
        return self._failed(rank, "JaxRuntimeError", "Socket closed")

    def too_small_rung(self) -> tuple[WorkerExit, FailureRecord]:
        """Return the end of a rank whose program cannot be compiled for so few devices."""
        text = _TOO_SMALL[self.scenario.too_small_for_sure]
        record = self._record(0, "JaxRuntimeError", text, traceback=_COMPILES)
        return WorkerExit(0, code=1), record

    def wrong_unit(self) -> Death:
        """Return the end of a worker that notices that a device computes wrong results."""
        return self._failed(0, "JaxRuntimeError", _HARDWARE)

    def lost_unit(self, group: Group, missing: Collection[str]) -> Death:
        """Return the end of a rank of the group, one of whose units is lost."""
        rank = 0
        if len(group.ranks) > 1:
            rank = next(r for r, unit in enumerate(group.units) if unit in missing)
            if self._chance.happens(0.5):
                return WorkerExit(rank, signal="SIGKILL"), None
        kind = "DevicesMissing" if group.step == (group.resumed_from or 0) else "RuntimeError"
        return self._failed(rank, kind, _HARDWARE)

    def missing_file(self, group: Group) -> Death:
        """Return the end of a rank that does not find a file."""
        rank = self._chance.rng.choice(group.ranks)
        word = self._chance.rng.choice(("train", "train", "eval"))
        completed = group.step if self._chance.happens(0.5) else None
        return self._failed(rank, "FileNotFoundError", f"no such file: {word}", completed)

    def _failed(
        self, rank: int, kind: str, message: str, completed: int | None = 1
    ) -> tuple[WorkerExit, FailureRecord]:
        return WorkerExit(rank, code=1), self._record(rank, kind, message, completed)

    def _record(
        self,
        rank: int,
        kind: str,
        message: str,
        completed: int | None = 1,
        traceback: str = "Traceback ...",
    ) -> FailureRecord:
        bases = (kind, "builtins.Exception", "builtins.BaseException")
        chain = (ExceptionInfo(kind, bases, message, "raised"),)
        return FailureRecord(rank, self._chance.clock.time, "TRAINING", completed, chain, traceback)
