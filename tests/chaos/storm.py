"""Carries out a schedule against a real job, and finds in its output how each fault ended."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tests.chaos.faults import Effect, Fault
from tests.chaos.job import Job, Line, Sign
from tests.chaos.schedule import Chapter, Planned

_FIRING = re.compile(r"DRILL phase1-(\d+) fires")


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that struck: when, and the index of the first line that can show its consequences."""

    planned: Planned
    at: float
    step: int | None
    index: int
    attempt: int
    told: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row of the table: what happened after a planned fault."""

    fault: Fault
    at: float | None = None
    """Seconds from the beginning of the storm to the fault; None: it never struck."""
    step: int | None = None
    noticed: str = ""
    noticed_after: float | None = None
    next_step_after: float | None = None
    """Seconds from the fault to the next completed step; after the last one, to the end of the
    job."""
    then: str = ""
    problem: str = ""


def run_storm(chapters: list[Chapter], job: Job, struck: list[Struck]) -> int:
    """Run the job through the storm to its end; returns its exit code.

    Adds the faults that strike to `struck`, and replaces `chapters` by what was really carried out.

    Raises:
        StormError: something that must happen did not.
    """
    injected: list[dict[str, Any]] = []
    for index, planned_chapter in enumerate(chapters):
        chapter = chapters[index] = planned_chapter.from_step(_last_step(job.lines) or 0)
        injected.extend(planned.config_entry() for planned in injected_by(chapter))
        job.run(injected)
        for planned in chapter.at_steps:
            if planned.fault.strike is not None:
                struck.append(_strike(planned, job))
    return job.exit_code(timeout=120.0)


def injected_by(chapter: Chapter) -> list[Planned]:
    """Return the injected faults that a chapter adds to the config, in the same order."""
    return [p for p in chapter.planned if p.fault.injected is not None]


def _strike(planned: Planned, job: Job) -> Struck:
    fault, due = planned.fault, planned.step
    assert fault.strike is not None
    assert due is not None
    job.wait_for(
        f"step {due}, for {fault.name!r}", lambda: job.step is not None and job.step >= due, 120.0
    )
    at, step, index, attempt = job.now(), job.step, len(job.lines), job.attempt
    told = fault.strike(job)
    code = None
    if fault.effect is Effect.RUN:
        code = job.exit_code()
    else:
        job.wait_for(f"the next step after {fault.name!r}", lambda: _goes_on(job, fault, index))
    return Struck(planned, at, step, index, attempt, told, code)


def _goes_on(job: Job, fault: Fault, index: int) -> bool:
    started = index
    if fault.effect is Effect.ATTEMPT:
        found = (n for n, line in enumerate(job.lines[index:], index) if _starts(line))
        started = next(found, len(job.lines))
    return any(line.step is not None for line in job.lines[started:])


def _starts(line: Line) -> bool:
    return line.event == "attempt-started"


def outcomes(chapters: list[Chapter], struck: list[Struck], job: Job) -> list[Outcome]:
    """Return what happened after each planned fault, in the order in which they struck."""
    everything = [*struck, *_fired(chapters, job)]
    told = [_outcome(one, job) for one in sorted(everything, key=lambda one: one.index)]
    planned = [p for chapter in chapters for p in chapter.planned]
    missing = [p for p in planned if all(one.planned is not p for one in everything)]
    return told + [Outcome(p.fault, problem="it never struck") for p in missing]


def _fired(chapters: list[Chapter], job: Job) -> list[Struck]:
    injected = [planned for chapter in chapters for planned in injected_by(chapter)]
    found = []
    for index, line in enumerate(job.lines):
        match = _FIRING.match(line.text) if line.is_output else None
        if match:
            planned = injected[int(match[1])]
            step = planned.step if planned.step is not None else _last_step(job.lines[:index])
            found.append(Struck(planned, line.at, step, index, line.attempt))
    return found


def _last_step(lines: list[Line]) -> int | None:
    return next((line.step for line in reversed(lines) if line.step is not None), None)


def _outcome(one: Struck, job: Job) -> Outcome:
    fault = one.planned.fault
    seen = job.find(fault.expected, one.index) if fault.expected is not None else None
    next_step = _next_step(one, job.lines)
    return Outcome(
        fault,
        at=one.at,
        step=one.step,
        noticed=_noticed(one, seen, job),
        noticed_after=seen.at - one.at if seen is not None else None,
        next_step_after=next_step.at - one.at if next_step is not None else None,
        then=_then(one, next_step, job),
        problem=_problem(one, seen, next_step),
    )


def _next_step(one: Struck, lines: list[Line]) -> Line | None:
    """Return the line of the first step completed after the fault; if the fault ends an attempt, in
    a later one. At the end of the job it is the line of its success."""
    over = one.planned.fault.effect is Effect.NOTHING
    for line in lines[one.index :]:
        if line.step is not None and (over or line.attempt > one.attempt):
            return line
        if Sign("job-ended", {"status": "SUCCEEDED"}).fits(line):
            return line
    return None


def _noticed(one: Struck, seen: Line | None, job: Job) -> str:
    parts = [one.told]
    if one.exit_code is not None:
        parts.append(f"exit code {one.exit_code}")
    if seen is not None and seen.event == "verdict":
        failed = job.find(Sign("attempt-failed"), one.index)
        cause = failed.keys["cause"] if failed is not None else ""
        parts.append(f"{seen.keys['code']}: {cause} -> {seen.keys['verdict']}")
    elif seen is not None:
        parts.append(seen.text)
    return ", ".join(filter(None, parts)) or "nothing to notice"


def _then(one: Struck, next_step: Line | None, job: Job) -> str:
    if one.planned.fault.effect is Effect.NOTHING:
        return "trains on"
    start = job.find(Sign("attempt-started"), one.index)
    if start is None or next_step is None:
        return ""
    again = "run again, " if one.planned.fault.effect is Effect.RUN else ""
    return f"{again}attempt {next_step.attempt} from {_resumed_from(job.lines[one.index :])}"


def _resumed_from(lines: list[Line]) -> str:
    """Return in words what the first attempt in `lines` that restored its state resumed from."""
    for line in lines:
        if line.event == "snapshot-restored":
            return f"snapshot of step {line.keys['step']}"
        if line.event == "state-restored" and line.keys["step"] is not None:
            return f"step {line.keys['step']}"
        if line.event == "state-restored":
            break
    return "the beginning"


def _problem(one: Struck, seen: Line | None, next_step: Line | None) -> str:
    fault = one.planned.fault
    if fault.expected is not None and seen is None:
        return f"there was no event {fault.expected}"
    if one.exit_code != fault.exit_code:
        return f"the command ended with {one.exit_code}, not {fault.exit_code}"
    if next_step is None:
        return "no step followed"
    if fault.effect is Effect.NOTHING and next_step.attempt != one.attempt:
        return f"attempt {one.attempt} ended, although the fault is harmless"
    late = seen is not None and seen.at > next_step.at
    if late and fault.effect is not Effect.NOTHING:
        return "it was noticed only after the next step"
    return ""
