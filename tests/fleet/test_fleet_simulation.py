"""The fleet in virtual time: never two live attempts, and progress once faults stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from supervisor.engines.fleet.capacity_look import FIRST_JOIN
from supervisor.engines.fleet.fleet_messages import Lead, encoded
from supervisor.engines.fleet.transport import Node
from supervisor.history.writer import writer
from tests.fleet.simulated_fleet import (
    BROKEN,
    LOST_AFTER,
    PROBE,
    Leader,
    SimulatedHost,
    World,
)

_STORM = 300.0
_CALM = 150.0


def storm(world: World, size: int, spares: int) -> None:
    """Things go wrong until `_STORM`, then everything is healed."""
    random, epoch, last = world.random, 1, 0
    Leader(world, epoch, 0, size, spares)
    while world.now < _STORM:
        world.pass_time(world.now + random.expovariate(1 / 6.0))
        hosts = [host for host in world.hosts.values() if host.process.is_alive]
        leader = world.leader
        if leader is None:
            epoch += 1
            Leader(world, epoch, last, size, spares)
        elif not hosts:
            continue
        else:
            last = strike(world, leader, random.choice(hosts))
    world.loses = 0.0
    world.bad_devices.clear()
    for host in world.hosts.values():
        host.to_agent = host.to_leader = True
    if world.leader is None:
        Leader(world, epoch + 1, last, size, spares)


def strike(world: World, leader: Leader, host: SimulatedHost) -> int:
    """Something goes wrong; returns the number of the leader's last attempt."""
    random = world.random
    match random.randrange(9):
        case 0:
            host.fail_rank()
        case 1:
            world.kill_agent(host)
        case 2:
            host.to_agent = False
        case 3:
            host.to_leader = False
        case 4:
            host.to_agent = host.to_leader = False
        case 5:
            world.freeze(host, random.expovariate(1 / LOST_AFTER))
        case 6:
            host.to_agent = host.to_leader = True
        case 7:
            leader.die()
        case 8:
            strike_cluster(world, leader, host)
    return leader.attempt


def strike_cluster(world: World, leader: Leader, host: SimulatedHost) -> None:
    """The devices of a host break; or the cluster drains a node, or a machine announces its end, if
    enough are left; or the cluster does not answer for a while."""
    leave = {name for name, node in world.nodes.items() if node.draining} | world.announced
    stay = len(world.nodes.keys() - leave)
    if world.random.random() < 0.5:
        world.bad_devices = {host.name}
        host.fail_rank(BROKEN)
    elif world.random.random() < 0.5 and stay > leader.size:
        goes = world.random.choice((world.drain, world.announce))
        goes(host.name, world.random.uniform(5.0, 60.0))
    else:
        world.lose_head(world.random.expovariate(1 / 15.0))


@pytest.mark.parametrize("seed", range(40))
def test_no_two_attempts_live_and_the_job_goes_on_once_nothing_goes_wrong(seed: int) -> None:
    size = 1 + seed % 6
    world = World(seed, nodes=size + 1 + seed % 3)
    storm(world, size, spares=1)
    world.pass_time(_STORM + _CALM)
    leader = world.leader
    assert leader is not None
    assert leader.phase == "running"
    assert world.now - leader.ran_since > 3 * LOST_AFTER, "it restarts although nothing is wrong"
    live = [host.launch for host in world.hosts.values() if host.launch is not None]
    assert len(live) == leader.size
    assert {launch.attempt for launch in live} == {leader.attempt}
    frozen = {host.name for host in world.hosts.values() if host.process.is_frozen}
    there = {host.name for host in world.hosts.values()}.intersection(world.nodes)
    prepared = {host.name for host in world.hosts.values() if host.has_standby}
    assert there - frozen <= prepared, "each host has a standby; a second agent of it has none"


def cut_off(lost_after: float) -> tuple[World, SimulatedHost]:
    """A job on two hosts, with a spare, whose leader dies; one of the hosts is cut off before."""
    world = World(3, nodes=3, loses=0.0)
    leader = Leader(world, 1, 0, 2, 1, lost_after=lost_after)
    world.pass_time(20.0)
    assert (leader.phase, leader.engine.nodes) == ("running", ("n0", "n1"))
    (host,) = (host for host in world.hosts.values() if host.name == "n1")
    host.to_agent = host.to_leader = False
    leader.die()
    return world, host


