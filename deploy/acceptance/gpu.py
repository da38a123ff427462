"""Checks that only a GPU can pass."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from deploy.acceptance.bench import Bench, Child, Failed, Skipped
from deploy.acceptance.checks import check
from deploy.acceptance.common import checked_step, judged
from deploy.acceptance.jobs import take_over
from deploy.acceptance.machine import SMI
from supervisor.adapters.platforms import accelerators

_GUIDE = "CUDA Programming Guide, 5.2.1.1"
_MEMORY = "jax, docs/gpu_memory_allocation.rst: 75% of a GPU's memory is preallocated"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_CONTEXT = 64
"""MiB: less than the context of any process."""
_WELL = "trains"
_EXCLUSIVE = f"nvidia-smi's manual: EXCLUSIVE_PROCESS lets one process have a context ({_GUIDE})"

_XID_OF_THE_PROGRAM = re.compile(r"Xid \([^)]*\): (?:13|31|43|45)\b")
_OF_AN_XID = ("hardware", "device-fault")


def asked(bench: Bench, *names: str) -> list[list[str]]:
    """What nvidia-smi says of each GPU.

    Raises:
        Skipped: it is not there.
    """
    said = bench.said([SMI, f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"])
    if said is None:
        raise Skipped(f"{SMI} is not there, or fails")
    return [[cell.strip() for cell in line.split(",")] for line in said.strip().splitlines()]


def used(bench: Bench, gpu: int) -> int:
    """MiB of a GPU that are in use."""
    return int(asked(bench, "memory.used")[gpu][0])


def held(bench: Bench, **env: str) -> Child:
    """A process that holds the GPUs that `env` shows."""
    child = bench.device("hold", env)
    child.told("holding")
    return child


@check(
    "gpu-names",
    "gpu",
    expected="a GPU is found by its index, by its UUID and by the beginning of that, and is the "
    "same one each time",
    source=_GUIDE,
    seconds=240.0,
)
def gpu_names(bench: Bench) -> None:
    """The kernel's files say which one it is."""
    for index, uuid in asked(bench, "index", "uuid"):
        files = set()
        for name in (index, uuid, uuid[: len("GPU-") + 8]):
            child = held(bench, **{_VISIBLE: name, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
            up = child.told("up")
            opened = {h.pid: h.devices for h in accelerators.holders()}.get(child.pid, ())
            files.add(opened)
            bench.see(f"{name}: {up['found']} device(s), files {', '.join(opened) or 'none'}")
            bench.expect(up["found"] == 1, f"{name} shows {up['found']}")
            bench.end()
        bench.expect(len(files) == 1, f"GPU {index} is several by its names: {files}")


@check(
    "mig",
    "gpu",
    expected="one MIG instance is found by its name; of two, a process sees one",
    source=f"{_GUIDE}: only single MIG instance enumeration is supported",
    seconds=120.0,
)
def mig(bench: Bench) -> None:
    """By the names that nvidia-smi -L tells."""
    names = re.findall(r"MIG-[0-9a-zA-Z/-]+", bench.said([SMI, "-L"]) or "")
    if not names:
        raise Skipped("no GPU here is divided into MIG instances")
    for some in (names[:1], names[:2]):
        up = held(bench, **{_VISIBLE: ",".join(some)}).told("up")
        bench.see(f"{len(some)} name(s): {up['found']} device(s)")
        bench.expect(up["found"] == 1, f"{len(some)} names show {up['found']}")
        bench.end()


@check(
    "memory-freed",
    "gpu",
    expected="after SIGKILL of a process that had preallocated, the memory is free again within "
    "10 s, and the next one gets as much",
    source=_MEMORY,
    seconds=120.0,
)
def memory_freed(bench: Bench) -> None:
    """By nvidia-smi."""
    before = used(bench, 0)
    child = held(bench)
    limit = child.told("up")["devices"][0]["bytes"]
    during = used(bench, 0)
    bench.expect(during > before + _CONTEXT, f"nothing was taken: {before} -> {during} MiB")
    began = time.monotonic()
    child.kill()
    while (now := used(bench, 0)) > before + _CONTEXT and bench.left > 0:
        pass
    took = time.monotonic() - began
    again = held(bench).told("up")["devices"][0]["bytes"]
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
    seconds=120.0,
)
def beside_preallocation(bench: Bench) -> None:
    """The second one as it is, then without preallocation."""
    held(bench)
    as_needed = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    for name, env in (("with 75% too", {}), ("with what it needs", as_needed)):
        second = bench.device("step", env)
        try:
            second.told("up")
            checked_step(second, bench)
            told = _WELL
        except Failed as error:
            told = str(error)
        lacking = re.findall(r".*(?:out of memory|OUT_OF_MEMORY|EXHAUSTED).*", second.text)
        bench.see(f"{name}: {told}; {lacking[0][:300] if lacking else 'no lack of memory is told'}")
        second.kill()
        if not env:
            bench.expect(told != _WELL or lacking, "two processes got 75% each")


@check(
    "ready-standby",
    "gpu",
    expected="with XLA_CLIENT_MEM_FRACTION=.45 a `ready` standby fits beside the worker and "
    "takes over",
    source=f"{_MEMORY}; README, Fast restarts",
    seconds=240.0,
)
def ready_standby(bench: Bench) -> None:
    """Two backends on one GPU."""
    take_over(bench, "ready", "ready", XLA_CLIENT_MEM_FRACTION=".45")


@check(
    "probe-apart",
    "gpu",
    expected="a process that is shown other GPUs leaves no context on the trainer's",
    source=f"{_GUIDE}: what is not in the list is not visible",
    seconds=120.0,
)
def probe_apart(bench: Bench) -> None:
    """By the memory that is in use."""
    if bench.count < 2:
        raise Skipped("there is only one GPU")
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    before = [used(bench, gpu) for gpu in (0, 1)]
    held(bench, **{_VISIBLE: "1", **order})
    during = [used(bench, gpu) for gpu in (0, 1)]
    bench.see(f"MiB in use on GPU 0 and 1, with a process on GPU 1 alone: {before} -> {during}")
    bench.expect(during[1] - before[1] > _CONTEXT, "the process took nothing on its own GPU")
    bench.expect(during[0] - before[0] < _CONTEXT, "it has a context on the other one")


@check(
    "exclusive",
    "gpu",
    expected="in compute mode EXCLUSIVE_PROCESS a second process is refused, and the rules wait "
    "for the holder rather than end the job",
    source=_EXCLUSIVE,
    seconds=90.0,
)
def exclusive(bench: Bench) -> None:
    """Settings of the machine are left alone."""
    modes = {row[0] for row in asked(bench, "compute_mode")}
    if not any("exclusive" in mode.lower() for mode in modes):
        raise Skipped(f"the compute mode is {modes}: sudo {SMI} -c EXCLUSIVE_PROCESS, then again")
    held(bench)
    second = bench.device("hold")
    code = second.wait()
    bench.see(f"the second ended with {code}: {second.last_line}")
    bench.expect(code != 0, "two processes had a context")
    verdict = judged(bench, second, code)
    bench.expect(verdict.get("verdict") != "FATAL", "judged as an error of the program")


@check(
    "mps",
    "gpu",
    expected="under MPS two processes share a GPU, and each sees it as device 0",
    source="NVIDIA, Multi-Process Service: docs.nvidia.com/deploy/topics/topic_5_2_1.html",
    seconds=90.0,
)
def mps(bench: Bench) -> None:
    """Only where its daemon runs."""
    if not _runs("nvidia-cuda-mps-control", bench):
        raise Skipped("no MPS daemon runs: nvidia-cuda-mps-control -d, then again")
    env = {"XLA_CLIENT_MEM_FRACTION": ".4"}
    both = [held(bench, **env).told("up")["found"] for _ in range(2)]
    bench.see(f"devices seen: {both}")
    bench.expect(both[0] == both[1], "the two see different GPUs")


def _runs(name: str, bench: Bench) -> bool:
    return bool((bench.said(["pgrep", "-f", name]) or "").strip())


@check(
    "hidden",
    "gpu",
    expected="where CUDA_VISIBLE_DEVICES hides every GPU jax fails, and our rules do not take that "
    "for a certain error of the program",
    source=_GUIDE,
    seconds=60.0,
)
def hidden(bench: Bench) -> None:
    """By an invalid index."""
    child = bench.device("hold", {_VISIBLE: "-1"})
    code = child.wait()
    bench.see(f"exit code {code}: {child.last_line}")
    bench.expect(code != 0, "it found a GPU")
    bench.expect(not judged(bench, child, code).get("certain"), "judged as certain")


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
    """What is there: none is provoked."""
    said = bench.said(["dmesg"])
    if said is None:
        raise Skipped("the kernel's log cannot be read: sudo, or sysctl kernel.dmesg_restrict=0")
    found = _without_processes(re.findall(r"NVRM: Xid .*", said))
    if not found:
        raise Skipped("there is no Xid in the kernel's log")
    for line in sorted(set(found))[:10]:
        bench.see(line)
        log = bench.start(["/usr/bin/env", "echo", line])
        log.wait()
        rule = str(judged(bench, log, 134).get("rule"))
        known = ("device-fault",) if _XID_OF_THE_PROGRAM.search(line) else _OF_AN_XID
        bench.expect(rule in known, f"{line} is judged by {rule}")


def _without_processes(lines: Sequence[str]) -> list[str]:
    return [re.sub(r"name=[^,]*", "name=...", line)[:300] for line in lines]
