"""What page and text say of many failures, recoveries and checkpoints together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from supervisor.report.job_report import FailedAttempt, Lane, RecoveryTime, Report


@dataclass(frozen=True, slots=True)
class Kind:
    """The failures with one code."""

    code: str
    verdict: str
    cause: str
    """That of the newest one."""
    times: int
    first: float
    last: float


def kinds_of(failures: Iterable[FailedAttempt]) -> list[Kind]:
    """Returns the failures by code and verdict, the most frequent first."""
    by_kind: dict[tuple[str, str], list[FailedAttempt]] = {}
    for each in failures:
        by_kind.setdefault((each.code, each.verdict), []).append(each)
    kinds = [
        Kind(code, verdict, those[-1].cause, len(those), those[0].time, those[-1].time)
        for (code, verdict), those in by_kind.items()
    ]
    return sorted(kinds, key=lambda each: -each.times)


@dataclass(frozen=True, slots=True)
class PartTimes:
    """How long a part of the recoveries took: of those that have it."""

    name: str
    times: int
    median: float
    ninth_decile: float
    longest: float
    total: float


def part_times(recoveries: Sequence[RecoveryTime]) -> list[PartTimes]:
    """Returns the times of each part, in the order in which the parts come, and of the whole."""
    by_part: dict[str, list[float]] = {}
    for each in recoveries:
        for name, seconds in each.parts.items():
            by_part.setdefault(name, []).append(seconds)
    by_part["all of it"] = [each.seconds for each in recoveries]
    return [_times(name, sorted(seconds)) for name, seconds in by_part.items()]


def _times(name: str, rising: Sequence[float]) -> PartTimes:
    ninth = rising[min(len(rising) - 1, len(rising) * 9 // 10)]
    return PartTimes(name, len(rising), median(rising), ninth, rising[-1], sum(rising))


def lane_seconds(report: Report) -> dict[Lane, float]:
    """Returns how long the job was in each lane."""
    found: dict[Lane, float] = {}
    for each in report.spans:
        found[each.lane] = found.get(each.lane, 0.0) + each.end - each.start
    return found


def age_now(report: Report) -> float | None:
    """Returns how old the newest checkpoint is at the end of the report; None: there is none, or
    the job has ended."""
    if not report.commits or report.head.exit_code is not None:
        return None
    return max(0.0, report.until - report.commits[-1].time)


def time_between_commits(report: Report) -> tuple[float, float]:
    """Returns the median and the longest time until a checkpoint was committed."""
    ages = [each.age for each in report.commits]
    return median(ages), max(ages)
