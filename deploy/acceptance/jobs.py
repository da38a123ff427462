"""Checks of whole jobs: a real `supervise run` with our trainer, or with two workers."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from deploy.acceptance.bench import DEVICE, Bench, CheckFailedError, CheckSkippedError, Job
from deploy.acceptance.checks import check
from deploy.acceptance.common import devices_of, shown_environment
from supervisor.adapters.platforms import accelerators
from supervisor.config.chips import process_counts, why_not_shared
from supervisor.protocol import simulated

_ENDLESS = 1_000_000_000
_TPU = "supervisor/config/topology.py and libtpu's tpu_initialize_util.cc (openxla)"


def training(bench: Bench, name: str, count: int | None = None, **restart: Any) -> Path:
    """Write the config of our trainer with a tiny model and no end; returns its path."""
    init = {
        "model_dir": str(bench.work / name),
        "devices": devices_of(bench, count),
        "model": {"hidden_size": 32, "num_layers": 1, "num_heads": 4, "mlp_size": 64},
        "optimizer": {"name": "adamw", "learning_rate": 0.001},
        "loop": {"max_steps": _ENDLESS, "global_batch_size": 16},
        "checkpoint": {"every": "2s", "keep": 2},
        "autorestart": {"max_num_restarts": 5, "prefetch": False, "standby": "off", **restart},
    }
    data = {"paths": "stdlib/json/*.py", "sequence_length": 32}
    return _written(bench, name, {"init": init, "fit": {"train_dataloader": data}})


def together(bench: Bench, name: str, dies: int | None = None) -> Path:
    """Write the config of a job with two workers that share the devices; returns its path.

    `dies` is the rank that kills itself (None: neither).
    """
    task = json.dumps({"do": "join", "dies": dies})
    init = {
        "model_dir": str(bench.work / name),
        "devices": devices_of(bench),
        "workers": 2,
        "autorestart": {"max_num_restarts": 0, "standby": "off"},
    }
    argv = [sys.executable, "-P", str(DEVICE), task]
    return _written(bench, name, {"init": init, "command": {"argv": argv, "bootstrap": False}})


def _written(bench: Bench, name: str, trainer: dict[str, Any]) -> Path:
    path = bench.work / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"trainer": trainer}))
    return path


def note_events(bench: Bench, job: Job, *names: str) -> None:
    """Note the job's events with these names, as people read them."""
    for told in job.events(*names):
        bench.see(f"[{told['source']}] {told['text']}")


def _can_share(bench: Bench) -> None:
    if bench.count < 2 or bench.count % 2:
        raise CheckSkippedError(f"two workers cannot share {bench.count} device(s)")
    generation = bench.slice.generation if bench.slice is not None else None
    if bench.platform == "tpu" and 2 not in process_counts(generation, bench.count):
        raise CheckSkippedError(f"{bench.hardware}: {why_not_shared(generation)}")


@check(
    "workers",
    "tpu",
    "gpu",
    "cpu",
    expected="two workers that `supervise run` starts share the devices, join one another, see all "
    "of them and train by a collective (NCCL on GPU, gloo on CPU)",
    source="jax.distributed's documentation; bounds of jax/_src/test_multiprocess.py (jax 0.10.2)",
    seconds=180.0,
)
def workers(bench: Bench) -> None:
    """Both workers must see all devices and compute the same losses."""
    _can_share(bench)
    job = bench.run_job(together(bench, "workers"), {"NCCL_DEBUG": "VERSION"})
    code = job.wait()
    said = "".join(log.read_text() for log in sorted((bench.work / "workers").rglob("rank?.log")))
    lines = [json.loads(line) for line in said.splitlines() if line.startswith('{"at"')]
    bench.see(f"exit code {code}")
    for version in re.findall(r"NCCL version [\w.+]+", said)[:1]:
        bench.see(version)
    for line in lines:
        bench.see(json.dumps({k: v for k, v in line.items() if k in ("at", "found", "losses")}))
    bench.expect(code == 0, f"exit code {code}: {job.last_line}")
    seen = [line["found"] for line in lines if line["at"] == "up"]
    bench.expect(seen == [bench.count] * 2, f"the workers saw {seen} accelerators")
    done = [line["losses"] for line in lines if line["at"] == "done"]
    bench.expect(len(done) == 2 and done[0] == done[1], "they did not compute the same")


@check(
    "lost-peer",
    "gpu",
    "cpu",
    expected="where a worker is killed in a collective, the job names its signal as the cause, and "
    "not what the other one (NCCL, gloo) says of it",
    source="supervisor/diagnosis/weighing.py: the most likely root cause of all ranks",
    seconds=180.0,
)
def lost_peer(bench: Bench) -> None:
    """Rank 1 kills itself in a collective; the job must name its signal."""
    _can_share(bench)
    job = bench.run_job(together(bench, "lost", dies=1), {"NCCL_DEBUG": "WARN"})
    code = job.wait()
    path = max((bench.work / "lost").glob("*_restartable/summary.json"))
    failure = json.loads(path.read_text())["attempts"][-1].get("failure") or {}
    bench.see(f"exit code {code}; {json.dumps(failure)[:600]}")
    note_events(bench, job, "attempt-failed")
    for line in dict.fromkeys(re.findall(r".*NCCL.*", job.text)):
        bench.see(line.strip())
    named = str(failure.get("root_cause"))
    bench.expect("SIGKILL" in named, f"the root cause is not SIGKILL, but {named}")
    bench.expect(code == 76, f"exit code {code} instead of 76 (no restart is left)")


