"""`supervise manifest`: what it prints is as before, valid, and agrees with the exit codes.

After a change that is meant, `python -m tests.deploy.test_manifest` writes the golden files anew.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from supervisor.cli.main import parser_of_all_verbs
from supervisor.core.exit_codes import ExitCode
from supervisor.manifests.submission import codes_of
from tests.deploy.test_kubernetes import manifest as shipped
from tests.running import eventually

GOLDEN = Path(__file__).parent / "golden"
SCHEMAS = Path(__file__).parent / "schemas"
IMAGE_COMMAND = ["supervise", "run", "--once"]
IMAGE = "registry.example.com/supervise:0.2.0"

ONE_HOST = "devices: {platform: gpu, count: 8}"
CPU_HOSTS = "hosts: {engine: ray, count: 2}"
GPU_HOSTS = "devices: {platform: gpu, count: 64}\nhosts: {engine: ray, count: 8, spares: 1}"
TPU_SLICES = """
devices: {platform: tpu, type: v5e-16, slices: 2}
hosts: {engine: ray, count: 8, spares: 4}
"""
SHOWN = {
    "slurm-one-host": ONE_HOST,
    "slurm-gpu-hosts": GPU_HOSTS,
    "jobset-one-host": ONE_HOST,
    "jobset-cpu-hosts": CPU_HOSTS,
    "jobset-tpu-slices": TPU_SLICES,
    "kuberay-gpu-hosts": GPU_HOSTS,
    "kuberay-tpu-slices": TPU_SLICES,
}


def config(
    init: str, directory: str = "/data/demo", grace: str = "25s", exit_codes: Any = None
) -> dict[str, Any]:
    restart = {"max_num_restarts": 3, "grace_period": grace}
    job: dict[str, Any] = {
        "trainer": {
            "init": {"model_dir": directory, **yaml.safe_load(init), "autorestart": restart},
            "command": ["python3", "train.py"],
        }
    }
    return job if exit_codes is None else job | {"exit_codes": exit_codes}


def printed(
    folder: Path, system: str, job: object, *options: str, code: int = 0
) -> subprocess.CompletedProcess[str]:
    (folder / "trainer.yaml").write_text(yaml.safe_dump(job))
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "manifest", system, "trainer.yaml", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    return done


def shown(folder: Path, name: str) -> str:
    return printed(folder, name.partition("-")[0], config(SHOWN[name]), "--image", IMAGE).stdout


def jobs(documents: list[Any]) -> Iterator[dict[str, Any]]:
    """Of each Job in a manifest the specification."""
    for document in documents:
        if document["kind"] == "Job":
            yield document["spec"]
        elif document["kind"] == "JobSet":
            for replicated in document["spec"]["replicatedJobs"]:
                yield replicated["template"]["spec"]


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_printed_is_as_reviewed(tmp_path: Path, name: str) -> None:
    assert shown(tmp_path, name) == (GOLDEN / name).read_text()


KUBERNETES = pytest.mark.parametrize("name", [name for name in SHOWN if "slurm" not in name])


@KUBERNETES
def test_it_is_valid_and_follows_the_exit_codes(name: str) -> None:
    documents = [*yaml.safe_load_all((GOLDEN / name).read_text())]
    for document in documents:
        schema = SCHEMAS / f"{document['kind'].lower()}.json"
        if document["kind"] != "Job":
            jsonschema.validate(document, json.loads(schema.read_text()))
    (job,) = jobs(documents)
    fails, again, lost = job["podFailurePolicy"]["rules"]
    failures = set(ExitCode) - {ExitCode.SUCCEEDED}
    assert (fails["action"], again["action"], lost["action"]) == ("FailJob", "Ignore", "Ignore")
    assert set(fails["onExitCodes"]["values"]) == {c for c in failures if not c.run_again}
    assert set(again["onExitCodes"]["values"]) == {c for c in failures if c.run_again}
    assert lost["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    names = {each["name"] for each in job["template"]["spec"]["containers"]}
    assert {rule["onExitCodes"]["containerName"] for rule in (fails, again)} == names
    assert job["template"]["spec"]["restartPolicy"] == "Never"


@KUBERNETES
@pytest.mark.slow
@pytest.mark.skipif("KUBERNETES_VALIDATE" not in os.environ, reason="make test-manifests gives it")
def test_kubernetes_knows_each_field_of_its_jobs(tmp_path: Path, name: str) -> None:
    path = tmp_path / "job.yaml"
    for job in jobs([*yaml.safe_load_all((GOLDEN / name).read_text())]):
        whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": job}
        path.write_text(yaml.safe_dump(whole))
        command = [os.environ["KUBERNETES_VALIDATE"], "--strict", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "passed" in done.stdout + done.stderr


@pytest.mark.parametrize("name", SHOWN)
def test_the_command_in_it_is_one_of_ours(name: str) -> None:
    text = (GOLDEN / name).read_text()
    if "slurm" in name:
        (line,) = re.findall(r"^srun .*?(supervise .*)$", text, re.MULTILINE)
        words = shlex.split(line)
    else:
        (job,) = jobs([*yaml.safe_load_all(text)])
        container = job["template"]["spec"]["containers"][0]
        words = [*container.get("command", IMAGE_COMMAND), *container.get("args", ())]
        if words[0] == "sh":
            words = shlex.split(words[-1].rpartition("exec ")[2])
    options = parser_of_all_verbs().parse_args(words[1:])
    assert (words[0], options.once) == ("supervise", True)
    assert options.config.name == "trainer.yaml"
    led = "one-host" in name or "kuberay" in name
    assert options.command == ("run" if led else "gang")


def test_one_host_gets_the_jobset_of_this_repository(tmp_path: Path) -> None:
    job = config("workers: 1", "/data/supervise-demo")
    (made,) = yaml.safe_load_all(printed(tmp_path, "jobset", job, "--image", IMAGE).stdout)
    ours = shipped("jobset.yaml")
    (spec,) = jobs([ours])
    del spec["template"]["spec"]["containers"][0]["resources"]  # of the demo
    assert made == ours


def test_a_longer_grace_period_reaches_all_systems(tmp_path: Path) -> None:
    job = config(GPU_HOSTS, grace="90s")
    assert "#SBATCH --signal=TERM@125\n" in printed(tmp_path, "slurm", job).stdout
    for system in ("jobset", "kuberay"):
        documents = printed(tmp_path, system, job, "--image", IMAGE).stdout
        for spec in jobs([*yaml.safe_load_all(documents)]):
            assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 125


def test_the_numbers_of_the_config_are_those_of_the_policy(tmp_path: Path) -> None:
    job = config(ONE_HOST, exit_codes="xpk")
    (made,) = yaml.safe_load_all(printed(tmp_path, "jobset", job, "--image", IMAGE).stdout)
    (spec,) = jobs([made])
    fails, again, _ = spec["podFailurePolicy"]["rules"]
    assert again["onExitCodes"]["values"] == [42]
    assert 42 not in fails["onExitCodes"]["values"]


def test_a_number_of_both_kinds_is_for_good() -> None:
    found = codes_of({70: 9, 75: 9, 79: 0})
    assert 9 in found.for_good
    assert 9 not in found.again
    assert 0 not in found.for_good, "Kubernetes refuses it, and it is success"


def test_options_go_along(tmp_path: Path) -> None:
    one = "trainer.init.limits.outputs=5 GiB"
    script = printed(tmp_path, "slurm", config(GPU_HOSTS), "--set", one, "--name", "mine").stdout
    assert f"supervise gang --once --set '{one}' trainer.yaml\n" in script
    assert "#SBATCH --job-name=mine\n" in script


@pytest.mark.parametrize(
    ("system", "init", "directory", "code", "text"),
    [
        ("jobset", ONE_HOST, "/data/demo", 64, "--image is missing"),
        ("jobset", ONE_HOST, "./runs/demo", 78, "lost with its pod"),
        ("kuberay", ONE_HOST, "/data/demo", 78, "use `supervise manifest jobset`"),
        ("slurm", "devices: {platform: tpu, type: v5e-16}", "/d/m", 78, "give init.hosts too"),
        ("slurm", TPU_SLICES.replace("spares: 4", "spares: 3"), "/d/m", 78, "a multiple of 4"),
        (
            "slurm",
            "hosts: {engine: ray, count: 2, address: '10.0.0.2:6379'}",
            "/data/demo",
            78,
            "starts a cluster for the job",
        ),
    ],
)
def test_what_cannot_be_submitted_is_refused(
    tmp_path: Path, system: str, init: str, directory: str, code: int, text: str
) -> None:
    image = () if code == 64 else ("--image", IMAGE)
    done = printed(tmp_path, system, config(init, directory), *image, code=code)
    assert text in done.stderr
    assert done.stdout == ""


def batch(tmp_path: Path, srun: str) -> subprocess.Popen[bytes]:
    """Run the script for several hosts with `srun` as its Slurm."""
    script = tmp_path / "demo.sbatch"
    script.write_text(shown(tmp_path, "slurm-gpu-hosts"))
    for name, text in {"srun": srun, "scontrol": f'echo "$@" >> {tmp_path}/asked'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    return subprocess.Popen(["bash", str(script)], env=env)


@pytest.mark.parametrize("code", [0, *ExitCode, 137])
def test_slurm_starts_the_job_again_after_some_codes(tmp_path: Path, code: int) -> None:
    running = batch(tmp_path, f"exit {code}")
    assert running.wait(60) == code
    again = code in {each for each in ExitCode if each.run_again}
    asked = tmp_path / "asked"
    assert (asked.read_text() if asked.exists() else "") == ("requeue 7\n" if again else "")


def test_a_job_that_is_cancelled_stays_so(tmp_path: Path) -> None:
    running = batch(
        tmp_path,
        f"touch {tmp_path}/began; while [ ! -e {tmp_path}/end ]; do sleep 0.05; done; exit 75",
    )
    assert eventually((tmp_path / "began").exists)
    running.terminate()
    (tmp_path / "end").touch()
    assert running.wait(60) == 75
    assert not (tmp_path / "asked").exists()


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        for name in SHOWN:
            (GOLDEN / name).write_text(shown(Path(folder), name))
