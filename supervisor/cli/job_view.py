"""A job seen from outside, by its journal. Its owner may write the journal at the same time.

Nothing here takes the lock or the lease, and only a person's request is written. So it works while
the job runs, and afterwards.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from supervisor.adapters.stores.bucket import bucket
from supervisor.adapters.stores.fetch import fetch_journal
from supervisor.adapters.stores.journal import (
    DamagedJournalError,
    FileJournal,
    History,
    JournalError,
)
from supervisor.adapters.stores.lease import owner_of
from supervisor.adapters.stores.lease_places import LeaseObject
from supervisor.adapters.stores.lock import living_owner
from supervisor.adapters.stores.requests import Request, request_file, write_request
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.cli.complaints import complain
from supervisor.core.exit_codes import ExitCode
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import JobState
from supervisor.files.live_status import MAX_SIZE, STATUS, LiveStatus, parse
from supervisor.files.segments import ARCHIVE, JOURNAL
from supervisor.goodput.kept import ledger_after, ledger_before
from supervisor.goodput.wall_time import Goodput
from supervisor.history.archive import is_segment
from supervisor.host.identity import Identity
from supervisor.narrative.device_text import unit
from supervisor.narrative.findings import replay_in_words, spike_in_words
from supervisor.narrative.standing import Standing, standing
from supervisor.ports import Objects, Transition
from supervisor.protocol.location import Uri
from supervisor.protocol.loss_spikes import LossSpike
from supervisor.protocol.messages import printable

_LOOKS, _PAUSE = 5, 0.1
"""How often, and after how many seconds, the state of a process must be the same to be told."""


_SPIKES_SHOWN = 3
"""Losses that stand out which are told: the newest."""


class NoJobError(ValueError):
    """The place is no model_dir with a job in it."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job seen from outside."""

    history: History
    policy: RestartPolicy
    owner: str | None
    """The process of the supervisor that owns the job, in words; None: none is known."""
    standstill: str
    """Why that process does nothing now, in words; empty: it runs, as far as is known."""
    identity: Identity | None
    """That process, if it is known exactly."""
    ask: Callable[[Request], Path | None]
    """Writes a request to the supervisor into model_dir; returns its file, if that is on a disk."""
    identity_now: Callable[[], Identity | None]
    """Looks again who owns the job: see `identity`."""
    told: LiveStatus | None
    """What status.json says of this job, however old it is; None: there is none of this job."""

    @property
    def live(self) -> LiveStatus | None:
        """What status.json says of this moment; None: its writer does not live, does nothing, or
        is not the one that owns the job now."""
        told, state = self.told, self.history.state
        if told is None or self.owner is None or self.standstill or state.exit_code is not None:
            return None
        is_owner = self.identity is None or told.supervisor == self.identity.to_json()
        is_of_now = told.attempt == state.attempt and told.is_fresh(datetime.now().astimezone())
        return told if is_owner and is_of_now else None

    @property
    def standing(self) -> Standing:
        """Where the job stands. Stage and step are those of this moment: None if not known."""
        durable = standing(self.history.state.durable(), self.policy)
        if (live := self.live) is None:
            return durable
        return replace(durable, stage=live.stage, step=live.live.step)


def run_and_report(show: Callable[[], None], place: Path | Uri) -> int:
    """Call `show`, which reads the job in `place`; returns the exit code.

    If `show` raises an error, print it.
    """
    try:
        show()
    except DamagedJournalError as error:
        return complain(ExitCode.INVALID_CONFIG, error.message_for(place))
    except (JournalError, OSError) as error:  # an UnreadableError is a ValueError as well
        return complain(ExitCode.CANNOT_WRITE, f"{place}: {error}")
    except (ValueError, ImportError) as error:
        return complain(ExitCode.USAGE, str(error))
    return 0


