"""Shows what a hanging worker does: writes its Python and native stacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from supervisor.engines.group import Member
from supervisor.engines.host_port import Host
from supervisor.engines.launch import Launch
from supervisor.files.attempts import attempt_folder
from supervisor.host.notice import Notice
from supervisor.protocol.stacks import STACK_SIGNAL

_NO_TOOL = "py-spy, which takes native stacks, is not installed (extra `debug`)"
_NO_HANDLER = f"the worker has no handler for {STACK_SIGNAL.name}"


def dump_stacks(machine: Host, worker: Member, launch: Launch, now: float) -> Iterator[Notice]:
    """Have the worker's stacks written into the attempt's folder; yields notices for people.

    The worker gets the signal for Python stacks only if its own process handles it. If the worker
    is a shell, it is the trainer below it that has promised to dump stacks: the shell has no
    handler and would die of the signal.
    """
    rank, pid = worker.rank, worker.process.pid
    found = machine.state(pid)  # looked up before the signal wakes it
    used, silent = worker.cpu_time_in_silence(now)
    has_handler = worker.dumps_stacks and machine.handles(pid, STACK_SIGNAL)
    if has_handler:
        worker.process.signal(STACK_SIGNAL)
    no_native = _start_native_dump(machine, pid, launch.file(rank, "native-stacks.txt"))
    text = (
        f"rank {rank} (pid {pid}) is {found}; it used {used:.1f} s of CPU time in the last "
        f"{silent:.1f} s"
    )
    where, why = attempt_folder(launch.attempt), no_native
    if has_handler or no_native is None:
        text = f"{text}; its stacks are written to {where}"
        yield Notice(
            "stacks-dumped", text, rank=rank, pid=pid, place=where, cpu_seconds=used, seconds=silent
        )
        if no_native in (None, _NO_TOOL):
            return
        text = f"the native stacks of rank {rank} (pid {pid}) are not written: {no_native}"
    else:
        why = f"{_NO_HANDLER}, and {no_native}"
        text = f"{text}; its stacks are not written: {why}"
    yield Notice(
        "stacks-missing", text, rank=rank, pid=pid, reason=why, cpu_seconds=used, seconds=silent
    )


def _start_native_dump(machine: Host, pid: int, path: Path) -> str | None:
    """Starts to write the native stacks. Returns why they are not written; None: they are."""
    try:
        return None if machine.dump_native_stacks(pid, path) else _NO_TOOL
    except OSError as error:
        return str(error)