def _trains(job: Job) -> int:
    """Wait until the first attempt has made a step; returns the worker's pid."""
    pid = int(job.until_event("workers-started", attempt=1)["pids"][0])
    job.until(r"^step +\d+ ")
    return pid


@check(
    "shrink-regrow",
    "tpu",
    "cpu",
    expected="half of the devices taken away while it trains: the job goes on with the other half, "
    "and takes all again right after a checkpoint, uncharged, once they are back",
    source=f"docs/explanation/elasticity.md; {_TPU}",
    seconds=300.0,
)
def shrink_regrow(bench: Bench) -> None:
    """Takes half of the devices away and brings them back: simulated devices by their file, chips
    by another process that holds them."""
    if bench.count < 2:
        raise CheckSkippedError("there is only one device")
    half = bench.count // 2
    path = training(
        bench, "ladder", ladder=[bench.count, half], regrow="at_checkpoint", regrow_after=0
    )
    take = _take_simulated if bench.platform == "cpu" else _take_chips
    job = bench.run_job(path)
    pid = _trains(job)
    bring_back = take(bench, job, list(range(half, bench.count)), pid)
    job.until_event("rung-changed", before=bench.count, num_devices=half)
    small = job.until_event("attempt-started", after=1, num_devices=half)["attempt"]
    bring_back()
    job.until_event("rung-changed", before=half, num_devices=bench.count)
    begun = job.until_event("attempt-started", after=small, num_devices=bench.count)
    ended = job.until_event("attempt-ended", attempt=begun["attempt"] - 1)
    note_events(bench, job, "rung-changed", "device-bad", "attempt-started", "attempt-ended")
    job.process.send_signal(signal.SIGTERM)
    code = job.wait()
    bench.expect(code == 75, f"SIGTERM ended it with {code} instead of 75")
    expect_regrown(bench, ended, begun)


def expect_regrown(bench: Bench, ended: dict[str, Any], begun: dict[str, Any]) -> None:
    """Expect that the attempt that `begun` went on from a checkpoint, and that the one which had
    `ended` before made way for it, which is not charged."""
    bench.expect(begun["step"] is not None, f"not right after a checkpoint: {begun['text']}")
    bench.expect(ended["status"] == "MADE_WAY", f"charged: {ended['text']}")


def _take_simulated(bench: Bench, job: Job, places: list[int], pid: int) -> Callable[[], None]:
    file = bench.work / "ladder" / simulated.FILE
    simulated.mark_lost(file, *map(str, places))
    return lambda: simulated.mark_healthy(file, *map(str, places))


def _take_chips(bench: Bench, job: Job, places: list[int], pid: int) -> Callable[[], None]:
    """Kill the worker and take these chips before the next one can, while the supervisor is
    stopped; returns the function that gives them back."""
    job.process.send_signal(signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    while True:
        holder = bench.device("hold", shown_environment(bench, places))
        try:
            holder.wait_for("holding")
            break
        except CheckFailedError as error:
            if bench.left <= 0:
                raise
            bench.see(f"the chips could not be taken yet: {error}")
    job.process.send_signal(signal.SIGCONT)
    return holder.kill


@check(
    "standby",
    "tpu",
    "gpu",
    "cpu",
    expected="a standby of kind `imports` has no device file open while it waits, and takes over "
    "when the worker is killed",
    source="docs/explanation/fast-restarts.md: a standby of kind `imports` touches no device",
    seconds=180.0,
)
def standby(bench: Bench) -> None:
    """Runs on CPU too, where there are no device files."""
    take_over(bench, "standby", "imports")


def take_over(bench: Bench, name: str, kind: str, **env: str) -> None:
    """Train, wait for a standby of this `kind`, look at its device files, kill the worker, and
    expect that the standby takes over and resumes.

    Raises:
        CheckSkippedError: the supervisor says that there is no standby here.
    """
    count = 1 if bench.platform == "cpu" else None
    job = bench.run_job(training(bench, name, count, standby=kind), env)
    pid = int(job.until_event("workers-started", attempt=1)["pids"][0])
    found = job.until_event("standby-ready", "standby-failed")
    if found["event"] == "standby-failed":
        raise CheckSkippedError(found["text"])
    files_by_pid = {holder.pid: holder.devices for holder in accelerators.holders()}
    opened = files_by_pid.get(found["pid"], ())
    bench.see(f"the standby ({found['kind']}) has open: {', '.join(opened) or 'no device file'}")
    bench.see(f"the worker has open: {', '.join(files_by_pid.get(pid, ())) or 'no device file'}")
    if kind == "imports":
        bench.expect(not opened, f"it has {opened} open")
    os.kill(pid, signal.SIGKILL)
    job.until_event("standby-used")
    job.until_event("recovered", attempt=2)
    note_events(bench, job, "standby-used", "recovered")
    job.process.send_signal(signal.SIGTERM)
    code = job.wait()
    bench.expect(code == 75, f"SIGTERM ended it with {code} instead of 75")
