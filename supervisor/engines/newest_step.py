"""Looks for the newest steps of a phase, for an engine: a place that fails is told, not raised."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from supervisor.config.plan import PhasePlan
from supervisor.engines.host_port import HostFiles
from supervisor.host.notice import Notice, Tell


def newest_told(
    files: HostFiles, plan: PhasePlan, tell: Tell, *, closed: bool = False
) -> int | None:
    """Returns the newest committed step of the plan; None: there is none, or the place cannot be
    read, which `tell` gets. `closed`: see `HostFiles.newest_checkpoint`."""
    place = plan.checkpoint_dir
    try:
        return files.newest_checkpoint(place, plan.own_layout, closed=closed)
    except OSError as error:
        tell(
            Notice(
                "place-unreadable",
                f"{place} cannot be read: {error.strerror or error}",
                place=str(place),
                reason=error.strerror,
            )
        )
        return None


@dataclass(frozen=True, slots=True)
class StepsLeft:
    """What the directory of checkpoints holds at the end of an attempt."""

    committed: int | None
    """The newest committed step."""
    unproven: int | None = None
    """See `WorkersGone.unproven`."""
    torn: Path | None = None
    """A newest step that is not complete; None: there is none, or it was not looked for. Where all
    workers exited with code 0, the attempt wrote it."""


def steps_left(
    files: HostFiles, plan: PhasePlan, tell: Tell, *, closed: bool, all_exited: bool
) -> StepsLeft:
    """Returns what is left at the end of an attempt.

    A place that cannot be read is asked once: it may hang. `tell` also gets a newest step that is
    not complete: many a program takes the newest file, and fails on this one until somebody moves
    it away. We do not: it is not ours. Where the workers `all_exited` with code 0, it is told only
    if the attempt wrote it: a program may go on after a save that failed.
    """
    failed: list[Notice] = []
    committed = newest_told(files, plan, failed.append, closed=closed)
    if failed or not plan.is_command:
        for told in failed:
            tell(told)
        return StepsLeft(committed)
    place, own = plan.checkpoint_dir, plan.own_layout
    try:
        unproven = files.unproven_step(place, own, committed)
        torn = files.torn_step(place, own, committed, new=all_exited)
    except OSError:  # it could be read a moment ago, and is asked again by the next attempt
        return StepsLeft(committed)
    if torn is not None:
        how = "" if all_exited else "it was being written, "
        text = (
            f"{torn} does not count, because it is not complete: {how}the disk was full, or it is "
            "of no format that is known. If the program fails when it loads it, move it aside and "
            "run the same command again; if not, save in another format"
        )
        tell(Notice("checkpoint-incomplete", text, place=str(torn)))
    return StepsLeft(committed, unproven, torn)
