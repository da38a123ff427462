"""Checks for GPUs only."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from deploy.acceptance.bench import Bench, CheckFailedError, CheckSkippedError, Child
from deploy.acceptance.checks import check
from deploy.acceptance.common import checked_step, expect_no_backend, judged
from deploy.acceptance.jobs import take_over
from deploy.acceptance.machine import SMI

_GUIDE = "CUDA Programming Guide, 5.2.1.1"
_MEMORY = "jax, docs/gpu_memory_allocation.rst: 75% of a GPU's memory is preallocated"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_CONTEXT = 64
"""MiB; less than the CUDA context of any process takes."""
_BUS_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Makes CUDA count the GPUs in nvidia-smi's order."""
_WELL = "trains"
_EXCLUSIVE = f"nvidia-smi's manual: EXCLUSIVE_PROCESS lets one process have a context ({_GUIDE})"

_XID_OF_THE_PROGRAM = re.compile(r"Xid \([^)]*\): (?:13|31|43|45)\b")
_OF_AN_XID = ("hardware", "device-fault")


def query_gpus(bench: Bench, *names: str) -> list[list[str]]:
    """Returns the properties `names` of each GPU, from nvidia-smi.

    Raises:
        CheckSkippedError: there is no nvidia-smi, or it fails.
    """
    said = bench.said([SMI, f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"])
    if said is None:
        raise CheckSkippedError(f"{SMI} is not there, or fails")
    return [[cell.strip() for cell in line.split(",")] for line in said.strip().splitlines()]


def used_mib(bench: Bench, gpu: int) -> int:
    """Returns how many MiB of one GPU are in use."""
    return int(query_gpus(bench, "memory.used")[gpu][0])


def used_by_gpu(bench: Bench) -> list[int]:
    """Returns how many MiB of each GPU are in use."""
    return [int(row[0]) for row in query_gpus(bench, "memory.used")]


def gpus_with_new_memory(before: list[int], now: list[int]) -> list[int]:
    """Returns the GPUs whose memory in use has grown by more than a process's smallest context."""
    return [
        gpu for gpu, (old, new) in enumerate(zip(before, now, strict=True)) if new > old + _CONTEXT
    ]


def end_and_free(bench: Bench, before: list[int]) -> None:
    """Kill the check's processes, and wait until their GPU memory is free."""
    bench.end()
    while gpus_with_new_memory(before, used_by_gpu(bench)):
        bench.expect(bench.left > 0, "the memory of a process that was killed is not free in time")


def hold_gpus(bench: Bench, **env: str) -> Child:
    """Start a process that holds the GPUs that `env` shows it; returns it when it has them."""
    child = bench.device("hold", env)
    child.wait_for("holding")
    return child


@check(
    "gpu-names",
    "gpu",
    expected="a GPU is found by its index, by its UUID and by the beginning of that, and is the "
    "same one each time",
    source=f"{_GUIDE}; {_MEMORY}, by which nvidia-smi tells whose memory was taken",
    seconds=240.0,
)
def gpu_names(bench: Bench) -> None:
    """Finds out by the memory in use which GPU a process has."""
    names = query_gpus(bench, "index", "uuid")
    bench.expect(names, f"{SMI} lists no GPU")
    for place, (index, uuid) in enumerate(names):
        for name in (index, uuid, uuid[: len("GPU-") + 8]):
            before = used_by_gpu(bench)
            up = hold_gpus(bench, **{_VISIBLE: name, **_BUS_ORDER}).wait_for("up")
            taken = gpus_with_new_memory(before, used_by_gpu(bench))
            bench.see(f"{name}: {up['found']} device(s), memory taken on GPU {taken}")
            bench.expect(up["found"] == 1, f"{name} shows {up['found']}")
            bench.expect(
                taken == [place], f"{name} is GPU {place}, and memory was taken on {taken}"
            )
            end_and_free(bench, before)


@check(
    "mig",
    "gpu",
    expected="one MIG instance is found by its name; of two, a process sees one",
    source=f"{_GUIDE}: only single MIG instance enumeration is supported",
)
def mig(bench: Bench) -> None:
    """Takes the instance names from `nvidia-smi -L`."""
    names = re.findall(r"MIG-[0-9a-zA-Z/-]+", bench.said([SMI, "-L"]) or "")
    if not names:
        raise CheckSkippedError("no GPU here is divided into MIG instances")
    for some in (names[:1], names[:2]):
        up = hold_gpus(bench, **{_VISIBLE: ",".join(some)}).wait_for("up")
        bench.see(f"{len(some)} name(s): {up['found']} device(s)")
        bench.expect(up["found"] == 1, f"{len(some)} names show {up['found']}")
        bench.end()


@check(
    "memory-freed",
    "gpu",
    expected="after SIGKILL of a process that had preallocated, the memory is free again within "
    "10 s, and the next one gets as much",
    source=_MEMORY,
)
def memory_freed(bench: Bench) -> None:
    """Measures the memory in use with nvidia-smi."""
    before = used_mib(bench, 0)
    child = hold_gpus(bench)
    limit = child.wait_for("up")["devices"][0]["bytes"]
    during = used_mib(bench, 0)
    bench.expect(during > before + _CONTEXT, f"nothing was taken: {before} -> {during} MiB")
    began = time.monotonic()
    child.kill()
    while (now := used_mib(bench, 0)) > before + _CONTEXT and bench.left > 0:
        pass
    took = time.monotonic() - began
    again = hold_gpus(bench).wait_for("up")["devices"][0]["bytes"]
    bench.see(f"MiB in use: {before} before, {during} during, {now} {took:.1f} s after SIGKILL")
    bench.see(f"bytes that jax may use: {limit}, then {again}")
    bench.expect(took <= 10.0, f"it took {took:.1f} s")
    bench.expect(again == limit, "the next process got less")


@check(
    "beside-preallocation",
    "gpu",
    expected="beside a process that preallocates 75% a second one cannot have as much: a standby "
    "there must not initialise a backend unless the memory is divided",
    source=_MEMORY,
)
def beside_preallocation(bench: Bench) -> None:
    """Starts a second process twice: with jax's default, and without preallocation."""
    hold_gpus(bench)
    as_needed = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    for name, env in (("with 75% too", {}), ("with what it needs", as_needed)):
        second = bench.device("step", env)
        try:
            second.wait_for("up")
            checked_step(second, bench)
            outcome = _WELL
        except CheckFailedError as error:
            outcome = str(error)
        lacking = re.findall(r".*(?:out of memory|OUT_OF_MEMORY|EXHAUSTED).*", second.text)
        bench.see(
            f"{name}: {outcome}; {lacking[0][:300] if lacking else 'no lack of memory is reported'}"
        )
        second.kill()
        if not env:
            bench.expect(outcome != _WELL or lacking, "two processes got 75% each")


@check(
    "ready-standby",
    "gpu",
    expected="with XLA_CLIENT_MEM_FRACTION=.45 a `ready` standby fits beside the worker and "
    "takes over",
    source=f"{_MEMORY}; docs/explanation/fast-restarts.md",
    seconds=240.0,
)
def ready_standby(bench: Bench) -> None:
    """The worker and the standby both have a backend on the same GPU."""
    take_over(bench, "ready", "ready", XLA_CLIENT_MEM_FRACTION=".45")


@check(
    "probe-apart",
    "gpu",
    expected="a process that is shown other GPUs leaves no context on the trainer's",
    source=f"{_GUIDE}: what is not in the list is not visible",
)
def probe_apart(bench: Bench) -> None:
    """Finds out by the memory in use which GPUs have a context."""
    if bench.count < 2:
        raise CheckSkippedError("there is only one GPU")
    before = used_by_gpu(bench)
    hold_gpus(bench, **{_VISIBLE: "1", **_BUS_ORDER})
    during = used_by_gpu(bench)
    bench.see(f"MiB in use, with a process on GPU 1 alone: {before} -> {during}")
    taken = gpus_with_new_memory(before, during)
    bench.expect(taken == [1], f"memory was taken on GPU {taken}, and not on GPU 1 alone")


@check(
    "exclusive",
    "gpu",
    expected="in compute mode EXCLUSIVE_PROCESS a second process is refused, and the rules wait "
    "for the holder rather than end the job",
    source=_EXCLUSIVE,
    seconds=90.0,
)
def exclusive(bench: Bench) -> None:
    """Runs only if the machine is in this mode already: the check changes no settings."""
    modes = {row[0] for row in query_gpus(bench, "compute_mode")}
    if not any("exclusive" in mode.lower() for mode in modes):
        raise CheckSkippedError(
            f"the compute mode is {modes}: sudo {SMI} -c EXCLUSIVE_PROCESS, then again"
        )
    hold_gpus(bench)
    second = bench.device("hold")
    code = second.wait()
    bench.see(f"the second ended with {code}: {second.last_line}")
    bench.expect(code != 0, "two processes had a context")
    verdict = judged(bench, second, code)
    bench.expect(verdict.get("verdict") != "FATAL", "judged as an error of the program")


@check(
    "mps",
    "gpu",
    expected="under MPS two processes train on one GPU at the same time, each sees it as device 0, "
    "and MPS names both as its clients",
    source="NVIDIA, Multi-Process Service: docs.nvidia.com/deploy/topics/topic_5_2_1.html; "
    "nvidia-cuda-mps-control's manual: get_server_list, get_client_list",
    seconds=90.0,
)
def mps(bench: Bench) -> None:
    """Runs only if the MPS daemon runs already."""
    if not _runs(_MPS, bench):
        raise CheckSkippedError(f"no MPS daemon runs: {_MPS} -d, then again")
    env = {"XLA_CLIENT_MEM_FRACTION": ".4", _VISIBLE: "0"}
    both = [bench.device("train", env) for _ in range(2)]
    for child in both:
        devices = child.wait_for("up")["devices"]
        bench.expect([each["id"] for each in devices] == [0], f"it sees {devices}")
        child.wait_for("step")
    clients = _clients(bench)
    lives = [child.process.poll() is None for child in both]
    bench.see(f"clients of MPS: {len(clients)}; both train: {all(lives)}")
    bench.expect(all(lives), "one of the two ended")
    bench.expect({child.pid for child in both} <= clients, "not both are clients of MPS")


def _clients(bench: Bench) -> set[int]:
    """Returns the pids of the processes that MPS names as its clients."""
    servers = _numbers(bench, "get_server_list")
    return {pid for server in servers for pid in _numbers(bench, f"get_client_list {server}")}


def _numbers(bench: Bench, command: str) -> list[int]:
    said = bench.said(["sh", "-c", f"echo {command} | {_MPS}"]) or ""
    return [int(line) for line in said.split() if line.isdecimal()]


_MPS = "nvidia-cuda-mps-control"


def _runs(name: str, bench: Bench) -> bool:
    return bool((bench.said(["pgrep", "-f", name]) or "").strip())


@check(
    "hidden",
    "gpu",
    expected="where CUDA_VISIBLE_DEVICES hides every GPU jax fails, and our rules call that `no "
    "such backend`, and no certain error of the program",
    source=_GUIDE,
    seconds=60.0,
)
def hidden(bench: Bench) -> None:
    """Hides all GPUs with an invalid index."""
    expect_no_backend(bench, {_VISIBLE: "-1"})


@check(
    "xid",
    "gpu",
    expected="each Xid in the kernel's log is judged as a fault of the hardware or, if NVIDIA's "
    "catalog has it as the application's, on the device; after both the devices are looked at",
    source="supervise rules hardware device-fault; "
    "docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html",
    seconds=60.0,
)
def xid(bench: Bench) -> None:
    """Judges the Xids that the log has; provokes none."""
    said = bench.said(["dmesg"])
    if said is None:
        raise CheckSkippedError(
            "the kernel's log cannot be read: sudo, or sysctl kernel.dmesg_restrict=0"
        )
    found = _without_processes(re.findall(r"NVRM: Xid .*", said))
    if not found:
        raise CheckSkippedError("there is no Xid in the kernel's log")
    for line in sorted(set(found))[:10]:
        bench.see(line)
        log = bench.start(["/usr/bin/env", "echo", line])
        log.wait()
        rule = str(judged(bench, log, 134).get("rule"))
        known = ("device-fault",) if _XID_OF_THE_PROGRAM.search(line) else _OF_AN_XID
        bench.expect(rule in known, f"{line} is judged by {rule}")


def _without_processes(lines: Sequence[str]) -> list[str]:
    return [re.sub(r"name=[^,]*", "name=...", line)[:300] for line in lines]
