"""Runs one storm: the job without faults, the same job with faults, and then the checks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.chaos.checks import Check, check
from tests.chaos.faults import CATALOGUE
from tests.chaos.job import Job, StormError
from tests.chaos.schedule import Schedule, make_schedule
from tests.chaos.storm import Outcome, Struck, outcomes, run_storm
from tests.training.harness import tiny

_DISK = "64m"
_DEADLINES = {
    "STARTING": 12,
    "INITIALIZING": 6,
    "RESTORING": 6,
    "COMPILING": 15,
    "TRAINING": 4,
    "EVALUATING": 6,
    "SAVING": 5,
    "FINISHING": 4,
}


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a storm."""

    outcomes: list[Outcome]
    checks: list[Check]
    attempts: int
    runs: int
    skipped: list[str] = field(default_factory=list)
    """The kinds of fault that this machine cannot do, each with the reason."""

    @property
    def good(self) -> bool:
        """Whether everything holds that must."""
        return all(one.holds for one in self.checks)


def run(
    seed: int,
    count: int | None,
    folder: Path,
    *,
    own_disk: bool,
    patience: float = 1.0,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Run the storm of `seed` with `count` faults (None: one of every kind) in `folder`. Deadlines
    and waits are `patience` times as long as on an idle machine.

    With `own_disk`, model_dir gets a small disk of its own. It is mounted and never unmounted, so
    this process must be in a mount namespace of its own.
    """
    possible = [fault for fault in CATALOGUE if own_disk or not fault.needs_disk]
    skipped = [f"{f.name}: no file system can be mounted here" for f in CATALOGUE if f.needs_disk]
    schedule = make_schedule(seed, possible, count or len(possible))
    environ = _environ(folder / "cache")
    undisturbed = _config(folder / "undisturbed" / "run", schedule.max_steps, patience)
    config = _config(folder / "struck" / "run", schedule.max_steps, patience)
    say(f"the undisturbed run: {schedule.max_steps} steps")
    quiet = Job(folder / "undisturbed", undisturbed, environ, patience)
    try:
        quiet.run([])
        if quiet.exit_code(timeout=300.0) != 0:
            raise StormError("the undisturbed run failed")
    finally:
        quiet.end()
    say(f"the storm: {len(schedule.planned)} faults in {len(schedule.chapters)} runs")
    job = Job(folder / "struck", config, environ, patience)
    if own_disk:
        _mount(job.model_dir)
    try:
        report = _storm(schedule, job, config, quiet.checkpoints)
    finally:
        job.end()
    return report if own_disk else replace(report, skipped=skipped)


def _mount(model_dir: Path) -> None:
    model_dir.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "none", str(model_dir)]
    subprocess.run(argv, check=True)


def _storm(schedule: Schedule, job: Job, config: dict[str, Any], undisturbed: Path) -> Report:
    chapters = list(schedule.chapters)
    struck: list[Struck] = []
    failed: list[Check] = []
    code = -1
    try:
        code = run_storm(chapters, job, struck)
    except StormError as error:
        failed.append(Check("the storm went as planned", str(error)))
        job.end()
    told = outcomes(chapters, struck, job)
    checks = failed + check(job, code, told, config, undisturbed)
    return Report(told, checks, attempts=job.attempt, runs=job.runs)


def _environ(cache: Path) -> dict[str, str]:
    return {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def _config(model_dir: Path, max_steps: int, patience: float) -> dict[str, Any]:
    trainer = tiny(model_dir, max_steps=max_steps)["trainer"]
    trainer["init"] |= {
        "model_dir": str(model_dir),
        "devices": {"platform": "cpu", "count": 1},
        "checkpoint": {"every": 10, "keep": 4, "snapshot": {"every": 3}},
        "autorestart": {
            "max_num_restarts": 20,
            "backoff": {"first": 0.05, "max": 0.5},
            "grace_period": 2,
            "deadlines": {stage: seconds * patience for stage, seconds in _DEADLINES.items()},
        },
    }
    return {"trainer": trainer}
