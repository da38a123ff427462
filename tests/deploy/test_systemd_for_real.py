"""Our unit under a real systemd."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.machine import USER, CannotBootError, Machine, booted
from tests.deploy.test_deploy import ROOT, UNIT
from tests.running import command_config

QUICKER = f"""
[Service]
RestartSec=500ms
WatchdogSec=3
Environment=PYTHONPATH={ROOT}
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with the unit as it is, and a package installed where the unit expects it."""
    base = tmp_path_factory.mktemp("machine")
    try:
        with booted(base) as machine:
            _install(machine)
            yield machine
    except CannotBootError as error:
        pytest.skip(f"NOT TESTED: the systemd unit under a real systemd: {error}")
    assert str(base) not in Path("/proc/self/mounts").read_text(), "a mount was left behind"


def _install(machine: Machine) -> None:
    (machine.shared / "unit").write_text(UNIT.read_text())
    (machine.shared / "quicker.conf").write_text(QUICKER)
    units = "/etc/systemd/system"
    machine.run("mkdir", "-p", "/opt/supervise", "/etc/supervise", f"{units}/{UNIT.name}.d")
    machine.run("ln", "-s", str(Path(sys.executable).parent), "/opt/supervise/bin")
    machine.run("cp", "/shared/unit", f"{units}/{UNIT.name}")
    machine.run("cp", "/shared/quicker.conf", f"{units}/{UNIT.name}.d/quicker.conf")
    machine.add_user()
    machine.run("systemctl", "daemon-reload")


def start(machine: Machine, name: str, *toy: str, steps: int) -> str:
    """Start a job whose files are in /shared; its unit."""
    job = command_config(Path("/shared") / name, *toy, "--steps", str(steps))
    job["trainer"]["command"]["success"] = {"step": steps}
    (machine.shared / f"{name}.yaml").write_text(yaml.safe_dump(job))
    machine.run("cp", f"/shared/{name}.yaml", f"/etc/supervise/{name}.yaml")
    machine.run("systemctl", "start", "--no-block", f"supervise@{name}")
    return f"supervise@{name}"


def owners(machine: Machine, unit: str) -> set[str]:
    """As whom the processes of a unit run."""
    group = machine.show(unit, "ControlGroup")
    pids = machine.run("sh", "-c", f"cat $(find /sys/fs/cgroup -path '*{group}*/cgroup.procs')")
    return set(machine.run("ps", "-o", "user=", "-p", ",".join(pids.split())).split())


def summary(machine: Machine, name: str) -> dict[str, Any]:
    path = max((machine.shared / name).glob("*_restartable/summary.json"))
    return dict(json.loads(path.read_text()))


def drained_at(machine: Machine, name: str, attempt: int) -> int:
    """The step that an attempt saved when it was told to stop: the last one it completed."""
    (log,) = (machine.shared / name).glob(f"*_restartable/attempts/{attempt:04d}/rank0.log")
    completed = int(log.read_text().rsplit("completed step: ", 1)[1])
    record = summary(machine, name)["attempts"][attempt - 1]
    assert (record["status"], record["newest_committed_step"]) == ("DRAINED", completed)
    return completed


def test_a_job_lives_through_all_that_systemd_does_to_it(machine: Machine) -> None:
    toy = ("--polite", "--seconds", "0.02", "--every", "10")
    unit = start(machine, "demo", *toy, steps=100_000)
    machine.wait_for(unit, ActiveState="active", StatusText="last checkpoint: step ")
    status = machine.show(unit, "StatusText")
    assert owners(machine, unit) == {USER}
    assert re.match(r"RUNNING: phase 'phase1', attempt 1, TRAINING, step \d\d+, ", status)

    # It hangs: the watchdog replaces it, and the trainer with it.
    machine.run("kill", "-STOP", machine.show(unit, "MainPID"))
    machine.wait_for(unit, NRestarts="1", StatusText="attempt 2, TRAINING")
    assert "Watchdog timeout" in machine.run("journalctl", "-u", unit, "-o", "cat")

    # It is told to go, and nobody has stopped the unit: it saves, leaves with 75, and is back.
    machine.run("kill", "-TERM", machine.show(unit, "MainPID"))
    machine.wait_for(unit, NRestarts="2", StatusText="attempt 3, TRAINING")
    assert summary(machine, "demo")["attempts"][0]["status"] == "LOST"
    saved = drained_at(machine, "demo", 2)
    assert f"restored the state of step {saved}" in machine.log(unit)

    # The unit is stopped: it saves, leaves with 75, and stays away, not failed.
    machine.run("systemctl", "stop", unit)
    machine.wait_for(unit, ActiveState="inactive", Result="success")
    assert machine.log(unit).count("DRAINED, exit code 75") == 2
    drained_at(machine, "demo", 3)


def test_what_failed_for_good_stays_failed(machine: Machine) -> None:
    unit = start(machine, "broken", "assertion", "--at", "0", steps=6)
    machine.wait_for(unit, ActiveState="failed")
    assert machine.show(unit, "ExecMainStatus") == "70"
    assert machine.show(unit, "NRestarts") == "0"


def test_a_job_that_has_succeeded_is_no_failure(machine: Machine) -> None:
    for run in ("first", "again"):
        unit = start(machine, "good", steps=6)
        machine.wait_for(unit, ActiveState="inactive", ExecMainStatus="0", Result="success")
        assert machine.show(unit, "NRestarts") == "0"
        assert ("has succeeded already" in machine.log(unit)) == (run == "again")
