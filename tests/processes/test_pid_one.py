"""The supervisor as process 1 of a container: a real pid namespace."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.running import Running, Start, command_config, eventually

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
_ALLOWED = subprocess.run([*CONTAINER, "true"], capture_output=True, check=False)
pytestmark = pytest.mark.skipif(
    _ALLOWED.returncode != 0,
    reason=f"NOT TESTED: no pid namespace is allowed here: {_ALLOWED.stderr.decode().strip()}",
)


def init_of(running: Running) -> psutil.Process:
    """Process 1 of the container, by its pid out here."""
    (init,) = psutil.Process(running.process.pid).children()
    return init


def enter(init: psutil.Process, script: str) -> None:
    """What `docker exec` does."""
    target = ("nsenter", "-t", str(init.pid), "-p", "-m")
    subprocess.run([*target, "sh", "-c", script], check=True, stdout=subprocess.DEVNULL)


def those(init: psutil.Process, wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """The processes of the container of which that holds."""
    found = []
    for process in init.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has been reaped since it was listed
            if wanted(process):
                found.append(process)
    return found


def named(init: psutil.Process, argument: str) -> list[psutil.Process]:
    """Those whose last argument this is."""
    return those(init, lambda process: process.cmdline()[-1:] == [argument])


def zombies(init: psutil.Process) -> list[psutil.Process]:
    """Those that nobody has waited for."""
    return those(init, lambda process: process.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 79), (signal.SIGHUP, 75)]
)
def test_a_stop_of_the_container_lets_the_trainer_save(
    start: Start, model_dir: Path, number: signal.Signals, code: int
) -> None:
    config = command_config(model_dir, "save-on-sigterm", "--once", success={"step": 500})
    running = start(config, prefix=CONTAINER)
    running.wait_for("ready to save")
    init = init_of(running)
    everything = init.children(recursive=True)
    init.send_signal(number)
    result = running.result()
    assert result.code == code, result.out
    assert result.summary["highest_committed_step"] == 300
    assert not [process for process in everything if process.is_running()]


@pytest.mark.parametrize(("kind", "code"), [("none", 0), ("assertion", 70)])
def test_the_exit_code_passes_out(start: Start, model_dir: Path, kind: str, code: int) -> None:
    assert start(command_config(model_dir, kind), prefix=CONTAINER).result().code == code


def test_zombies_of_all_kinds_are_reaped(start: Start, model_dir: Path) -> None:
    running = start(command_config(model_dir, "zombies"), prefix=CONTAINER)
    running.wait_for("waiting")
    init = init_of(running)
    enter(init, "sleep 0.01 & exit")

    assert eventually(lambda: not zombies(init) and not named(init, "0.01"))


def test_what_a_person_runs_in_the_container_is_not_of_the_job(
    start: Start, model_dir: Path
) -> None:
    config = command_config(model_dir, "wait", "--once", success={"step": 6})
    running = start(config, prefix=CONTAINER)
    running.wait_for("waiting")
    init = init_of(running)
    enter(init, "setsid sleep 54321 & exit")
    assert eventually(lambda: named(init, "54321"))
    (person,) = named(init, "54321")
    (worker,) = those(init, lambda process: "toy.py" in " ".join(process.cmdline()))
    worker.kill()
    running.wait_for("starts after step 2")
    assert person.is_running()
    assert person.ppid() == init.pid
    assert running.result().code == 0
    assert eventually(lambda: not person.is_running()), "it ends with the container"


def test_a_killed_supervisor_ends_the_container(start: Start, model_dir: Path) -> None:
    running = start(command_config(model_dir, "hide"), prefix=CONTAINER)
    running.wait_for("waiting")
    init = init_of(running)
    everything = init.children(recursive=True)
    (supervisor,) = init.children()
    supervisor.kill()
    assert running.process.wait(10) == 128 + signal.SIGKILL
    assert eventually(lambda: not [process for process in everything if process.is_running()])
