"""`supervise run --http` and `supervise serve` as processes: the job goes on whatever becomes of
what shows it, and nothing is left of that."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from supervisor.core.exit_codes import ExitCode
from tests.running import PATIENCE, Running, Start, command_config

ANY = "127.0.0.1:0"
SECRETS = {
    "WANDB_API_KEY": "a1b2c3d4e5f6a7b8c9d0a1b2c3d4e5f6a7b8c9d0",
    "DB_PASSWORD": "hunter2hunter2",
}


def shown(job: Running) -> str:
    """Returns the URL at which the job is shown, once it is."""
    return str(job.wait_for_event("http-shown")["address"])


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return str(answer.read().decode())


def server_of(job: Running) -> psutil.Process:
    """Returns the process that shows the job."""
    (found,) = [
        each
        for each in psutil.Process(job.process.pid).children()
        if "serve" in each.cmdline() and "--http" in each.cmdline()
    ]
    return found


def waits(tmp_path: Path) -> object:
    """Returns the config of a job that goes on until it is stopped."""
    config = command_config(tmp_path / "run")
    program = "import time; print('begun', flush=True); time.sleep(600)"
    config["trainer"]["command"]["argv"] = [sys.executable, "-c", program]
    return config


def test_a_job_is_shown_while_it_runs_and_nothing_is_left_of_it(
    start: Start, tmp_path: Path
) -> None:
    job = start(waits(tmp_path), "--http", ANY, env={**os.environ, **SECRETS})
    url, server = shown(job), server_of(job)
    while "RUNNING" not in get(url):
        pass
    told = [get(f"{url}{path}") for path in ("", "metrics", "job/1/", "job/1/report.json")]
    assert not [secret for secret in SECRETS.values() for text in told if secret in text]
    job.signal(signal.SIGTERM)
    assert job.result().code == ExitCode.DRAINED
    assert not server.is_running()


def test_it_dies_with_a_supervisor_that_is_killed(start: Start, tmp_path: Path) -> None:
    job = start(waits(tmp_path), "--http", ANY)
    shown(job)
    server = server_of(job)
    job.signal(signal.SIGKILL)
    job.result()
    server.wait(PATIENCE)


def test_a_job_goes_on_whose_server_dies(start: Start, tmp_path: Path) -> None:
    job = start(waits(tmp_path), "--http", ANY)
    shown(job)
    server_of(job).kill()
    told = job.wait_for_event("http-not-shown")
    assert told["reason"] == "its process was killed"
    job.signal(signal.SIGTERM)
    result = job.result()
    assert result.code == ExitCode.DRAINED
    assert len(result.events("http-not-shown")) == 1


def test_a_port_that_is_taken_is_told_in_one_line_and_the_job_goes_on(
    start: Start, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        job = start(waits(tmp_path), "--http", f"127.0.0.1:{taken.getsockname()[1]}")
        told = job.wait_for_event("http-not-shown")
        job.wait_for("begun")
    assert "Address already in use" in told["reason"]
    job.signal(signal.SIGTERM)
    result = job.result()
    assert result.code == ExitCode.DRAINED
    assert result.names("http-shown", "http-not-shown") == ["http-not-shown"]


def serve(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "supervisor", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("nowhere:9090", "is no IP address and port, such as 127.0.0.1:9090"),
        ("127.0.0.1:70000", "is no IP address and port"),
        ("127.0.0.1:", "is no IP address and port"),
        ("192.0.2.1:0", "cannot be listened at: Cannot assign requested address"),
    ],
)
def test_a_wrong_address_is_one_line(tmp_path: Path, address: str, told: str) -> None:
    done = serve("--http", address, str(tmp_path))
    assert done.returncode == ExitCode.USAGE
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_extra_the_remedy_is_told(tmp_path: Path) -> None:
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('not here')")
    done = serve(str(tmp_path), env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.splitlines() == [
        "supervise: prometheus-client is needed, and cannot be imported (not here): pip install "
        "'.[http]' in a checkout"
    ]


def test_an_address_that_others_reach_is_warned_of_and_a_signal_ends_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "supervisor", "serve", "--http", "0.0.0.0:0", str(tmp_path)]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "1 job shown at http://0.0.0.0:" in process.stdout.readline()
        assert "no passwords" in process.stderr.readline()
        process.terminate()
        assert process.wait(PATIENCE) == 0
