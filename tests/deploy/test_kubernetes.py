"""The manifests for Kubernetes agree with the exit codes, the config and the image."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from supervisor.config.schema import Autorestart
from supervisor.core.exit_codes import ExitCode
from tests.deploy.test_deploy import ROOT
from tests.docs.pages import DOCS, blocks

MANIFESTS = ROOT / "deploy" / "kubernetes"


def manifest(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((MANIFESTS / name).read_text()))


def job_of_a_job() -> dict[str, Any]:
    return dict(manifest("job.yaml")["spec"])


def job_of_a_jobset() -> dict[str, Any]:
    (replicated,) = manifest("jobset.yaml")["spec"]["replicatedJobs"]
    assert replicated["replicas"] == 1, "one host"
    return dict(replicated["template"]["spec"])


JOBS = pytest.mark.parametrize(
    "job",
    [pytest.param(job_of_a_job(), id="Job"), pytest.param(job_of_a_jobset(), id="JobSet")],
)


@JOBS
def test_a_pod_is_replaced_by_the_exit_codes(job: dict[str, Any]) -> None:
    container = job["template"]["spec"]["containers"][0]["name"]
    rules = job["podFailurePolicy"]["rules"]
    codes: dict[str, set[int]] = {}
    for rule in rules:
        if "onExitCodes" in rule:
            found = rule["onExitCodes"]
            assert (found["containerName"], found["operator"]) == (container, "In")
            assert found["values"] == sorted(set(found["values"])), "as the API server wants them"
            assert rule["action"] not in codes
            codes[rule["action"]] = set(found["values"])
    failures = set(ExitCode) - {ExitCode.SUCCEEDED}
    assert codes == {
        "FailJob": {code for code in failures if not code.run_again},
        "Ignore": {code for code in failures if code.run_again},
    }
    assert rules[0]["action"] == "FailJob", "it decides also where the node is drained"
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    assert rules[-1] == {"action": "Ignore", "onPodConditions": [disrupted]}


@JOBS
def test_one_pod_at_a_time_with_time_to_save(job: dict[str, Any]) -> None:
    assert (job["completions"], job["parallelism"]) == (1, 1)
    assert job["podReplacementPolicy"] == "Failed"
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never", "podFailurePolicy allows no other"
    grace_period = Autorestart.model_fields["grace_period"].default
    assert pod["terminationGracePeriodSeconds"] > grace_period + 10


@JOBS
def test_the_pod_runs_our_image_as_its_user(job: dict[str, Any]) -> None:
    image = (ROOT / "deploy" / "Dockerfile").read_text()
    (user,) = map(int, re.findall(r"^USER (\d+):\1$", image, re.MULTILINE))
    pod = job["template"]["spec"]
    security = pod["securityContext"]
    assert {security[key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {user}
    assert security["runAsNonRoot"] is True
    (container,) = pod["containers"]
    assert "command" not in container, "the entrypoint of the image: supervise run --once"
    (config,) = container["args"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert config == f"{mounted['config']}/trainer.yaml"
    assert set(mounted) == {volume["name"] for volume in pod["volumes"]}


def test_a_jobset_fails_when_its_job_does() -> None:
    """By default a JobSet starts a failed Job again, whatever its exit code."""
    assert job_of_a_jobset() == job_of_a_job()
    policy = manifest("jobset.yaml")["spec"]["failurePolicy"]
    (rule,) = policy["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])
    assert policy["maxRestarts"] == 0, "the Job replaces its pods by itself"


def test_the_page_shows_the_job_as_it_is() -> None:
    page = DOCS / "how-to" / "kubernetes.md"
    assert (MANIFESTS / "job.yaml").read_text() in [block.text for block in blocks(page)]
