"""Real worker processes: they die with their parent, and none below us is overlooked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.adapters import processes
from supervisor.adapters.processes import WorkerProcess
from tests.running import gone, marked

PARENT = """
import os, sys, time
from supervisor.adapters.processes import WorkerProcess, _setpriv
env = {**os.environ}
print("setpriv" if _setpriv(sys.argv[1], env) else "fork", flush=True)
WorkerProcess(sys.argv[1:], env=env, output=1)
time.sleep(600)
"""


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("kind", ["program", "script"])
def test_a_worker_dies_with_its_parent(tmp_path: Path, kind: str) -> None:
    """A script has no setpriv before it, which would run also what the kernel refuses to."""
    mark = f"WORKER_OF={tmp_path}"
    program = "import time; print('runs', flush=True); time.sleep(600)"
    worker = [sys.executable, "-c", program]
    if kind == "script":
        worker = [script(tmp_path / "worker", f"#!{sys.executable}\n{program}\n")]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *worker],
        env={**os.environ, "WORKER_OF": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    how = parent.stdout.readline().strip()
    if kind == "script":
        assert how == "fork"
    assert parent.stdout.readline() == "runs\n"
    assert len(marked(mark)) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(mark)


@pytest.mark.parametrize(
    ("program", "error"),
    [("/nowhere/at/all", FileNotFoundError), ("data", PermissionError), ("nonsense", OSError)],
)
def test_what_cannot_be_run_is_an_error_at_once(
    tmp_path: Path, program: str, error: type[OSError]
) -> None:
    (tmp_path / "data").write_text("no program")
    script(tmp_path / "nonsense", "no program either")
    with pytest.raises(error):
        WorkerProcess([str(tmp_path / program)], env=dict(os.environ), output=2)


@pytest.mark.parametrize("kernel_lists", [True, False])
def test_children_and_their_children_are_found(
    monkeypatch: pytest.MonkeyPatch, kernel_lists: bool
) -> None:
    """With the kernel's own list of them, and where there is none."""
    monkeypatch.setattr(processes, "_LISTS_CHILDREN", kernel_lists)
    tree = "exec 3<&0; sh -c 'echo up; read _ <&3' & wait"
    worker = subprocess.Popen(
        ["sh", "-c", tree], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    with worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"up\n"
        found = {process.pid for process in processes._descendants(())}
        assert worker.pid in found
        assert len(found) == 2
        assert {process.pid for process in processes._descendants((), recursive=False)} == {
            worker.pid
        }
        worker.stdin.close()
