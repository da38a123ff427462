"""What nodes are called: after their machine, and never two alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.engines.fleet.node_names import NodeNames


def test_a_machine_keeps_its_name_when_ray_is_started_again() -> None:
    names = NodeNames()
    names.update({"id1": "10.0.0.1", "id2": "10.0.0.2"})
    assert (names.of("id1"), names.node("10.0.0.2")) == ("10.0.0.1", "id2")
    names.update({"id3": "10.0.0.1", "id2": "10.0.0.2"})
    assert (names.of("id3"), names.node("10.0.0.1")) == ("10.0.0.1", "id3")


def test_of_two_nodes_at_one_address_the_later_one_is_called_by_its_id() -> None:
    names = NodeNames()
    names.update({"id1": "10.0.0.1"})
    names.update({"id1": "10.0.0.1", "id2": "10.0.0.1"})
    assert (names.of("id1"), names.of("id2")) == ("10.0.0.1", "id2")
    names.update({"id2": "10.0.0.1"})
    assert names.of("id2") == "id2", "a name does not change while a node lives"


def test_of_two_nodes_at_one_address_that_are_seen_at_once_neither_has_it() -> None:
    names = NodeNames()
    names.update({"id1": "10.0.0.1", "id2": "10.0.0.1"})
    assert (names.of("id1"), names.of("id2")) == ("id1", "id2")


_cluster = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["x", "y", "z"]))


@given(st.lists(_cluster, max_size=6))
def test_no_two_have_one_name_and_none_changes(seen: list[dict[str, str]]) -> None:
    names, before = NodeNames(), dict[str, str]()
    for addresses in seen:
        names.update(addresses)
        now = {node: names.of(node) for node in addresses}
        assert len(set(now.values())) == len(now)
        assert all(names.node(name) == node for node, name in now.items())
        assert all(now[node] == before[node] for node in now.keys() & before.keys())
        before = now
