"""A standby of a Python program, from its start to the moment when it is the worker."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from supervisor.bootstrap.learning import Change, Learned, digest
from supervisor.engines.python_program import bootstrapped
from supervisor.protocol.standby import (
    MAX_REASON,
    NOTE,
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


def learned(directory: Path, modules: list[str], *changes: Change, left_out: str = "") -> str:
    """The file of what an earlier attempt has learned."""
    path = directory / "modules.json"
    path.write_text(json.dumps(asdict(Learned(modules, changes, left_out.split()))))
    return str(path)


def change(place: int, name: str, value: str | None, *, is_known: bool = True) -> Change:
    return Change(place, name, digest(value), value if is_known else None, is_known)


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
    one = standby(tmp_path, SUPERVISE_MODULES_FILE=learned(tmp_path, ["wave"]))
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


_READS = "import os; seen = os.environ.get('LIBTPU_INIT_ARGS')"
"""A library that reads the environment when it is imported, as jax does."""


@pytest.fixture
def library(tmp_path: Path) -> dict[str, str]:
    """The environment in which an installed library can be imported that reads LIBTPU_INIT_ARGS."""
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "reads.py").write_text(_READS)
    (package / "early.py").write_text(_READS)
    (package / "broken.py").write_text("import os; os.environ['LIBTPU_INIT_ARGS'] = 'half'; 1 / 0")
    return {"PYTHONPATH": str(package)}


SETS = (
    "import os, sys\nahead = 'reads' in sys.modules\n"
    "os.environ['LIBTPU_INIT_ARGS'] = os.environ.get('LIBTPU_INIT_ARGS', '') + sys.argv[1]\n"
    "import reads\nprint(ahead, reads.seen, os.environ['LIBTPU_INIT_ARGS'], os.getpid())"
)


def test_what_the_program_sets_for_an_import_is_set_for_it_ahead(
    standby: type[Waiting], program: Path, tmp_path: Path, library: dict[str, str]
) -> None:
    program.write_text(SETS + "; import early; print(early.seen)")
    file = learned(tmp_path, ["early", "reads"], change(1, "LIBTPU_INIT_ARGS", "--fast"))
    one = standby(tmp_path, SUPERVISE_MODULES_FILE=file, **library)
    assert one.says() == READY
    output, status = one.become("--fast", env=ENV | library)
    assert output == f"True --fast --fast {one.process.pid}\nNone\n".encode()
    assert status == 0


def test_a_program_that_sets_another_value_is_started_from_the_beginning(
    standby: type[Waiting], program: Path, tmp_path: Path, library: dict[str, str]
) -> None:
    program.write_text(SETS)
    file = learned(tmp_path, ["reads"], change(0, "LIBTPU_INIT_ARGS", "--fast"))
    one = standby(tmp_path, SUPERVISE_MODULES_FILE=file, **library)
    assert one.says() == READY
    output, status = one.become("--slow", env=ENV | library)
    first, second = output.splitlines()
    assert COLD in first
    assert b"LIBTPU_INIT_ARGS" in first
    assert second == f"False --slow --slow {one.process.pid}".encode()
    assert status == 0


def test_a_program_that_does_not_set_it_is_started_again_when_it_uses_jax(
    standby: type[Waiting], program: Path, tmp_path: Path, library: dict[str, str]
) -> None:
    monitoring = tmp_path / "site-packages" / "jax" / "monitoring.py"
    monitoring.parent.mkdir()
    (monitoring.parent / "__init__.py").write_text("")
    monitoring.write_text(
        "register_scalar_listener = register_event_listener = id\n"
        "def register_event_duration_secs_listener(f): global told; told = f\n"
        "def clear_event_listeners(): pass\n"
    )
    program.write_text(
        "import sys; ahead = 'reads' in sys.modules; import jax.monitoring, reads\n"
        "jax.monitoring.told('/jax/core/compile/jaxpr_trace_duration', 0.1)\n"
        "print(ahead, reads.seen)"
    )
    file = learned(tmp_path, ["reads"], change(0, "LIBTPU_INIT_ARGS", "--fast"))
    one = standby(tmp_path, SUPERVISE_MODULES_FILE=file, **library)
    assert one.says() == READY
    output, _ = one.become(env=ENV | library)
    assert COLD in output
    assert b"the program does not set LIBTPU_INIT_ARGS" in output
    assert output.splitlines()[-1] == b"False None"


def test_after_a_change_whose_value_is_not_known_nothing_is_imported_ahead(
    standby: type[Waiting], program: Path, tmp_path: Path, library: dict[str, str]
) -> None:
    program.write_text("import sys; print('early' in sys.modules, 'reads' in sys.modules)")
    unknown = change(1, "MY_TOKEN", "a secret", is_known=False)
    file = learned(tmp_path, ["early", "reads"], unknown)
    one = standby(tmp_path, SUPERVISE_MODULES_FILE=file, **library)
    said = one.says()
    assert said.startswith(NOTE)
    assert b"MY_TOKEN" in said
    assert said.endswith(READY) or one.says() == READY
    assert one.become(env=ENV | library) == (b"True False\n", 0)


def test_a_change_that_an_import_makes_is_left_to_it(
    standby: type[Waiting], program: Path, tmp_path: Path, library: dict[str, str]
) -> None:
    (tmp_path / "site-packages" / "sets.py").write_text(
        "import os; os.environ['MY_TOKEN'] = '1'; del os.environ['MY_TOKEN']"
    )
    program.write_text("import os, reads; print(reads.seen, 'MY_TOKEN' in os.environ)")
    made = [Change(1, "MY_TOKEN", digest(value), by="sets") for value in ("1", None)]
    file = learned(tmp_path, ["sets", "reads"], *made)
    one = standby(tmp_path, SUPERVISE_MODULES_FILE=file, **library)
    assert one.says() == READY
    assert one.become(env=ENV | library) == (b"None False\n", 0)


def test_a_program_that_sets_what_is_not_known_before_all_imports_has_no_standby(
    standby: type[Waiting], program: Path, tmp_path: Path, library: dict[str, str]
) -> None:
    program.write_text("")
    file = learned(tmp_path, ["json", "reads"], change(1, "WANDB_KEY", "x", is_known=False))
    said = standby(tmp_path, SUPERVISE_MODULES_FILE=file, **library).says()
    assert said.startswith(UNUSABLE)
    assert b"WANDB_KEY" in said


def test_an_import_that_fails_is_left_out_and_leaves_nothing_behind(
    standby: type[Waiting], program: Path, tmp_path: Path, library: dict[str, str]
) -> None:
    program.write_text(
        "import sys, reads; print('early' in sys.modules, 'broken' in sys.modules, reads.seen)"
    )
    file = learned(tmp_path, ["early", "broken", "reads"])
    one = standby(tmp_path, SUPERVISE_MODULES_FILE=file, **library)
    said = one.says()
    assert said.startswith(NOTE + b"broken cannot be imported ahead and is left out (ZeroDiv")
    assert said.endswith(READY) or one.says() == READY
    if os.geteuid() == 0:
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, one.process.pid) == min(19, ours + 10)
    assert one.become(env=ENV | library) == (b"True False None\n", 0)


def test_what_is_known_to_fail_is_not_tried(
    standby: type[Waiting], program: Path, tmp_path: Path, library: dict[str, str]
) -> None:
    program.write_text("import sys; print('early' in sys.modules)")
    file = learned(tmp_path, ["broken", "early"], left_out="broken")
    one = standby(tmp_path, SUPERVISE_MODULES_FILE=file, **library)
    assert one.says() == READY
    assert one.become(env=ENV | library) == (b"True\n", 0)


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
