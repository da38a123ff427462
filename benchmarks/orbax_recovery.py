"""Measures how long a program that is not ours pauses after a kill -9: a plain loop with Orbax.

    python -m benchmarks.orbax_recovery [--quick] [--json FILE]

Runs the same script (`orbax_loop.py`) as a `command` of supervise, with and without a standby, and
in a bash loop with the same compilation cache. Then both with their defaults: supervise with only
the required config keys (`defaults`), the loop without a cache (`bash_defaults`). Once on the
machine as it is, once beside busy processes, two for each core (`loaded`). The scripts are killed
in turns, after a checkpoint is committed and a standby is ready.

Measures the seconds from the SIGKILL to the next completed step, as the script records it;
`samples` has supervise's own account of them. The first recovery of a run does not count: a
restored state has another layout than a new one, so the step is compiled once more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.contest import ROOT, FailedError, run_contestant, supervise_command
from benchmarks.peers import BASH
from benchmarks.report import Report, options
from benchmarks.training import Training, cache

_STANDBY_TAKES = 300.0
"""Longest wait in seconds for a standby: its preparation uses only the CPU time that training
leaves."""
_BUSY = "while True: pass"
_EVERY = 20
"""Steps between checkpoints; the same as in the script."""
_FRESH = 8
"""Least steps since the newest checkpoint, so that it is committed."""

_DEFAULTS = "defaults"
_SUPERVISE = ("imports", "off", _DEFAULTS)
_BASH, _BASH_DEFAULTS = "bash", "bash_defaults"
NAMES = (*_SUPERVISE, _BASH, _BASH_DEFAULTS)


def main() -> None:
    """Measure in turns and report."""
    given = options(__doc__)
    rounds, kills = (1, 1) if given.quick else (3, 4)
    report = Report("orbax_recovery")
    told: dict[str, Any] = {}
    for prefix, burners in {"": 0, "loaded_": 2 * len(os.sched_getaffinity(0))}.items():
        seconds: dict[str, list[float]] = {name: [] for name in NAMES}
        with _busy(burners):
            for _ in range(rounds):
                for name in NAMES:
                    try:
                        found, says = _one(name, kills)
                    except FailedError as error:
                        report.left_out[prefix + name] = str(error)
                        continue
                    seconds[name] += found
                    told.setdefault(prefix + name, []).extend(says)
            report.figure(f"{prefix}load", os.getloadavg()[0])
        for name, taken in seconds.items():
            report.spread(prefix + name, "s", taken)
        for name in (*_SUPERVISE, _BASH_DEFAULTS):
            report.ratio(f"{prefix}{name}_over_bash", f"{prefix}{name}_s", f"{prefix}{_BASH}_s")
    report.samples["told"] = {name: says for name, says in told.items() if says}
    report.finish(given.json)


def _one(name: str, kills: int) -> tuple[list[float], list[dict[str, Any]]]:
    """Run one contestant; returns the seconds of each recovery, and supervise's account of them."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder, _loop(name, Path(folder)) as run:
        step = run.wait_for_step(1)
        for number in range(1, kills + 2):
            run.wait_for_step(_next_save(step.number) + _FRESH, since=step.at)
            if name in ("imports", _DEFAULTS):
                run.wait_for_event("standby-ready", number, _STANDBY_TAKES)
            began = time.monotonic()
            last = run.kill_trainer()
            step = run.wait_for_step(0, since=began, not_by=[last.pid])
            seconds.append(step.at - began)
        if name in _SUPERVISE and name != _DEFAULTS:  # `defaults` has no progress pattern
            run.wait_for("what supervise reports", lambda: len(run.recoveries()) > kills)
        return seconds[1:], run.recoveries()[1:]


def _next_save(step: int) -> int:
    return (step // _EVERY + 1) * _EVERY


@contextmanager
def _loop(name: str, folder: Path) -> Iterator[Training]:
    """Run the script under the contestant `name` for the block."""
    (folder / "steps").touch()
    place = folder / "run" / "checkpoints"
    script = str(ROOT / "benchmarks" / "orbax_loop.py")
    argv = [sys.executable, "-P", script, str(place), str(folder / "steps")]
    environ = {"JAX_PLATFORMS": "cpu"}
    if name in _SUPERVISE:
        command = supervise_command({"trainer": config(name, argv, folder)}, folder)
    else:
        command = BASH.prepared(argv, folder)
        environ |= {} if name == _BASH_DEFAULTS else cache(folder)
    with run_contestant(command, environ, folder) as process:
        yield Training(process, folder)


def config(name: str, argv: Sequence[str], folder: Path) -> dict[str, Any]:
    """Returns supervise's config for the contestant `name`."""
    restart: dict[str, Any] = {"max_num_restarts": 1000}
    command: dict[str, Any] = {"argv": list(argv)}
    if name != _DEFAULTS:
        restart |= {"backoff": {"first": 0.0}, "standby": name}
        command["progress"] = {"pattern": r"^step (\d+)"}
    return {"init": {"model_dir": str(folder / "run"), "autorestart": restart}, "command": command}


@contextmanager
def _busy(number: int) -> Iterator[None]:
    """Run `number` processes that always use the CPU, for the block."""
    with ExitStack() as stack:
        for _ in range(number):
            process = subprocess.Popen([sys.executable, "-S", "-c", _BUSY], start_new_session=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


if __name__ == "__main__":
    main()
