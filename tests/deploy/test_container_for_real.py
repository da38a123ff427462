"""The image under a real podman: docs/how-to/container.md, with fewer steps of training.

Build the image first, as that page says; without it, or without podman, nothing is tested.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.test_deploy import ROOT
from tests.running import eventually

IMAGE = "localhost/supervise"
USER = 10001
SHORT = ("trainer.init.loop.max_steps=120", "trainer.faults=[]")


def podman(*arguments: str, check: bool = True) -> str:
    """Run podman; what it prints."""
    done = subprocess.run(
        ["podman", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0 or not check, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def _why_not() -> str | None:
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("podman") is None:
        return "there is no podman"
    found = subprocess.run(["podman", "image", "exists", IMAGE], capture_output=True, check=False)
    return None if found.returncode == 0 else f"there is no image {IMAGE}"


WHY_NOT = _why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(WHY_NOT is not None, reason=f"NOT TESTED: the container: {WHY_NOT}"),
]


class Container:
    """The quickstart in a container, with model_dir on a volume."""

    def __init__(self, name: str, data: Path) -> None:
        self.name = name
        mounts = ("-v", f"{data}:/data", "-v", f"{ROOT}/examples:/examples:ro")
        changes = [f"--set={each}" for each in ("trainer.init.model_dir=/data/job", *SHORT)]
        config = "/examples/quickstart.yaml"
        podman("run", "-d", "--name", name, *mounts, IMAGE, config, *changes)

    def has_said(self, text: str) -> bool:
        return text in podman("logs", self.name)

    def exit_code(self) -> int:
        """Wait for its end."""
        return int(podman("wait", self.name))

    def shell(self, script: str) -> str:
        return podman("exec", self.name, "sh", "-c", script)


@contextmanager
def running(data: Path) -> Iterator[Container]:
    name = f"supervise-test-{uuid.uuid4().hex[:8]}"
    try:
        yield Container(name, data)
    finally:
        podman("rm", "-f", name, check=False)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    data = tmp_path / "data"
    data.mkdir()
    shutil.chown(data, USER, USER)
    with running(data) as container:
        yield container


def test_a_stop_saves_and_a_start_goes_on_to_the_end(container: Container) -> None:
    assert eventually(lambda: container.has_said("step 50  checkpoint committed"), timeout=300)
    assert container.shell("id -u") == str(USER)
    podman("healthcheck", "run", container.name)
    podman("stop", "-t", "60", container.name)
    assert container.exit_code() == 75
    assert container.has_said("DRAINED, exit code 75")
    podman("start", container.name)
    assert container.exit_code() == 0
    assert container.has_said("restored step ")
    podman("start", container.name)
    assert container.exit_code() == 0
    assert container.has_said("the job has succeeded already: nothing to do")


def test_orphans_are_reaped_by_process_1(container: Container) -> None:
    assert eventually(lambda: container.has_said("running as pid"))
    orphan = container.shell("sleep 0.1 >/dev/null 2>&1 & echo $!")
    assert eventually(lambda: container.shell(f"test -e /proc/{orphan} || echo gone") == "gone")
