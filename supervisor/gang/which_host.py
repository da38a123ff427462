"""Finds this host's place among the hosts, from what the launcher of the allocation tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

PORT = 6379
"""Ray's usual port for the head."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which host this is."""

    name: str
    """Its index, for people: `3`, or `1.3` for host 3 of slice 1."""
    leads: bool
    host: str | None
    """The name of the first host; None: nobody told it, and this is the first host."""
    port: int
    launch: str
    """What all hosts of one start of the allocation have in common, and no other start; empty: that
    is not known."""

    @property
    def address(self) -> str:
        """Where this host reaches the head."""
        return f"{'127.0.0.1' if self.leads else self.host}:{self.port}"


def place_of(
    environ: Mapping[str, str],
    index: int | None = None,
    head: str | None = None,
    launch: str | None = None,
) -> Place:
    """Returns the place of this host. What is not None replaces what `environ` says.

    Raises:
        ValueError: the place is not known, or contradicts itself; the text says what to give.
    """
    if index is None and int(environ.get("SLURM_LOCALID", "0")) > 0:
        raise ValueError("several tasks were started on this host: use srun --ntasks-per-node=1")
    slice_index, own = _index(environ) if index is None else (0, index)
    host, port = _split(head) if head is not None else (_head(environ), PORT)
    leads = slice_index == own == 0
    if host is None and not leads:
        raise ValueError("no variable tells the address of the first host: give --head HOST[:PORT]")
    name = str(own) if slice_index == 0 else f"{slice_index}.{own}"
    return Place(name, leads, host, port, _launch(environ) if launch is None else launch)


def _index(environ: Mapping[str, str]) -> tuple[int, int]:
    """Returns the index of this host's slice, and its index in that slice."""
    known = (
        ("SLURM_PROCID", ""),
        ("SLURM_NODEID", ""),
        ("JOB_COMPLETION_INDEX", "JOB_INDEX"),
        ("TPU_WORKER_ID", "MEGASCALE_SLICE_ID"),
    )
    for name, of_slice in known:
        if name in environ:
            return _number(environ, of_slice, "0"), _number(environ, name)
    names = ", ".join(name for name, _ in known)
    raise ValueError(f"none of {names} tells which host this is: give --index, 0 on the first")


def _number(environ: Mapping[str, str], name: str, otherwise: str = "") -> int:
    text = environ.get(name, otherwise)
    if not re.fullmatch(r"\d{1,6}", text):
        raise ValueError(f"{name} is {text!r}, which is no index of a host: give --index")
    return int(text)


def _head(environ: Mapping[str, str]) -> str | None:
    """Returns the first host of the allocation."""
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    if nodes:
        return _first_of(nodes)
    if coordinator := environ.get("MEGASCALE_COORDINATOR_ADDRESS"):
        return coordinator.partition(":")[0]
    return environ.get("TPU_WORKER_HOSTNAMES", "").partition(",")[0] or None


def _first_of(nodes: str) -> str:
    """Returns the first node of Slurm's list, such as `a[007-009,12],b3`: a007."""
    found = re.match(r"([^,\[]+)(?:\[(\d+))?", nodes)
    if found is None:
        raise ValueError(f"the list of nodes {nodes!r} cannot be read: give --head HOST[:PORT]")
    return found[1] + (found[2] or "")


def _split(head: str) -> tuple[str, int]:
    host, _, port = head.partition(":")
    if not host or not re.fullmatch(r"\d{1,5}|", port) or int(port or PORT) not in range(1, 65536):
        raise ValueError(f"--head {head!r} is no address such as node001 or 10.0.0.2:{PORT}")
    return host, int(port or PORT)


def _launch(environ: Mapping[str, str]) -> str:
    """Returns the job of Slurm with the number of its restarts; empty: this is not Slurm."""
    job = environ.get("SLURM_JOB_ID")
    return f"slurm-{job}-{environ.get('SLURM_RESTART_COUNT', '0')}" if job else ""
