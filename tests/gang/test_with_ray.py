"""`supervise gang` with Ray itself: two hosts on this machine, one of which is replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from supervisor.adapters.kernel.capacity import free_ports
from supervisor.gang.launcher import find_ray
from tests.running import eventually, leaving_nothing

RAY = find_ray()
PROGRAM = """
import sys, time
from pathlib import Path

import ray

folder = Path(sys.argv[1])
ray.init(address="auto", log_to_driver=False)
while not (folder / "end").exists():
    alive = sum(node["Alive"] for node in ray.nodes())
    (folder / "alive.new").write_text(str(alive))
    (folder / "alive.new").rename(folder / "alive")
    time.sleep(0.2)
"""


@pytest.fixture
def mark() -> Iterator[dict[str, str]]:
    with leaving_nothing() as made:
        yield made


@pytest.mark.slow
@pytest.mark.skipif(RAY is None, reason="the [ray] extra is not installed")
def test_a_member_of_a_real_cluster_is_drained_and_replaced(
    tmp_path: Path, mark: dict[str, str]
) -> None:
    assert RAY is not None
    (tmp_path / "program.py").write_text(PROGRAM)
    python = str(Path(RAY).with_name("python"))
    job = {
        "trainer": {
            "init": {
                "model_dir": str(tmp_path / "run"),
                "autorestart": {"max_num_restarts": 0, "standby": "off"},
            },
            "command": [python, str(tmp_path / "program.py"), str(tmp_path)],
        }
    }
    (tmp_path / "trainer.yaml").write_text(yaml.safe_dump(job))
    (port,) = free_ports(1)

    def start(index: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "supervisor", "gang", "trainer.yaml"]
        command += ["--index", str(index), "--head", f"127.0.0.1:{port}", "--launch", "one"]
        return subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **mark})

    def are_alive(number: int) -> bool:
        path = tmp_path / "alive"
        return eventually(lambda: path.exists() and path.read_text() == str(number), 120)

    with ExitStack() as undo:
        leader, member = start(0), start(1)
        undo.callback(member.kill)
        undo.callback(leader.kill)
        assert are_alive(2)
        member.terminate()
        assert member.wait(60) == 75, "it was drained, and the job goes on"
        assert are_alive(1)
        replacement = start(1)
        undo.callback(replacement.kill)
        assert are_alive(2)
        (tmp_path / "end").touch()
        assert [each.wait(60) for each in (leader, replacement)] == [0, 0]
