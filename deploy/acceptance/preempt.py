"""Records what happens when a machine is taken away: `--preempt MODEL_DIR` on a Spot machine.

MODEL_DIR should be in a bucket, as the disk may be lost. Every event is printed at once, with its
time, for a person at a terminal: the report may be lost with the machine.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType

import yaml

from deploy.acceptance.bench import Bench, CheckFailedError, CheckSkippedError, Job
from deploy.acceptance.checks import check
from deploy.acceptance.jobs import training
from supervisor.adapters.platforms import gce_metadata
from supervisor.protocol.messages import printable

_SHOWN = frozenset(
    {
        "preemption-announced",
        "maintenance-announced",
        "stop-requested",
        "stop-postponed",
        "stop-hurried",
        "notice-used",
        "workers-told-to-stop",
        "worker-told-to-stop",
        "attempt-stopped",
        "attempt-ended",
        "attempt-failed",
        "job-ended",
    }
)
"""The events of the job that are printed."""
_HEARD: Mapping[str, Mapping[str, str]] = {
    "preemption-announced": {},
    "stop-requested": {"code": "PREEMPTION"},
}
"""The events of an announcement, of which the supervisor may hear sooner than this check does."""
_LOOK = 0.05
_PATIENCE = 1.0


@check(
    "preempt",
    "tpu",
    "gpu",
    "cpu",
    expected="the metadata server announces it before any SIGTERM; a checkpoint is committed after "
    "that; the job ends with 75",
    source="Compute Engine's documentation of Spot VMs; without preemptionNoticeDuration the stop "
    "comes with no wait",
    seconds=24 * 3600.0,
)
def preempt(bench: Bench) -> None:
    """Trains until the machine is taken away; when the system shuts down, passes SIGTERM to the job
    and waits for its end."""
    if bench.model_dir is None:
        raise CheckSkippedError(
            "only with --preempt MODEL_DIR, on a machine that may be taken away"
        )
    path = training(bench, "preempt")
    config = yaml.safe_load(path.read_text())
    config["trainer"]["init"]["model_dir"] = bench.model_dir
    path.write_text(yaml.safe_dump(config))
    stopping, course = threading.Event(), Course()
    job = bench.run_job(path)
    with _signals(bench, job, course):
        asking = threading.Thread(target=_ask, args=(bench, stopping, course), daemon=True)
        asking.start()
        last_save = _follow(bench, job, course)
        stopping.set()
        code = job.wait()
        asking.join()
    bench.see(f"last save: {last_save or 'none'}")
    _tell(bench, f"the job ended with {code}")
    bench.see("state: gcloud compute tpus queued-resources describe NAME, from elsewhere")
    course.judge(code)


@dataclass(slots=True)
class Course:
    """The times of what happened, in seconds of one monotonic clock; None: it did not happen."""

    announced: float | None = None
    signalled: float | None = None
    saved: float | None = None

    def judge(self, code: int) -> None:
        """Check that a preemption was announced, that the job saved after that, and that it ended
        with `code` 75.

        Raises:
            CheckSkippedError: nothing was announced, so the machine was not taken away.
            CheckFailedError: something else happened than expected.
        """
        if code != 75:
            raise CheckFailedError(f"the job ended with {code} instead of 75")
        if self.announced is None:
            raise CheckSkippedError(
                "nothing announced that the machine is taken away; a signal alone proves nothing"
            )
        if self.signalled is not None and self.signalled < self.announced:
            raise CheckFailedError("SIGTERM came before the announcement")
        if self.saved is None or self.saved < self.announced:
            raise CheckFailedError("no checkpoint was committed after the announcement")

    def hear(self) -> None:
        """Note the time of the first announcement."""
        self.announced = self.announced or time.monotonic()


def _follow(bench: Bench, job: Job, course: Course) -> str:
    """Print the job's events until it ends; returns in words its last save, with the time."""
    shown, last_save = 0, ""
    while bench.left > 0:
        is_over = job.process.poll() is not None
        told = list(job.events())
        for event in told[shown:]:
            name = event["event"]
            if name in _HEARD and _HEARD[name].items() <= event.items():
                course.hear()
            if name == "checkpoint-committed":
                last_save, course.saved = f"{_now()} {event['text']}", time.monotonic()
            elif name in _SHOWN:
                _tell(bench, f"[{event['source']}] {event['text']}")
        shown = len(told)
        if is_over:
            break
        time.sleep(_LOOK)
    return last_save


@contextmanager
def _signals(bench: Bench, job: Job, course: Course) -> Iterator[None]:
    """In the block, pass SIGTERM and SIGHUP to us on to the job as SIGTERM, and print them.

    A system that shuts down sends them; we stay alive, so that the job can use all the time there
    is to save.
    """

    def came(number: int, frame: FrameType | None) -> None:
        course.signalled = course.signalled or time.monotonic()
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


def _ask(bench: Bench, stopping: threading.Event, course: Course) -> None:
    """Print each change in the metadata server's answers; independent of the supervisor's own
    watch."""
    host = os.environ.get("GCE_METADATA_HOST", gce_metadata.HOST)
    known: dict[str, str] = {}
    is_over = False
    while not is_over:
        is_over = stopping.is_set()  # ask once more: the job may have heard of it sooner
        for key in gce_metadata.KEYS:
            url = f"http://{host}/computeMetadata/v1/{key}"
            request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
            try:
                with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
                    value = answer.read(1 << 12).decode(errors="replace").strip()
                if gce_metadata.EVENTS.get(key, {}).get(value):
                    course.hear()
            except OSError as error:
                value = f"no answer ({type(error).__name__})"
            if known.get(key, value) != value or key not in known:
                _tell(bench, f"metadata {key}: {value}")
            known[key] = value
        stopping.wait(_PATIENCE / 2)


def _tell(bench: Bench, text: str) -> None:
    bench.see(f"{_now()} {text}")
    print(f"{_now()} {printable(text)}", flush=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
