"""`supervisor.run` in notebooks and launchers: what it returns, and how it is stopped."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

import supervisor
from supervisor.adapters.stores.journal import FileJournal
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.config.problems import ConfigError
from supervisor.core.exit_codes import ExitCode
from supervisor.core.state import Status
from tests.running import eventually, leaving_nothing

SAVES = """
import sys
from pathlib import Path
import supervise_worker
folder = Path(sys.argv[1]) / "2"
folder.mkdir(parents=True, exist_ok=True)
(folder / "commit_success.txt").touch()
supervise_worker.step(2)
"""
WAITS = """
import os, sys, time, supervise_worker
os.write(1, b"it trains\\n")
while not supervise_worker.should_stop(): time.sleep(0.01)
"""


def config(model_dir: Path, code: str, *arguments: str, **command: Any) -> dict[str, Any]:
    restart = {"max_num_restarts": 0, "standby": "off"}
    return {
        "trainer": {
            "init": {"model_dir": model_dir, "autorestart": restart},
            "command": {"argv": [sys.executable, "-c", code, *arguments], **command},
        }
    }


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with leaving_nothing() as mark:
        for name, value in mark.items():
            monkeypatch.setenv(name, value)
        yield


def test_a_mapping_is_run_and_the_output_goes_to_stdout(model_dir: Path) -> None:
    job = config(model_dir, SAVES, "{model_dir}/checkpoints", success={"step": 2})
    with redirect_stdout(io.StringIO()) as out:
        result = supervisor.run(job)
    assert result.exit_code is ExitCode.SUCCEEDED
    assert result.status is Status.SUCCEEDED
    assert (result.attempts, result.last_step, result.model_dir) == (1, 2, model_dir)
    assert result.summary is not None
    assert json.loads(result.summary.read_text())["exit_code"] == 0
    assert "exit code 0" in out.getvalue()


def test_a_file_is_run_and_mapped_codes_are_understood(model_dir: Path, tmp_path: Path) -> None:
    job = config(model_dir, "import sys; sys.exit(3)") | {"exit_codes": {"70": 1, "76": 1}}
    job["trainer"]["init"]["model_dir"] = str(model_dir)
    path = tmp_path / "trainer.yaml"
    path.write_text(yaml.safe_dump(job))
    with redirect_stdout(io.StringIO()):
        result = supervisor.run(path)
    assert (result.exit_code, result.status) == (ExitCode.BUDGET_SPENT, Status.FAILED)
    assert result.last_step is None


def test_a_wrong_config_starts_nothing(model_dir: Path) -> None:
    job = config(model_dir, "") | {"trainers": 1}
    with pytest.raises(ConfigError, match="trainers: unknown key"):
        supervisor.run(job)
    assert not model_dir.exists()


def launched(model_dir: Path, tmp_path: Path) -> subprocess.Popen[bytes]:
    """Start a launcher of a job that trains until it is told to stop; wait until it trains."""
    path = tmp_path / "trainer.yaml"
    job = config(model_dir, WAITS)
    job["trainer"]["init"]["model_dir"] = str(model_dir)
    path.write_text(yaml.safe_dump(job))
    program = f"import supervisor\nprint(supervisor.run({str(path)!r}))"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert any(b"it trains" in line for line in process.stdout)
    return process


def exit_code_in(model_dir: Path) -> int | None:
    return FileJournal(LocalStorage(model_dir)).peek().state.exit_code


def test_an_interrupt_stops_the_job_and_is_raised(model_dir: Path, tmp_path: Path) -> None:
    with launched(model_dir, tmp_path) as process:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert errors.decode().rstrip().endswith("KeyboardInterrupt")
    assert exit_code_in(model_dir) == ExitCode.STOPPED


def test_a_launcher_that_is_killed_drains_the_job(model_dir: Path, tmp_path: Path) -> None:
    with launched(model_dir, tmp_path) as process:
        process.kill()
    assert eventually(lambda: exit_code_in(model_dir) == ExitCode.DRAINED)


def test_a_supervisor_that_is_killed_is_no_result(model_dir: Path, tmp_path: Path) -> None:
    with launched(model_dir, tmp_path) as process:
        (child,) = psutil.Process(process.pid).children()
        child.kill()
        _, errors = process.communicate()
    assert b"ChildProcessError: the supervisor was ended by SIGKILL" in errors


def test_to_import_supervisor_imports_nothing_else() -> None:
    program = (
        "import sys; before = {*sys.modules}; import supervisor\n"
        "assert {*sys.modules} - before == {'supervisor'}, {*sys.modules} - before\n"
        "try: supervisor.walk\n"
        "except AttributeError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "module 'supervisor' has no attribute 'walk'\n", done.stderr
