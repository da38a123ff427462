"""Checks `init.hosts` against the devices and workers of the job, where their numbers are known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from supervisor.config.generations import CHIPS_PER_HOST_OF_SEVERAL
from supervisor.config.problems import Location, shown
from supervisor.config.schema import Devices, Init, Phase
from supervisor.config.topology import parse_slice
from supervisor.protocol.location import Uri

_WHERE = ("init", "hosts")
_ADDRESS = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", re.ASCII)
_MAX_PORT = 65535


def hosts_conflicts(init: Init) -> Iterator[tuple[Location, str]]:
    """Yields the contradictions between the number of hosts and what they have: the key to change,
    and the message."""
    if init.hosts is None:
        return
    count, address = init.hosts.count, init.hosts.address
    if address != "auto":
        yield from _address_conflicts(address)
    if Uri.parse(init.model_dir) is not None:
        message = (
            f"is in a bucket (value {shown(init.model_dir)}), and several hosts (init.hosts) need "
            "a folder that all of them see at the same path, as on NFS: only the checkpoints of a "
            "command may be in the bucket"
        )
        yield ("init", "model_dir"), message
    if init.workers > 1 and init.workers % count:
        message = (
            f"is {init.workers}, which {count} hosts (init.hosts.count) cannot share equally; "
            "remove it, and each host has one worker"
        )
        yield ("init", "workers"), message
    devices = init.devices
    if devices is None:
        return
    if devices.type is not None:
        yield from _slice_conflicts(devices, devices.type, count)
    elif devices.count is not None and devices.count % count:
        message = (
            f"is {count}, which cannot share {devices.count} devices (init.devices.count) equally"
        )
        yield (*_WHERE, "count"), message


def _address_conflicts(address: str) -> Iterator[tuple[Location, str]]:
    """Yields a complaint if nothing can be at the address of the cluster's head."""
    where, found = (*_WHERE, "address"), _ADDRESS.fullmatch(address)
    if found is None:
        message = (
            f"is no HOST:PORT, such as 10.0.0.2:6379 (value {shown(address)}); auto is the cluster "
            "that this machine is in"
        )
        yield where, message
    elif not 1 <= int(found[1]) <= _MAX_PORT:
        message = (
            f"has the port {found[1]} (value {shown(address)}), and a port is 1 to {_MAX_PORT}: "
            "give the one at which the head listens (ray start --head --port), usually 6379"
        )
        yield where, message


def hosts_per_slice(devices: Devices | None) -> int:
    """Returns how many hosts each of the TPU slices has; 1: no slice is known to have several."""
    return 1 if devices is None or devices.type is None else _hosts_of(devices.type)


def _hosts_of(kind: str) -> int:
    shape = parse_slice(kind)
    return 1 if shape.is_part_of_a_host else shape.chips // CHIPS_PER_HOST_OF_SEVERAL


def _slice_conflicts(devices: Devices, kind: str, count: int) -> Iterator[tuple[Location, str]]:
    """Yields a complaint if the slices have another number of hosts."""
    slices, hosts = devices.slices or 1, _hosts_of(kind)
    if count == slices * hosts:
        return
    one = f"a {kind} has {hosts} host{'s' if hosts > 1 else ''}"
    if count % hosts:
        message = f"is {count}, which is no multiple of the hosts of a slice: {one}"
    else:
        message = f"is {count}, but {one}, and init.devices has {slices} x {kind}"
    yield (*_WHERE, "count"), f"{message}; use {slices * hosts}"


def hosts_conflicts_across(phases: Sequence[Phase]) -> Iterator[tuple[int, Location, str]]:
    """Yields a complaint for each phase whose hosts are not those of the first one."""
    for index, phase in enumerate(phases[1:], 1):
        if phase.init.hosts != phases[0].init.hosts:
            yield index, _WHERE, "differs from the first phase: all phases run on the same hosts"
