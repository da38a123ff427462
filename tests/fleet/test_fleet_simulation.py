"""The fleet in virtual time: never two live attempts, and progress once faults stop."""

from __future__ import annotations

import pytest

from tests.fleet.simulated_fleet import LOST_AFTER, Leader, SimulatedHost, World

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
    for host in world.hosts.values():
        host.to_agent = host.to_leader = True
    if world.leader is None:
        Leader(world, epoch + 1, last, size, spares)


def strike(world: World, leader: Leader, host: SimulatedHost) -> int:
    """Something goes wrong; returns the number of the leader's last attempt."""
    random = world.random
    match random.randrange(8):
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
    return leader.attempt


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
