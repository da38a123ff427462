"""Drills: real faults, recorded before they strike, each right after its step or in its stage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.protocol import simulated
from supervisor.protocol.environment import FAULTS
from supervisor.protocol.fault_injection import FaultInjector, InjectedFault
from supervisor.protocol.messages import Stage
from supervisor.protocol.reporter import Reporter
from supervisor.protocol.simulated import Broken

PROGRAM = """
from supervisor.protocol.fault_injection import FaultInjector
drills = FaultInjector.from_environment()
for step in range(1, 6):
    print("step", step, flush=True)
    drills.after_step(step)
print("survived")
"""


def run(records: Path, *drills: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    given = {"faults": list(drills), "records": str(records)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={FAULTS: json.dumps(given), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("fault", "returncode", "last_line"),
    [
        ({"signal": "SIGKILL"}, -9, ""),
        ({"signal": "SIGTERM"}, -15, ""),
        ({"signal": "SIGABRT"}, -6, ""),
        ({"exit_code": 42}, 42, ""),
        ({"exit_code": 0}, 0, ""),
        ({"exception": "FloatingPointError", "message": "nan!"}, 1, "FloatingPointError: nan!"),
        ({"exception": "json.decoder.JSONDecodeError"}, 1, "TypeError"),
        ({"exception": "subprocess.SubprocessError"}, 1, "subprocess.SubprocessError: injected by"),
    ],
)
def test_it_strikes_right_after_its_step(
    fault: dict[str, Any], returncode: int, last_line: str, tmp_path: Path
) -> None:
    records = tmp_path / "model_dir" / "drills"
    done = run(records, {"id": "phase1-0", "step": 3, **fault})
    assert done.returncode == returncode
    assert "step 3\nDRILL phase1-0 fires" in done.stdout
    assert "step 4" not in done.stdout
    assert "survived" not in done.stdout
    assert last_line in done.stderr.strip().rpartition("\n")[2]
    assert names(records) == ["phase1-0"]


def test_without_drills_nothing_happens(tmp_path: Path) -> None:
    done = run(tmp_path / "drills")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "survived")
    assert not (tmp_path / "drills").exists()
    FaultInjector.from_environment({}).after_step(1)


def test_it_is_recorded_before_it_strikes(tmp_path: Path) -> None:
    """Where the record cannot be made, nothing strikes: it would strike again in every attempt."""
    (tmp_path / "drills").write_text("a file in the way")
    done = run(tmp_path / "drills", {"id": "x", "step": 2, "exit_code": 42})
    assert done.returncode == 1
    assert "FileExistsError" in done.stderr


def test_of_a_stage_it_strikes_when_that_is_entered_for_the_first_time(tmp_path: Path) -> None:
    compiling = InjectedFault("c", stage="COMPILING", exception="KeyError")
    drills = FaultInjector(
        (compiling, InjectedFault("e", stage="EVALUATING", exception="OSError")), tmp_path
    )
    read_end, write_end = os.pipe()
    reporter = Reporter(write_end, on_stage=drills.on_entering)
    reporter.stage(Stage.RESTORING)
    with pytest.raises(KeyError):
        reporter.stage(Stage.COMPILING, 3)
    reporter.stage(Stage.COMPILING, 3)
    drills.after_step(4)
    assert names(tmp_path) == ["c"]
    told = os.read(read_end, 65536).splitlines()
    assert b"COMPILING" in told[1], "the supervisor knows of the stage before the drill strikes"
    for descriptor in (read_end, write_end):
        os.close(descriptor)


def test_of_simulated_devices_it_changes_what_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is the worker's own doing, as of any other fault."""
    file = tmp_path / simulated.FILE
    drills = FaultInjector(
        (
            InjectedFault("a", 1, device_lost="3"),
            InjectedFault("b", 1, host_lost="host1"),
            InjectedFault("c", 2, device_wrong_result="0"),
            InjectedFault("d", 3, device_returns="3"),
        ),
        tmp_path / "records",
    )
    for name, value in simulated.to_environment(file, ("0",)).items():
        monkeypatch.setenv(name, value)
    drills.after_step(1)
    assert simulated.read(file) == Broken(lost=frozenset({"3", "host1"}))
    drills.after_step(2)
    drills.after_step(3)
    assert simulated.read(file) == Broken(frozenset({"host1"}), frozenset({"0"}))


def test_of_simulated_devices_it_needs_some(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the drill a needs simulated devices: platform cpu"):
        FaultInjector((InjectedFault("a", 1, device_lost="3"),), tmp_path).after_step(1)


@pytest.mark.parametrize(
    ("drill", "text"),
    [
        (InjectedFault("a", 3, signal="SIGKILL"), "SIGKILL right after step 3"),
        (InjectedFault("a", 3, exit_code=0), "exit code 0 right after step 3"),
        (InjectedFault("a", stage="SAVING", hang=True), "hang in stage SAVING"),
        (InjectedFault("a", 3, device_lost="2"), "device_lost 2 (simulated) right after step 3"),
    ],
)
def test_people_are_told_what_strikes_and_when(drill: InjectedFault, text: str) -> None:
    assert drill.describe() == text


def test_each_strikes_once_and_only_at_its_step(tmp_path: Path) -> None:
    drills = FaultInjector(
        (
            InjectedFault("a", 2, exception="KeyError"),
            InjectedFault("b", 2, exception="OSError"),
            InjectedFault("c", 4, exception="ValueError", message="third"),
        ),
        tmp_path,
    )
    drills.after_step(1)
    with pytest.raises(KeyError):
        drills.after_step(2)
    drills.after_step(2)
    drills.after_step(3)
    assert names(tmp_path) == ["a"]
    with pytest.raises(ValueError, match="third"):
        drills.after_step(4)
    assert names(tmp_path) == ["a", "c"]
