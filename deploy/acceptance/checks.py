"""Defines what a check is, the order of all checks, and how one is run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from deploy.acceptance.bench import KILLS, Bench, CheckFailedError, CheckSkippedError
from deploy.acceptance.results import Result, Status

Platform = Literal["tpu", "gpu", "cpu"]
NAMES: dict[str, str] = {"tpu": "a TPU", "gpu": "an NVIDIA GPU", "cpu": "simulated devices"}


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `run` raises `CheckFailedError` or `CheckSkippedError`, and passes otherwise."""

    name: str
    platforms: tuple[str, ...]
    expected: str
    source: str
    seconds: float
    """Its time limit in seconds, for the default number of kills."""
    run: Callable[[Bench], None]
    per_kill: bool = False
    """Whether the time limit grows with the number of kills."""

    def bound(self, bench: Bench) -> float:
        """Returns its time limit in seconds: a longer one if `--kills` is above the default."""
        return self.seconds * max(1.0, bench.kills / KILLS) if self.per_kill else self.seconds


CHECKS: dict[str, Check] = {}
"""All registered checks by name."""
ORDER = (
    "short-list",  # starts no process on a device
    "no-accelerator",
    "devices",
    "rungs",
    "chip-files",  # reuses results of `rungs`
    "memory-ahead",  # reuses results of `rungs`
    "gpu-names",
    "mig",
    "hidden",
    "probe-apart",
    "two-processes",
    "busy",
    "exclusive",
    "mps",
    "lock-file",
    "memory-freed",
    "beside-preallocation",
    "probe",
    "kills",
    "workers",
    "lost-peer",
    "standby",
    "ready-standby",
    "shrink-regrow",
    "run-time-memory",  # late: what it leaves behind must not spoil other checks
    "xid",  # after all checks that might have caused one
    "preempt",  # runs until the machine is gone
)
"""The names of all checks, in the order in which they run."""


def check(
    name: str,
    *platforms: Platform,
    expected: str,
    source: str,
    seconds: float = 120.0,
    per_kill: bool = False,
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Returns a decorator that registers a function as a check in `CHECKS`."""

    def added(run: Callable[[Bench], None]) -> Callable[[Bench], None]:
        assert name in ORDER, f"{name} has no place in the order"
        assert name not in CHECKS, f"two checks are called {name}"
        CHECKS[name] = Check(name, platforms, expected, source, seconds, run, per_kill)
        return run

    return added


def run_all(checks: Iterable[Check], bench: Bench, clean: Callable[[str], str]) -> Iterator[Result]:
    """Run the checks; yields each result as soon as it is known. `clean` removes private data.

    Raises:
        KeyboardInterrupt: a person pressed Ctrl-C; its argument is the interrupted check's result.
    """
    for one in checks:
        yield _run(one, bench, clean)


def skipped(one: Check, why: str) -> Result:
    """Returns the result of a check that was not run."""
    return Result(one.name, "skipped", one.expected, one.source, why=why)


def _run(one: Check, bench: Bench, clean: Callable[[str], str]) -> Result:
    if bench.platform not in one.platforms:
        return skipped(one, f"needs {' or '.join(NAMES[each] for each in one.platforms)}")
    status: Status = "passed"
    why = ""
    began = time.monotonic()
    bench.begin(one.bound(bench))

    def result() -> Result:
        bench.end()
        seen = tuple(map(clean, bench.seen))
        seconds = round(time.monotonic() - began, 1)
        return Result(one.name, status, one.expected, one.source, seen, clean(why), seconds)

    try:
        one.run(bench)
    except CheckSkippedError as error:
        status, why = "skipped", str(error)
    except CheckFailedError as error:
        status, why = "failed", str(error)
    except KeyboardInterrupt:
        status, why = "skipped", "interrupted"
        raise KeyboardInterrupt(result()) from None
    except Exception as error:  # a bug in one check must not stop the others
        status, why = "failed", f"the check itself broke: {type(error).__name__}: {error}"
    return result()
