"""`supervise manifest`: prints what starts the job on Slurm or Kubernetes."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator

import yaml

from supervisor.cli.arguments import Commands, add_config, with_own_message
from supervisor.cli.complaints import complain
from supervisor.config.load import Job, load_job
from supervisor.config.problems import ConfigError, Problem
from supervisor.core.exit_codes import ExitCode
from supervisor.manifests import kubernetes, slurm
from supervisor.manifests.submission import Submission, submission_of

_KUBERNETES = {"jobset": kubernetes.jobset, "kuberay": kubernetes.kuberay}
_SLURM = "slurm"


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "manifest",
        help="print what starts the job on Slurm or Kubernetes",
        description="Print what starts the job: a batch script for Slurm, or manifests for "
        "Kubernetes. It has the hosts, devices and grace period of the config, and starts the job "
        "again after those exit codes that ask for it.",
    )
    parser.add_argument("system", choices=(_SLURM, *_KUBERNETES), help="what is to start the job")
    add_config(parser)
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        help="the image that the pods run (jobset and kuberay, required)",
    )
    parser.add_argument(
        "--name",
        type=with_own_message(_parse_name),
        metavar="NAME",
        help="name of the job, its ConfigMap and its volume claim. Without it: that of model_dir",
    )


def run(options: Namespace) -> int:
    """Print what to submit; returns the exit code."""
    job = load_job(options.config, options.set)
    found = submission_of(job, options.name, str(options.config), options.set)
    if options.system == _SLURM:
        print(slurm.script(found), end="")
        return 0
    if not options.image:
        text = f"--image is missing: manifest {options.system} needs the image that the pods run"
        return complain(ExitCode.USAGE, text)
    if problems := [*_pod_problems(job, found, options.system)]:
        raise ConfigError(problems)
    for line in _before_submitting(found, options.system):
        print(f"# {line}".rstrip())
    manifests = _KUBERNETES[options.system](found, options.image)
    print(yaml.dump_all(manifests, sort_keys=False, width=100), end="")
    return 0


def _pod_problems(job: Job, found: Submission, system: str) -> Iterator[Problem]:
    """Yields what keeps the job from running in pods."""
    place = found.model_dir
    if place is not None and not re.match("/+[^/]", place):
        message = (
            f"is {place!r}, which is lost with its pod: give a directory on a volume, such as "
            "/data/mine, or a bucket, such as gs://BUCKET/mine"
        )
        yield job.problem(0, ("init", "model_dir"), message)
    if system == "kuberay" and found.hosts is None:
        message = "is missing, and one host needs no Ray: use `supervise manifest jobset`"
        yield job.problem(0, ("init", "hosts"), message)


def _before_submitting(job: Submission, system: str) -> Iterator[str]:
    """Yields what the manifest needs in the cluster."""
    yield f"Made by `supervise manifest {system}`. Before you submit it:"
    yield f"  kubectl create configmap {job.name} --from-file={job.config}"
    if job.model_dir is not None:
        mode = "ReadWriteOnce" if job.hosts is None else "ReadWriteMany"
        yield f"  and make a PersistentVolumeClaim {job.name} ({mode}) for model_dir."
    if job.devices_per_host is None or job.platform == "cpu":
        yield "Below resources, add the CPUs and the memory that the program needs."
    if system == "kuberay":
        yield f"When the Job has ended: kubectl delete raycluster {job.name}"


def _parse_name(text: str) -> str:
    if not re.fullmatch(r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?", text):
        raise ValueError(
            f"{text!r} is not a name of at most 40 lower-case letters, digits and dashes that "
            "begins with a letter"
        )
    return text
