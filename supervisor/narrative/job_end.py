"""Says how a job ended, when and why, and whether anything runs it again by itself.

That is what a person wants to know who is woken by it: whether to get up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from supervisor.core.decisions import FinishJob
from supervisor.core.exit_codes import ExitCode
from supervisor.ports import Transition

_IN_WORDS: Mapping[ExitCode, str] = {
    ExitCode.NO_CAPACITY: "too few devices",
    ExitCode.FAILED: "another attempt would fail in the same way",
    ExitCode.DRAINED: "it was told to stop, and can be resumed",
    ExitCode.BUDGET_SPENT: "a restart budget is spent",
    ExitCode.INVALID_CONFIG: "a person has to correct something first",
    ExitCode.STOPPED: "a person stopped it; it can be resumed",
}
"""What an exit code says, for a person who does not know the numbers."""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended."""

    code: ExitCode
    reason: str
    at: datetime


def job_end(transitions: Iterable[Transition]) -> JobEnd | None:
    """Returns the last end in `transitions`; None: the job did not end in them."""
    ends = (
        JobEnd(each.exit_code, each.reason, transition.wall)
        for transition in transitions
        for each in transition.decisions
        if isinstance(each, FinishJob)
    )
    return max(ends, key=lambda end: end.at, default=None)


def code_in_words(code: int) -> str:
    """Returns an exit code with what it says."""
    words = _IN_WORDS.get(ExitCode(code), "")
    return f"exit code {code:d} ({words})" if words else f"exit code {code:d}"


def what_is_next(
    code: int,
    newest: int | None,
    *,
    known: bool,
    is_refused: bool = False,
    is_sure: bool = True,
    later_phase: str | None = None,
) -> Iterator[str]:
    """Yields whether the job is run again by itself, and from where; nothing for a success.

    `newest` is the newest committed step of the phase; None: there is none. `later_phase` is the
    name of the phase, if others came before it. `known`: the command follows in the
    next line. `is_refused`: it is the command itself that has to be corrected. `is_sure`: the
    program goes on from nothing but a committed step.
    """
    code = ExitCode(code)
    if code is ExitCode.SUCCEEDED:
        return
    onward = "begins at the first step"
    if later_phase is not None:
        onward += f" of phase {later_phase!r} (those before it are complete)"
    if not is_sure:
        onward += ", as far as is seen"
    if newest is not None:
        onward = f"goes on from the checkpoint of step {newest}"
    again, end = ("this", ":") if known else ("the same command", "")
    if code.run_again:
        yield f"next: a service manager runs {again} again, or you do: it {onward}{end}"
    elif code is ExitCode.STOPPED:
        yield f"next: nothing runs it again by itself; {again} {onward}{end}"
    elif is_refused:
        which = "this" if known else "the"
        yield (
            f"next: nothing runs it again by itself; {which} command was refused: once it is "
            f"corrected, it {onward}{end}"
        )
    else:
        yield (
            "next: nothing runs it again by itself; once the cause is mended, "
            f"{again} {onward}, with a full budget of restarts{end}"
        )