def test_what_a_leader_has_promised_outlives_leaders_that_no_agent_has_heard() -> None:
    """Each that follows has a shorter `lost_after`, and none reaches the host that is cut off."""
    world, host = cut_off(4.5 * LOST_AFTER)
    Leader(world, 2, 1, 2, 1, lost_after=4.0).die()
    leader = Leader(world, 3, 1, 2, 1, lost_after=4.0)
    while host.launch is not None:
        assert leader.attempt == 1, "a rank of attempt 1 lives"
        world.pass_time(world.now + 0.5)
    world.pass_time(world.now + 10.0)
    assert (leader.phase, leader.attempt) == ("running", 2)
    leader.die()
    leader = Leader(world, 4, 2, 2, 1, lost_after=4.0)
    assert world.history.longest_lost_after == 4.0, "nothing of the first leader can live"


def test_a_host_that_the_fence_has_counted_out_gives_way_to_a_spare_at_once() -> None:
    """The next leader's core knows nothing of it, and asks for the hosts of the last attempt."""
    world, _ = cut_off(LOST_AFTER)
    leader = Leader(world, 2, 1, 2, 1, units=("n0", "n1"))
    began = world.now
    world.pass_time(began + LOST_AFTER + 1.0 + LOST_AFTER / 4 + 3.0)
    assert leader.phase == "running", "the fence, the last chance of an agent, and two starts"
    assert leader.engine.nodes == ("n0", "n2")


def test_the_hosts_of_a_job_that_was_queued_again_have_time_to_join() -> None:
    """A batch system starts the cluster anew, and its hosts come one after the other."""
    world = World(3, nodes=1, loses=0.0)
    leader = Leader(world, 2, 0, 2, 0, units=("n0", "n1"))
    world.pass_time(10.0)
    assert (leader.phase, leader.attempt, leader.failures) == ("starting", 1, [])
    world.nodes["n1"] = Node("n1", "10.0.0.1")
    world.show_nodes()
    world.pass_time(20.0)
    assert (leader.phase, leader.attempt) == ("running", 1)
    assert leader.engine.nodes == ("n0", "n1")


def test_a_node_that_has_left_a_cluster_with_our_agents_gives_way_to_a_spare_at_once() -> None:
    """Those agents are of the leader before, so the cluster is not a new one."""
    world = World(3, nodes=3, loses=0.0)
    leader = Leader(world, 1, 0, 2, 1)
    world.pass_time(20.0)
    leader.die()
    (agent,) = (agent for agent, host in world.hosts.items() if host.name == "n1")
    world.kill_agent(world.hosts[agent])
    world.hosts.pop(agent, None)
    del world.nodes["n1"]
    leader = Leader(world, 2, 1, 2, 1, units=("n0", "n1"))
    world.pass_time(world.now + LOST_AFTER + 1.0 + LOST_AFTER / 4 + 3.0)
    assert (leader.phase, leader.engine.nodes) == ("running", ("n0", "n2"))


def test_a_host_that_does_not_join_again_is_not_waited_for_without_end() -> None:
    world = World(3, nodes=1, loses=0.0)
    leader = Leader(world, 2, 0, 2, 0, units=("n0", "n1"))
    world.pass_time(FIRST_JOIN + 1.0)
    assert leader.attempt == 1
    assert leader.phase != "starting"
    why = "1 of 2 hosts is ready; host n1: the cluster does not show it"
    assert [failure.root_cause for failure in leader.failures] == [why]


def test_a_host_that_is_lost_between_two_attempts_is_named_and_a_spare_used_at_once() -> None:
    """All that this leader knew of it is forgotten before the next attempt asks for it."""
    world = World(3, nodes=4, loses=0.0)
    leader = Leader(world, 1, 0, 2, 1)
    world.pass_time(20.0)
    assert (leader.phase, leader.engine.nodes) == ("running", ("n0", "n1"))
    leader.units, leader.backoff = leader.engine.nodes, 60.0
    host_of(world, "n0").fail_rank()
    world.pass_time(25.0)
    assert leader.phase == "idle"
    del world.nodes["n1"]
    world.kill_agent(host_of(world, "n1"))
    world.show_nodes()
    world.pass_time(80.0 + LOST_AFTER / 4 + 3.0)
    assert (leader.phase, leader.engine.nodes) == ("running", ("n0", "n2"))
    lost = "host n1 is lost: the cluster does not show it"
    assert [told for told in leader.notices if told.event == "host-lost"] == [lost]
    assert leader.failures[-1].root_cause == lost


