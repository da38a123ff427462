"""A standby of a Python program, from its start to the moment when it is the worker."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from supervisor.engines.python_program import bootstrapped
from supervisor.protocol.standby import (
    MAX_REASON,
    OUTPUT,
    READY,
    UNUSABLE,
    StandbyOrders,
    send_orders,
)
from tests.bootstrap.test_same_behaviour import WORLD

ENV = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
COLD = b"a cold start"


class Waiting:
    """A standby of `program.py`, seen from the supervisor's side."""

    def __init__(self, directory: Path, **env: str) -> None:
        self.directory = directory
        self.connection, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                self.argv("of", "before"),
                cwd=directory,
                env={**ENV, "SUPERVISE_STANDBY": f"{theirs.fileno()}:imports", **env},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )

    @staticmethod
    def argv(*arguments: str) -> list[str]:
        argv, why_not = bootstrapped([sys.executable, "program.py", *arguments])
        assert why_not is None
        return argv

    def says(self) -> bytes:
        """Its first word."""
        return self.connection.recv(1000)

    def become(self, *arguments: str, env: Mapping[str, str] = ENV) -> tuple[bytes, int]:
        """Make it the worker; returns its output and its exit status."""
        read_end, write_end = os.pipe()
        orders = StandbyOrders(self.argv(*arguments), env, [OUTPUT])
        send_orders(self.connection, orders, [write_end])
        os.close(write_end)
        with os.fdopen(read_end, "rb") as output:
            return output.read(), self.process.wait(60)

    def end(self) -> bytes:
        """Let go of it; returns what it said before it was anybody."""
        self.connection.close()
        return self.process.communicate(timeout=60)[0]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return tmp_path / "program.py"


@pytest.fixture
def standby(tmp_path: Path) -> Iterator[type[Waiting]]:
    started: list[Waiting] = []

    class Kept(Waiting):
        def __init__(self, directory: Path, **env: str) -> None:
            super().__init__(directory, **env)
            started.append(self)

    yield Kept
    for one in started:
        one.process.kill()
        one.end()


def learned(directory: Path, modules: list[str], environment: Mapping[str, str]) -> str:
    path = directory / "modules.json"
    path.write_text(json.dumps({"modules": modules, "environment": environment}))
    return str(path)


