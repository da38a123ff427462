"""Simulated devices: what the file says, who may change it at once, and what a worker suffers."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from supervisor.diagnosis.failure import Evidence, RankEvidence, WorkerExit
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.protocol import simulated
from supervisor.protocol.simulated import Broken, HeldDevices

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / simulated.FILE


def test_all_are_well_until_somebody_says_otherwise(file: Path) -> None:
    assert simulated.read(file) == Broken()
    simulated.mark_lost(file, "3", "host1")
    simulated.mark_wrong(file, "5")
    assert simulated.read(file) == Broken(frozenset({"3", "host1"}), frozenset({"5"}))
    simulated.mark_healthy(file, "3", "5", "7")
    assert simulated.read(file) == Broken(frozenset({"host1"}))
    simulated.mark_stuck(file, "4", "6")
    simulated.mark_healthy(file, "4")
    assert simulated.read(file) == Broken(frozenset({"host1"}), stuck=frozenset({"6"}))
    file.write_text('{"wrong": ["2"]}')
    assert simulated.read(file) == Broken(wrong=frozenset({"2"}))
    assert [path.name for path in file.parent.iterdir()] == [simulated.FILE]


def test_changes_at_the_same_time_are_all_made(file: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda unit: simulated.mark_lost(file, str(unit)), range(40)))
    assert simulated.read(file).lost == {str(unit) for unit in range(40)}


@pytest.mark.parametrize("content", ["[3]", '{"lost": [3]}', '{"dead": ["3"]}', "{", '{"lost": 3}'])
def test_a_file_of_another_form_is_refused(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(ValueError, match=r'simulated_devices.json is not of the form {"lost": \['):
        simulated.read(file)


def test_a_stuck_unit_keeps_the_backend_from_coming_up_and_is_judged_as_hardware(
    file: Path,
) -> None:
    held = HeldDevices.from_environment(simulated.to_environment(file, ("0", "1")))
    assert held is not None
    simulated.mark_stuck(file, "2")
    held.initialise()
    simulated.mark_stuck(file, "1")
    with pytest.raises(RuntimeError, match="simulated device 1 is stuck") as raised:
        held.initialise()
    tail = f"Traceback (most recent call last):\nRuntimeError: {raised.value}"
    evidence = RankEvidence(WorkerExit(0, code=1), output=tail)
    failure = judge(Evidence((evidence,)), Success(), RULES)
    assert failure is not None
    assert failure.hardware, failure


def test_a_worker_suffers_what_befalls_its_own_units_and_no_others(file: Path) -> None:
    held = HeldDevices.from_environment(simulated.to_environment(file, ("0", "1")))
    assert held is not None
    held.fail_if_broken()
    simulated.mark_lost(file, "2", "host0")
    held.fail_if_broken()
    simulated.mark_lost(file, "1")
    with pytest.raises(RuntimeError, match="simulated device 1 is lost"):
        held.fail_if_broken()
    simulated.mark_healthy(file, "1")
    simulated.mark_wrong(file, "0")
    with pytest.raises(RuntimeError, match="ECC error: simulated device 0"):
        held.fail_if_broken()
    simulated.mark_healthy(file, "0")
    held.fail_if_broken()
    assert HeldDevices.from_environment({}) is None


@pytest.mark.parametrize(
    ("break_it", "rule"), [(simulated.mark_lost, "core-halted"), (simulated.mark_wrong, "hardware")]
)
def test_what_it_says_then_is_taken_for_a_fault_of_hardware(
    file: Path, break_it: object, rule: str
) -> None:
    assert callable(break_it)
    break_it(file, "1")
    with pytest.raises(RuntimeError) as raised:
        HeldDevices(file, ("1",)).fail_if_broken()
    output = f"Traceback (most recent call last):\nRuntimeError: {raised.value}\n"
    ended = RankEvidence(WorkerExit(0, code=1), output=output)
    failure = judge(Evidence((ended,)), Success(step=9), RULES)
    assert failure is not None
    assert (failure.rule, failure.hardware) == (rule, True)


def test_a_lost_host_takes_its_worker_with_it(file: Path) -> None:
    simulated.mark_lost(file, "host1")
    program = (
        "from supervisor.protocol.simulated import HeldDevices; "
        "HeldDevices.from_environment().fail_if_broken(); "
        "print('lives')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT)} | simulated.to_environment(file, ("host1",)),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-9, b"")
