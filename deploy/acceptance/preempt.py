"""What comes when a machine is taken away: run with `--preempt MODEL_DIR` on a Spot machine.

MODEL_DIR should be in a bucket, as the disk may be lost. Every event is printed at once, with its
time, for the terminal of whoever watches: the file may be lost with the machine.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import FrameType

import yaml

from deploy.acceptance.bench import Bench, Child, Skipped
from deploy.acceptance.checks import check
from deploy.acceptance.jobs import training

MODEL_DIR: str | None = None
"""From the command line."""
_EVENTS = re.compile(
    r"preempt|maintenance|announce|SIGTERM|told to stop|drain|exit code|ends with|failed", re.I
)
_SAVES = re.compile(r"committed|saved", re.I)
_KEYS = ("preempted", "maintenance-event", "upcoming-maintenance")
_SERVER = "169.254.169.254"
_LOOK = 0.05
_PATIENCE = 1.0


@check(
    "preempt",
    "tpu",
    "gpu",
    "cpu",
    expected="the metadata server announces it before SIGTERM; a checkpoint is committed after "
    "that; the job ends with 75; at last the state of the machine is PREEMPTED or TERMINATED",
    source="Compute Engine's documentation of Spot VMs; without preemptionNoticeDuration the stop "
    "comes with no wait",
    seconds=24 * 3600.0,
)
def preempt(bench: Bench) -> None:
    """Trains until then, and goes on to its own end when the system ends everything."""
    if MODEL_DIR is None:
        raise Skipped("only with --preempt MODEL_DIR, on a machine that may be taken away")
    path = training(bench, "preempt")
    config = yaml.safe_load(path.read_text())
    config["trainer"]["init"]["model_dir"] = MODEL_DIR
    path.write_text(yaml.safe_dump(config))
    stopping = threading.Event()
    job = bench.supervise("run", path)
    with _signals(bench, job):
        threading.Thread(target=_ask, args=(bench, stopping), daemon=True).start()
        last_save = _follow(bench, job)
        stopping.set()
        code = job.wait()
    bench.see(f"last save: {last_save or 'none'}")
    _tell(bench, f"the job ended with {code}")
    bench.see("state: gcloud compute tpus queued-resources describe NAME, from elsewhere")
    bench.expect(code == 75, f"the job ended with {code} instead of 75")


def _follow(bench: Bench, job: Child) -> str:
    """Tell what the job says until it ends; its last save."""
    shown, last_save = 0, ""
    while bench.left > 0:
        is_over = job.process.poll() is not None
        lines = job.text.splitlines()
        for line in lines[shown:]:
            if _SAVES.search(line):
                last_save = f"{_now()} {line.strip()}"
            elif _EVENTS.search(line):
                _tell(bench, line.strip())
        shown = len(lines)
        if is_over:
            break
        time.sleep(_LOOK)
    return last_save


@contextmanager
def _signals(bench: Bench, job: Child) -> Iterator[None]:
    """While this holds, SIGTERM and SIGHUP to us, by which a system says that it shuts down, are
    told and passed on; the job has the time that there is to save."""

    def came(number: int, frame: FrameType | None) -> None:
        _tell(bench, f"{signal.Signals(number).name} to the acceptance run")
        with suppress(ProcessLookupError):
            job.process.send_signal(signal.SIGTERM)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, came) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _ask(bench: Bench, stopping: threading.Event) -> None:
    """Tell each change of what the metadata server says: without the supervisor's own watch."""
    host = os.environ.get("GCE_METADATA_HOST", _SERVER)
    known: dict[str, str] = {}
    while not stopping.is_set():
        for key in _KEYS:
            url = f"http://{host}/computeMetadata/v1/instance/{key}"
            request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
            try:
                with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
                    value = answer.read(1 << 12).decode(errors="replace").strip()
            except OSError as error:
                value = f"no answer ({type(error).__name__})"
            if known.get(key, value) != value or key not in known:
                _tell(bench, f"metadata {key}: {value}")
            known[key] = value
        stopping.wait(_PATIENCE / 2)


def _tell(bench: Bench, text: str) -> None:
    bench.see(f"{_now()} {text}")
    print(f"{_now()} {text}", flush=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
