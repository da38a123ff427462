"""Checks for every platform: devices, rungs, kills in the middle of a step, the probe, configs."""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy.acceptance.bench import Bench, CheckFailedError, CheckSkippedError, Child, StepResult
from deploy.acceptance.checks import check
from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.adapters.platforms import accelerators
from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.config.plan import PhasePlan
from supervisor.core.events import Noticed
from supervisor.engines.probing.device_probe import DeviceProbe, ProbeLimits
from supervisor.engines.probing.units import ProbeAnswer
from supervisor.engines.this_host import ThisHost
from supervisor.engines.worker_environment import visibility_variables
from supervisor.host.notice import Notice
from supervisor.prepare import prepare
from supervisor.protocol import simulated
from supervisor.protocol.environment import NUM_CPU_DEVICES

_NO_BACKEND = ("backend-unseen", "backend-missing")


def shown_environment(bench: Bench, places: list[int]) -> dict[str, str]:
    """Returns the environment that shows a process only the devices `places`; the supervisor makes
    it the same way.

    Raises:
        CheckSkippedError: one process cannot have just these devices.
    """
    if bench.platform == "cpu":
        return {NUM_CPU_DEVICES: str(len(places))}
    if len(places) == bench.count:
        return {}
    try:
        return visibility_variables(_plan(bench), [str(place) for place in places], os.environ)
    except (ValueError, OSError) as error:
        raise CheckSkippedError(str(error)) from error


def _plan(bench: Bench) -> PhasePlan:
    """Returns the plan of a job that uses all devices."""
    path = bench.work / "plan.yaml"
    init = {
        "model_dir": "plan",
        "devices": devices_of(bench),
        "autorestart": {"max_num_restarts": 0},
    }
    path.write_text(yaml.safe_dump({"trainer": {"init": init, "command": ["true"]}}))
    return prepare(path, []).plans[0]


def devices_of(bench: Bench, count: int | None = None) -> dict[str, Any]:
    """Returns `init.devices` of a config for `count` devices (None: all); always all of a TPU."""
    if bench.slice is not None:
        return {"platform": "tpu", "type": bench.slice.type}
    return {"platform": bench.platform, "count": count or bench.count}


def sizes(bench: Bench) -> list[int]:
    """Returns the rungs (numbers of devices), in descending order."""
    if bench.slice is not None:
        return list(bench.slice.sizes())
    return [bench.count, *(size for size in (8, 4, 2, 1) if size < bench.count)]


def run_step(bench: Bench, places: list[int]) -> StepResult:
    """Run training steps on the devices `places` in a new process; returns its output.

    The result is kept: other checks that ask for the same devices get it without another process.

    Raises:
        CheckFailedError, CheckSkippedError: see `checked_step` and `shown_environment`.
    """
    key = tuple(places)
    if key not in bench.step_results:
        child = bench.device("step", shown_environment(bench, places), stays=True)
        up = child.wait_for("up")
        bench.expect(up["found"] == len(places), f"jax sees {up['found']}")
        done = checked_step(child, bench)
        files = {h.pid: h.devices for h in accelerators.holders()}.get(child.pid, ())
        bench.step_results[key] = StepResult(up, done, files)
        bench.end()
    return bench.step_results[key]


def checked_step(child: Child, bench: Bench) -> dict[str, Any]:
    """Wait for the end of a `step` process; returns its last JSON line.

    Raises:
        CheckFailedError: the loss did not fall, or a known product is wrong.
    """
    done = child.wait_for("done")
    losses = done["losses"]
    bench.expect(losses[-1] < losses[0], f"the loss did not fall: {losses}")
    bench.expect(not done["bad"], f"wrong results: {done['bad']}")
    return done


@check(
    "devices",
    "tpu",
    "gpu",
    "cpu",
    expected="ids 0, 1, ... in the order of the list, each with a local_hardware_id of its own; on "
    "TPU ids run x first (0 is at (0,0), 1 at (1,0)), on GPU coordinates are those of the plugin's "
    "topology where it tells them: of one process [0, 0, place]",
    source="jax/_src/mesh_utils.py and tests/multiprocess/tpu_device_test.py of jax 0.10.2; for "
    "GPU the topology of its cuda plugin (1x2x2 gives [0,0,0], [0,0,1], [0,1,0], [0,1,1])",
)
def devices(bench: Bench) -> None:
    """Starts jax twice, and looks at the devices that it finds and at the time it takes."""
    for turn in ("first", "second"):
        child = bench.device("hold")
        up = child.wait_for("up")
        child.wait_for("holding")
        bench.see(f"{turn} start: up after {up['seconds']:.1f} s, {up['runtime']}")
        if turn == "second":
            opened = {h.pid: h.devices for h in accelerators.holders()}.get(child.pid, ())
            bench.see(f"device files open: {', '.join(opened) or 'none'}")
        bench.end()
    for each in up["devices"]:
        bench.see(json.dumps(each))
    ids = [each["id"] for each in up["devices"]]
    bench.expect(ids == list(range(len(ids))), f"the ids are {ids}")
    bench.expect(up["found"] == bench.count, f"{up['found']} accelerators, not {bench.count}")
    hardware = [each["hardware_id"] for each in up["devices"] if each["hardware_id"] is not None]
    bench.expect(len(set(hardware)) == len(hardware), f"hardware ids repeat: {hardware}")
    if bench.platform == "tpu":
        places = [tuple(reversed(each["coords"])) for each in up["devices"]]
        bench.expect(places == sorted(places), "ids do not run x first")
    elif bench.platform == "gpu":
        check_gpu_places(bench, [each["coords"] for each in up["devices"]])


