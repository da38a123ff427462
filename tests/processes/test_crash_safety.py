"""The supervisor itself is killed, again and again, and loses or invents nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from supervisor.adapters.stores.journal import FileJournal
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.files.segments import TORN
from tests.running import Result, Start, command_config, eventually, preloaded

Supervise = Callable[..., Result]
KILLS = 100
BUDGET = 3


def turns(model_dir: Path) -> bytes:
    """The whole lines of the journal but its snapshots, those in the archive first."""
    found: list[bytes] = []
    name: str | None = "journal.jsonl"
    while name is not None and (model_dir / name).exists():
        data = (model_dir / name).read_bytes()
        here = [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]
        first = json.loads(here[0]) if here else {}
        name = first["snapshot"]["archived"] if "snapshot" in first else None
        found = [*(here[1:] if "snapshot" in first else here), *found]
    return b"".join(found)


def has_grown(model_dir: Path, size: int) -> bool:
    """Whether the lines of the journal, the archived ones included, have so many bytes."""
    return len(turns(model_dir)) >= size


def has_called(pid: int, number: int) -> bool:
    """Whether the process has made so many reads and writes."""
    counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(counts["syscr"]) + int(counts["syscw"]) >= number


@pytest.mark.slow
def test_a_hundred_kills_at_any_moment(supervise: Supervise, tmp_path: Path) -> None:
    """Of a job whose worker crashes after every tenth step and commits every fourth.

    A kill comes once the journal has grown by some bytes, or once the supervisor has made so many
    reads and writes: about a thousand are its start-up. So the moments are spread over start-up,
    launch, crash, charge and restart, however fast the machine is.
    """
    moments = random.Random(20261121)
    diary, model_dir = tmp_path / "diary", tmp_path / "run"
    toy = ("crash", "--at", "10", "--every", "4", "--strike-each", "--once", "--steps", "100000")
    restart = {"max_num_restarts": BUDGET, "backoff": {"first": 0.01, "max": 0.01}}
    config = command_config(
        model_dir,
        *(*toy, "--seconds", "0.004", "--diary", str(diary)),
        restart=restart,
        success={"step": 100000},
    )
    before = b""
    path = tmp_path / "killed.yaml"
    path.write_text(yaml.safe_dump(config))
    with preloaded(tmp_path) as supervisors:
        for _ in range(KILLS):
            pid = supervisors.start("run", str(path))
            grown = partial(has_grown, model_dir, len(before) + moments.randrange(1, 40000))
            busy = partial(has_called, pid, moments.randrange(1, 2400))
            assert eventually(moments.choice([grown, busy]), timeout=60)
            os.kill(pid, signal.SIGKILL)
            assert supervisors.answer() == -signal.SIGKILL
            after = turns(model_dir)
            assert after.startswith(before), "what was journalled stays journalled"
            before = after
    noted = [line.split() for line in diary.read_text().splitlines()]
    assert not [line for line in noted if line[0] == "OVERLAP"]
    started = [int(number) for what, number, _ in noted if what == "start"]
    assert all(one < other for one, other in pairwise(started)), "each attempt starts once"
    told = [
        decision["attempt"]
        for line in map(json.loads, turns(model_dir).splitlines())
        for decision in line.get("decisions", [])
        if decision["kind"] == "StartWorkers"
    ]
    assert told == list(range(1, len(told) + 1)), "attempt numbers never repeat"
    assert set(started) <= set(told), "nothing is started that is not journalled first"
    crashed = {int(number) for what, number, _ in noted if what == "crash"}
    journal = FileJournal(LocalStorage(model_dir))
    transitions = list(journal.all_transitions(journal.read()))
    charged = {
        t.before.attempt for t in transitions if t.after.budget.restarts > t.before.budget.restarts
    }
    assert len(crashed) > 5
    assert len(charged) > 5
    assert {n for n in charged if n in set(started)} <= crashed, "nobody is charged for a kill"
    budgets = [transition.after.budget for transition in transitions]
    assert 0 < max(budget.restarts for budget in budgets) <= BUDGET
    assert all(budget.preemptions == 0 for budget in budgets)
    target = str((budgets[-1].highest or 0) + 20)
    command = config["trainer"]["command"]
    command["argv"] = [target if argument == "100000" else argument for argument in command["argv"]]
    command["success"]["step"] = int(target)
    assert supervise(config).code == 0


def test_a_changed_command_runs_where_the_record_of_a_success_is_torn(
    supervise: Supervise, model_dir: Path
) -> None:
    def command(text: str) -> dict[str, Any]:
        config = command_config(model_dir)
        config["trainer"]["command"]["argv"] = [sys.executable, "-c", f"print({text!r})"]
        return config

    assert supervise(command("first")).code == 0
    journal = model_dir / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-10])
    same = supervise(command("first"))
    assert (same.code, same.attempts) == (0, 1), "it did run"
    journal.write_bytes(journal.read_bytes()[:-10])
    assert supervise(command("second")).code == 0
    assert any("second" in log.read_text() for log in model_dir.rglob("rank0.log"))


def test_a_torn_line_is_cut_off_kept_and_told(supervise: Supervise, model_dir: Path) -> None:
    config = command_config(model_dir, "SIGKILL", "--at", "3", success={"step": 6})
    assert supervise(config).code == 76
    journal = model_dir / "journal.jsonl"
    before = journal.read_bytes()
    last = before.splitlines(keepends=True)[-1]
    torn = before[: -len(last)] + last[: len(last) // 2]
    journal.write_bytes(torn)
    again = supervise(config)
    (kept,) = model_dir.glob(f"{TORN}*")
    assert again.has_event("journal-torn", bytes=len(last) // 2, kept=kept.name)
    assert kept.read_bytes() == last[: len(last) // 2]
    assert again.code == 76
    assert again.attempts == 2, "the end was lost, the charged restart before it was not"


def test_supervisor_and_worker_killed_together(
    start: Start, supervise: Supervise, model_dir: Path
) -> None:
    config = command_config(model_dir, "wait", "--once", success={"step": 6})
    running = start(config)
    running.wait_for("waiting")
    (worker,) = psutil.Process(running.process.pid).children(recursive=True)[-1:]
    running.signal(signal.SIGSTOP)  # so that it does not see the worker die first
    worker.kill()
    running.signal(signal.SIGKILL)
    running.result()
    again = supervise(config)
    assert again.code == 0
    assert again.attempts == 2
    assert "nothing is charged" in again.event("attempt-started")["reason"]


def test_an_attempt_that_may_live_on_hosts_that_the_config_had_is_waited_for(
    start: Start, model_dir: Path
) -> None:
    """After `lost_after` and a second, the agents there have certainly killed it."""
    lost_after = 2.0
    config = command_config(model_dir, "--steps", "100000", "--seconds", "0.05")
    killed = start(config)
    killed.wait_for_event("checkpoint-committed", attempt=1)
    killed.signal(signal.SIGKILL)
    killed.result()
    journal = FileJournal(LocalStorage(model_dir))
    had: Any = journal.read().config
    had[0]["trainer"]["init"]["hosts"] = {"engine": "ray", "lost_after": lost_after}
    journal.record_config(datetime.now(UTC), had, [])
    running = start(config)
    waits = running.wait_for_event("hosts-left")
    begins = running.wait_for_event("attempt-started", attempt=2)
    first, second = (datetime.fromisoformat(each["time"]) for each in (waits, begins))
    assert (second - first).total_seconds() >= lost_after + 1.0
    assert FileJournal(LocalStorage(model_dir)).peek().longest_lost_after == 0.0
    running.signal(signal.SIGTERM)
    running.result()
