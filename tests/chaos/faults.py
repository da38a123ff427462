"""The kinds of fault, as data: what strikes, and what the supervisor must say about it afterwards.

Either the trainer injects a fault into itself because the config asks for it (a drill), or the
fault strikes from outside. The list has only faults that a job can survive: none that a rule calls
FATAL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from supervisor.diagnosis.rules import DISK_FULL
from tests.chaos import hostile, strikes
from tests.chaos.job import SECRET, Job, Sign

Strike = Callable[[Job], str]
"""Inflicts a fault; returns a text for the table, perhaps empty."""


class Effect(StrEnum):
    """What a fault ends."""

    NOTHING = "nothing"
    ATTEMPT = "the attempt"
    RUN = "the command, which is run again"


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault. Exactly one of `injected` and `strike` is set."""

    group: str
    name: str
    expected: Sign | None
    """The event by which the supervisor shows that it has noticed the fault; None: it need not."""
    injected: dict[str, Any] | None = None
    strike: Strike | None = None
    effect: Effect = Effect.ATTEMPT
    exit_code: int | None = None
    """The exit code of the command, if the fault ends the command."""
    seconds: float = 0.0
    """Seconds that the strike takes, if that is long."""
    needs_disk: bool = False
    """Whether model_dir must be on a small disk of its own."""

    @property
    def stage(self) -> str | None:
        """The stage in which the fault strikes; None: it strikes at a step."""
        return self.injected.get("stage") if self.injected is not None else None

    @property
    def at_the_end(self) -> bool:
        """Whether it strikes in a stage that an undisturbed trainer reaches only at its end."""
        return self.stage in ("SAVING", "FINISHING")


def _rule(name: str) -> Sign:
    return Sign("verdict", {"code": name})


_OUTSIDE_SIGNALS = {
    "SIGKILL": "sigkill",
    "SIGTERM": "sigterm",
    "SIGSEGV": "crash",
    "SIGABRT": "abort",
    "SIGBUS": "crash",
    "SIGTRAP": "crash",
    "SIGSYS": "crash",
    "SIGHUP": "hangup",
    "SIGQUIT": "hangup",
    "SIGALRM": "unknown",
    "SIGXCPU": "limit-signal",
}
_INJECTED_SIGNALS = {
    "SIGKILL": "sigkill",
    "SIGTERM": "sigterm",
    "SIGSEGV": "crash",
    "SIGABRT": "abort",
    "SIGBUS": "crash",
}
_EXIT_CODES = {
    0: "early-exit",
    1: "unknown",
    134: "abort",
    137: "sigkill",
    143: "sigterm",
}
_JAX = "jax.errors.JaxRuntimeError"
_EXCEPTIONS = [
    ("OSError", "a batch of no length", "exception"),
    ("OSError", f"the data loader gave up on db://user:{SECRET}@host", "exception"),
    ("OSError", "Input/output error", "storage"),
    ("OSError", "No space left on device", "disk-full"),
    ("MemoryError", "", "resource-limit"),
    ("EOFError", "tokens", "pipe"),
    ("TimeoutError", "storage did not answer", "timeout"),
    ("ConnectionResetError", "Connection reset by peer", "lost-peer"),
    (_JAX, "INTERNAL: something went wrong", "exception"),
    (_JAX, "RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes", "out-of-memory"),
    (_JAX, "UNAVAILABLE: Socket closed", "lost-peer"),
]
_HANGS = (
    "STARTING",
    "INITIALIZING",
    "RESTORING",
    "COMPILING",
    "TRAINING",
    "EVALUATING",
    "SAVING",
    "FINISHING",
)
_IN_STAGES: list[tuple[str, dict[str, Any], str]] = [
    ("INITIALIZING", {"exception": "RuntimeError", "message": "Unable to initialize backend"}, ""),
    ("RESTORING", {"exception": "OSError", "message": "Input/output error"}, "storage"),
    ("RESTORING", {"signal": "SIGKILL"}, "sigkill"),
    ("COMPILING", {"signal": "SIGSEGV"}, "crash"),
    ("EVALUATING", {"exception": "OSError", "message": "an odd batch"}, "exception"),
    ("SAVING", {"exception": "OSError", "message": "No space left on device"}, "disk-full"),
    ("SAVING", {"signal": "SIGKILL"}, "sigkill"),
    ("FINISHING", {"signal": "SIGABRT"}, "abort"),
]


