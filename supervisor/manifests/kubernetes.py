"""The manifests of a job for Kubernetes: a JobSet, or a RayCluster of KubeRay with a Job.

What a pod runs is the image of deploy/Dockerfile. In a JobSet of several hosts each pod runs
`supervise gang`, and all end with the leader's exit code. KubeRay starts Ray by itself; there a Job
is the leader, whose pod joins the cluster without offering it anything.
"""

from __future__ import annotations

import posixpath
import shlex
from typing import Any

from supervisor.manifests.submission import Submission

_CONTAINER = "supervise"
_REPLICATED = "host"
"""The name of the JobSet's only replicated job."""
_CONFIG = "/etc/supervise"
_USER = 10001
"""The user of the image."""
_BACKOFF_LIMIT = 20
_RAY_PORT = 6379
_JOBSET_UID = "JOBSET_UID"


def jobset(job: Submission, image: str) -> list[dict[str, Any]]:
    """Returns the JobSet of `job`, whose hosts are the pods of one indexed Job for each slice."""
    pods = job.num_hosts if job.hosts_per_slice == 1 else job.hosts_per_slice
    inner = _job(job, pods, _pod(job, _jobset_container(job, image)))
    spec = {
        "failurePolicy": {
            "maxRestarts": 0,
            "rules": [
                {
                    "name": "failedForGood",
                    "action": "FailJobSet",
                    "onJobFailureReasons": ["PodFailurePolicy"],
                }
            ],
        },
        "replicatedJobs": [
            {
                "name": _REPLICATED,
                "replicas": job.num_hosts // pods,
                "template": {"spec": inner},
            }
        ],
    }
    return [
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": job.name},
            "spec": spec,
        }
    ]


def kuberay(job: Submission, image: str) -> list[dict[str, Any]]:
    """Returns the cluster of `job`, and the Job that leads it. The head is on a pod of its own,
    without devices: with it the whole cluster is lost."""
    drained = {"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": str(job.grace)}
    urgent = {"name": "RAY_worker_niceness", "value": "0"}  # Ray's own value is 15
    worker = _container(image, "ray-worker") | _resources(job) | {"env": [drained, urgent]}
    host = _pod(job, worker)
    cluster = {
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},
            "template": {"spec": _pod_of_ray(_container(image, "ray-head"))},
        },
        "workerGroupSpecs": [
            {
                "groupName": _REPLICATED,
                "replicas": (replicas := job.num_hosts // job.hosts_per_slice),
                "minReplicas": replicas,
                "maxReplicas": replicas,
                "numOfHosts": job.hosts_per_slice,
                "rayStartParams": {},
                "template": {"spec": host},
            }
        ],
    }
    join = f"ray start --address={job.name}-head-svc:{_RAY_PORT} --num-cpus=0 --num-gpus=0"
    run = shlex.join(["supervise", "run", "--once", *_arguments(job)])
    leader = _container(image, _CONTAINER) | {"command": ["sh", "-c", f"{join} && exec {run}"]}
    pod = _pod(job, leader)
    pod.pop("nodeSelector", None)
    return [
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {"name": job.name},
            "spec": cluster,
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": job.name},
            "spec": _job(job, 1, pod),
        },
    ]


def pod_failure_policy(job: Submission) -> dict[str, Any]:
    """Returns what Kubernetes does with each exit code. The first rule that matches decides."""

    def on_codes(action: str, codes: tuple[int, ...]) -> dict[str, Any]:
        matched = {"containerName": _CONTAINER, "operator": "In", "values": [*codes]}
        return {"action": action, "onExitCodes": matched}

    rules = [on_codes("FailJob", job.codes.for_good)]
    if job.codes.again:
        rules.append(on_codes("Ignore", job.codes.again))
    lost = {"type": "DisruptionTarget", "status": "True"}
    return {"rules": [*rules, {"action": "Ignore", "onPodConditions": [lost]}]}


def _job(job: Submission, pods: int, pod: dict[str, Any]) -> dict[str, Any]:
    indexed = {"completionMode": "Indexed"} if pods > 1 else {}
    return {
        "completions": pods,
        "parallelism": pods,
        **indexed,
        "backoffLimit": _BACKOFF_LIMIT,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": pod_failure_policy(job),
        "template": {"spec": {"restartPolicy": "Never", **pod}},
    }


def _jobset_container(job: Submission, image: str) -> dict[str, Any]:
    """Returns the container of each host: one host runs what the image runs by itself."""
    container = {**_container(image, _CONTAINER), **_resources(job)}
    if job.hosts is None:
        return container | {"args": _arguments(job)}
    head = f"{job.name}-{_REPLICATED}-0-0.{job.name}:{_RAY_PORT}"
    gang = ["supervise", "gang", "--once", "--head", head, "--launch", f"$({_JOBSET_UID})"]
    return container | {
        "command": [*gang, *_arguments(job)],
        "env": [
            _from_pod(_JOBSET_UID, "labels['jobset.sigs.k8s.io/jobset-uid']"),
            _from_pod("JOB_INDEX", "labels['jobset.sigs.k8s.io/job-index']"),
        ],
    }


def _from_pod(name: str, field: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{field}"}}}


def _arguments(job: Submission) -> list[str]:
    overrides = [word for one in job.overrides for word in ("--set", one)]
    return [*overrides, posixpath.join(_CONFIG, posixpath.basename(job.config))]


def _container(image: str, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "image": image,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _resources(job: Submission) -> dict[str, Any]:
    kind = {"gpu": "nvidia.com/gpu", "tpu": "google.com/tpu"}.get(job.platform or "")
    if kind is None or job.devices_per_host is None:
        return {}
    return {"resources": {"limits": {kind: job.devices_per_host}}}


def _pod(job: Submission, container: dict[str, Any]) -> dict[str, Any]:
    """Returns the pod of a host, with the config, and with the volume of model_dir unless it is in
    a bucket."""
    pod = _pod_of_ray(container)
    mounts = [{"name": "config", "mountPath": _CONFIG, "readOnly": True}]
    volumes: list[dict[str, Any]] = [{"name": "config", "configMap": {"name": job.name}}]
    if job.model_dir is not None:
        above = posixpath.dirname(job.model_dir.rstrip("/"))
        place = above if above.strip("/") else job.model_dir
        mounts.append({"name": "data", "mountPath": place})
        volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": job.name}})
    pod["containers"] = [{**container, "volumeMounts": mounts}]
    if job.slice is not None:
        pod["nodeSelector"] = {
            "cloud.google.com/gke-tpu-accelerator": job.slice.generation_facts.node_label,
            "cloud.google.com/gke-tpu-topology": job.slice.topology,
        }
    return pod | {"terminationGracePeriodSeconds": job.grace, "volumes": volumes}


def _pod_of_ray(container: dict[str, Any]) -> dict[str, Any]:
    """Returns a pod that runs as the user of the image, without volumes."""
    return {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
