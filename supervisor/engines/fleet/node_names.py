"""Names the nodes of a cluster for people, and for the quarantine, which follows a machine.

A node of Ray has a random id, and a new one each time that Ray is started on its machine. The
machine keeps its address. So a node is named after its address, and after its id only where another
node that lives has that address: then nobody knows which machine it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class NodeNames:
    """The names of the nodes that live. A node keeps its name for as long as it does."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def update(self, addresses: Mapping[str, str]) -> None:
        """These nodes live, and no others; `addresses` has them by their ids."""
        kept = {node: name for node, name in self._names.items() if node in addresses}
        shared = Counter(addresses.values())
        taken = frozenset(kept.values())
        for node, address in addresses.items():
            is_alone = shared[address] == 1 and address not in taken
            kept.setdefault(node, address if is_alone else node)
        self._names = kept

    def of(self, node: str) -> str:
        """Returns the name of a node; its id, if it does not live."""
        return self._names.get(node, node)

    def node(self, name: str) -> str:
        """Returns the id of the node with a name; the name, if there is none."""
        return next((node for node, known in self._names.items() if known == name), name)
