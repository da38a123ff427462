"""What comes when a machine is taken away: run with `--preempt MODEL_DIR` on a Spot machine.

MODEL_DIR should be in a bucket, as the disk may be lost. Every event is printed at once, with its
time, for the terminal of whoever watches: the file may be lost with the machine.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import yaml

from deploy.acceptance.bench import Bench, Skipped
from deploy.acceptance.checks import check
from deploy.acceptance.jobs import training

MODEL_DIR: str | None = None
"""From the command line."""
_EVENTS = (
    r"preempt|maintenance|announce|SIGTERM|told to stop|drain|committed|saved|ends? with|exit code"
)


@check(
    "preempt",
    "tpu",
    "gpu",
    expected="the metadata server announces it before SIGTERM; a checkpoint is committed after the "
    "announcement; the job ends with 75; at last the state of the machine is PREEMPTED or "
    "TERMINATED",
    source="Compute Engine's documentation of Spot VMs; without preemptionNoticeDuration the stop "
    "comes with no wait",
    seconds=24 * 3600.0,
)
def preempt(bench: Bench) -> None:
    """Trains until then."""
    if MODEL_DIR is None:
        raise Skipped("only with --preempt MODEL_DIR, on a machine that may be taken away")
    path = training(bench, "preempt")
    config = yaml.safe_load(path.read_text())
    config["trainer"]["init"]["model_dir"] = MODEL_DIR
    path.write_text(yaml.safe_dump(config))
    job = bench.supervise("run", path)
    _print(
        "the job has begun; simulate it: gcloud compute instances simulate-maintenance-event NAME"
    )
    shown = 0
    last_commit = ""
    while job.process.poll() is None and bench.left > 0:
        lines = job.text.splitlines()
        for line in lines[shown:]:
            if re.search(r"committed|saved", line):
                last_commit = f"{_now()} {line.strip()}"
            elif re.search(_EVENTS, line, re.IGNORECASE):
                bench.see(f"{_now()} {line.strip()}")
                _print(line.strip())
        shown = len(lines)
        time.sleep(0.05)
    code = job.wait()
    bench.see(f"last save: {last_commit or 'none'}")
    bench.see(f"{_now()} the job ended with {code}")
    bench.see("state: ask from elsewhere, by gcloud compute tpus queued-resources describe NAME")
    bench.expect(code == 75, f"the job ended with {code} instead of 75")


def _print(text: str) -> None:
    print(f"{_now()} {text}", flush=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
