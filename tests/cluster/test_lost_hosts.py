"""A job on several hosts loses ranks, agents, hosts, networks, leaders and the way to them.

The hosts are namespaces of this machine with a real Ray; see `hosts`. The tests are in the order of
the hosts that they need, so that the cluster that they share only grows (`cluster`).
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.cluster import (
    LOST_AFTER,
    Cluster,
    agent_on,
    assert_succeeded,
    finished,
    helper_of,
    hurried,
    trains,
)
from tests.cluster.conftest import Bounds
from tests.cluster.hosts import HostOfTests, may_have_hosts
from tests.running import PATIENCE, Result, Running, eventually, runs

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not may_have_hosts(), reason="network namespaces are not allowed"),
]
WAITS: dict[str, Any] = {"min_num_devices": 2, "wait_for_capacity": 300}
"""A job on two hosts goes on with two or not at all."""
UNHURRIED = 30.0
"""A `lost_after` for jobs that lose no host: a busy machine may stop a process for 4 s."""


def seconds_until_gone(ranks: list[psutil.Process], since: float) -> float:
    """How long after the time `since` none of the ranks can run code any more."""
    assert ranks
    assert eventually(lambda: not any(runs(each.pid) for each in ranks), PATIENCE)
    return time.time() - since


def seconds_until_started(
    running: Running, attempt: int, since: float, waits: float = 0.0
) -> float:
    """How long after the time `since` all ranks of the attempt run. For `waits` seconds of that
    nothing happens, on any machine."""
    event = running.wait_for_event("workers-started", waits + PATIENCE, attempt=attempt)
    return datetime.fromisoformat(event["time"]).timestamp() - since


def assert_uncharged(result: Result, attempts: int) -> None:
    """There were so many attempts, and no end of one was charged."""
    assert len(result.summary["attempts"]) == attempts
    assert not result.has_event("budget-used")


# --- two hosts --------------------------------------------------------------------------------


def test_a_rank_dies(cluster: Cluster, bounds: Bounds) -> None:
    cluster.with_hosts(1)
    running = cluster.run(2, lost_after=UNHURRIED)
    trains(running)
    (rank,) = cluster.ranks(cluster.working())
    others = cluster.ranks(cluster.leader)
    at = time.time()
    rank.kill()
    gone = seconds_until_gone([rank, *others], at)
    bounds.measured("a rank dies, until all ranks are dead", gone, 0.5)
    seconds_until_started(running, 2, at)
    result = finished(running, cluster)
    first, second = result.summary["attempts"]
    assert first["failure"]["rule"] in ("sigkill", "sigkill-or-memory")
    assert second["status"] == "SUCCEEDED"


def test_an_agent_is_killed_and_its_host_is_used_again(cluster: Cluster, bounds: Bounds) -> None:
    cluster.with_hosts(1)
    running = cluster.run(2, **WAITS)
    trains(running)
    host = cluster.working()
    ranks, at = cluster.ranks(host), time.time()
    agent_on(host).kill()
    gone = seconds_until_gone(ranks, at)
    bounds.measured("an agent is killed, until the rank of its host is dead", gone, 0.2)
    assert gone < 3 * LOST_AFTER
    seconds_until_started(running, 2, at)
    assert cluster.ranks(host)
    assert_uncharged(finished(running, cluster), 2)


def test_a_raylet_is_killed_and_its_host_is_used_again(cluster: Cluster, bounds: Bounds) -> None:
    cluster.with_hosts(1)
    running = cluster.run(2, **WAITS)
    trains(running)
    host = cluster.working()
    ranks, at = cluster.ranks(host), time.time()
    cluster.ray.raylet(host).kill()
    gone = seconds_until_gone(ranks, at)
    bounds.measured("a raylet is killed, until the rank of its host is dead", gone, 0.2)
    assert gone < 3 * LOST_AFTER
    cluster.ray.end(host)
    cluster.ray.start(host)
    seconds_until_started(running, 2, at)
    assert cluster.ranks(host)
    assert_uncharged(finished(running, cluster), 2)


def test_the_ray_helper_is_killed_and_the_attempt_lives(cluster: Cluster, bounds: Bounds) -> None:
    """The next one has `lost_after` to import Ray and to join: 2 s on a quiet machine, and several
    times as long on one that is busy. The end of the ranks is heard through it."""
    cluster.with_hosts(1)
    running = cluster.run(2, lost_after=UNHURRIED)
    trains(running)
    before, at = helper_of(cluster), time.time()
    before.kill()
    running.wait_for_event("ray-helper-replaced", PATIENCE)
    assert helper_of(cluster).pid != before.pid
    result = finished(running, cluster)
    ended = datetime.fromisoformat(result.event("attempt-ended", attempt=1)["time"]).timestamp()
    bounds.measured("the Ray helper is killed, until the end of all ranks is heard", ended - at)
    assert_uncharged(result, 1)


def test_a_leader_that_pauses_for_less_than_the_fence_changes_nothing_and_for_more_one_attempt(
    cluster: Cluster, bounds: Bounds
) -> None:
    """A question is asked each quarter of `lost_after`. So a pause of 0.7 of it leaves 0.05, which
    is 0.6 s: more than a busy machine needs for an answer."""
    lost_after = 12.0
    cluster.with_hosts(1)
    running = cluster.run(2, lost_after=lost_after)
    trains(running)
    ranks = [rank for host in cluster.all.values() for rank in cluster.ranks(host)]
    assert len(ranks) == 2
    paused(cluster, 0.7 * lost_after)
    running.listen(0.5 * lost_after)  # the fence would have killed the ranks by now
    assert all(runs(rank.pid) for rank in ranks)
    at = time.time()
    paused(cluster, lost_after + 2.0)
    assert not any(runs(rank.pid) for rank in ranks)
    ended = lost_after + 2.0
    again = seconds_until_started(running, 2, at) - ended
    bounds.measured("a leader wakes too late, until the next attempt runs", again)
    assert_uncharged(finished(running, cluster), 2)


def paused(cluster: Cluster, seconds: float) -> None:
    """Stop the leader for so long."""
    leader = cluster.supervisor()
    leader.suspend()
    time.sleep(seconds)
    leader.resume()
    cluster.leader.continue_entered()


def test_the_leader_is_killed_and_the_same_command_goes_on(
    cluster: Cluster, bounds: Bounds
) -> None:
    cluster.with_hosts(1)
    trains(cluster.run(2))
    at = time.time()
    cluster.kill_supervisors()
    running = cluster.run(2)
    again = seconds_until_started(running, 2, at)
    bounds.measured("a leader is killed and run again", again, LOST_AFTER + 3)
    assert again < 10 * (LOST_AFTER + 3)
    assert_uncharged(finished(running, cluster), 2)


def test_the_leader_is_killed_and_the_command_goes_on_on_another_host(
    cluster: Cluster, bounds: Bounds
) -> None:
    lease = 60.0
    cluster.with_hosts(1)
    trains(cluster.run(2))
    other = cluster.working()
    ranks = [rank for host in cluster.all.values() for rank in cluster.ranks(host)]
    at = time.time()
    cluster.kill_supervisors()
    running = cluster.run(2, on=other)
    fenced = seconds_until_gone(ranks, at)
    bounds.measured("a leader is killed, until the fence has killed all ranks", fenced, LOST_AFTER)
    again = seconds_until_started(running, 2, at, lease)
    bounds.measured("a leader is killed and run on another host", again, lease + LOST_AFTER + 3)
    assert again < lease + 10 * (LOST_AFTER + 3)
    assert_uncharged(finished(running, cluster), 2)


def test_two_jobs_in_one_cluster_do_not_touch_one_another(cluster: Cluster, tmp_path: Path) -> None:
    cluster.with_hosts(1)
    other = tmp_path / "other"
    mine = cluster.run(2, lost_after=UNHURRIED)
    theirs = cluster.run(2, model_dir=other, lost_after=UNHURRIED)
    trains(mine)
    trains(theirs)
    host = cluster.working()
    (rank,), (untouched,) = cluster.ranks(host), cluster.ranks(host, other)
    rank.kill()
    seconds_until_started(mine, 2, time.time())
    assert runs(untouched.pid)
    result = hurried(theirs)
    assert len(finished(mine, cluster).summary["attempts"]) == 2
    assert_succeeded(result, cluster)
    assert_uncharged(result, 1)


# --- two hosts and a spare --------------------------------------------------------------------


def test_a_host_vanishes_and_a_spare_takes_over(cluster: Cluster, bounds: Bounds) -> None:
    cluster.with_hosts(2)
    running = cluster.run(2, spares=1)
    trains(running)
    lost = cluster.working()
    at = time.time()
    lost.vanish()
    again = seconds_until_started(running, 2, at)
    bounds.measured("a host vanishes, until a spare has taken over", again, LOST_AFTER + 2)
    assert again < 10 * (LOST_AFTER + 2)
    assert_uncharged(finished(running, cluster), 2)


def test_a_host_vanishes_and_the_standby_of_a_spare_takes_over(
    cluster: Cluster, bounds: Bounds
) -> None:
    cluster.with_hosts(2)
    running = cluster.run(2, spares=1, standby="imports", pace="0.2")
    running.wait_for_events("standby-ready", 3)
    lost, at = cluster.host_of_a_rank(running), time.time()
    lost.vanish()
    again = seconds_until_started(running, 2, at)
    bounds.measured(
        "a host vanishes, until a spare's standby has taken over", again, LOST_AFTER + 2
    )
    result = finished(running, cluster)
    assert result.event("workers-started", attempt=2)["standby"]
    assert len(result.events("standby-used", kind="imports")) == 2
    assert_uncharged(result, 2)


@pytest.mark.parametrize("way", ["both ways", "from it", "to it"])
def test_a_network_is_cut_and_a_spare_takes_over(
    cluster: Cluster, bounds: Bounds, way: str
) -> None:
    cluster.with_hosts(2)
    running = cluster.run(2, spares=1)
    trains(running)
    lost = cluster.working()
    ranks, at = cluster.ranks(lost), time.time()
    cut(cluster, lost, way)
    fenced = seconds_until_gone(ranks, at)
    bounds.measured(f"a network is cut {way}, until the rank there is dead", fenced, LOST_AFTER)
    again = seconds_until_started(running, 2, at)
    bounds.measured(f"a network is cut {way}, until a spare has taken over", again, LOST_AFTER + 2)
    assert again < 10 * (LOST_AFTER + 2)
    assert_uncharged(finished(running, cluster), 2)
    assert not cluster.ranks(lost)


def cut(cluster: Cluster, host: HostOfTests, way: str) -> None:
    """Cut the network of a host."""
    match way:
        case "from it":
            cluster.network.mute(host)
        case "to it":
            cluster.network.deafen(host)
        case _:
            host.cut()


def test_what_the_first_of_three_leaders_has_promised_to_a_cut_host_holds(
    cluster: Cluster, bounds: Bounds
) -> None:
    """The second leader is killed before any agent has heard of its shorter time."""
    longest = 20.0
    cluster.with_hosts(2)
    trains(cluster.run(2, spares=1, lost_after=longest, **WAITS))
    lost = cluster.working()
    ranks, at = cluster.ranks(lost), time.time()
    lost.cut()
    cluster.kill_supervisors()
    journal = cluster.model_dir / "journal.jsonl"
    started = journal.read_text().count('"SupervisorStarted"')
    cluster.run(2, spares=1, **WAITS)
    assert eventually(lambda: journal.read_text().count('"SupervisorStarted"') > started, PATIENCE)
    cluster.kill_supervisors()
    running = cluster.run(2, spares=1, **WAITS)
    fenced = seconds_until_gone(ranks, at)
    bounds.measured("a host is cut and two leaders killed, until its rank is dead", fenced, longest)
    begun = running.wait_for_event("attempt-started", PATIENCE, attempt=2)
    assert datetime.fromisoformat(begun["time"]).timestamp() >= at + fenced
    cluster.supervisor().terminate()
    running.result(PATIENCE)


def test_a_frozen_host_that_thaws_commits_nothing(cluster: Cluster, bounds: Bounds) -> None:
    cluster.with_hosts(2)
    running = cluster.run(2, spares=1)
    trains(running)
    frozen = cluster.working()
    at = time.time()
    frozen.freeze()
    again = seconds_until_started(running, 2, at)
    bounds.measured("a host freezes, until a spare has taken over", again, LOST_AFTER + 2)
    ranks, at = cluster.ranks(frozen), time.time()
    frozen.thaw()
    thawed = seconds_until_gone(ranks, at)
    bounds.measured("a frozen host thaws, until its old rank is dead", thawed, 1.0)
    assert_uncharged(finished(running, cluster), 2)


def test_a_host_that_is_drained_is_left_after_a_save(cluster: Cluster) -> None:
    cluster.with_hosts(2)
    running = cluster.run(2, spares=1, pace="0.2")
    trains(running)
    drained = cluster.working()
    cluster.ray.drain(drained)
    running.wait_for_event("attempt-started", 60, attempt=2)
    drained.vanish()
    result = finished(running, cluster)
    first, second = result.summary["attempts"]
    assert (first["status"], second["status"]) == ("MADE_WAY", "SUCCEEDED")
    assert "Ray drains it" in result.event("workers-told-to-stop")["reason"]
    assert not result.has_event("host-lost")
    assert result.event("attempt-stopped", attempt=1)["lost_steps"] == 0
    assert not result.has_event("budget-used")


def test_a_head_that_is_lost_has_the_job_save_and_wait_for_a_cluster(
    cluster_beside_its_head: Cluster,
) -> None:
    """The head's host stays, and the leader on it; another head takes the place of the first."""
    cluster = cluster_beside_its_head
    cluster.join(2)
    running = cluster.run(2, pace="0.2", wait_for_capacity=300)
    trains(running)
    cluster.ray.end(cluster.leader)
    running.wait_for_event("cluster-lost", 60)
    running.wait_for_event("capacity-awaited", 120)
    cluster.start_head()
    for host in cluster.others.values():
        cluster.ray.end(host)
        cluster.ray.start(host)
    result = finished(running, cluster)
    assert result.summary["attempts"][0]["status"] == "MADE_WAY"
    assert result.event("attempt-stopped", attempt=1)["lost_steps"] == 0
    assert not result.has_event("budget-used")


