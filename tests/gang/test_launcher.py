"""The same command on every host, with a stand-in for Ray: see `fake_ray`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.adapters.kernel.capacity import free_ports
from supervisor.gang.gang_record import NAME
from tests.running import eventually, leaving_nothing

PROGRAM = """
import os, signal, sys, time
from pathlib import Path

folder = Path(sys.argv[1])

def save(*_):
    (folder / "saved").touch()
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
(folder / "runs").touch()
while not (folder / "end").exists():
    time.sleep(0.02)
sys.exit(int((folder / "end").read_text()))
"""


class Hosts:
    """Hosts on this machine, each with the launcher of its own."""

    def __init__(self, folder: Path, mark: dict[str, str]) -> None:
        self.folder = folder
        self.model_dir = folder / "run"
        self.mark = mark
        self.bin = folder / "bin"
        self.bin.mkdir()
        python = Path(sys.executable)  # one whose own `ray` is the stand-in
        (self.bin / "python").symlink_to(python)
        for name in ("lib", "pyvenv.cfg"):
            (folder / name).symlink_to(python.parents[1] / name)
        fake = (Path(__file__).parent / "fake_ray.py").read_text()
        (self.bin / "ray").write_text(f"#!{sys.executable}\n{fake}")
        (self.bin / "ray").chmod(0o755)
        sleep = shutil.which("sleep")
        assert sleep is not None
        (self.bin / "raylet").symlink_to(sleep)
        (folder / "program.py").write_text(PROGRAM)
        restart = {"max_num_restarts": 0, "standby": "off", "grace_period": 20}
        job = {
            "trainer": {
                "init": {"model_dir": str(self.model_dir), "autorestart": restart},
                "command": [sys.executable, str(folder / "program.py"), str(folder)],
            }
        }
        (folder / "trainer.yaml").write_text(yaml.safe_dump(job))
        (port,) = free_ports(1)
        self.head = f"127.0.0.1:{port}"
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, index: int, *options: str, launch: str = "one") -> subprocess.Popen[bytes]:
        command = [str(self.bin / "python"), "-m", "supervisor", "gang", "trainer.yaml", *options]
        command += ["--index", str(index), "--head", self.head, "--launch", launch]
        with self._output(len(self.running)).open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, **self.mark},
                stdout=file,
                stderr=file,
            )
        self.running.append(process)
        return process

    def said(self, process: subprocess.Popen[bytes]) -> str:
        """The output of a launcher so far."""
        return self._output(self.running.index(process)).read_text()

    def _output(self, number: int) -> Path:
        return self.folder / f"output{number}"

    def told(self, what: str, head: bool = False) -> list[dict[str, Any]]:
        """What the stand-in has written so far."""
        path = self.bin / "starts"
        lines = path.read_text().splitlines() if path.exists() else []
        said = [json.loads(line) for line in lines]
        return [each for each in said if (each["what"], each["head"]) == (what, head)]

    def wait(self, condition: Callable[[], object]) -> None:
        assert eventually(condition), [self.said(each) for each in self.running]

    def runs(self) -> None:
        """Wait until the program runs."""
        self.wait((self.folder / "runs").exists)

    def end(self, code: int) -> None:
        """Have the program end."""
        (self.folder / "end.new").write_text(str(code))
        (self.folder / "end.new").rename(self.folder / "end")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with leaving_nothing() as mark:
        made = Hosts(tmp_path, mark)
        try:
            yield made
        finally:
            for each in made.running:
                if each.poll() is None:
                    each.kill()
                each.wait(60)


def code_of(process: subprocess.Popen[bytes]) -> int:
    process.wait(60)
    return process.returncode


@pytest.mark.parametrize(("program", "code"), [(3, 76), pytest.param(0, 0, marks=pytest.mark.slow)])
def test_all_end_with_the_code_of_the_leader(hosts: Hosts, program: int, code: int) -> None:
    late = hosts.start(2, "--set=trainer.init.autorestart.grace_period=20s")
    leader = hosts.start(0)
    member = hosts.start(1)
    hosts.wait(lambda: len(hosts.told("started")) == 2)
    hosts.runs()
    hosts.end(program)
    assert [code_of(each) for each in (leader, member, late)] == [code] * 3
    assert ("the job succeeded" in hosts.said(leader)) == (code == 0)
    assert f"the leader has ended with exit code {code}" in hosts.said(member)
    (head,) = hosts.told("started", head=True)
    assert head["drain"] == "0", "the head is stopped after the job"
    assert {each["drain"] for each in hosts.told("started")} == {"25"}
    same = [each["config"] == head["config"] for each in hosts.told("started")]
    assert sorted(same) == [False, True], "one has an option of its own"
    assert json.loads((hosts.model_dir / NAME).read_text())["code"] == code


def test_sigterm_reaches_the_leader_which_saves_and_sigusr1_nobody(hosts: Hosts) -> None:
    leader, member = hosts.start(0), hosts.start(1)
    hosts.wait(lambda: hosts.told("started"))
    hosts.runs()
    for each in (leader, member):
        each.send_signal(signal.SIGUSR1)
    hosts.wait(lambda: all("SIGUSR1 came" in hosts.said(each) for each in (leader, member)))
    leader.terminate()
    assert code_of(leader) == 75
    assert (hosts.folder / "saved").exists()
    assert code_of(member) == 75


@pytest.mark.slow
def test_ctrl_c_stops_the_job(hosts: Hosts) -> None:
    leader, member = hosts.start(0), hosts.start(1)
    hosts.wait(lambda: hosts.told("started"))
    hosts.runs()
    leader.send_signal(signal.SIGINT)
    assert (code_of(leader), code_of(member)) == (79, 79)


def test_a_host_that_goes_is_drained_and_the_job_goes_on(hosts: Hosts) -> None:
    leader, member = hosts.start(0), hosts.start(1)
    hosts.wait(lambda: hosts.told("started"))
    hosts.runs()
    member.terminate()
    assert code_of(member) == 75
    assert "stopped by SIGTERM" in hosts.said(member)
    assert len(hosts.told("stopped")) == 1
    assert leader.poll() is None
    replacement = hosts.start(1)
    hosts.wait(lambda: len(hosts.told("started")) == 2)
    hosts.end(0)
    assert (code_of(leader), code_of(replacement)) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["raylet", "ray"])
def test_a_host_joins_again_where_ray_has_ended(hosts: Hosts, what: str) -> None:
    leader, member = hosts.start(0), hosts.start(1)
    hosts.wait(lambda: "joined" in hosts.said(member))
    (first,) = hosts.told("started")
    if what == "ray":
        os.kill(first["pid"], signal.SIGKILL)
    else:
        children = Path(f"/proc/{first['pid']}/task/{first['pid']}/children")
        os.kill(int(children.read_text()), signal.SIGTERM)
    hosts.wait(lambda: len(hosts.told("started")) == 2)
    hosts.runs()
    hosts.end(0)
    assert (code_of(leader), code_of(member)) == (0, 0)


@pytest.mark.parametrize("locks_up", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_head_that_ends_is_started_again_below_the_same_leader(
    hosts: Hosts, locks_up: bool
) -> None:
    """Also one that has lost its raylet, and neither ends by itself nor on SIGTERM."""
    leader = hosts.start(0)
    hosts.runs()
    (first,) = hosts.told("started", head=True)
    if locks_up:
        (hosts.bin / "locks-up").touch()
        children = Path(f"/proc/{first['pid']}/task/{first['pid']}/children")
        os.kill(int(children.read_text()), signal.SIGKILL)
        hosts.wait(lambda: "the head of the cluster has ended: its raylet is" in hosts.said(leader))
        (hosts.bin / "locks-up").unlink()
    else:
        os.kill(first["pid"], signal.SIGKILL)
    hosts.wait(lambda: len(hosts.told("started", head=True)) == 2)
    member = hosts.start(1)
    hosts.wait(lambda: hosts.told("started"))
    hosts.end(0)
    assert (code_of(leader), code_of(member)) == (0, 0)


def test_a_host_that_comes_after_the_end_ends_too(hosts: Hosts) -> None:
    leader = hosts.start(0)
    hosts.runs()
    hosts.end(3)
    assert code_of(leader) == 76
    assert code_of(hosts.start(1)) == 76
    assert not hosts.told("started")


@pytest.mark.slow
def test_the_next_start_is_not_ended_by_the_last_one(hosts: Hosts) -> None:
    leader = hosts.start(0)
    hosts.runs()
    hosts.end(3)
    assert code_of(leader) == 76
    (hosts.folder / "end").unlink()
    member = hosts.start(1, launch="two")
    leader = hosts.start(0, launch="two")
    hosts.wait(lambda: hosts.told("started"))
    hosts.end(0)
    assert (code_of(leader), code_of(member)) == (0, 0)


def test_a_head_that_cannot_start_is_told_to_all(hosts: Hosts) -> None:
    (hosts.bin / "fails").touch()
    member = hosts.start(1)
    hosts.wait(lambda: "waiting for the first host" in hosts.said(member))
    leader = hosts.start(0)
    assert code_of(leader) == 69
    assert "the port is in use" in hosts.said(leader)
    assert code_of(member) == 69


def test_a_killed_launcher_leaves_a_leader_that_saves(hosts: Hosts) -> None:
    leader = hosts.start(0)
    hosts.runs()
    leader.kill()
    hosts.wait((hosts.folder / "saved").exists)
    hosts.wait(lambda: hosts.told("stopped", head=True))


def test_a_second_task_on_a_host_is_refused(hosts: Hosts) -> None:
    command = [sys.executable, "-m", "supervisor", "gang", "trainer.yaml"]
    env = {**os.environ, **hosts.mark, "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
    done = subprocess.run(command, cwd=hosts.folder, env=env, capture_output=True, text=True)
    assert (done.returncode, "--ntasks-per-node=1" in done.stderr) == (64, True)
    assert not hosts.model_dir.exists()
