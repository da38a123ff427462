"""A job of as many attempts as one likes, decided by the real core and written to a real journal.

python -m tests.report.long_job ATTEMPTS FOLDER
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from supervisor.adapters.stores.journal import FileJournal
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.core.decisions import Decision
from supervisor.core.events import (
    VOLATILE,
    Event,
    PhaseBegun,
    SupervisorStarted,
    WorkerReported,
    WorkersGone,
    WorkersStarted,
)
from supervisor.core.machine import step
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import Status
from supervisor.diagnosis.failure import Charge, Failure, Verdict, WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.goodput.kept import GOODPUT, view_of
from supervisor.goodput.wall_time import Ledger
from supervisor.ports import Transition
from supervisor.protocol.messages import Message, RestoredMessage, Stage, StageMessage, StepMessage
from tests.core.test_capacity_check import Devices

EPOCH = 1_800_000_000.0
HOSTILE = "peer gone </script><script>document.title='run'</script><img src=x onerror=alert(1)>"
KILLED = Failure(
    "killed", Verdict.RESTART, "sigkill", "Killed from outside.", "Find out who.", "SIGKILL", 0,
    "killed by SIGKILL",
)  # fmt: skip
LOST = replace(
    KILLED,
    cause="a connection failed",
    rule="connection",
    root_cause=f"ConnectionResetError: {HOSTILE}",
    exit="exit code 1",
    traceback=f'Traceback:\n  File "train.py", line 7, in main\nConnectionResetError: {HOSTILE}',
    where="train.py:7 in main",
)
PREEMPTED = replace(KILLED, cause="preempted", rule="sigterm", charge=Charge.PREEMPTIONS)
BROKEN = replace(KILLED, cause="a device failed", rule="hardware", hardware=True)
FAILURES = (KILLED, LOST, PREEMPTED, BROKEN)
STEPS = 100
"""Of each attempt."""
RECORDS = 300
"""In a segment of the journal."""


class LongJob(Devices):
    """A job whose transitions go to a journal, and are not kept."""

    def __init__(self, folder: Path, attempts: int) -> None:
        phase = PhasePolicy(
            "pretrain",
            3,
            20,
            Success(step=attempts * STEPS),
            rungs=(8, 4, 2),
            units=tuple("01234567"),
            reports_stages=True,
        )
        super().__init__(RestartPolicy(phases=(phase,)))
        self.ledger = Ledger()
        self.journal = FileJournal(LocalStorage(folder), compact_after=RECORDS)
        self.journal.add_view(GOODPUT, lambda: view_of(self.ledger))
        self.chance = random.Random(attempts)
        self.losses: list[tuple[float, int, int]] = []
        """The time, the attempt and the first step of ten losses each."""

    def happens(self, event: Event) -> tuple[Decision, ...]:
        """See `History`."""
        before = self.state
        self.state, decisions = step(before, event, self.policy)
        self.decided = list(decisions)
        if not isinstance(event, VOLATILE) or decisions:
            wall = datetime.fromtimestamp(EPOCH + self.now, UTC)
            transition = Transition(event, before, self.state, decisions, wall)
            self.journal.append(transition, durable=False)
            self.ledger = self.ledger.after(transition)
        return decisions

    def later(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds * self.chance.uniform(0.5, 1.5)

    def says(self, *messages: Message) -> None:
        """The worker reports."""
        for each in messages:
            self.happens(WorkerReported(self.now, self.state.attempt, 0, each))

    def begin(self) -> None:
        """A supervisor starts the job."""
        self.happens(SupervisorStarted(self.now, "longjob", self.policy, None, EPOCH))
        self.happens(PhaseBegun(self.now, 0, "20270115_080000_restartable", None))

    def runs_until(self, done: int, upto: int) -> None:
        """An attempt goes on from step `done` and trains as far as `upto`, saving once before."""
        self.later(2)
        self.happens(WorkersStarted(self.now, self.state.attempt, (1000,)))
        for stage in (Stage.INITIALIZING, Stage.RESTORING, Stage.COMPILING):
            self.later(4)
            self.says(StageMessage(stage))
        self.says(RestoredMessage(done))
        self.later(20)
        self.says(StageMessage(Stage.TRAINING))
        saves = upto - 15
        for each in range(done + 1, upto + 1, 10):
            self.later(10)
            self.losses.append((self.now, self.state.attempt, each))
            self.says(StepMessage(each))
            if each <= saves < each + 10:
                self.says(StageMessage(Stage.SAVING))
                self.later(3)
                self.commits(each)
                self.says(StageMessage(Stage.TRAINING))

    def fails_with(self, failure: Failure, last: int) -> None:
        """The worker dies, and the next attempt is begun."""
        ended = WorkerExit(0, signal="SIGKILL") if failure is not LOST else WorkerExit(0, code=1)
        self.ends(ended)
        self.later(0.3)
        newest = self.state.newest
        gone = WorkersGone(self.now, self.state.attempt, failure, None, last, newest)
        self.happens(replace(gone, exits=(ended,)))
        while self.state.status in (Status.BACKOFF, Status.PROBING, Status.WAITING):
            if self.state.status is Status.PROBING:
                few = self.state.attempt % 20 == 7
                self.lost = frozenset("7") if few else frozenset()
                self.later(5)
                self.looks()
            else:
                self.waits()


def write_long_job(folder: Path, attempts: int) -> LongJob:
    """Writes the journal and the losses of a job of so many attempts; the last one succeeds."""
    job = LongJob(folder, attempts)
    job.begin()
    done = 0
    for number in range(1, attempts):
        job.runs_until(done, done + STEPS)
        job.fails_with(FAILURES[number % len(FAILURES)], done + STEPS)
        done = job.state.newest or 0
    job.runs_until(done, attempts * STEPS)
    job.commits(attempts * STEPS)
    job.ends(WorkerExit(0, code=0))
    gone = WorkersGone(job.now, job.state.attempt, None, None, attempts * STEPS, job.state.newest)
    job.happens(gone)
    (folder / "metrics.jsonl").write_text("".join(_loss_lines(job)), encoding="utf-8")
    return job


def _loss_lines(job: LongJob) -> Iterator[str]:
    for time, attempt, first in job.losses:
        for each in range(first, first + 10):
            loss = 2 + 8 * math.exp(-each / 3000) + job.chance.gauss(0, 0.05)
            told = {"time": EPOCH + time, "attempt": attempt, "step": each, "loss": loss}
            yield json.dumps(told) + "\n"


if __name__ == "__main__":
    number, folder = int(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True)
    print(write_long_job(folder, number).state.status)