# --- more hosts -------------------------------------------------------------------------------


def test_two_hosts_are_lost_one_after_the_other(cluster: Cluster) -> None:
    cluster.with_hosts(3)
    running = cluster.run(2, spares=2)
    trains(running)
    cluster.working().vanish()
    trains(running, 2)
    cluster.working().vanish()
    trains(running, 3)
    assert_uncharged(finished(running, cluster), 3)


def test_a_rank_dies_and_a_host_vanishes_at_once(cluster: Cluster) -> None:
    cluster.with_hosts(3)
    running = cluster.run(3, spares=1)
    trains(running)
    lost, stays = [host for host in cluster.others.values() if cluster.ranks(host)][:2]
    (rank,) = cluster.ranks(stays)
    lost.vanish()
    rank.kill()
    seconds_until_started(running, 2, time.time())
    result = finished(running, cluster)
    assert len(result.summary["attempts"]) == 2, "one decision, one restart"


def test_half_of_the_hosts_go_at_once_and_the_job_shrinks_and_grows_again(
    cluster: Cluster, bounds: Bounds
) -> None:
    cluster.with_hosts(3)
    running = cluster.run(
        4,
        min_num_devices=1,
        wait_for_replacement=0,
        regrow="at_checkpoint",
        regrow_after=1,
        pace="0.1",
    )
    trains(running)
    at = time.time()
    for host in list(cluster.others.values())[1:]:
        host.vanish()
    again = seconds_until_started(running, 2, at)
    bounds.measured("half of the hosts go, until the job goes on", again, LOST_AFTER + 2)
    assert again < 10 * (LOST_AFTER + 2)
    cluster.join(2)
    trains(running, 3)
    result = finished(running, cluster)
    assert_uncharged(result, 3)  # one decision and one restart for both hosts
    attempts = result.summary["attempts"]
    assert [each["num_devices"] for each in attempts] == [4, 2, 4]
    assert [each["status"] for each in attempts[1:]] == ["MADE_WAY", "SUCCEEDED"]