def view(place: Path | Uri) -> JobView:
    """Read the job in `place`, its model_dir.

    Raises:
        NoJobError: there is no job.
        JournalError: its journal cannot be read.
        OSError, ImportError: a bucket cannot be read.
    """
    if isinstance(place, Path):
        if place.is_file():
            raise NoJobError(f"{place} is a file: give the job's model_dir, which is a folder")
        history = FileJournal(LocalStorage(place)).peek()
        look = partial(owner_on_disk, place)
        ask: Callable[[Request], Path | None] = partial(write_request, place)
        read = partial(LocalStorage(place).read, STATUS, MAX_SIZE)
    else:
        objects = bucket(place)
        history = _history_in(objects)
        look, ask = partial(_owner_in, objects), partial(_ask_in, objects)
        read = partial(_read_in, objects)
    owner, identity = look()
    if history.policy is None:
        raise NoJobError(_no_job(place, history, owner))
    told = _told(read, history.state.job)
    return JobView(
        history,
        history.policy,
        owner,
        standstill(identity),
        identity,
        ask,
        lambda: look()[1],
        told,
    )


def goodput_of(job: JobView) -> Goodput | None:
    """Returns where the job's wall time went: up to now, if its supervisor lives; None: not known,
    because the journal is of an earlier version."""
    ledger = ledger_before(job.history)
    if ledger is None:
        return None
    now = time.time() if job.owner is not None and job.history.state.exit_code is None else None
    return ledger_after(ledger, job.history.transitions).so_far(now)


def _read_in(objects: Objects) -> bytes:
    return objects.read(STATUS, MAX_SIZE).data


def _told(read: Callable[[], bytes], job: str) -> LiveStatus | None:
    """Returns what status.json says of the job; None: there is none, or it is of another job, of an
    earlier version, or not the supervisor's."""
    try:
        told = parse(read())
    except OSError:
        return None
    return told if told.job == job else None


def all_transitions(job: JobView, place: Path | Uri) -> Iterator[Transition]:
    """Yields all transitions of the job, also those in archived segments.

    Raises:
        JournalError: a segment is missing, or cannot be read.
        OSError: the bucket cannot be read.
    """
    if isinstance(place, Path):
        yield from FileJournal(LocalStorage(place)).all_transitions(job.history)
        return
    with TemporaryDirectory() as name:
        folder, objects = Path(name), bucket(place)
        (folder / ARCHIVE).mkdir()
        for segment in filter(is_segment, objects.list(ARCHIVE).objects):
            data = objects.read(f"{ARCHIVE}/{segment}").data
            (folder / ARCHIVE / segment).write_bytes(data)
        yield from FileJournal(LocalStorage(folder)).all_transitions(job.history)


def _no_job(place: Path | Uri, history: History, owner: str | None) -> str:
    if owner is not None:
        return (
            f"{place}: its supervisor ({owner}) has not begun the job yet: SIGTERM ends it, if it "
            "waits for something"
        )
    if history.repaired:
        return (
            f"{place} has a new journal, and no supervisor has started since: run the command of "
            f"the job again (repaired: {printable(history.repaired)})"
        )
    if isinstance(place, Path) and any(place.glob(f"*/{JOURNAL}")):
        verb = f"supervise jobs {shlex.quote(str(place))}"
        return f"{place} holds no job but folders with jobs: list them with `{verb}`"
    return f"{place} holds no job: there is no journal with a start in it"


def _history_in(objects: Objects) -> History:
    with TemporaryDirectory() as name:
        folder = Path(name)
        fetch_journal(objects, folder, lambda text: print(text, file=sys.stderr))
        return FileJournal(LocalStorage(folder)).peek()


def owner_on_disk(model_dir: Path) -> tuple[str | None, Identity | None]:
    """Returns the owner in words, and its identity."""
    found = living_owner(model_dir)
    return _process(found), found.identity if found is not None else None


def _owner_in(objects: Objects) -> tuple[str | None, Identity | None]:
    """Returns the owner in words, and its identity if that is known."""
    owner = owner_of(LeaseObject(objects).read().data)
    identity = owner if isinstance(owner, Identity) else None
    if owner is None or (identity is not None and identity.is_dead):
        return None, None
    return f"{_process(owner)}, unless it has not renewed its lease for a minute", identity