def test_an_agent_that_has_heard_a_new_leader_keeps_to_its_time() -> None:
    """The new leader counts from the question that it has answered, also if the answer is lost."""
    world, host = cut_off(4.5 * LOST_AFTER)
    world.pass_time(world.now + 1.0)
    host.agent.heard(encoded(Lead(2, writer(), 4.0, "", "none")))
    world.pass_time(world.now + 3.9)
    assert host.launch is not None
    world.pass_time(world.now + 0.2)
    assert host.launch is None


def drained(*names: str, nodes: int, announced: Sequence[str] = ()) -> Leader:
    """A job on two hosts that trains, and then hears that these nodes go in a minute. Those in
    `announced` say so themselves."""
    world = World(3, nodes=nodes, loses=0.0)
    leader = Leader(world, 1, 0, 2, 1)
    world.pass_time(20.0)
    assert (leader.phase, leader.attempt, leader.engine.nodes) == ("running", 1, ("n0", "n1"))
    for name in names:
        world.drain(name, 60.0)
    for name in announced:
        world.announce(name, 60.0)
    world.pass_time(30.0)
    return leader


def test_a_job_moves_off_a_host_that_is_drained_and_the_others_keep_their_ranks() -> None:
    leader = drained("n0", nodes=3)
    assert (leader.phase, leader.attempt) == ("running", 2)
    assert leader.engine.nodes == ("n2", "n1")
    leader.world.pass_time(120.0)
    assert (leader.phase, leader.attempt) == ("running", 2), "the host goes, and nobody needs it"


@pytest.mark.parametrize("units", [(), ("n0", "n1")])
def test_a_host_that_is_drained_before_the_start_is_not_used_and_told(
    units: tuple[str, ...],
) -> None:
    """`units`: the hosts that the leader before has used."""
    world = World(3, nodes=3, loses=0.0)
    world.nodes["n1"] = replace(world.nodes["n1"], draining="it is drained until noon")
    leader = Leader(world, 1, 0, 2, 1, units=units)
    world.pass_time(20.0)
    assert (leader.phase, leader.engine.nodes) == ("running", ("n0", "n2"))
    assert world.placings["n1"] == 0
    told = [told for told in leader.notices if told.event == "host-unusable"]
    assert told == ["host n1 is not used: it is drained until noon"]
    lost = "host n1 is lost: it is about to go: it is drained until noon"
    assert [failure.root_cause for failure in leader.failures] == [lost] * bool(units)


def test_a_job_moves_off_a_host_that_announces_its_own_end() -> None:
    leader = drained(nodes=3, announced=["n0"])
    assert (leader.phase, leader.attempt) == ("running", 2)
    assert leader.engine.nodes == ("n2", "n1")
    leader.world.pass_time(120.0)
    assert (leader.phase, leader.attempt) == ("running", 2), "the host goes, and nobody needs it"


def test_what_a_host_announces_is_said_again_if_it_was_not_heard() -> None:
    leader = drained(nodes=3)
    (host,) = (host for host in leader.world.hosts.values() if host.name == "n0")
    host.to_leader = False
    leader.world.announce("n0", 60.0)
    leader.world.pass_time(33.0)
    assert (leader.phase, leader.attempt) == ("running", 1)
    host.to_leader = True
    leader.world.pass_time(45.0)
    assert (leader.phase, leader.attempt) == ("running", 2)
    assert leader.engine.nodes == ("n2", "n1")


def test_the_next_leader_hears_what_a_host_has_announced() -> None:
    world = drained(nodes=3, announced=["n2"]).world
    assert world.leader is not None
    world.leader.die()
    leader = Leader(world, 2, 1, 2, 1)
    world.announce("n0", 300.0)
    world.pass_time(70.0)
    assert leader.phase == "idle", "only one host stays"