def test_the_program_sees_the_world_of_the_worker(
    standby: type[Waiting], program: Path, tmp_path: Path
) -> None:
    program.write_text(WORLD + "import json; print(os.environ['NEW'], len(json.dumps(sys.argv)))")
    one = standby(tmp_path, SUPERVISE_PRELOAD="json,csv", OLD="1")
    assert one.says() == READY
    env = {**ENV, "NEW": "2"}
    output, status = one.become("of", "the worker", env=env)
    plainly = subprocess.run(
        [sys.executable, "program.py", "of", "the worker"],
        cwd=tmp_path,
        env={**env, "PYTHONUNBUFFERED": "1"},  # as the bootstrap has it for children
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    assert output == plainly.stdout
    assert status == 0
    assert one.end() == b""


def test_jax_that_was_imported_ahead_sees_the_devices_of_the_worker(
    standby: type[Waiting], program: Path, tmp_path: Path
) -> None:
    program.write_text("import jax; print(jax.device_count())")
    one = standby(tmp_path, SUPERVISE_PRELOAD="jax", JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="4")
    assert one.says() == READY
    env = {**ENV, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    assert one.become(env=env) == (b"2\n", 0)


def test_what_was_learned_is_imported_once_and_ahead(
    standby: type[Waiting], program: Path, tmp_path: Path
) -> None:
    program.write_text("import sys; print('wave' in sys.modules, 'colorsys' in sys.modules)")
    one = standby(tmp_path, SUPERVISE_MODULES_FILE=learned(tmp_path, ["wave"], {}))
    assert one.says() == READY
    assert one.become() == (b"True False\n", 0)


def test_the_worker_runs_like_any_other_process(
    standby: type[Waiting], program: Path, tmp_path: Path
) -> None:
    program.write_text(
        "import os; print({os.getpriority(0, int(t)) for t in os.listdir('/proc/self/task')})"
    )
    one = standby(tmp_path, SUPERVISE_PRELOAD="json")
    assert one.says() == READY
    assert os.sched_getscheduler(one.process.pid) == os.SCHED_OTHER, "idle, it may get nothing"
    ours, waiting = os.getpriority(os.PRIO_PROCESS, 0), os.getpriority(0, one.process.pid)
    assert waiting in (ours, min(19, ours + 10))
    if os.geteuid() == 0:  # who may come back from it yields to others
        assert waiting == min(19, ours + 10)
    assert one.become() == (f"{{{ours}}}\n".encode(), 0)


def test_changed_code_is_started_from_the_beginning(
    standby: type[Waiting], program: Path, tmp_path: Path
) -> None:
    library = tmp_path / "site-packages" / "ours.py"
    library.parent.mkdir()
    library.write_text("version = 1")
    program.write_text("import ours, os, sys; print(ours.version, os.getpid(), sys.argv)")
    env = {**ENV, "PYTHONPATH": str(library.parent)}
    one = standby(tmp_path, SUPERVISE_PRELOAD="ours", PYTHONPATH=env["PYTHONPATH"])
    assert one.says() == READY
    library.write_text("version = 22")
    output, status = one.become("now", env=env)
    first, second = output.splitlines()
    assert COLD in first
    assert str(library).encode() in first
    assert second == f"22 {one.process.pid} ['program.py', 'now']".encode()
    assert status == 0


def test_a_new_module_that_takes_a_name_is_seen(
    standby: type[Waiting], program: Path, tmp_path: Path
) -> None:
    program.write_text("import colorsys; print(colorsys.mine)")
    one = standby(tmp_path, SUPERVISE_PRELOAD="colorsys")
    assert one.says() == READY
    (tmp_path / "colorsys.py").write_text("mine = 'mine'")
    output, _ = one.become()
    assert COLD in output.splitlines()[0]
    assert output.splitlines()[1] == b"mine"


def test_a_program_that_sets_its_environment_itself_has_no_standby(
    standby: type[Waiting], program: Path, tmp_path: Path
) -> None:
    program.write_text("")
    file = learned(tmp_path, ["json"], {"XLA_FLAGS": "0123"})
    said = standby(tmp_path, SUPERVISE_MODULES_FILE=file).says()
    assert said.startswith(UNUSABLE)
    assert b"XLA_FLAGS" in said


def test_an_import_that_fails_is_told(
    standby: type[Waiting], program: Path, tmp_path: Path
) -> None:
    program.write_text("")
    said = standby(tmp_path, SUPERVISE_PRELOAD="no_such_thing").says()
    assert said.startswith(UNUSABLE + b"ModuleNotFoundError when no_such_thing")


def test_no_part_of_a_word_is_told(standby: type[Waiting], program: Path, tmp_path: Path) -> None:
    """The supervisor redacts what it is told, and knows a secret only as a whole."""
    program.write_text("")
    told = "ValueError when broken was imported ahead: "
    words = "x " * ((MAX_REASON - len(told) - len("correct")) // 2)
    (tmp_path / "broken.py").write_text(f"raise ValueError('{words}correct-horse-battery')")
    said = standby(tmp_path, SUPERVISE_PRELOAD="broken", PYTHONPATH=str(tmp_path)).says()
    assert said.startswith(UNUSABLE + f"{told}x x".encode())
    assert b"correct" not in said


def test_without_a_supervisor_the_program_is_not_run(
    standby: type[Waiting], program: Path, tmp_path: Path
) -> None:
    program.write_text("print('it ran')")
    one = standby(tmp_path, SUPERVISE_PRELOAD="json")
    assert one.says() == READY
    assert one.end() == b""
    assert one.process.returncode == 0
