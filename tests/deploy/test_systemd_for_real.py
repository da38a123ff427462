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


def drop_in(machine: Machine, name: str, text: str) -> str:
    """Write a drop-in for one job; its unit."""
    (machine.shared / "drop-in").write_text(text)
    folder = f"/etc/systemd/system/supervise@{name}.service.d"
    machine.run("install", "-D", "-m", "644", "/shared/drop-in", f"{folder}/{name}.conf")
    machine.run("systemctl", "daemon-reload")
    return f"supervise@{name}"


INSTEAD = "ExecStart=\nExecStart="


@pytest.mark.parametrize(
    ("name", "wrong", "code"),
    [
        ("gone", f"{INSTEAD}/opt/supervise/nowhere", "203"),
        ("nobody", "User=nobody-of-that-name", "217"),
        ("no-group", "Group=nobodies", "216"),
        ("no-folder", "WorkingDirectory=/opt/supervise/nowhere", "200"),
        ("no-path", "ReadWritePaths=/opt/supervise/nowhere", "226"),
    ],
)
def test_what_cannot_be_started_is_not_tried_again(
    machine: Machine, name: str, wrong: str, code: str
) -> None:
    unit = drop_in(machine, name, f"[Service]\n{wrong}\n")
    machine.run("systemctl", "start", unit, check=False)
    machine.wait_for(unit, ActiveState="failed", ExecMainStatus=code)
    assert machine.show(unit, "NRestarts") == "0"


def test_what_ends_at_once_is_given_up_in_the_end_and_can_be_started_again(
    machine: Machine,
) -> None:
    limit = "[Unit]\nStartLimitBurst=3\n[Service]\nRestartSec=10ms\n"
    unit = drop_in(machine, "often", f"{limit}{INSTEAD}/bin/sh -c 'exit 74'\n")
    machine.run("systemctl", "start", unit, check=False)
    machine.wait_for(unit, ActiveState="failed", NRestarts="3", ExecMainStatus="74")
    assert "Start request repeated too quickly" in machine.log(unit)
    drop_in(machine, "often", f"{limit}{INSTEAD}/bin/true\nType=exec\n")
    machine.run("systemctl", "reset-failed", unit)
    machine.run("systemctl", "start", unit)
    machine.wait_for(unit, ActiveState="inactive", Result="success")


LOOKS = """
import ctypes, json, mmap, os, pathlib, socket, subprocess, sys

def tried(what, *arguments):
    try:
        what(*arguments)
    except OSError as error:
        return error.strerror
    return "done"

libc = ctypes.CDLL(None, use_errno=True)

def unshared():
    if libc.unshare(0x10000000) != 0:  # CLONE_NEWUSER
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
lock = pathlib.Path("/tmp/libtpu_lockfile")
lock.touch()
found = {
    "user": os.getuid(),
    "capabilities": int(status["CapBnd"], 16) | int(status["CapEff"], 16),
    "privileges": int(status["NoNewPrivs"]),
    "machine code": tried(mmap.mmap, -1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7),
    "threads of higher priority": tried(os.nice, 1),
    "netlink": tried(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "packets": tried(socket.socket, socket.AF_PACKET, socket.SOCK_DGRAM, 0),
    "namespace": tried(unshared),
    "system": os.statvfs("/usr").f_flag & os.ST_RDONLY,
    "settings": os.statvfs("/proc/sys").f_flag & os.ST_RDONLY,
    "home": os.statvfs("/home").f_flag & os.ST_RDONLY,
    "first process": os.path.exists("/proc/1/status"),
    "memory": os.path.exists("/proc/meminfo"),
    "devices": sorted(os.listdir("/dev")),
    "lock": lock.stat().st_ino,
}
pathlib.Path(sys.argv[1], "found.json").write_text(json.dumps(found))
print("completed step: 1")
"""
"""A program that tells what it may do."""


def test_a_job_has_what_it_needs_and_no_more(machine: Machine) -> None:
    (machine.shared / "looks.py").write_text(LOOKS)
    seen = []
    for name in ("one", "two"):
        folder = Path("/shared") / name
        job = command_config(folder)
        argv = [sys.executable, "/shared/looks.py", str(folder)]
        job["trainer"]["command"] = {"argv": argv}
        (machine.shared / f"{name}.yaml").write_text(yaml.safe_dump(job))
        machine.run("cp", f"/shared/{name}.yaml", f"/etc/supervise/{name}.yaml")
        machine.run("systemctl", "start", f"supervise@{name}")
        machine.wait_for(f"supervise@{name}", ActiveState="inactive", Result="success")
        seen.append(json.loads((machine.shared / name / "found.json").read_text()))
    found = seen[0]
    assert seen[1].pop("lock") == found.pop("lock"), "two jobs must see one libtpu lock file"
    assert {*machine.run("ls", "/dev").split()} == {*found.pop("devices")}
    assert found == {
        "user": int(machine.run("id", "-u", USER)),
        "capabilities": 0,
        "privileges": 1,
        "machine code": "done",
        "threads of higher priority": "done",
        "netlink": "done",
        "packets": "Address family not supported by protocol",
        "namespace": "Operation not permitted",
        "system": 1,
        "settings": 1,
        "home": 0,
        "first process": True,
        "memory": True,
    }


def test_systemd_takes_no_device_away(machine: Machine) -> None:
    """A list of allowed devices, which some settings imply, forbids all others."""
    unit = "supervise@devices"
    assert machine.show(unit, "DevicePolicy") == "auto"
    assert machine.show(unit, "DeviceAllow") == ""


def test_a_drop_in_gives_root_its_capabilities_back(machine: Machine) -> None:
    unit = drop_in(machine, "as-root", "[Service]\nUser=root\nGroup=root\n")
    assert machine.show(unit, "CapabilityBoundingSet") == ""
    drop_in(machine, "as-root", "[Service]\nUser=root\nGroup=root\nCapabilityBoundingSet=~\n")
    assert "cap_sys_admin" in machine.show(unit, "CapabilityBoundingSet").split()


@pytest.mark.slow
def test_jax_compiles_and_a_hung_rank_is_looked_at_from_outside(machine: Machine) -> None:
    """Compilers write machine code, and py-spy traces processes: both beside the filters."""
    program = (
        "import jax, time\n"
        "print('answer', float(jax.jit(lambda x: (x @ x).sum())(jax.numpy.ones((64, 64)))))\n"
        "print('completed step: 1', flush=True)\n"
        "time.sleep(1000)\n"
    )
    (machine.shared / "jit.py").write_text(program)
    job = command_config(Path("/shared/jit"))
    job["trainer"]["command"] = {
        "argv": [sys.executable, "/shared/jit.py"],
        "progress": {"pattern": r"completed step: (\d+)"},
    }
    job["trainer"]["init"]["autorestart"] |= {"deadlines": {"TRAINING": 10}, "max_num_restarts": 0}
    (machine.shared / "jit.yaml").write_text(yaml.safe_dump(job))
    machine.run("cp", "/shared/jit.yaml", "/etc/supervise/jit.yaml")
    machine.run("systemctl", "start", "--no-block", "supervise@jit")
    machine.wait_for("supervise@jit", timeout=300.0, ActiveState="failed")
    (folder,) = (machine.shared / "jit").glob("*_restartable/attempts/0001")
    assert "answer 262144.0" in (folder / "rank0.log").read_text()
    stacks = "\n".join(path.read_text() for path in folder.glob("*native*"))
    assert "jit.py:" in stacks, [path.name for path in folder.iterdir()]