def test_without_a_spare_a_job_waits_for_the_host_that_comes() -> None:
    leader = drained("n0", nodes=2)
    assert (leader.phase, leader.attempt) == ("idle", 1)
    leader.world.pass_time(120.0)
    assert (leader.phase, leader.attempt) == ("running", 2)
    assert leader.engine.nodes == ("n2", "n1")


def test_a_job_whose_hosts_all_go_is_asked_to_stop() -> None:
    leader = drained("n0", "n1", "n2", nodes=3)
    assert (leader.phase, leader.attempt) == ("drained", 1)
    leader = drained("n0", nodes=3, announced=["n1", "n2"])
    assert (leader.phase, leader.attempt) == ("drained", 1)


def test_a_drained_host_that_has_no_rank_is_no_reason_to_move() -> None:
    leader = drained("n2", nodes=3)
    assert (leader.phase, leader.attempt) == ("running", 1)


@pytest.mark.parametrize(("seconds", "attempts"), [(5.0, 1), (60.0, 2)])
def test_a_head_that_stays_away_has_the_job_save_and_wait(seconds: float, attempts: int) -> None:
    world = World(3, nodes=2, loses=0.0)
    leader = Leader(world, 1, 0, 2, 0)
    world.pass_time(20.0)
    world.lose_head(seconds)
    world.pass_time(19.0 + seconds)
    assert leader.phase == ("running" if attempts == 1 else "idle")
    world.pass_time(40.0 + seconds)
    assert (leader.phase, leader.attempt) == ("running", attempts)


def test_while_the_head_is_away_no_host_is_blamed() -> None:
    """The cluster is what keeps the hosts from being used, and what a person has to mend."""
    world = World(3, nodes=2, loses=0.0)
    leader = Leader(world, 1, 0, 2, 0)
    world.pass_time(20.0)
    world.lose_head(600.0)
    world.pass_time(120.0)
    probed = leader.probed
    assert probed is not None
    assert probed.obstacle is not None
    assert (probed.healthy, probed.bad) == ((), ())
    assert "the cluster does not answer: the head does not answer" in probed.obstacle.reason
    assert "start a head again" in probed.obstacle.advice


def test_hosts_that_only_a_person_can_mend_end_the_wait_at_once_and_are_named() -> None:
    world = World(3, nodes=4, loses=0.0)
    world.token, world.blind = "t", {"n2"}
    world.versions = {"n0": "0.1", "n1": "0.1"}
    world.config, world.configs = "mine", {"n3": "another"}
    leader = Leader(world, 1, 0, 2, 0, looks_first=True)
    world.pass_time(9.0)
    assert leader.probed is None, "a shared folder may show what is new a moment later"
    world.pass_time(20.0)
    probed = leader.probed
    assert probed is not None
    assert probed.obstacle is not None
    assert probed.obstacle.lasts
    assert f"host n0, n1: it has supervise 0.1, and this host {writer()}" in probed.obstacle.reason
    assert "host n2: it does not see this model_dir (/shared/owner" in probed.obstacle.reason
    assert "host n3: `supervise gang` was started there with another" in probed.obstacle.reason
    assert f"install supervise {writer()} on each host" in probed.obstacle.advice
    assert "the same config file and the same --set options" in probed.obstacle.advice
    assert "a folder that all hosts share" in probed.obstacle.advice


def test_a_host_that_can_be_used_is_waited_with_and_one_that_is_mended_is_used() -> None:
    world = World(3, nodes=2, loses=0.0)
    world.token, world.blind = "t", {"n1"}
    leader = Leader(world, 1, 0, 2, 0, looks_first=True)
    world.pass_time(45.0)
    assert leader.probed is not None
    assert (leader.probed.healthy, leader.probed.obstacle) == (("n0",), None)
    unfit = leader.probed.unfit
    assert unfit is not None
    assert unfit.number == 1
    assert "host n1: it does not see this model_dir (/shared/owner" in unfit.reason
    assert "a folder that all hosts share" in unfit.advice
    world.blind.clear()
    world.pass_time(90.0)
    assert (leader.probed.healthy, leader.probed.unfit) == (("n0", "n1"), None)
    assert leader.phase == "running"