def check_gpu_places(bench: Bench, coordinates: Sequence[list[int] | None]) -> None:
    """Expect the coordinates of the GPUs of one process: [0, 0, place], or none."""
    wanted = [[0, 0, place] for place in range(len(coordinates))]
    if all(each is None for each in coordinates):
        bench.see("the plugin tells no coordinates")
    else:
        bench.expect(list(coordinates) == wanted, f"the coordinates are {coordinates}")


def aligned(bench: Bench) -> Iterator[list[int]]:
    """Yields the aligned runs of devices of each rung; for simulated devices, which are all alike,
    one run per rung."""
    for size in sizes(bench):
        for first in range(0, bench.count - size + 1, size):
            yield list(range(first, first + size))
            if bench.platform == "cpu":
                break


@check(
    "rungs",
    "tpu",
    "gpu",
    "cpu",
    expected="on every rung (8, 4, 2, 1) and aligned run, jax sees just these devices, the loss "
    "of a step with a collective falls, and known products are right in every bit",
    source="Google's tables of TPU types; bounds of jax/_src/test_multiprocess.py (jax 0.10.2) and "
    "Ray's tpu.py",
    seconds=300.0,
)
def rungs(bench: Bench) -> None:
    """Runs steps on each set of devices, each in a process of its own."""
    wrong = []
    for places in aligned(bench):
        began = time.monotonic()
        try:
            run_step(bench, places)
            outcome = "ok"
        except (CheckFailedError, CheckSkippedError) as error:
            outcome = f"FAILED: {error}"
            wrong.append(places)
        bench.end()  # a failed process may be left
        bench.see(f"{len(places)}: {places}: {outcome} ({time.monotonic() - began:.1f} s)")
    bench.expect(not wrong, f"failed on {wrong}")


@check(
    "kills",
    "tpu",
    "gpu",
    "cpu",
    expected="after SIGKILL in mid-step the next process initialises, at the latest within 30 s",
    source="issues of marin (4783, 5258) and jax (21761): /dev/vfio may stay busy, and a host used "
    "again within 4 s has hung",
    seconds=420.0,
    per_kill=True,
)
def kills(bench: Bench) -> None:
    """Measures the time from each kill until the next process, which starts at once, is up."""
    waits: list[float] = []
    child = bench.device("train")
    child.wait_for("step")
    for _ in range(bench.kills):
        killed = time.time()
        child.kill()
        child, refusals = _until_up(bench)
        waits.append(child.wait_for("up")["time"] - killed)
        if refusals:
            bench.see(f"refused {len(refusals)} times, at last: {refusals[-1]}")
        child.wait_for("step")
    bench.see(f"{len(waits)} kills; seconds until up: {' '.join(f'{w:.1f}' for w in waits)}")
    bench.see(f"median {statistics.median(waits):.1f} s, longest {max(waits):.1f} s")
    bench.expect(max(waits) <= 30.0, f"once it took {max(waits):.1f} s")


def _until_up(bench: Bench) -> tuple[Child, list[str]]:
    """Start training processes until one initialises; returns it, and the errors of the others."""
    refusals: list[str] = []
    while True:
        child = bench.device("train")
        try:
            child.wait_for("up")
        except CheckFailedError as error:
            if bench.left <= 0:
                raise
            refusals.append(str(error))
        else:
            return child, refusals


@check(
    "probe",
    "tpu",
    "gpu",
    "cpu",
    expected="the supervisor's probe finds all devices well, cold and started ahead, each "
    f"within {ProbeLimits().start:g} s; which of them is faster is told only",
    source="supervisor/engines/probing/device_probe.py (ProbeLimits)",
    seconds=240.0,
)
def probe(bench: Bench) -> None:
    """Probes twice: with a process started for this probe, and with one started ahead."""
    clock = SystemClock()
    reactor, guard = Reactor(clock), GuardClient(bench.see)
    looker = DeviceProbe(
        reactor, clock, ThisHost(guard, bench.work / simulated.FILE), bench.environment()
    )
    try:
        for is_warm in (False, True):
            if is_warm:
                looker.prepare(_plan(bench))
                _wait_until_idle(looker.pids[0], bench)
            began = time.monotonic()
            answer = _probe_once(reactor, looker, bench)
            took = time.monotonic() - began
            bench.see(f"{'warm' if is_warm else 'cold'}: {took:.1f} s, {answer}")
            bench.expect(len(answer.healthy) == bench.count, f"not all are well: {answer}")
            bench.expect(took <= ProbeLimits().start, "it took longer than the supervisor waits")
    finally:
        looker.stop()
        guard.dismiss()


