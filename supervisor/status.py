"""`supervise status` and `supervise quarantine`: where a job stands, by its journal alone.

Nothing is taken and nothing written but a person's request, so that it can be asked while the job
runs, and after.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from supervisor.adapters.stores.bucket import bucket
from supervisor.adapters.stores.fetch import read_growing
from supervisor.adapters.stores.journal import FileJournal, History, JournalError
from supervisor.adapters.stores.lease import owner_of
from supervisor.adapters.stores.lease_places import LeaseObject
from supervisor.adapters.stores.lock import living_owner
from supervisor.adapters.stores.requests import ask_to_clear, to_clear
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.core.events import WorkersGone
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import JobState, Status
from supervisor.host.identity import Identity
from supervisor.narrative import status_line
from supervisor.narrative.devices import unit
from supervisor.narrative.failures import at, certainty, doubted
from supervisor.narrative.line import budget_used
from supervisor.ports import Objects
from supervisor.protocol.location import Uri
from supervisor.protocol.messages import printable
from supervisor.protocol.segments import JOURNAL

_ENDED_EARLY = (
    "; the last one ended before the job did (it was killed, or the end of run.log says why): run "
    "the same command again to go on"
)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A job as it is seen from outside."""

    history: History
    policy: RestartPolicy
    owner: str | None
    """The supervisor that has it."""
    ask_to_clear: Callable[[tuple[str, ...]], None]


def show_status(place: Path | Uri) -> None:
    """Print where the job in `place`, its model_dir, stands.

    Raises:
        JournalError: there is none, or its journal cannot be read.
        OSError, ImportError: a bucket cannot be read.
    """
    seen = _look(place)
    policy = seen.policy
    state = seen.history.state.durable()  # of the rest the journal tells by chance
    _tell(f"job {state.job} in {place}")
    is_orphan = seen.owner is None and state.exit_code is None
    _tell(f"supervisor: {seen.owner or 'none runs here'}{_ENDED_EARLY if is_orphan else ''}")
    _tell(f"{'last known: ' if is_orphan else ''}{status_line(state, policy)}")
    if state.exit_code is not None:
        _tell(f"exit code {state.exit_code}")
    for line in _last_end(seen.history, state):
        _tell(line)
    _tell(budget_used(state, policy))
    if state.announced and state.exit_code is None:
        _tell(f"announced: {state.announced}")
    if state.livelock.is_one:
        again = f"{state.livelock.times} times, each time after a new checkpoint"
        _tell(f"progress livelock: the same failure came {again}: {state.livelock.failure}")
    phase = policy.phases[state.phase]
    for line in (*_rung(state, phase), *_quarantine(state, phase)):
        _tell(line)


def _tell(line: str) -> None:
    """What is in a journal somebody else may have written: it moves no cursor."""
    print(printable(line))


def show_quarantine(place: Path | Uri) -> None:
    """Print what is in quarantine, why and for how long.

    Raises:
        JournalError, OSError, ImportError: see `show_status`.
    """
    seen = _look(place)
    state = seen.history.state
    lines = list(_quarantine(state, seen.policy.phases[state.phase]))
    for line in lines or ["nothing is in quarantine"]:
        _tell(line)


def clear_quarantine(place: Path | Uri, units: tuple[str, ...]) -> None:
    """Ask for the end of the quarantine of `units` (none named: of all).

    Raises:
        JournalError, OSError, ImportError: see `show_status`; or the request cannot be written.
        ValueError: one of them is not in quarantine.
    """
    seen = _look(place)
    known = seen.history.state.quarantine.units
    for each in units:
        if each not in known:
            there = ", ".join(sorted(known)) or "nothing"
            raise ValueError(f"{each!r} is not in quarantine; in quarantine: {there}")
    seen.ask_to_clear(units)
    owner = seen.owner
    who = f"{owner} does it within a minute" if owner else "the next supervisor does it first"
    print(f"asked to clear {', '.join(units) or 'all'}: {who}")


def _look(place: Path | Uri) -> _Seen:
    if isinstance(place, Path):
        if place.is_file():
            raise JournalError(f"{place} is a file: give the job's model_dir, which is a folder")
        history = FileJournal(LocalStorage(place)).look()
        owner, ask = living_owner(place), partial(ask_to_clear, place)
    else:
        objects = bucket(place)
        history = _history_in(objects)
        owner, ask = _owner_in(objects), partial(_ask_in, objects)
    if history.policy is None:
        raise JournalError(f"{place} holds no job: there is no journal with a start in it")
    return _Seen(history, history.policy, owner, ask)


def _history_in(objects: Objects) -> History:
    journal = read_growing(objects, JOURNAL, lambda text: print(text, file=sys.stderr))
    with TemporaryDirectory() as folder:
        (Path(folder) / JOURNAL).write_bytes(journal or b"")
        return FileJournal(LocalStorage(Path(folder))).look()


def _owner_in(objects: Objects) -> str | None:
    owner = owner_of(LeaseObject(objects).read().data)
    if owner is None or (isinstance(owner, Identity) and owner.is_dead):
        return None
    who = str(owner).removeprefix("supervisor ")
    return f"{who}, unless it has not renewed its lease for a minute"


def _ask_in(objects: Objects, units: tuple[str, ...]) -> None:
    objects.write(*to_clear(units))


def _last_end(history: History, state: JobState) -> Iterator[str]:
    """What went wrong last, if anything did: an attempt that ended as it was asked to, and says no
    more than that, did not fail."""
    ends = (
        (t.event, t.before.drains)
        for t in reversed(history.transitions)
        if isinstance(t.event, WorkersGone)
    )
    end, asked = next(ends, (None, False))
    if state.status is Status.SUCCEEDED:
        if end is not None and end.doubt is not None:
            yield doubted(end.doubt)
        return
    failure = state.last_failure
    if failure is None:
        return
    stopped = asked and end is not None and end.failure == failure
    if not stopped or failure.root_cause != failure.exit:
        yield f"last failure: {failure.cause}: {failure.root_cause}{at(failure)}"
        grounds = f" ({failure.grounds})" if failure.grounds else ""
        yield f"verdict {failure.verdict}{certainty(failure)}{grounds}"


def _rung(state: JobState, phase: PhasePolicy) -> Iterator[str]:
    rung = state.ladder.num_devices(phase)
    if rung is not None:
        units = ", ".join(state.ladder.units(phase))
        yield f"rung: {rung} of {phase.rungs[0]} devices ({unit(phase)}s {units})"
    for struck in state.ladder.struck:
        yield f"struck from the ladder: {struck.num_devices} devices: {struck.reason}"


def _quarantine(state: JobState, phase: PhasePolicy) -> Iterator[str]:
    now = time.time()
    for entry in state.quarantine.entries:
        over = " (over)" if entry.until + state.epoch <= now else ""
        try:
            until = datetime.fromtimestamp(entry.until + state.epoch).astimezone()
            when = f"{until:%Y-%m-%d %H:%M:%S%z}"
        except (ValueError, OverflowError, OSError):  # no supervisor has written that time
            when = f"{entry.until + state.epoch:g}"
        yield f"in quarantine until {when}{over}: {unit(phase)} {entry.unit}: {entry.reason}"