@pytest.mark.parametrize(("limit", "seconds"), [(5.0, 5.0), (600.0, FIRST_JOIN)])
def test_the_first_probe_waits_for_absent_hosts_no_longer_than_wait_for_capacity(
    limit: float, seconds: float
) -> None:
    world = World(3, nodes=1, loses=0.0)
    leader = Leader(world, 1, 0, 2, 0, looks_first=True, wait_for_capacity=limit)
    world.pass_time(seconds - 0.1)
    assert leader.probed is None
    world.pass_time(seconds + LOST_AFTER / 20 + 0.1)
    assert leader.probed is not None
    assert leader.probed.healthy == ("n0",)


def test_agents_that_are_being_started_are_waited_for_whatever_wait_for_capacity_is() -> None:
    """Else no probe would ever find a host with `wait_for_capacity: 0`."""
    world = World(3, nodes=2, loses=0.0)
    leader = Leader(world, 1, 0, 3, 0, looks_first=True, wait_for_capacity=0.0)
    world.pass_time(0.5)
    assert leader.probed is None, "no agent has started yet"
    world.pass_time(5.0)
    assert leader.probed is not None
    assert leader.probed.healthy == ("n0", "n1")


UNFIT = ("the Python that runs Ray there has no supervise", "install supervise")


def test_if_no_agent_starts_on_any_host_the_wait_ends_at_once() -> None:
    world = World(3, nodes=2, loses=0.0)
    world.unfit = dict.fromkeys(world.nodes, UNFIT)
    leader = Leader(world, 1, 0, 2, 0, looks_first=True)
    world.pass_time(5.0)
    assert leader.probed is not None
    assert leader.probed.obstacle is not None
    assert leader.probed.obstacle.lasts
    assert f"host n0, n1: {UNFIT[0]}" in leader.probed.obstacle.reason
    assert UNFIT[1] in leader.probed.obstacle.advice


@pytest.mark.parametrize("why", [UNFIT, ("its agent has ended (exit code 1)", "")])
def test_a_host_on_which_no_agent_starts_is_told_once_and_used_once_one_does(
    why: tuple[str, str],
) -> None:
    world = World(3, nodes=3, loses=0.0)
    world.unfit = {"n2": why}
    leader = Leader(world, 1, 0, 2, 1)
    world.pass_time(300.0)
    (told,) = leader.notices
    assert told.event == "host-unusable"
    assert told.startswith("host n2 is not used: ")
    assert why[0] in told
    assert world.placings["n2"] < 20, "it is tried again, but not all the time"
    world.unfit.clear()
    world.pass_time(340.0)
    assert {host.name for host in world.hosts.values()} == {"n0", "n1", "n2"}
    assert world.placings["n0"] == world.placings["n1"] == 1


def test_a_host_whose_ray_was_started_again_is_tried_at_once() -> None:
    world = World(3, nodes=2, loses=0.0)
    world.unfit = {"n1": UNFIT}
    Leader(world, 1, 0, 2, 0)
    world.pass_time(10.0)
    node = world.nodes.pop("n1")
    world.show_nodes()
    world.pass_time(11.0)
    world.unfit.clear()
    world.nodes["n1"] = node
    world.show_nodes()
    world.pass_time(12.0)
    assert {host.name for host in world.hosts.values()} == {"n0", "n1"}


def test_agents_that_ran_before_an_upgrade_are_replaced() -> None:
    """What is installed on their hosts is newer than they are."""
    world = World(3, nodes=2, loses=0.0)
    leader = Leader(world, 1, 0, 2, 0)
    world.pass_time(20.0)
    leader.die()
    world.versions = {"n0": "0.1", "n1": "0.1"}
    old = set(world.hosts)
    leader = Leader(world, 2, 1, 2, 0)
    leader.always_looks = True
    world.pass_time(21.0)
    assert {notice.event for notice in leader.notices} == {"host-unusable"}
    world.versions.clear()
    world.pass_time(120.0)
    assert not old & set(world.hosts)
    assert leader.phase == "running"
    assert leader.probed is not None
    assert leader.probed.obstacle is None


def paused(world: World, leader: Leader, seconds: float) -> None:
    """The leader stands still for so long."""
    leader.process.is_frozen = True
    world.pass_time(world.now + seconds)
    leader.process.thaw()