def _probe_once(reactor: Reactor, looker: DeviceProbe, bench: Bench) -> ProbeAnswer:
    """Probe all devices; returns the answer.

    Raises:
        CheckFailedError: no answer in time.
    """
    answers: list[ProbeAnswer] = []

    def answered(answer: ProbeAnswer) -> None:
        answers.append(answer)
        reactor.post(Noticed(0.0, Notice("devices-probed", "answered")))

    looker.start_look(_plan(bench), None, answered)
    reactor.wait(SystemClock().now() + bench.left)
    bench.expect(answers, "no answer in time")
    return answers[0]


def _wait_until_idle(pid: int, bench: Bench) -> None:
    """Wait until a process has used no CPU time for a second: its imports are done then."""
    before = -1
    while bench.left > 0:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used = int(fields[11]) + int(fields[12])
        if used == before:
            return
        before = used
        time.sleep(1.0)


@check(
    "no-accelerator",
    "tpu",
    "gpu",
    "cpu",
    expected="jax fails loudly where a platform is asked for that is not there, and our rules "
    "call that `no such backend` (backend-unseen, backend-missing), and no certain error of the "
    "program",
    source="jax/_src/xla_bridge.py (jax 0.10.2): an explicit JAX_PLATFORMS never falls back; "
    "JAX_PLATFORMS=cuda without a GPU ends in a bare AssertionError there",
)
def no_accelerator(bench: Bench) -> None:
    """Asks jax for a platform that this machine does not have."""
    absent = "cuda" if bench.platform in ("cpu", "tpu") else "tpu"
    expect_no_backend(bench, {"JAX_PLATFORMS": absent})


def expect_no_backend(bench: Bench, env: dict[str, str]) -> None:
    """Expect that jax fails in this environment, and that our rules recognise a missing backend."""
    child = bench.device("hold", env)
    code = child.wait()
    bench.see(f"{env}: exit code {code}: {child.last_line}")
    bench.expect(code != 0, "it ended well without the platform")
    bench.expect(code > 0, f"it died of signal {-code}")
    expect_named_as_no_backend(bench, judged(bench, child, code))


def expect_named_as_no_backend(bench: Bench, verdict: dict[str, Any]) -> None:
    """Expect a verdict of a missing backend, and not of a certain error of the program."""
    rule, cause = verdict.get("rule"), verdict.get("cause")
    known = rule in _NO_BACKEND and cause == "no such backend"
    bench.expect(known, f"judged by {rule} as {cause!r}, and not as 'no such backend'")
    bench.expect(not verdict.get("certain"), f"judged as certain: {cause}")


def judged(bench: Bench, child: Child, code: int) -> dict[str, Any]:
    """Returns the verdict of `supervise classify` on the output of a process."""
    judge = bench.supervise("classify", "--json", "--exit-code", str(code % 256), child.output)
    bench.expect(judge.wait() == 0, f"classify failed: {judge.last_line}")
    found = dict(json.loads(judge.text))
    failure = found.get("failure") or found
    shown_verdict = {
        key: failure.get(key) for key in ("verdict", "rule", "cause") if key in failure
    }
    bench.see(f"judged: {json.dumps(shown_verdict or found)[:400]}")
    return dict(failure)


@check(
    "short-list",
    "tpu",
    "gpu",
    "cpu",
    expected="a CUDA_VISIBLE_DEVICES that shows fewer GPUs than the config wants is refused with "
    "78, before anything is started",
    source="CUDA Programming Guide, 5.2.1.1",
    seconds=60.0,
)
def short_list(bench: Bench) -> None:
    """The config is refused by itself, so this check needs no GPU."""
    config = bench.work / "short.yaml"
    config.write_text(
        "trainer:\n  init:\n    model_dir: short\n    devices: {platform: gpu, count: 4}\n"
        "    autorestart: {max_num_restarts: 0}\n  command: ['true']\n"
    )
    child = bench.supervise("run", config, env={"CUDA_VISIBLE_DEVICES": "0,1"})
    code = child.wait()
    bench.see(f"exit code {code}: {child.last_line}")
    bench.expect(code == 78, f"exit code {code} instead of 78")


@check(
    "run-time-memory",
    "tpu",
    "gpu",
    expected="an allocation beyond the memory fails, and is judged as exhausted memory (by policy: "
    "once again, then fewer computations in flight), not as an error of the program",
    source="docs/how-to/nan-and-memory.md; jax 0.10.2: RESOURCE_EXHAUSTED",
    seconds=120.0,
)
def run_time_memory(bench: Bench) -> None:
    """Allocates more than the memory of the first device."""
    child = bench.device("exhaust")
    child.wait_for("up")
    code = child.wait()
    lines = re.findall(r".*(?:RESOURCE_EXHAUSTED|Out of memory).*", child.text)
    bench.see(f"exit code {code}: {(lines or [child.last_line])[-1][:400]}")
    bench.expect(code != 0, "it was allocated")
    verdict = judged(bench, child, code)
    cause = str(verdict.get("cause"))
    bench.expect("memory" in cause or "memory" in str(verdict.get("rule")), f"judged as {cause}")