def _process(owner: object) -> str | None:
    """Returns the owner without the word `supervisor`, which the line begins with; None for
    None."""
    return None if owner is None else re.sub(r"^supervisor (?=\d)", "pid ", str(owner))


def standstill(owner: Identity | None) -> str:
    """Returns why the process of the owner does nothing now; empty: it runs, or cannot be seen."""
    state = owner.state if owner is not None else ""
    if owner is None or state not in ("T", "t", "D"):
        return ""
    if state != "D":
        return (
            f"it is stopped (state {state}) and watches nothing: `kill -CONT {owner.pid}` lets it "
            "go on"
        )
    for _ in range(_LOOKS):  # a healthy one waits for a disk now and then
        time.sleep(_PAUSE)
        if owner.state != "D":
            return ""
    return "it waits in the kernel (state D), as for a disk or file system that does not answer"


def _ask_in(objects: Objects, request: Request) -> None:
    objects.write(*request_file(request))


def print_line(line: str) -> None:
    """Print a line with text from a journal, with control characters escaped.

    Somebody else may have written the journal.
    """
    print(printable(line))


def quarantined(state: JobState, phase: PhasePolicy) -> Iterator[str]:
    """Yields a line for each device or host in quarantine: which, why, and until when."""
    now = time.time()
    for entry in state.quarantine.entries:
        over = " (over)" if entry.until + state.epoch <= now else ""
        try:
            until = datetime.fromtimestamp(entry.until + state.epoch).astimezone()
            when = f"{until:%Y-%m-%d %H:%M:%S%z}"
        except (ValueError, OverflowError, OSError):  # a time that no supervisor wrote
            when = f"{entry.until + state.epoch:g}"
        yield f"in quarantine until {when}{over}: {unit(phase)} {entry.unit}: {entry.reason}"


def phase_of(job: JobView) -> str:
    """Returns the name of the present phase."""
    return job.policy.phases[job.history.state.phase].name


def spikes_of(job: JobView) -> list[tuple[str, LossSpike]]:
    """Returns the losses of the job that stand out, each with the name of its phase, the newest
    last: as many as the state and the past remember."""
    state = job.history.state
    names = {phase: each.name for phase, each in enumerate(job.policy.phases)}
    present = [(state.phase, spike) for spike in state.loss_spikes]
    earlier = [(each.phase, each.spike) for each in job.history.past.loss_spikes]
    if present:  # those of an earlier run of this phase are of steps that were run again
        earlier = [(phase, spike) for phase, spike in earlier if phase != state.phase]
    return [(names[phase], spike) for phase, spike in (*earlier, *present) if phase in names]


def unseen_checkpoints(job: JobView) -> Iterator[str]:
    """Yields why nothing that the program saves counts as a checkpoint, where that is known."""
    told, state = job.told, job.history.state
    if told is None or told.attempt != state.attempt or state.newest is not None:
        return
    if told.checkpoints_unseen is not None:
        yield f"note: {told.checkpoints_unseen}"


def spike_notes(job: JobView, place: Path | Uri) -> list[tuple[LossSpike, str]]:
    """Returns the newest losses that stand out, each with what people are told of it: which it is,
    and how to look into it."""
    is_one = len(job.policy.phases) == 1
    notes = []
    for phase, each in spikes_of(job)[-_SPIKES_SHOWN:]:
        replay = replay_command(job, place, phase, each.step)
        said = spike_in_words(each, "" if is_one else phase)
        notes.append((each, f"note: {said}{f': {replay}' if replay is not None else ''}"))
    return notes


def replay_command(
    job: JobView, place: Path | Uri, phase: str, step: int | str | None = None
) -> str | None:
    """Returns the command that runs `step` of `phase` again, for a shell; see `replay_in_words`.
    None: `supervise replay` refuses a command, and a job in a bucket."""
    if not isinstance(place, Path):
        return None
    return replay_in_words(shlex.quote(str(place)), job.policy, phase, step)