@pytest.mark.parametrize("is_read_first", [True, False])
def test_a_leader_that_slept_blames_itself(is_read_first: bool) -> None:
    """What comes first when it wakes, a report of the fence or its own timer, is chance."""
    world = World(3, nodes=3, loses=0.0)
    leader = Leader(world, 1, 0, 2, 1)
    world.pass_time(20.0)
    if is_read_first:
        paused(world, leader, LOST_AFTER + 4.0)
    else:
        for host in world.hosts.values():
            host.to_leader = False
        paused(world, leader, LOST_AFTER + 4.0)
        for host in world.hosts.values():
            host.to_leader = True
    world.pass_time(world.now + 20.0)
    assert (leader.phase, leader.attempt) == ("running", 2)
    (failure,) = leader.failures
    assert failure.cause == "this supervisor did not run"
    assert "did not run for 14." in failure.root_cause
    told = [notice.event for notice in leader.notices]
    assert "leader-slept" in told
    assert "host-lost" not in told


def test_a_host_that_is_lost_long_after_a_sleep_is_to_blame() -> None:
    world = World(3, nodes=3, loses=0.0)
    leader = Leader(world, 1, 0, 2, 1)
    world.pass_time(20.0)
    paused(world, leader, 0.7 * LOST_AFTER)
    world.pass_time(world.now + 2 * LOST_AFTER)
    assert (leader.phase, leader.attempt) == ("running", 1)
    host = host_of(world, "n0")
    host.to_agent = host.to_leader = False
    world.pass_time(world.now + LOST_AFTER + 5.0)
    assert leader.attempt == 2
    (failure,) = leader.failures
    assert failure.cause == "a host was lost"
    assert "host-lost" in [notice.event for notice in leader.notices]


def test_the_ranks_of_a_slice_are_side_by_side_and_all_know_how_many_slices_there_are() -> None:
    """The slices are imitated: a name and a place on each node."""
    world = World(3, nodes=4, loses=0.0)
    for name, (slice_name, place) in {
        "n0": ("b", 1),
        "n1": ("a", 1),
        "n2": ("b", 0),
        "n3": ("a", 0),
    }.items():
        node = world.nodes[name]
        world.nodes[name] = replace(node, slice=slice_name, place_in_slice=place)
    leader = Leader(world, 1, 0, 4, 0)
    world.pass_time(20.0)
    assert leader.engine.nodes == ("n3", "n1", "n2", "n0")
    parts = {host.name: host.launch.part for host in world.hosts.values() if host.launch}
    assert {name: (part.num_slices, part.slice_number) for name, part in parts.items() if part} == {
        "n3": (2, 0),
        "n1": (2, 0),
        "n2": (2, 1),
        "n0": (2, 1),
    }
    ports = {part.slices_port for part in parts.values() if part}
    assert len(ports) == 1
    assert ports != {0}


def host_of(world: World, node: str) -> SimulatedHost:
    """The agent of a node."""
    return next(host for host in world.hosts.values() if host.name == node)


@pytest.mark.parametrize("seed", range(10))
def test_each_spare_prepares_one_standby_whatever_gets_lost_or_comes_twice(seed: int) -> None:
    world = World(seed, nodes=5, loses=0.15)
    leader = Leader(world, 1, 0, 2, 3)
    world.pass_time(60.0)
    assert leader.phase == "running"
    spares = [host for host in world.hosts.values() if host.launch is None]
    assert all(1 <= host.prepares <= leader.attempt + host.renewals for host in spares)
    assert all(host.has_standby for host in spares)


def test_nobody_prepares_anything_before_the_attempt_has_recovered_or_where_nobody_stays() -> None:
    world = World(3, nodes=4, loses=0.0)
    world.first_step = 20.0
    leader = Leader(world, 1, 0, 2, 2)
    while leader.phase != "running":
        world.pass_time(world.now + 0.1)
    world.drain("n3", 600.0)
    world.pass_time(world.now + 19.5)
    assert "PrepareStandby" not in leader.sent
    world.pass_time(world.now + 30.0)
    assert leader.sent["PrepareStandby"] == 1, "who has obeyed is not told again"
    assert [host_of(world, node).prepares for node in ("n2", "n3")] == [1, 0]


