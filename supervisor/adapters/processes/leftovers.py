"""Kills the processes that an earlier supervisor of a model_dir left behind, and no others.

The process record in model_dir may have been edited, and any process can claim anything in its
environment. So a process is killed only if two facts agree:

* its pid, or the leader of its session, is on record, *and* the start times agree; or
* the record names the run of the supervisor, *and* the process is in the cgroup of that run; or
* the leader of its session is gone and the session is on record, *and* the environment of the
  process names the run.

All processes below such a process belong to the job too.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from supervisor.host import cgroups, tree
from supervisor.host.identity import Identity
from supervisor.host.process_record import NAME, Recorded, RecordOrigin, folder, is_instance, is_job
from supervisor.host.unkillable import UnkillableError, described
from supervisor.host.waiting import has_ended
from supervisor.protocol import environment, reading
from supervisor.protocol.this_machine import real_path

_PAUSE = 0.01
_AGENT = b"supervisor.engines.fleet.agent_process"
"""The module of an agent of a job on many hosts, as its command line has it."""
_RUN = re.compile(r"([0-9a-f]{12})@[0-9a-f]{32}")


class UntrustedRecordError(Exception):
    """The process record cannot be trusted; the text says why."""


def read_record(model_dir: Path) -> Recorded | None:
    """Reads the process record of an earlier supervisor of this model_dir.

    Returns None if none of its processes can be here: there is no record, or it was written before
    a reboot or in another pid namespace.

    Raises:
        UntrustedRecordError: the record cannot be trusted.
        OSError: it cannot be read.
    """
    path = model_dir / NAME
    try:
        with reading.open_file(path) as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise UntrustedRecordError(f"{path} may be written by others")
            found = Recorded.from_bytes(reading.read_open_file(file, path, reading.SMALL))
    except FileNotFoundError:
        return None
    except (reading.UnreadableError, ValueError) as error:
        raise UntrustedRecordError(f"{path}: {error}") from error
    here, there = Identity.of_this_process(), found.origin.supervisor
    if (there.boot, there.namespace) != (here.boot, here.namespace):
        return None
    if found.origin.folder != folder(model_dir):
        raise UntrustedRecordError(f"{path} was written in another folder, of which this is a copy")
    return found


def kill_leftovers(found: Recorded, timeout: float = 10.0) -> list[int]:
    """Kill what an earlier supervisor left behind; returns the pids, once all of them are gone.

    Raises:
        UnkillableError: some processes are still there after `timeout` seconds.
    """
    end = time.monotonic() + timeout
    cgroup = _cgroup(found.origin)
    killed: set[int] = set()
    while left := _left(found, cgroup):
        for pid, seen in left.items():
            tree.send(pid, seen, signal.SIGKILL)
        if cgroup is not None:
            cgroups.kill(cgroup)
        killed |= left.keys()
        if time.monotonic() > end:
            text = f"what an earlier supervisor left behind cannot be killed: {described(left)}"
            raise UnkillableError(text)
        time.sleep(_PAUSE)
    if cgroup is not None:
        cgroups.remove(cgroup)
    return sorted(killed)


def lineage_of(environ: Mapping[str, str], mark: str) -> str:
    """Returns the lineage for the processes of a supervisor that has the environment `environ` and
    whose run is `mark` (`job@instance`)."""
    return "/".join((*environ.get(environment.LINEAGE, "").split(), mark))


def jobs(lineage: str | None) -> tuple[str, ...]:
    """Returns the jobs that a lineage names, the outermost first; none if it is not valid."""
    runs = [_RUN.fullmatch(run) for run in (lineage or "").split("/")]
    return tuple(run[1] for run in runs if run is not None) if all(runs) else ()


def processes_naming_job(job: str, model_dir: Path) -> list[int]:
    """Returns the processes whose environment names `job`, for a person to look at: it is no proof.

    A process whose environment names another model_dir is left out: this one may be a copy of that.
    The processes above us are left out too, because a job may start `supervise run`; and so are
    those of an agent on this host, whose guard kills them unless the agent's leader goes on.
    """
    above = set(_ancestors())
    told = {pid: _environment(pid) for pid in tree.pids() if pid not in above}
    return [
        pid
        for pid, environ in told.items()
        if job in jobs(environ.get(environment.LINEAGE))
        and not _is_elsewhere(environ.get(environment.OWNER_FILE, ""), model_dir)
        and not any(map(_is_agent, _ancestors(pid)))
    ]


def _is_agent(pid: int) -> bool:
    try:
        return _AGENT in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it is gone
        return False


def _is_elsewhere(owner_file: str, model_dir: Path) -> bool:
    """True if the owner file of a worker is in another folder than model_dir.

    False if that folder does not exist any more, because it may have been moved here; and if the
    owner file is in a bucket, which says nothing about folders.
    """
    folder = Path(owner_file).parent
    if not folder.is_absolute() or not folder.is_dir():
        return False
    return not (model_dir.is_dir() and folder.samefile(model_dir))


def environment_names_run(run: str, pid: int) -> bool:
    """True if the environment of a process names the supervisor's run `run` (`job@instance`)."""
    return run in _environment(pid).get(environment.LINEAGE, "").split("/")


def possible_leftovers(found: Recorded) -> list[int]:
    """Returns the processes that may be the job's or anybody's: only the number of their session is
    on record, and its leader is gone."""
    above = set(_ancestors())
    seen = {pid: tree.stat(pid) for pid in tree.pids() if pid not in above}
    return [pid for pid, one in seen.items() if one is not None and found.may_be(pid, one)]


def _left(found: Recorded, cgroup: str | None) -> dict[int, tree.Stat]:
    """Returns the live processes of the run that `found` records, by pid."""
    above = set(_ancestors())
    inside = set(cgroups.members(cgroup)) if cgroup is not None else set()
    named = partial(environment_names_run, found.origin.run)
    left = {}
    for pid in tree.pids():
        seen = tree.stat(pid)
        if seen is None or pid in above:
            continue
        if pid in inside or found.proves(pid, seen, named):
            left[pid] = seen
            left |= dict(tree.descendants(pid, {os.getsid(0)}))
    return {pid: seen for pid, seen in left.items() if pid not in above and _lives(pid, seen)}


def _lives(pid: int, seen: tree.Stat) -> bool:
    """True if the process can still do something: some threads of a zombie may live."""
    if seen.state not in tree.GONE:
        return True
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        return not has_ended(pidfd)
    finally:
        os.close(pidfd)


def _cgroup(origin: RecordOrigin) -> str | None:
    """Returns the cgroup that the record names; None: it is not there, or not surely the run's.

    It must be below a mount point of cgroups v2 and have the name of the run, and this process must
    not be in it.
    """
    path = origin.cgroup
    if path is None or path != str(real_path(path)) or not Path(path).is_dir():
        return None
    name = path.rpartition("/")[2]
    if name != origin.cgroup_name or not is_job(origin.job) or not is_instance(origin.instance):
        return None
    if not any(path.startswith(f"{mount}/") for mount in cgroups.mounts()):
        return None
    return None if any(f"{own}/".startswith(f"{path}/") for own in cgroups.own()) else path


def _ancestors(pid: int | None = None) -> Iterator[int]:
    """Yields the pids of a process (None: of this one) and of all processes above it."""
    pid = os.getpid() if pid is None else pid
    while pid > 0:
        yield pid
        seen = tree.stat(pid)
        pid = seen.parent if seen is not None else 0


def _environment(pid: int) -> dict[str, str]:
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it is gone, or belongs to another user
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in data.split(b"\0"))
    return {name: text for name, _, text in pairs}