def _what(fault: dict[str, Any]) -> str:
    name = str(fault.get("signal") or fault["exception"].rpartition(".")[2])
    message = fault.get("message", "").partition(":")[0]
    return f"{name} ({message})" if message else name


def _injected() -> list[Fault]:
    found = [Fault("injected: hang", "hang after a step", _rule("hang"), {"hang": True})]
    for name, rule in _INJECTED_SIGNALS.items():
        found.append(Fault("injected: signal", f"{name} by itself", _rule(rule), {"signal": name}))
    for code, rule in _EXIT_CODES.items():
        name = f"exit code {code}"
        found.append(Fault("injected: exit code", name, _rule(rule), {"exit_code": code}))
    for kind, message, rule in _EXCEPTIONS:
        raised = {"exception": kind, "message": message}
        found.append(Fault("injected: exception", _what(raised), _rule(rule), raised))
    for stage in _HANGS:
        hang = {"stage": stage, "hang": True}
        found.append(Fault("injected: hang", f"hang in {stage}", _rule("hang"), hang))
    for stage, fault, rule in _IN_STAGES:
        expected = _rule(rule or "backend-failed")
        name = f"{_what(fault)} in {stage}"
        found.append(Fault("injected: stage", name, expected, {"stage": stage, **fault}))
    return found


def _outside() -> list[Fault]:
    def fault(group: str, name: str, expected: Sign, strike: Strike, effect: Effect) -> Fault:
        return Fault(group, name, expected, strike=strike, effect=effect)

    signals = [
        fault(
            "trainer: signal",
            f"{name} to the trainer",
            _rule(rule),
            strikes.signal_to_trainer(name),
            Effect.ATTEMPT,
        )
        for name, rule in _OUTSIDE_SIGNALS.items()
    ]
    stopped = strikes.signal_to_trainer("SIGSTOP")
    lost = strikes.lose_attempts
    return [
        *signals,
        fault("trainer: stopped", "SIGSTOP to the trainer", _rule("hang"), stopped, Effect.ATTEMPT),
        Fault(
            "disk",
            "disk full",
            _rule(DISK_FULL),
            strike=strikes.fill_disk,
            seconds=1.0,
            needs_disk=True,
        ),
        fault(
            "guard: killed",
            "SIGKILL to the guard",
            _rule("guard-lost"),
            hostile.kill_guard,
            Effect.ATTEMPT,
        ),
        fault(
            "files: hostile",
            "a FIFO as failure record, trainer killed",
            _rule("sigkill"),
            strikes.both(hostile.fifo_as_failure, strikes.signal_to_trainer("SIGKILL")),
            Effect.ATTEMPT,
        ),
        fault(
            "files: hostile",
            "an endless failure record, trainer killed",
            _rule("sigkill"),
            strikes.both(hostile.endless_failure, strikes.signal_to_trainer("SIGKILL")),
            Effect.ATTEMPT,
        ),
        Fault(
            "files: foreign",
            "disk full, an attempt folder leads outside",
            _rule(DISK_FULL),
            strike=strikes.both(hostile.link_attempt_outside, strikes.fill_disk),
            seconds=1.0,
            needs_disk=True,
        ),
        fault(
            "files: lost",
            "attempts folder lost, trainer killed",
            _rule("sigkill"),
            strikes.both(lost, strikes.signal_to_trainer("SIGKILL")),
            Effect.ATTEMPT,
        ),
        fault(
            "files: lost",
            "attempts folder lost, trainer stopped",
            _rule("hang"),
            strikes.both(lost, stopped),
            Effect.ATTEMPT,
        ),
    ]


