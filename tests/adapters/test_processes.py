"""Real worker processes: they die with their parent, and none below us is overlooked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.adapters.processes.worker_process import WorkerProcess
from supervisor.host import tree
from tests.running import gone, marked, shared_guard

PARENT = """
import os, sys, time
from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.adapters.processes.worker_process import WorkerProcess
guard = GuardClient(print)
WorkerProcess(guard, sys.argv[1:], env=os.environ, output=1)
print("guard", guard.pid, flush=True)
time.sleep(600)
"""


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("kind", ["program", "script"])
def test_a_worker_dies_with_its_parent(tmp_path: Path, kind: str) -> None:
    mark = f"WORKER_OF={tmp_path}"
    program = "import time; time.sleep(600)"
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
    assert parent.stdout.readline().startswith("guard ")
    assert len(marked(mark)) == 2, "parent and worker: the guard has no environment"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(mark)


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("/nowhere/at/all", FileNotFoundError),
        ("nowhere-at-all", FileNotFoundError),
        ("data", PermissionError),
        ("nonsense", OSError),
        ("bad-interpreter", FileNotFoundError),
    ],
)
def test_what_cannot_be_run_is_an_error_at_once(
    tmp_path: Path, program: str, error: type[OSError]
) -> None:
    """The same error as of `subprocess`."""
    (tmp_path / "data").write_text("no program")
    script(tmp_path / "nonsense", "no program either")
    script(tmp_path / "bad-interpreter", "#!/nowhere/at/all\n")
    path = program if program == "nowhere-at-all" else str(tmp_path / program)
    with pytest.raises(error) as expected:
        subprocess.Popen([path])
    with pytest.raises(error) as found:
        WorkerProcess(shared_guard(), [path], env=dict(os.environ), output=2)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("kernel_lists", [True, False])
def test_children_and_their_children_are_found(
    monkeypatch: pytest.MonkeyPatch, kernel_lists: bool
) -> None:
    """With the kernel's own list of them, and where there is none."""
    monkeypatch.setattr(tree, "_LISTS_CHILDREN", kernel_lists)
    script = "exec 3<&0; sh -c 'echo up; read _ <&3' & wait"
    worker = subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    with worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"up\n"
        below = tree.descendants(os.getpid(), {os.getsid(0)})
        found = [pid for pid, seen in below if seen.session == worker.pid]  # not other tests'
        assert worker.pid in found
        assert len(found) == 2
        assert worker.pid in tree.children(os.getpid())
        others = tree.descendants(os.getpid(), {os.getsid(0), worker.pid})
        assert not {pid for pid, _ in others} & {*found}
        worker.stdin.close()