def test_a_spare_with_a_standby_comes_first_and_is_taken() -> None:
    world = World(3, nodes=4, loses=0.0)
    leader = Leader(world, 1, 0, 2, 2)
    world.pass_time(2.0)
    host_of(world, "n2").can_prepare = False
    world.pass_time(30.0)
    assert leader.engine.nodes == ("n0", "n1")
    host = host_of(world, "n0")
    host.to_agent = host.to_leader = False
    world.pass_time(30.0 + LOST_AFTER + 5.0)
    assert (leader.phase, leader.attempt) == ("running", 2)
    assert leader.engine.nodes == ("n3", "n1")
    assert leader.took_standbys


def test_a_standby_that_dies_with_the_fence_is_replaced() -> None:
    world = World(3, nodes=3, loses=0.0)
    Leader(world, 1, 0, 2, 1)
    world.pass_time(30.0)
    spare = host_of(world, "n2")
    assert spare.has_standby
    spare.to_agent = False
    world.pass_time(30.0 + LOST_AFTER + 1.0)
    assert not spare.has_standby
    spare.to_agent = True
    world.pass_time(60.0)
    assert spare.has_standby
    assert spare.prepares == 2


def test_a_host_with_bad_devices_is_left_and_only_hosts_of_the_attempt_are_probed() -> None:
    world = World(3, nodes=3, loses=0.0)
    leader = Leader(world, 1, 0, 2, 1)
    world.pass_time(30.0)
    world.bad_devices = {"n0"}
    host_of(world, "n1").fail_rank(BROKEN)
    world.pass_time(30.0 + PROBE + 5.0)
    assert (leader.phase, leader.attempt) == ("running", 2)
    assert leader.engine.nodes == ("n2", "n1"), "who complains need not be who is to blame"
    assert [host_of(world, node).probes for node in ("n0", "n1", "n2")] == [1, 1, 0]


def test_devices_are_not_probed_where_nothing_points_at_them() -> None:
    world = World(3, nodes=3, loses=0.0)
    leader = Leader(world, 1, 0, 2, 1)
    world.pass_time(30.0)
    leader.always_looks = True
    host_of(world, "n1").fail_rank()
    world.pass_time(60.0)
    assert (leader.phase, leader.attempt, leader.looks) == ("running", 2, 1)
    assert not any(host.probes for host in world.hosts.values())


@pytest.mark.parametrize("seed", range(10))
def test_probes_are_answered_whatever_gets_lost_or_comes_twice(seed: int) -> None:
    world = World(seed, nodes=4, loses=0.0)
    leader = Leader(world, 1, 0, 3, 1)
    world.pass_time(30.0)
    world.bad_devices = {"n1"}
    host_of(world, "n1").fail_rank(BROKEN)
    while leader.phase != "idle":
        world.pass_time(world.now + 0.1)
    world.loses = 0.3
    while leader.phase == "idle":
        world.pass_time(world.now + 0.1)
    world.loses = 0.0
    world.pass_time(world.now + 5.0)
    assert (leader.phase, leader.attempt) == ("running", 2)
    assert leader.engine.nodes == ("n0", "n3", "n2")
    probes = [host_of(world, f"n{number}").probes for number in range(4)]
    assert all(1 <= number <= leader.looks for number in probes[:3])
    assert probes[3] == 0


def test_a_host_that_is_cut_off_during_its_probe_is_not_waited_for() -> None:
    world = World(3, nodes=3, loses=0.0)
    leader = Leader(world, 1, 0, 2, 1)
    world.pass_time(30.0)
    host_of(world, "n0").fail_rank(BROKEN)
    world.pass_time(31.0)
    host = host_of(world, "n1")
    host.to_leader = False
    world.pass_time(31.0 + LOST_AFTER + 5.0)
    assert (leader.phase, leader.attempt) == ("running", 2)
    assert leader.engine.nodes == ("n0", "n2")


def test_two_hundred_agents_lose_half_of_them_in_one_decision() -> None:
    world = World(7, nodes=200, loses=0.0)
    leader = Leader(world, 1, 0, 100, 100)
    world.pass_time(20.0)
    assert (leader.phase, leader.attempt) == ("running", 1)
    for host in list(world.hosts.values()):
        if int(host.name[1:]) < 50:
            host.to_agent = host.to_leader = False
    world.pass_time(20.0 + LOST_AFTER + 2.0)
    assert (leader.phase, leader.attempt) == ("running", 2), "one restart, on the other hosts"
