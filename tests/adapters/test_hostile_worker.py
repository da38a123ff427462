"""Whatever a broken or hostile worker sends, through the real ways in, to all that a person sees.

A worker has two ways to say something that its supervisor repeats: the progress pipe and a failure
record. Neither may crash it, unbalance its journal, or move a reader's cursor.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.adapters.processes.progress import ProgressPipe
from supervisor.adapters.stores.journal import FileJournal
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.adapters.telling.runlog import RunLog
from supervisor.adapters.telling.summary import Summary
from supervisor.adapters.telling.terminal import TerminalView
from supervisor.config.command import SuccessConfig
from supervisor.config.plan import PhasePlan
from supervisor.core.events import (
    Event,
    Noticed,
    PhaseBegun,
    SupervisorStarted,
    WorkerReported,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.machine import step
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import JobState
from supervisor.diagnosis.failure import Evidence, RankEvidence, WorkerExit
from supervisor.diagnosis.redaction import Redactor
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.host.notice import Notice
from supervisor.narrative import Level
from supervisor.narrative.rendered import with_lines
from supervisor.ports import Transition
from supervisor.protocol.failure_record import parse_failure_record
from supervisor.protocol.messages import MAX_LINE, Message, Stage

POLICY = RestartPolicy((PhasePolicy("p", 3, 3, Success()),), 25.0, 0.0, 1.0)
PLAN = PhasePlan(
    "p", ("x",), {}, Path("/m"), Path("/c"), {}, SuccessConfig(), True, False, None, False,
    None, None, None, (),
)  # fmt: skip
WALL = datetime(2026, 1, 1, tzinfo=UTC)
PHASE = "20260101_000000_restartable"

evil_text = st.one_of(
    st.text(st.characters(), max_size=60),
    st.text(st.sampled_from("\x1b[2J\r\n\x00\x07\x9b\u202e\u2066\u2028\ud800ab "), max_size=40),
    st.sampled_from(["\x1b]0;owned\x07", "\n2026 [main] SUCCEEDED", "\n", "", "A" * 9000]),
)
evil_number = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([10**400, -1, 2**63, True, float("nan"), float("-inf")]),
)
evil_value = st.recursive(
    st.none() | st.booleans() | evil_number | evil_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(evil_text, inner, max_size=4),
    max_leaves=8,
)


def mostly(right: st.SearchStrategy[Any], wrong: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values that are seldom wrong: what is all wrong gets nowhere."""
    return st.integers(0, 9).flatmap(lambda dice: wrong if dice == 9 else right)


def nearly(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with a wrong or a missing field now and then."""
    broken = {name: mostly(right, evil_value) for name, right in fields.items()}
    return mostly(st.fixed_dictionaries(broken), st.fixed_dictionaries({}, optional=broken))


stages = st.sampled_from([*Stage, "NAPPING"])
metrics = st.dictionaries(evil_text, evil_number, max_size=3)
message_line = nearly(
    v=st.just(1),
    kind=st.sampled_from(["stage", "step", "restored", "saved", "evaluated", "devices"]),
    step=st.integers(0, 9),
    stage=stages,
    metrics=metrics,
    platform=evil_text,
    device_kind=evil_text,
    count=st.integers(0, 9),
).map(lambda body: json.dumps(body).encode())
twice = st.tuples(message_line, message_line).map(
    lambda pair: pair[0][:-1] + b"," + pair[1][1:] if len(pair[0]) > 2 and len(pair[1]) > 2 else b""
)
deep = st.integers(1, MAX_LINE).map(lambda depth: b'{"v":' + b"[" * depth)
lines = st.lists(
    st.one_of(message_line, message_line, twice, deep, st.binary(max_size=200)), max_size=12
)

exception = nearly(
    type=evil_text,
    bases=st.lists(evil_text | st.sampled_from(["builtins.OSError", "x.AssertionError"])),
    message=evil_text,
    relation=st.just("raised"),
)
record = nearly(
    rank=st.integers(0, 9),
    time=st.floats(0, 9),
    stage=st.none() | stages,
    step=st.none() | st.integers(0, 9),
    exceptions=st.lists(exception, max_size=3),
    traceback=evil_text,
).map(lambda body: json.dumps(body).encode())


class Ticking:
    """A clock that a test moves."""

    def now(self) -> float:
        return 0.0

    def wall(self) -> datetime:
        return WALL


class Observers:
    """Everything that writes of a transition, on real files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.said: list[str] = []
        self._view = TerminalView([PLAN], POLICY, Ticking(), pytest.fail)
        storage = LocalStorage(directory)
        self._journal = FileJournal(storage)
        log = RunLog(storage, Ticking(), self._line, "text", Redactor().text)
        self._observers = (log, Summary(storage, [PLAN], POLICY, self.said.append), self._view)
        self.state = JobState()
        storage.make_directory(PHASE)
        for event in (
            SupervisorStarted(0.0, "job", POLICY, None),
            PhaseBegun(0.0, 0, PHASE, None),
            WorkersStarted(0.0, 1, (7,)),
        ):
            self.happens(event)

    def _line(self, text: str, level: Level) -> None:
        self.said.append(text)
        self._view.line(text)

    def happens(self, event: Event) -> None:
        before = self.state
        self.state, decisions = step(before, event, POLICY)
        transition = Transition(event, before, self.state, decisions, WALL)
        if not isinstance(event, WorkerReported | Noticed):
            self._journal.append(transition, durable=False)
        for observer in self._observers:
            observer.observe(with_lines(transition, POLICY))

    def check(self, shown: str) -> None:
        """Nothing of what a person reads is more than lines of our own."""
        log = (self.directory / PHASE / "run.log").read_text()
        assert log.splitlines() == self.said
        assert all(line.startswith("2026-01-01 00:00:00.000+00:00 [") for line in self.said)
        assert all(line.isprintable() for line in self.said)
        assert all(char.isprintable() or char == "\n" for char in shown)
        history = FileJournal(LocalStorage(self.directory)).read()
        assert history.state.durable() == self.state.durable()
        assert json.loads((self.directory / PHASE / "summary.json").read_text())

    def close(self) -> None:
        self._view.close()


slow = settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=60)


