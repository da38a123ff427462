"""Renders a failure: where it happened, the end of its traceback, its verdict, its record."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from supervisor.core.state import JobState, Status
from supervisor.diagnosis.doubt import tells_of_kill
from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.frames import frame_in
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.ownership import is_own
from supervisor.files.segments import RUN_LOG
from supervisor.narrative.event_line import Line, attempt_event
from supervisor.protocol.messages import printable

_LINES = 6
_SAYS_NOTHING = re.compile(
    r"\s*[\^~]+\s*$|-{20}$|For simplicity, JAX has removed its internal frames from the traceback"
)
"""Lines without information: Python's marks below the part of a line that failed, and the lines
that JAX (_src/traceback_util.py) prints below an exception."""


def place_of_failure(failure: Failure) -> str:
    """Returns where the root cause was raised, as the end of a sentence; "": not known."""
    return _place_text(failure.where)


def rank_in_words(failure: Failure, hosts: Sequence[str]) -> str:
    """Returns the rank of a failure, and its host unless the root cause has it; `hosts` has the
    host of each rank, as far as they are known."""
    host = hosts[failure.rank] if failure.rank < len(hosts) else ""
    is_new = host and host not in failure.root_cause
    return f"rank {failure.rank} on host {host}" if is_new else f"rank {failure.rank}"


def pids_in_words(pids: Sequence[int], hosts: Sequence[str]) -> str:
    """Returns the pid of each rank, with its host if the `hosts` are known."""
    if len(hosts) != len(pids):
        return ", ".join(map(str, pids))
    return ", ".join(f"{pid} on {host}" for pid, host in zip(pids, hosts, strict=True))


def _place_text(where: str) -> str:
    return f", at {where}" if where else ""


def end_of_traceback(traceback: str) -> Sequence[str]:
    """Returns the last frames of a traceback and its exception.

    If all these frames are of libraries, the last frame of the user's own code comes first.
    """
    lines = [line for line in traceback.splitlines() if line.strip()]
    lines = [line for line in lines if not is_decoration(line)]
    frames = [n for n, line in enumerate(lines) if line.startswith("  File ")]
    first = next((n for n in frames if n >= len(lines) - _LINES), max(0, len(lines) - _LINES))
    own = max((n for n in frames if _is_own(lines[n])), default=first)
    return [*lines[own : min(own + 2, first)], *lines[first:]]


def is_decoration(line: str) -> bool:
    """True if a line of a traceback tells nothing."""
    return _SAYS_NOTHING.match(line) is not None


def _is_own(line: str) -> bool:
    frame = frame_in(line)
    return frame is not None and is_own(frame.path)


def certainty(failure: Failure) -> str:
    """Returns the remark after FATAL that says whether it is certain; "" for another verdict."""
    if failure.verdict is not Verdict.FATAL:
        return ""
    return f", certain: {'true' if failure.certain else 'false'}"


def attempt_failed_line(attempt: int, text: str, failure: Failure, step: int | None) -> Line:
    """Returns the line about the failure of an attempt, with all that is known of it.

    `step` is the last completed step that was reported, for a failure that names none.
    """
    return attempt_event(
        "attempt-failed",
        attempt,
        text,
        "error",
        rank=failure.rank,
        step=failure.step if failure.step is not None else step,
        code=failure.rule,
        verdict=failure.verdict,
        certain=failure.is_certain,
        cause=failure.cause,
        root_cause=failure.root_cause,
        place=failure.where,
        signature=failure.signature,
        charge=failure.charge,
    )


def record(failure: Failure) -> dict[str, Any]:
    """Returns a failure with all its fields as JSON; `certain` is false unless it is FATAL."""
    return {**asdict(failure), "certain": failure.is_certain}


def verdict(attempt: int, failure: Failure, state: JobState) -> Iterator[Line]:
    """Yields the lines about the verdict of a failure, its reason, and why it is certain or not."""
    name = f"verdict {failure.verdict}{certainty(failure)} (rule {failure.rule!r})"
    certain, rule = failure.is_certain, failure.rule
    keys: dict[str, Any] = {"code": rule, "verdict": failure.verdict, "certain": certain}
    text = f"{name}: {failure.reason}"
    yield attempt_event("verdict", attempt, text, "error", reason=failure.reason, **keys)
    if failure.grounds:
        text = f"{failure.grounds}{_one_more(state, failure)}"
        yield attempt_event(
            "verdict-grounds",
            attempt,
            text,
            "error",
            reason=failure.grounds,
            signature=failure.signature,
            seconds=state.backoff.delay if state.backoff is not None else None,
            **keys,
        )


def _one_more(state: JobState, failure: Failure) -> str:
    """Returns the remark that a guess gets one more attempt, and when; "" if it gets none."""
    if not failure.is_guess or state.status not in (Status.BACKOFF, Status.STARTING):
        return ""
    delay = state.backoff.delay if state.backoff is not None else None
    soon = f" in {delay:.{0 if delay >= 10 else 1}f} s" if delay is not None else ""
    told = f" (signature {failure.signature})"
    return f"; one more attempt{soon}; the same failure again ends the job{told}"


def success_warning(exception: str) -> str:
    """Returns a warning about a success whose output ends in a traceback of `exception`, or in a
    line of a shell that the program was killed."""
    if tells_of_kill(exception):
        return (
            f"exit code 0 is that of a later command, and the program seems to have been killed: "
            f"{exception}. Write `set -e` first in the script, or name the step that completes the "
            "work (`--success-step N`)"
        )
    return (
        f"the program succeeded, but its output ends in a traceback: {exception}. Check the log: "
        "in a shell, `program | tee log` exits as `tee` does; `set -o pipefail` first makes it "
        "exit as the program does"
    )


def torn_in_words(torn: str) -> str:
    """Returns a warning about a newest step that is not complete."""
    return (
        f"{torn} does not count, because it is not complete: the disk was full, a save did not "
        "end, or it is of no format that is known"
    )


def failure_line(lines: Sequence[Line], directory: str | None, place: str) -> str | None:
    """Returns one line that says why the job in `place` has failed, what to do, and where to read
    more; None: the job does not end as FAILED in `lines`."""
    end = next((line for line in lines if line.event == "job-ended"), None)
    if end is None or end.keys["status"] is not Status.FAILED:
        return None
    parts = [end.text]
    if (failure := end.keys["failure"]) is not None:
        where = _place_text(failure["where"])
        parts.append(f"root cause: {failure['root_cause']}{where} (rule {failure['rule']!r})")
    parts += [line.text for line in lines if line.event == "advice"]
    if directory is not None:
        parts.append(f"more: {place}/{directory}/{RUN_LOG}")
    return printable("; ".join(part.rstrip(".") for part in parts))
