"""CONTRIBUTING.md says in which files each feature is decided: in those, and in no others.

A feature happens, and the files of the core are written down of which a function runs meanwhile.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from supervisor.core.decisions import FinishJob, KillWorkers, MakeRoom, ProbeDevices, StartWorkers
from supervisor.core.events import SaveMeasured, StopRequested, StopSource
from supervisor.core.state import Status
from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.rules import DISK_FULL
from tests.core.history import PREEMPTED, RETRY, History, policy
from tests.core.test_capacity_check import shrunk

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "supervisor" / "core"
MOST = 6


def section() -> str:
    """What CONTRIBUTING.md says about where features are decided."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.split("### Where a feature is decided", 1)[1].split("\n## ", 1)[0]


def told(feature: str) -> set[str]:
    """The files in which it is decided, as the table says."""
    row = re.search(rf"^\| {feature} \| (.*) \|$", section(), re.M)
    assert row is not None
    return set(re.findall(r"`(\w+)\.py`", row[1]))


def values() -> set[str]:
    """The files that are named beside the table: the vocabulary, and values that keep count."""
    before = section().split("| feature |", 1)[0]
    words = re.findall(r"\(([^)]*)\)", before)
    named = {name.strip("` \n") for group in words for name in group.split(",")}
    assert all((CORE / f"{name}.py").is_file() for name in named)
    return named


VOCABULARY = {"doing", "state", "events", "decisions", "policy", "exit_codes"}


def test_each_value_of_the_core_is_named() -> None:
    """A value is a dataclass below the vocabulary: it knows events and policy, and other values."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in CORE.glob("[a-z]*.py")}
    imports = {
        name: set(re.findall(r"^from supervisor\.core\.(\w+) import", text, re.M))
        for name, text in texts.items()
    }
    known = {"events", "policy"}
    candidates = {name for name, text in texts.items() if "\n@dataclass" in text} - VOCABULARY
    while found := {name for name in candidates - known if imports[name] <= known}:
        known |= found
    assert known | VOCABULARY == values()


def files_of(happens: Callable[[], None]) -> set[str]:
    """The files of the core of which a function runs while something happens."""
    found = set[str]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.parent == CORE:
            found.add(path.stem)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        happens()
    finally:
        sys.setprofile(before)
    return found


def a_rank_dies() -> Callable[[], None]:
    history = History(policy())
    history.starts()

    def happens() -> None:
        history.runs(workers=2)
        history.ends(WorkerExit(1, signal="SIGKILL"))
        (killing,) = history.waits()
        assert isinstance(killing, KillWorkers)
        (started,) = history.gone()
        assert isinstance(started, StartWorkers)
        history.fails()
        assert history.state.attempt == 3, "after a backoff"

    return happens


def it_regrows() -> Callable[[], None]:
    history = shrunk(regrow_at_checkpoint=True, regrow_after=60.0)

    def happens() -> None:
        history.runs()
        history.lost = frozenset()
        history.waits()
        history.looks()
        history.now += 60.0
        history.commits(20)
        history.ends(WorkerExit(0, code=0))
        (look,) = history.gone(RETRY, committed=21)
        assert isinstance(look, ProbeDevices)
        (started,) = history.looks()
        assert isinstance(started, StartWorkers)
        assert started.num_devices == 8

    return happens


def a_preemption_is_announced() -> Callable[[], None]:
    history = History(replace(policy(), preemption_notice=120.0))
    history.starts()
    history.runs()
    history.commits(10)

    def happens() -> None:
        history.happens(SaveMeasured(history.now, 1, 2.0))
        history.happens(StopRequested(history.now, StopSource.PREEMPTION))
        assert history.state.status is Status.RUNNING, "it trains for as long as it can"
        history.waits()
        history.ends(WorkerExit(0, code=0))
        (finished,) = history.gone(PREEMPTED, committed=11)
        assert isinstance(finished, FinishJob)
        assert finished.exit_code == 75

    return happens


def the_disk_fills() -> Callable[[], None]:
    history = History(policy())
    history.starts()
    full = replace(RETRY, rule=DISK_FULL, root_cause="OSError: No space left on device")

    def happens() -> None:
        history.runs()
        history.ends(WorkerExit(0, code=1))
        (started,) = history.gone(full)
        assert isinstance(started, StartWorkers)
        assert started.make_room is MakeRoom.IF_SHORT

    return happens


@pytest.mark.parametrize(
    ("feature", "prepared"),
    [
        ("a rank died", a_rank_dies),
        ("regrow", it_regrows),
        ("an announced preemption", a_preemption_is_announced),
        ("the disk is full", the_disk_fills),
    ],
)
def test_a_feature_is_decided_in_the_files_that_the_table_names(
    feature: str, prepared: Callable[[], Callable[[], None]]
) -> None:
    named = told(feature)
    assert files_of(prepared()) - (values() - named) == named
    assert len(named) <= MOST
