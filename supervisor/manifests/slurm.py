"""The batch script of a job for Slurm."""

from __future__ import annotations

import shlex

from supervisor.manifests.submission import Submission


def script(job: Submission) -> str:
    """Returns the script to give to `sbatch`.

    The end of the allocation is announced to the step, not to the script: so a SIGTERM that reaches
    the script is from `scancel`, after which nothing may start the job again.
    """
    overrides = [word for one in job.overrides for word in ("--set", one)]
    options = [
        f"--job-name={job.name}",
        f"--nodes={job.num_hosts}",
        "--ntasks-per-node=1",
        "--exclusive",
        *_devices(job),
        f"--signal=TERM@{job.grace}",
        "--requeue",
        "--open-mode=append",
    ]
    lines = [
        "#!/bin/bash",
        f"# Made by `supervise manifest slurm`. Submit it with: sbatch {job.name}.sbatch",
        *(f"#SBATCH {option}" for option in options),
        "",
        "cancelled=",
        "trap 'cancelled=1' TERM",
        *_step(job, shlex.join([*overrides, job.config])),
        "code=$?",
        *_requeue(job),
        "exit $code",
    ]
    return "\n".join(lines) + "\n"


def _step(job: Submission, arguments: str) -> list[str]:
    if job.hosts is None:
        return [f"srun supervise run --once {arguments}"]
    return [
        "# The other hosts end by themselves when the leader has: Slurm need not kill them.",
        f"srun --kill-on-bad-exit=0 --wait=0 supervise gang --once {arguments}",
    ]


def _requeue(job: Submission) -> list[str]:
    if not job.codes.again:
        return []
    return [
        "case $code in",
        f"  {'|'.join(map(str, job.codes.again))})  # run the same command again to go on",
        '    [ -n "$cancelled" ] || scontrol requeue "$SLURM_JOB_ID" ;;',
        "esac",
    ]


def _devices(job: Submission) -> list[str]:
    if job.platform == "gpu" and job.devices_per_host is not None:
        return [f"--gpus-per-node={job.devices_per_host}"]
    return []
