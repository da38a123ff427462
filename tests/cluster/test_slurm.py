"""What `supervise manifest slurm` prints, submitted to a real Slurm: see `slurm` and `hosts`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.cli.main import main
from tests.cluster.hosts import may_have_hosts
from tests.cluster.slurm import Slurm, has_slurm, slurm
from tests.cluster.toy_rank import HURRY, newest, state_in, undisturbed
from tests.running import PATIENCE, eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not may_have_hosts(), reason="network namespaces are not allowed"),
    pytest.mark.skipif(not has_slurm(), reason="Slurm is not installed (Debian: slurm-wlm)"),
]
RANK = str(Path(__file__).with_name("toy_rank.py"))
STEPS = 2000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Three nodes. Jobs need two of them."""
    with slurm(tmp_path_factory.mktemp("slurm"), 3) as made:
        yield made


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The script of a job on two hosts."""
    init = {
        "model_dir": str(tmp_path / "run"),
        "hosts": {"engine": "ray", "count": 2, "lost_after": 4},
        "devices": {"platform": "cpu", "count": 2},
        "autorestart": {"max_num_restarts": 0, "standby": "off", "grace_period": 5},
    }
    argv = [sys.executable, RANK, "{model_dir}", str(STEPS), "0.2"]
    command = {"argv": argv, "success": {"step": STEPS}}
    config = tmp_path / "trainer.yaml"
    config.write_text(yaml.safe_dump({"trainer": {"init": init, "command": command}}))
    assert main(["manifest", "slurm", str(config)]) == 0
    made = tmp_path / "mine.sbatch"
    made.write_text(capsys.readouterr().out)
    return made


def until(happened: Callable[[], bool], script: Path) -> None:
    """Wait for what takes a while; what the job has printed says why it does not happen."""
    output = script.with_suffix(".out")
    assert eventually(happened, 2 * PATIENCE), (
        output.read_text() if output.exists() else "no output"
    )


def trains(script: Path) -> None:
    """Wait until one more checkpoint is committed."""
    checkpoints = script.parent / "run" / "checkpoints"
    before = newest(checkpoints)
    until(lambda: newest(checkpoints) > before, script)


def attempts(script: Path) -> list[dict[str, Any]]:
    """The attempts of the job."""
    (summary,) = (script.parent / "run").glob("*_restartable/summary.json")
    found: list[dict[str, Any]] = json.loads(summary.read_text())["attempts"]
    return found


def succeeds(cluster: Slurm, job: str, script: Path) -> None:
    """Let a job end that was queued again once, and check its state."""
    (script.parent / "run" / HURRY).touch()
    until(lambda: cluster.is_over(job), script)
    assert cluster.shows(job)["JobState"] == "COMPLETED"
    assert cluster.shows(job)["Restarts"] == "1"
    assert state_in(script.parent / "run" / "checkpoints", STEPS) == undisturbed(STEPS)


def test_at_the_end_of_its_time_a_job_saves_and_is_queued_again(
    cluster: Slurm, script: Path
) -> None:
    job = cluster.submit(script)
    trains(script)
    cluster.limit(job, cluster.minutes_of(job) + 2)
    until(lambda: cluster.shows(job)["Restarts"] == "1", script)
    cluster.limit(job, None)
    trains(script)
    succeeds(cluster, job, script)
    first, second = attempts(script)
    assert (first["status"], second["status"]) == ("DRAINED", "SUCCEEDED")


def test_a_cancelled_job_saves_and_stays_cancelled(cluster: Slurm, script: Path) -> None:
    job = cluster.submit(script)
    trains(script)
    cluster.ask("scancel", job)
    until(lambda: cluster.is_over(job), script)
    assert cluster.shows(job)["JobState"] == "CANCELLED"
    assert cluster.shows(job)["Restarts"] == "0"
    (attempt,) = attempts(script)
    assert attempt["status"] == "DRAINED"


def test_a_job_that_can_never_succeed_is_not_queued_again(cluster: Slurm, script: Path) -> None:
    config = script.parent / "trainer.yaml"
    job = yaml.safe_load(config.read_text())
    job["trainer"]["command"] = [sys.executable, "-c", "assert False, 'it is wrong'"]
    config.write_text(yaml.safe_dump(job))
    number = cluster.submit(script)
    until(lambda: cluster.is_over(number), script)
    shown = cluster.shows(number)
    assert (shown["JobState"], shown["ExitCode"], shown["Restarts"]) == ("FAILED", "70:0", "0")


def test_a_job_whose_node_fails_is_queued_again_and_goes_on_elsewhere(
    cluster: Slurm, script: Path
) -> None:
    job = cluster.submit(script)
    trains(script)
    before = cluster.hosts_of(job)
    before[1].vanish()
    until(lambda: cluster.shows(job)["Restarts"] == "1", script)
    trains(script)
    assert before[1] not in cluster.hosts_of(job)
    succeeds(cluster, job, script)
