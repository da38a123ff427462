"""Shows what a hanging worker does: writes its Python and native stacks."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.engines.group import Member
from supervisor.engines.host_port import Host
from supervisor.engines.launch import Launch
from supervisor.files.attempts import attempt_folder
from supervisor.host.notice import Notice
from supervisor.protocol.stacks import STACK_SIGNAL


def dump_stacks(machine: Host, worker: Member, launch: Launch, now: float) -> Iterator[Notice]:
    """Have the worker's stacks written into the attempt's folder; yields notices for people.

    The worker gets the signal for Python stacks only if its own process handles it. If the worker
    is a shell, it is the trainer below it that has promised to dump stacks: the shell has no
    handler and would die of the signal.
    """
    rank, pid = worker.rank, worker.process.pid
    found = machine.state(pid)  # looked up before the signal wakes it
    used, silent = worker.cpu_time_in_silence(now)
    if worker.dumps_stacks and machine.handles(pid, STACK_SIGNAL):
        worker.process.signal(STACK_SIGNAL)
    try:
        machine.dump_native_stacks(pid, launch.file(rank, "native-stacks.txt"))
    except OSError as error:
        text = f"the native stacks of rank {rank} cannot be taken: {error}"
        yield Notice("stacks-missing", text, rank=rank, reason=str(error))
    where = attempt_folder(launch.attempt)
    busy = f"it used {used:.1f} s of CPU time in the last {silent:.1f} s"
    text = f"rank {rank} (pid {pid}) is {found}; {busy}; its stacks are in {where}"
    yield Notice(
        "stacks-dumped", text, rank=rank, pid=pid, place=where, cpu_seconds=used, seconds=silent
    )