def _harmless() -> list[Fault]:
    def fault(
        group: str,
        name: str,
        strike: Strike,
        expected: Sign | None = None,
        seconds: float = 0.0,
    ) -> Fault:
        return Fault(group, name, expected, strike=strike, effect=Effect.NOTHING, seconds=seconds)

    return [
        fault("harmless", "SIGINT to the trainer", strikes.signal_to_trainer("SIGINT")),
        fault("harmless", "SIGPIPE to the trainer", strikes.signal_to_trainer("SIGPIPE")),
        fault("harmless", "SIGUSR2 to the trainer", strikes.signal_to_trainer("SIGUSR2")),
        fault("paused", "supervisor stopped for 1 s", strikes.pause_supervisor(1.0), seconds=1.0),
        fault("paused", "supervisor stopped for 5 s", strikes.pause_supervisor(5.0), seconds=5.0),
        fault("double start", "a second supervisor", strikes.start_second, seconds=2.0),
        fault(
            "double start",
            "owner file lost, a second supervisor",
            strikes.both(strikes.lose(".supervisor.json"), strikes.start_second),
            seconds=2.0,
        ),
        fault("files: lost", "run.log lost", strikes.lose("*_restartable/run.log")),
        fault("files: lost", "summary.json lost", strikes.lose("*_restartable/summary.json")),
        fault("files: lost", "params.yaml lost", strikes.lose("*_restartable/params.yaml")),
        fault("files: foreign", "foreign folders among the steps", hostile.plant_folders),
        fault("files: foreign", "a step that is being copied in", hostile.plant_copy),
        fault("files: foreign", "a folder in the way of a save", hostile.plant_in_the_way),
        fault("files: hostile", "a step with a FIFO", hostile.plant_fifo_step),
        fault("files: hostile", "a step with an endless file", hostile.plant_endless_step),
        fault("files: hostile", "a request of 200,000 brackets", hostile.plant_request),
        fault(
            "files: hostile",
            "a hostile owner file, a second supervisor",
            strikes.both(hostile.plant_owner, strikes.start_second),
            seconds=2.0,
        ),
        fault("paused", "the host frozen for 3 s", hostile.freeze_host(3.0), seconds=3.0),
        fault(
            "progress pipe",
            "garbage on the progress pipe",
            strikes.garbage_on_progress_pipe,
            Sign("message-refused", {"rank": 0}),
        ),
    ]


_KILLED = Sign("supervisor-lost")


def _ends_of_runs() -> list[Fault]:
    def killed(name: str, strike: Strike, code: int = -9) -> Fault:
        return Fault("supervisor: killed", name, _KILLED, None, strike, Effect.RUN, code)

    def damaged(name: str, strike: Strike, expected: Sign) -> Fault:
        return Fault("damage", name, expected, None, strike, Effect.RUN, exit_code=-9)

    def stopped(name: str, strike: Strike, code: int) -> Fault:
        expected = Sign("job-ended", {"status": "DRAINED", "code": code})
        return Fault("supervisor: stopped", name, expected, None, strike, Effect.RUN, code)

    return [
        killed("SIGKILL to the supervisor", strikes.signals_to_supervisor("SIGKILL")),
        killed("SIGKILL to supervisor and trainer", strikes.kill_both),
        killed("supervisor killed while a hang is handled", strikes.kill_supervisor_in_hang),
        killed("supervisor killed as an attempt starts", strikes.kill_supervisor_at_start),
        killed("SIGKILL to supervisor and guard", hostile.kill_supervisor_and_guard),
        killed("SIGKILL to all that keeps watch", hostile.kill_all_watchers),
        killed("SIGABRT to the supervisor", strikes.signals_to_supervisor("SIGABRT"), -6),
        stopped("SIGTERM to the supervisor", strikes.signals_to_supervisor("SIGTERM"), 75),
        stopped("SIGHUP to the supervisor", strikes.signals_to_supervisor("SIGHUP"), 75),
        stopped("SIGINT to the supervisor", strikes.signals_to_supervisor("SIGINT"), 79),
        stopped("SIGTERM twice", strikes.signals_to_supervisor("SIGTERM", "SIGTERM"), 75),
        stopped("SIGTERM while the trainer is stopped", strikes.stop_with_stopped_trainer, 75),
        stopped("SIGTERM while the trainer restores", strikes.stop_while_restoring, 75),
        damaged("torn journal tail", strikes.tear_journal, Sign("journal-torn")),
        damaged("uncommitted step directory", strikes.plant_uncommitted, _KILLED),
        damaged("newest checkpoint truncated", strikes.truncate_newest, _KILLED),
    ]


CATALOGUE: tuple[Fault, ...] = (*_injected(), *_outside(), *_harmless(), *_ends_of_runs())
"""Every kind of fault that the storm knows."""
