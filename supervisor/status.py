"""`supervise status` and `supervise quarantine`: where a job stands, by its journal alone.

Nothing is taken and nothing written but a person's request, so that it can be asked while the job
runs, and after.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from supervisor.adapters.journal import FileJournal, History, JournalError
from supervisor.adapters.lock import living_owner
from supervisor.adapters.requests import ask_to_clear
from supervisor.adapters.storage import LocalStorage
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import JobState
from supervisor.narrative import status_line
from supervisor.narrative.devices import unit
from supervisor.narrative.line import budget_used


def show_status(model_dir: Path) -> None:
    """Print where the job in `model_dir` stands.

    Raises:
        JournalError: there is none, or its journal cannot be read.
    """
    history, policy = _read(model_dir)
    state = history.state.durable()  # of the rest the journal tells by chance
    owner = living_owner(model_dir)
    print(f"job {state.job} in {model_dir}")
    print(f"supervisor: {owner or 'none runs here'}")
    print(status_line(state, policy))
    if state.exit_code is not None:
        print(f"exit code {state.exit_code}")
    print(budget_used(state, policy))
    phase = policy.phases[state.phase]
    for line in (*_rung(state, phase), *_quarantine(state, phase)):
        print(line)


def show_quarantine(model_dir: Path) -> None:
    """Print what is in quarantine, why and for how long.

    Raises:
        JournalError: there is no job, or its journal cannot be read.
    """
    history, policy = _read(model_dir)
    lines = list(_quarantine(history.state, policy.phases[history.state.phase]))
    print("\n".join(lines) if lines else "nothing is in quarantine")


def clear_quarantine(model_dir: Path, units: tuple[str, ...]) -> None:
    """Ask for the end of the quarantine of `units` (none named: of all).

    Raises:
        JournalError: there is no job, or its journal cannot be read.
        ValueError: one of them is not in quarantine.
        OSError: the request cannot be written.
    """
    history, _ = _read(model_dir)
    known = history.state.quarantine.units
    for each in units:
        if each not in known:
            there = ", ".join(sorted(known)) or "nothing"
            raise ValueError(f"{each!r} is not in quarantine; in quarantine: {there}")
    ask_to_clear(model_dir, units)
    owner = living_owner(model_dir)
    who = f"{owner} does it within seconds" if owner else "the next supervisor does it first"
    print(f"asked to clear {', '.join(units) or 'all'}: {who}")


def _read(model_dir: Path) -> tuple[History, RestartPolicy]:
    history = FileJournal(LocalStorage(model_dir)).look()
    if history.policy is None:
        raise JournalError(f"{model_dir} holds no job: there is no journal with a start in it")
    return history, history.policy


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
        until = datetime.fromtimestamp(entry.until + state.epoch).astimezone()
        over = " (over)" if until.timestamp() <= now else ""
        when = f"{until:%Y-%m-%d %H:%M:%S%z}"
        yield f"in quarantine until {when}{over}: {unit(phase)} {entry.unit}: {entry.reason}"
