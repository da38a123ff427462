"""What Ray reserves for an agent: the accelerators of its node, and the TPU slice as a whole.

A slice is one placement group, with the resource of its head, as `ray.util.tpu` and Ray Train take
it: so nobody gets a part of a slice that another job uses. The group is detached and named: the
next helper finds it again. It is given back with the last agent of the slice.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import suppress
from typing import Any

from ray.util import (
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from ray.util.tpu import get_tpu_nodes_for_slice, get_tpu_slice_name_from_node

_SLICE = "ray.io/tpu-slice-name"
_RESERVE_TIMEOUT = 10.0
"""Seconds for Ray to reserve a slice; it takes one or two where all of it is free."""


class ReservationError(Exception):
    """Ray has not reserved what an agent needs."""


class Reservations:
    """Reserves for the agents of one job. All methods may block, and may run in threads."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.nodes: dict[str, dict[str, Any]] = {}
        """The nodes that are alive, as `ray.nodes` shows them, by id."""

    def group_of(self, node: str) -> str | None:
        """Returns the name of the placement group for the slice of a node; None: it is in none."""
        slice_name = get_tpu_slice_name_from_node(self.nodes.get(node, {}))
        return None if slice_name is None else f"slice-{slice_name}"

    def options(self, node: str) -> dict[str, Any]:
        """Returns the options for an actor on the node.

        Raises:
            ReservationError: Ray has not reserved the slice.
        """
        group_name, claims = self.group_of(node), _claims(self.nodes.get(node, {}))
        if group_name is None:
            here: Any = NodeAffinitySchedulingStrategy(node, soft=False)
            return {**claims, "scheduling_strategy": here}
        with self._locks[group_name]:
            group, places = self._reserved(group_name, self.nodes[node]["Labels"][_SLICE])
        if node not in places:
            raise ReservationError(f"node {node} is not in the placement group {group_name}")
        here = PlacementGroupSchedulingStrategy(group, places[node])
        return {**claims, "scheduling_strategy": here}

    def give_back(self, group_name: str) -> None:
        """Give a slice back; what still runs there ends."""
        with suppress(ValueError):  # it is gone
            remove_placement_group(get_placement_group(group_name))

    def _reserved(self, group_name: str, slice_name: str) -> tuple[Any, dict[str, int]]:
        """Returns the group of a slice, and which of its bundles is on which node."""
        try:
            group = get_placement_group(group_name)
        except ValueError:
            hosts = get_tpu_nodes_for_slice(slice_name, [*self.nodes.values()])
            group = placement_group(
                [_bundle(host) for host in hosts],
                strategy="STRICT_SPREAD",
                name=group_name,
                lifetime="detached",
                bundle_label_selector=[_selector(host) for host in hosts],
            )
        if not group.wait(_RESERVE_TIMEOUT):
            self.give_back(group_name)
            why = f"within {_RESERVE_TIMEOUT:g} s: another job may use a part of it"
            raise ReservationError(f"Ray has not reserved TPU slice {slice_name} {why}")
        bundles = placement_group_table(group)["bundles_to_node_id"]
        return group, {node: index for index, node in bundles.items()}


def _claims(node: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that claim all accelerators of a node for an actor."""
    there = node.get("Resources", {})
    claims: dict[str, Any] = {"num_cpus": 0}
    if "GPU" in there:
        claims["num_gpus"] = there["GPU"]
    if "TPU" in there:
        claims["resources"] = {"TPU": there["TPU"]}
    return claims


def _bundle(host: dict[str, Any]) -> dict[str, float]:
    """Returns the chips of a host; of the first one of a slice, also the resource of the head."""
    return {
        name: count
        for name, count in host["Resources"].items()
        if name == "TPU" or (name.startswith("TPU-") and name.endswith("-head"))
    }


def _selector(host: dict[str, Any]) -> dict[str, str]:
    return {_SLICE: host["Labels"][_SLICE], "ray.io/node-id": host["NodeID"]}
