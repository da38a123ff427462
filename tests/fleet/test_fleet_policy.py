"""The pure part of the fleet: whatever gets lost, doubled or late, the fence holds and adds up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.diagnosis.failure import WorkerExit
from supervisor.engines.fleet.fleet import MARGIN, Fleet, in_order
from supervisor.engines.fleet.fleet_attempt import FleetAttempt
from supervisor.engines.fleet.fleet_messages import (
    MAX_SUSPECTS,
    Gone,
    GroupSeen,
    Hello,
    Observed,
    Question,
    RankDigest,
    RankEnd,
    Started,
)
from supervisor.engines.fleet.transport import Node
from supervisor.history.past import lost_after_in
from supervisor.host.identity import Identity

LOST_AFTER = 10.0
AGENT = "a"


def fleet_of(*nodes: str) -> Fleet:
    """A fleet whose agents are all ready at time 0; each has the name of its node."""
    fleet = Fleet(LOST_AFTER, 0.0, len(nodes))
    fleet.seen(Node(name, "10.0.0.1") for name in nodes)
    for node in fleet.to_place(0.0):
        fleet.asked_for(node.id, node)
        fleet.placed(node.id, node.id)
        fleet.introduced(node.id, hello(node.id), 0.0, "")
        fleet.questioned(node.id, Question(1, 2, None, None, 1), 0.0)
    return fleet


def hello(machine: str) -> Hello:
    return Hello(1, "1", Identity(machine, machine, "ns", 1, 1), token=None)


_delays = st.one_of(st.none(), st.floats(0, 3 * LOST_AFTER))
"""How long a message takes; None: it is lost."""


@given(st.lists(st.tuples(st.floats(0, LOST_AFTER), _delays, _delays), max_size=30))
def test_no_rank_lives_when_the_leader_says_that_none_can(
    questions: list[tuple[float, float | None, float | None]],
) -> None:
    """Each question is sent some time after the one before, and takes its time, as its answer
    does. They may overtake each other."""
    fleet, sent, heard, answers = fleet_of(AGENT), 0.0, [], []
    for number, (pause, there, back) in enumerate(questions, 3):
        sent += pause
        if there is not None:
            heard.append((sent + there, number))
            if back is not None:
                answers.append((sent + there + back, sent))
    end = sent + 10 * LOST_AFTER
    heard.sort()
    answers.sort()
    for at in [*(at for at, _ in heard), *(at for at, _ in answers), end]:
        for came, number in heard:
            if came <= at:
                fleet.questioned(AGENT, Question(1, number, None, None, 1), came)
        deadlines = [asked + LOST_AFTER for came, asked in answers if came <= at]
        host = fleet.hosts[AGENT]
        assert max(deadlines, default=0.0) <= host.dead_at(LOST_AFTER)
        assert host.safe_at(LOST_AFTER) == host.dead_at(LOST_AFTER) + MARGIN


def test_no_host_is_expected_of_a_fenced_one_but_of_a_new_node() -> None:
    fleet = fleet_of("n0", "n1")
    fleet.questioned("n0", Question(1, 3, None, None, 2), LOST_AFTER)
    assert fleet.expects_more(LOST_AFTER - 1) is False, "both are ready"
    assert fleet.expects_more(LOST_AFTER) is False, "n1 is fenced, and there is no other node"
    fleet.seen([Node("n0", "10.0.0.1"), Node("n2", "10.0.0.3")])
    assert fleet.expects_more(LOST_AFTER) is True, "n2 is to get an agent"
    fleet.asked_for("n2", Node("n2", "10.0.0.3"))
    assert fleet.expects_more(LOST_AFTER) is True, "that of n2 was not heard yet"


def test_a_host_is_ready_once_its_questions_show_that_it_hears() -> None:
    fleet = fleet_of(AGENT)
    assert fleet.ready(1.0)
    fleet.questioned(AGENT, Question(1, 9, None, None, 2), 1.0)
    assert not fleet.ready(1.0), "it asks, and hears nothing"
    fleet.questioned(AGENT, Question(1, 10, None, None, 9), 2.0)
    assert fleet.ready(2.0)
    assert not fleet.ready(2.0 + LOST_AFTER)


def test_two_agents_of_one_machine_are_told_apart_and_the_second_is_not_used() -> None:
    fleet = fleet_of("n0", "n1")
    fleet.introduced("n1", hello("n0"), 0.0, "")
    assert [host.agent for host in fleet.ready(0.0)] == ["n0"]
    assert "another agent" in fleet.hosts["n1"].why_not_ready(0.0, LOST_AFTER)
    fleet.introduced("n0", hello("n0"), 0.0, "")
    assert [host.agent for host in fleet.ready(0.0)] == ["n0"], "the first one says it again"


def test_a_lost_agent_is_replaced_and_remembered_until_nothing_of_it_can_live() -> None:
    fleet = fleet_of("n0", "n1")
    fleet.lost("n0", "gone", 0.0)
    assert [node.id for node in fleet.to_place(0.0)] == ["n0"]
    fleet.forget(LOST_AFTER, ())
    assert "n0" in fleet.hosts
    fleet.forget(LOST_AFTER + MARGIN, ())
    assert "n0" not in fleet.hosts


def test_a_host_that_is_not_heard_any_more_is_replaced_before_the_cluster_misses_it() -> None:
    fleet = fleet_of("n0", "n1")
    fleet.seen([*fleet.nodes.values(), Node("n2", "10.0.0.1")])
    fleet.questioned("n1", Question(1, 3, None, None, 2), LOST_AFTER / 2)
    assert fleet.to_place(LOST_AFTER - 0.1) == ()
    assert [node.id for node in fleet.to_place(LOST_AFTER)] == ["n2"], "n0 has its own agent"


def test_previous_members_come_before_spares_and_draining_hosts_last() -> None:
    fleet = fleet_of("n0", "n1", "n2", "n3")
    chosen = fleet.choose(2, ("n3", "n1"), 0.0)
    assert [host.node.id for host in chosen] == ["n3", "n1"]
    fleet.seen(replace(host.node, draining="n3" * (host.agent == "n3")) for host in chosen)
    assert [host.node.id for host in fleet.choose(2, ("n3", "n1"), 0.0)] == ["n1", "n0"]


def test_that_all_nodes_leave_is_known_only_of_nodes_that_were_seen() -> None:
    """The agents of an earlier leader are found before the nodes, and one has announced its end."""
    fleet = fleet_of("n0", "n1")
    fleet.questioned("n0", Question(1, 3, None, None, 2, leaving="preempted"), 0.0)
    assert not fleet.all_leave
    fleet.seen([])
    assert not fleet.all_leave
    fleet.seen([Node("n0", "10.0.0.1")])
    assert fleet.all_leave


def test_a_host_with_a_standby_comes_first_unless_that_parts_a_slice() -> None:
    fleet = fleet_of("n0", "n1", "n2", "n3")
    fleet.questioned("n3", Question(1, 3, None, None, 2, has_standby=True), 0.0)
    assert [host.node.id for host in fleet.choose(2, ("n1",), 0.0)] == ["n1", "n3"]
    fleet.seen(
        replace(node, slice="ab"[place // 2], place_in_slice=place % 2)
        for place, node in enumerate(fleet.nodes.values())
    )
    assert [host.node.id for host in fleet.choose(4, (), 0.0)] == ["n0", "n1", "n2", "n3"]


def test_a_node_in_quarantine_needs_no_agent_and_another_one_gets_it() -> None:
    fleet = fleet_of("n0", "n1")
    fleet.seen([*fleet.nodes.values(), Node("n2", "10.0.0.1"), Node("n3", "10.0.0.1")])
    assert fleet.to_place(0.0) == ()
    fleet.left_out = frozenset({"n1", "n2"})
    assert [node.id for node in fleet.to_place(0.0)] == ["n3"]


def test_hosts_are_used_in_whole_slices() -> None:
    fleet = fleet_of("n0", "n1", "n2", "n3", "n4", "n5")
    fleet.hosts_per_slice = 2
    slices = dict(zip(fleet.nodes, "aabbcc", strict=True))
    fleet.seen(
        replace(node, slice=slices[node.id], place_in_slice=place % 2)
        for place, node in enumerate(fleet.nodes.values())
    )
    before = ("n2", "n3", "n0", "n1")
    assert [host.node.id for host in fleet.choose(4, before, 0.0)] == [*before]
    fleet.left_out = frozenset({"n0"})
    assert [host.node.id for host in fleet.choose(4, before, 0.0)] == ["n2", "n3", "n4", "n5"]
    fleet.left_out = frozenset()
    fleet.lost("n3", "gone", 0.0)
    assert [host.node.id for host in fleet.choose(4, before, 0.0)] == ["n0", "n1", "n4", "n5"]
    fleet.lost("n5", "gone", 0.0)
    assert [host.node.id for host in fleet.choose(4, before, 0.0)] == ["n0", "n1"], "one rung less"


_names = st.lists(st.sampled_from([f"n{number}" for number in range(8)]), unique=True)


@given(_names, _names)
def test_who_stays_keeps_its_rank(nodes: list[str], before: list[str]) -> None:
    order = in_order(nodes, before)
    assert sorted(order) == sorted(nodes)
    for place, node in enumerate(before[: len(order)]):
        assert node not in nodes or order[place] == node


# --- an attempt -----------------------------------------------------------------------------

AGENTS = ("a", "b", "c")


def end_of(rank: int, ago: float) -> RankEnd:
    return RankEnd(WorkerExit(rank, code=1), ago)


_reports = st.lists(
    st.tuples(
        st.sampled_from(["started", "observed", "gone", "lost"]),
        st.integers(0, 2),
        st.floats(0, 5),
    ),
    max_size=20,
)


@given(_reports)
def test_ends_are_added_up_whatever_comes_twice_or_never(
    reports: list[tuple[str, int, float]],
) -> None:
    attempt = FleetAttempt(1, AGENTS)
    seen: tuple[WorkerExit, ...] = ()
    confirmed: set[str] = set()
    for at, (kind, rank, ago) in enumerate(reports):
        agent = AGENTS[rank]
        match kind:
            case "started":
                attempt.note_started(agent, Started(1, (rank + 100,), standby=False))
            case "observed":
                attempt.note_observed(agent, Observed(1, (end_of(rank, ago),)), float(at))
            case "gone":
                confirmed.add(agent)
                digest = RankDigest(end_of(rank, ago), None, True, False, "")
                attempt.note_gone(agent, Gone(1, (digest,), GroupSeen()), float(at))
            case "lost":
                attempt.note_lost(agent, "why", float(at))
        assert attempt.exits[: len(seen)] == seen, "an end that was told stays as it was told"
        seen = attempt.exits
        assert len({ended.rank for ended in seen}) == len(seen)
        assert sorted(map(repr, attempt.exits_by_time)) == sorted(map(repr, seen))
        assert attempt.gone.keys() == confirmed, "to be lost confirms nothing"
    times = [attempt.ends[ended.rank].at for ended in attempt.exits_by_time]
    assert times == sorted(times)


def test_an_agent_speaks_for_its_own_ranks_alone() -> None:
    attempt = FleetAttempt(1, AGENTS)
    attempt.note_observed("a", Observed(1, (end_of(2, 0.0),)), 1.0)
    attempt.note_observed("stranger", Observed(1, (end_of(0, 0.0),)), 1.0)
    assert attempt.exits == ()


def test_of_many_the_first_that_ended_by_themselves_or_left_a_record_are_suspects() -> None:
    agents = tuple(f"a{rank}" for rank in range(100))
    attempt = FleetAttempt(1, agents)
    for rank, agent in enumerate(agents):
        end = end_of(rank, ago=100.0 - rank)
        by_itself = rank in (50, 60)
        digest = RankDigest(end, None, by_itself, rank == 70, "")
        attempt.note_gone(agent, Gone(1, (digest,), GroupSeen()), 200.0)
    suspects = {rank for ranks in attempt.suspects().values() for rank in ranks}
    assert len(suspects) == MAX_SUSPECTS
    assert {50, 60, 70} <= suspects


def test_a_host_that_is_lost_ends_its_ranks_as_the_fence_does() -> None:
    attempt = FleetAttempt(1, AGENTS)
    attempt.note_started("b", Started(1, (7,), standby=False))
    assert attempt.note_lost("b", "no answer", 3.0)
    assert not attempt.note_lost("b", "no answer", 4.0)
    assert attempt.exits == (WorkerExit(1, signal="SIGKILL"),)
    assert attempt.ends[1].host_lost
    assert attempt.pids == (0, 7, 0)


@pytest.mark.parametrize(
    ("hosts", "seconds"), [(None, 0.0), ({"engine": "ray", "lost_after": 30.0}, 30.0)]
)
def test_the_time_of_the_last_leader_is_read_in_its_config(hosts: object, seconds: float) -> None:
    config = [{"trainer": {"init": {"hosts": hosts}}}]
    assert lost_after_in(config) == seconds
    assert lost_after_in(None) == 0.0