@slow
@given(lines, st.data())
def test_the_progress_pipe(
    tmp_path_factory: pytest.TempPathFactory,
    capfd: pytest.CaptureFixture[str],
    sent: list[bytes],
    data: st.DataObject,
) -> None:
    observers = Observers(tmp_path_factory.mktemp("job"))

    def heard(message: Message) -> None:
        observers.happens(WorkerReported(0.0, 1, 0, message))

    refused: list[str] = []
    pipe = ProgressPipe(heard, refused.append)
    everything = b"\n".join(sent) + b"\n"
    cut = data.draw(st.integers(0, len(everything)))
    for part in (everything[:cut], everything[cut:]):
        if part:
            os.write(pipe.write_end, part)
        pipe.drain()
    pipe.close_write_end()
    assert not pipe.read()
    pipe.close()
    for why in refused:
        observers.happens(
            Noticed(0.0, Notice("observer-failed", f"a message of rank 0 was refused: {why}"))
        )
    assert len(refused) <= 1
    observers.close()
    observers.check(capfd.readouterr().out)


@slow
@given(st.one_of(record, record, record, st.binary(max_size=300)), evil_text)
def test_the_failure_record(
    tmp_path_factory: pytest.TempPathFactory,
    capfd: pytest.CaptureFixture[str],
    left: bytes,
    output: str,
) -> None:
    observers = Observers(tmp_path_factory.mktemp("job"))
    ended = WorkerExit(0, code=1)
    rank = RankEvidence(ended, output=output.encode("utf-8", "replace").decode())
    try:
        rank = replace(rank, record=parse_failure_record(left))
    except ValueError as error:
        observers.happens(
            Noticed(0.0, Notice("observer-failed", f"the failure record cannot be used: {error}"))
        )
    failure = judge(Evidence((rank,)), Success())
    assert failure is not None
    observers.happens(WorkersObserved(0.0, 1, (7,), (ended,)))
    observers.happens(WorkersGone(0.0, 1, failure, None, None, None))
    assert observers.state.last_failure == failure
    observers.close()
    observers.check(capfd.readouterr().out)


def test_steps_in_a_row_become_one_and_keep_their_place() -> None:
    heard: list[Message] = []
    pipe = ProgressPipe(heard.append, pytest.fail)
    for number in range(1, 1001):
        os.write(pipe.write_end, b'{"v":1,"kind":"step","step":%d}\n' % number)
        if number == 500:
            os.write(pipe.write_end, b'{"v":1,"kind":"saved","step":500}\n')
    pipe.drain()
    pipe.close_write_end()
    pipe.close()
    assert [(type(m).__name__, getattr(m, "step", None)) for m in heard] == [
        ("StepMessage", 500),
        ("SavedMessage", 500),
        ("StepMessage", 1000),
    ]
