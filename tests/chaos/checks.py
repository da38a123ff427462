"""The checks after the storm: what must be true."""

# mypy: allow-untyped-calls
from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from supervisor.adapters.stores.journal import FileJournal, JournalError
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.config.training.resolved import parse
from supervisor.core.decisions import StartWorkers
from supervisor.core.state import Status
from tests.chaos import hostile
from tests.chaos.job import SECRET, Job
from tests.chaos.storm import Outcome
from tests.running import attempt_records, marked
from tests.training.harness import assert_same_bits, spec
from trainer.checkpoint import restore

_LEAVE_SNAPSHOTS = ("SIGKILL by itself", "SIGSTOP to the trainer", "hang after a step")
"""Faults at a step after which the next attempt may resume from a snapshot in memory."""


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and what contradicts it; empty: the claim holds."""

    claim: str
    against: str

    @property
    def holds(self) -> bool:
        """Whether nothing contradicts the claim."""
        return not self.against


def check(
    job: Job, exit_code: int, outcomes: list[Outcome], config: dict[str, Any], undisturbed: Path
) -> list[Check]:
    """Check all claims. `undisturbed` has the checkpoints of a run of `config` without faults."""
    claims: dict[str, Callable[[], str]] = {
        "every fault struck, was noticed, and training went on": lambda: _faults(outcomes),
        "the job finished: exit code 0": lambda: "" if exit_code == 0 else f"it is {exit_code}",
        "the final state has the same bits as the undisturbed run's": lambda: _same_bits(
            config, job.checkpoints, undisturbed
        ),
        "no committed step was lost": lambda: "; ".join(_lost_steps(job)),
        "snapshots in memory were resumed from": lambda: _snapshots(job, outcomes),
        "no two trainers ran at once": lambda: _overlaps(job),
        "attempt numbers only grow": lambda: _attempts(job),
        "the journal replays to the same decisions": lambda: _replay(job),
        "the last summary.json tells of every attempt": lambda: _summary(job),
        "nothing foreign was changed": lambda: "; ".join(hostile.changed(job))[:1000],
        "no process is left": lambda: "; ".join([*marked(job.mark).values(), *_hidden(job)]),
        "no secret is in any file of the supervisor": lambda: "; ".join(_secrets(job, outcomes)),
    }
    return [Check(claim, _tried(against)) for claim, against in claims.items()]


def _tried(against: Callable[[], str]) -> str:
    try:
        return against()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _faults(outcomes: list[Outcome]) -> str:
    return "; ".join(f"{o.fault.name}: {o.problem}" for o in outcomes if o.problem)[:1000]


def _same_bits(config: dict[str, Any], struck: Path, undisturbed: Path) -> str:
    init = {**config["trainer"]["init"], "checkpoint": {"directory": str(struck), "every": 1}}
    parsed = parse({"trainer": {"init": init, "fit": config["trainer"]["fit"]}}).init
    last = parsed.loop.max_steps
    assert last is not None
    abstract = spec(parsed).abstract
    state, position = restore(struck, last, abstract)
    other_state, other_position = restore(undisturbed, last, abstract)
    assert_same_bits(state, other_state)
    return "" if position == other_position else "the data is at another position"


@dataclass(frozen=True, slots=True)
class Statement:
    """What the witness in the trainer of one attempt has recorded."""

    attempt: int
    alone: bool
    committed: dict[int, tuple[int, int]]
    """The steps that were committed when the attempt began, each with its checkpoint's identity."""


def _statements(job: Job) -> list[Statement]:
    lines = (job.witness / "statements.jsonl").read_text().splitlines()
    return [
        Statement(
            told["attempt"],
            told["alone"],
            {number: (inode, changed) for number, inode, changed in told["committed"]},
        )
        for told in map(json.loads, lines)
    ]


def _lost_steps(job: Job) -> Iterator[str]:
    """Check that each attempt resumed from the newest undamaged step that was committed when it
    began, or from a snapshot above it."""
    restored: dict[int, int | None] = {}
    remembered: dict[int, int] = {}
    for line in job.lines:
        if line.event == "state-restored":
            restored[line.keys["attempt"]] = line.keys["step"]
        elif line.event == "snapshot-restored":
            remembered[line.keys["attempt"]] = line.keys["step"]
    for told in _statements(job):
        number, name = told.attempt, f"attempt {told.attempt}"
        good = [step for step, mark in told.committed.items() if mark not in job.damaged]
        newest = max(good, default=None)
        if number in restored and restored[number] != newest:
            yield f"{name} resumed from {restored[number]}, not from {newest}"
        if number in remembered and remembered[number] < (newest or 0):
            yield f"{name} resumed from {remembered[number]} in memory, although {newest} is newer"


def _snapshots(job: Job, outcomes: list[Outcome]) -> str:
    """Check that a snapshot was used if one had to be: if none is ever used, every other check
    passes."""
    wanted = any(one.fault.name in _LEAVE_SNAPSHOTS and one.at is not None for one in outcomes)
    used = any(line.event == "snapshot-restored" for line in job.lines)
    return "no attempt resumed from one" if wanted and not used else ""


def _overlaps(job: Job) -> str:
    told = _statements(job)
    return "; ".join(f"attempt {one.attempt} began beside another" for one in told if not one.alone)


def _attempts(job: Job) -> str:
    journal = FileJournal(LocalStorage(job.model_dir))
    decided = [
        decision.attempt
        for transition in journal.all_transitions(journal.peek())
        for decision in transition.decisions
        if isinstance(decision, StartWorkers)
    ]
    lived = [told.attempt for told in _statements(job)]
    for numbers in (decided, lived):
        if any(one >= other for one, other in itertools.pairwise(numbers)):
            return f"they do not: {numbers}"
    return ""


def _replay(job: Job) -> str:
    try:
        history = FileJournal(LocalStorage(job.model_dir)).read()  # read checks all transitions
    except JournalError as error:
        return str(error)
    if history.state.status is not Status.SUCCEEDED:
        return f"it ends in {history.state.status}"
    return ""


def _summary(job: Job) -> str:
    phase = max(job.model_dir.glob("*_restartable/summary.json")).parent
    summary = json.loads((phase / "summary.json").read_bytes())
    told = [attempt["attempt"] for attempt in attempt_records(phase)]
    lost = {statement.attempt for statement in _statements(job)} - set(told)
    if summary["status"] != "SUCCEEDED" or lost:
        return f"status {summary['status']}, without attempts {sorted(lost)}"
    return ""


def _hidden(job: Job) -> Iterator[str]:
    """Yield the processes without an environment that trainers started and that still live."""
    for pid in map(int, (job.witness / "hidden.txt").read_text().split()):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.cmdline() == ["/bin/sleep", "3600"] and job.began(process.create_time()):
                yield f"the hidden process {pid}"


def _secrets(job: Job, outcomes: list[Outcome]) -> Iterator[str]:
    """Yield the files that contain the secret. A trainer's own output and failure record may
    contain it."""
    redacted = 0
    for path in job.model_dir.rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            redacted += b"[redacted]" in content
            if SECRET.encode() in content and not re.fullmatch(r"rank\d+\..*", path.name):
                yield str(path.relative_to(job.model_dir))
    died_of_it = any(SECRET in str(one.fault.injected) and one.at is not None for one in outcomes)
    if died_of_it and not redacted:
        yield "no file had anything to redact: the check shows nothing"
