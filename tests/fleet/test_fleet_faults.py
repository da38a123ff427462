"""Agents as real processes, each with its guard: what dies, is cut off or frozen, and what follows.

`lost_after` is short. Ranks are shells, which write nothing when they are killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.adapters.processes.leftovers import processes_naming_job
from supervisor.core.events import DevicesProbed, StragglerFound, WorkersGone, WorkersObserved
from supervisor.diagnosis.outcome import Charge
from supervisor.engines.fleet import capacity_look
from supervisor.engines.fleet.fleet import MARGIN
from tests.fleet.cluster import Cluster, Relayed
from tests.fleet.leading import LOST_AFTER, Leader, launch_of
from tests.running import PATIENCE, eventually

SLEEP = "echo started > $SUPERVISE_FAILURE_FILE.started; exec sleep 1000\n"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster(3)
    yield made
    made.close()


def lives(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone_within(seconds: float, pids: tuple[int, ...]) -> bool:
    """Whether all these processes end within so many seconds."""
    end = time.monotonic() + seconds
    while any(map(lives, pids)):
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def running(cluster: Cluster, folder: Path, script: str = SLEEP) -> tuple[Leader, tuple[int, ...]]:
    """A leader with an attempt on all three hosts, and the pid of each rank."""
    leader = Leader(cluster, folder, size=3)
    return leader, leader.start(launch_of(folder, script, 3)).pids


def killed(leader: Leader, folder: Path, attempt: int = 1) -> WorkersGone:
    """The end of the attempt, which the core kills once it has heard of an end."""
    exits = leader.of(WorkersObserved)[-1].exits if leader.of(WorkersObserved) else ()
    launch = launch_of(folder, SLEEP, 3, attempt)
    leader.engine.kill(launch, exits)
    return leader.first(WorkersGone, lambda event: event.attempt == attempt)


def has_ended(number: int) -> Callable[[WorkersObserved], bool]:
    """Whether so many ranks have ended."""
    return lambda event: len(event.exits) >= number


def test_a_rank_dies_and_all_are_killed_on_all_hosts_and_judged_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    leader, pids = running(cluster, tmp_path)
    os.kill(pids[1], signal.SIGSEGV)
    leader.first(WorkersObserved, has_ended(1))
    began = time.monotonic()
    gone = killed(leader, tmp_path)
    assert time.monotonic() - began < LOST_AFTER, "nobody has to wait for the fence"
    assert not any(map(lives, pids))
    assert gone.failure is not None
    assert (gone.failure.rank, gone.failure.exit) == (1, "killed by SIGSEGV")
    assert gone.exits[0].rank == 1
    leader.turn(0.3)
    assert leader.of(WorkersGone) == [gone]


def test_the_earliest_root_cause_of_all_hosts_is_judged(cluster: Cluster, tmp_path: Path) -> None:
    """Rank 2 fails; rank 0 then complains of its peer, and is heard of at the same time."""
    script = (
        "case $SUPERVISE_RANK in\n"
        '2) echo "ValueError: bad batch" >&2; touch $0.failed; exit 1;;\n'
        "0) until [ -e $0.failed ]; do sleep 0.01; done\n"
        '   echo "RuntimeError: Gloo: Connection closed by peer [10.0.0.3]:1234" >&2; exit 1;;\n'
        "esac\nexec sleep 1000\n"
    )
    leader, _ = running(cluster, tmp_path, script)
    leader.first(WorkersObserved, has_ended(2))
    failure = killed(leader, tmp_path).failure
    assert failure is not None
    assert failure.rank == 2
    assert "bad batch" in failure.root_cause


def test_the_guard_of_a_killed_agent_kills_its_ranks_and_its_host_is_used_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    leader, pids = running(cluster, tmp_path)
    agent = cluster.on("n1")
    rank = leader.nodes.index("n1")
    agent.signal(signal.SIGKILL)
    assert gone_within(1.0, (pids[rank],))
    observed = leader.first(WorkersObserved, has_ended(1))
    assert [ended.rank for ended in observed.exits] == [rank]
    gone = killed(leader, tmp_path)
    assert gone.failure is not None
    assert (gone.failure.rule, gone.failure.charge) == ("host-lost", Charge.NOTHING)
    assert cluster.on("n1").process.pid != agent.process.pid
    leader.start(launch_of(tmp_path, SLEEP, 3, attempt=2))


def cut_both(agent: Relayed) -> None:
    agent.cut()


def cut_to_agent(agent: Relayed) -> None:
    agent.cut(to_leader=False)


def cut_to_leader(agent: Relayed) -> None:
    agent.cut(to_agent=False)


def stopped(agent: Relayed) -> None:
    agent.signal(signal.SIGSTOP)


@pytest.mark.parametrize("harm", [cut_both, cut_to_agent, cut_to_leader, stopped])
def test_a_host_that_is_cut_off_kills_its_ranks_before_another_attempt_may_start(
    cluster: Cluster, tmp_path: Path, harm: Callable[[Relayed], None]
) -> None:
    """One way, both ways, and an agent that stands still: the guard needs none of it."""
    leader, pids = running(cluster, tmp_path)
    rank = leader.nodes.index("n2")
    harm(cluster.on("n2"))
    began = time.monotonic()
    leader.first(WorkersObserved, has_ended(1))
    gone = killed(leader, tmp_path)
    assert not any(map(lives, pids)), "no attempt may start while one of them lives"
    assert time.monotonic() - began < LOST_AFTER + MARGIN + 1.0
    assert gone.failure is not None
    assert (gone.failure.rank, gone.failure.rule) == (rank, "host-lost")
    assert gone.failure.charge is Charge.NOTHING


def test_nothing_starts_while_a_frozen_host_may_still_run(cluster: Cluster, tmp_path: Path) -> None:
    """Its guard is frozen too. When it thaws, the first thing that it does is to kill."""
    leader, pids = running(cluster, tmp_path)
    rank = leader.nodes.index("n2")
    frozen = cluster.on("n2")
    answered = time.monotonic()
    frozen.freeze()
    leader.first(WorkersObserved, has_ended(1))
    killed(leader, tmp_path)
    assert time.monotonic() - answered > LOST_AFTER, "its deadline had not come before"
    assert lives(pids[rank]), "it is frozen, with its guard"
    frozen.thaw()
    assert gone_within(0.5, (pids[rank],))


def test_a_healed_host_has_no_old_ranks_and_is_used_again(cluster: Cluster, tmp_path: Path) -> None:
    leader, pids = running(cluster, tmp_path)
    cluster.on("n0").cut()
    leader.first(WorkersObserved, has_ended(1))
    killed(leader, tmp_path)
    cluster.on("n0").heal()
    again = leader.start(launch_of(tmp_path, SLEEP, 3, attempt=2))
    assert not any(map(lives, pids))
    assert all(map(lives, again.pids))


def test_a_spare_takes_over_and_the_others_keep_their_ranks(tmp_path: Path) -> None:
    cluster = Cluster(3)
    try:
        leader = Leader(cluster, tmp_path, size=2, spares=1)
        leader.start(launch_of(tmp_path, SLEEP, 2))
        before = leader.nodes
        cluster.vanish(before[0])
        leader.first(WorkersObserved, has_ended(1))
        killed(leader, tmp_path)
        leader.start(launch_of(tmp_path, SLEEP, 2, attempt=2))
        after = leader.nodes
        assert after[1] == before[1]
        assert after[0] not in before
    finally:
        cluster.close()


def test_a_probe_does_not_wait_for_hosts_that_are_lost(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once all hosts were there. How long to wait for another one is the core's decision."""
    monkeypatch.setattr(capacity_look, "JOIN", 10 * PATIENCE)
    monkeypatch.setattr(capacity_look, "FIRST_JOIN", PATIENCE)  # on a busy machine
    leader = Leader(cluster, tmp_path, size=3)
    launch = launch_of(tmp_path, SLEEP, 3)
    leader.engine.probe(launch.plan, 1, None)
    assert len(leader.first(DevicesProbed).healthy) == 3
    leader.start(launch)
    lost = leader.nodes[2]
    cluster.vanish(lost)
    leader.first(WorkersObserved, has_ended(1))
    killed(leader, tmp_path)
    leader.engine.probe(launch.plan, 2, None)
    probed = leader.first(DevicesProbed, lambda event: event.number == 2)
    assert set(probed.healthy) == {"n0", "n1", "n2"} - {lost}


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_new_leader_kills_what_the_last_one_started(
    cluster: Cluster, tmp_path: Path, *, is_cut: bool
) -> None:
    """Where an agent does not confirm the end of its rank, no answer of the last leader may count
    any more."""
    first, pids = running(cluster, tmp_path)
    first.line.close()
    if is_cut:
        cluster.on("n2").cut()
    began = time.monotonic()
    second = Leader(cluster, tmp_path, epoch=2, size=3)
    gone = killed(second, tmp_path)
    assert not any(map(lives, pids))
    assert (time.monotonic() - began > LOST_AFTER) == is_cut
    assert time.monotonic() - began < LOST_AFTER + 3.0
    assert gone.failure is not None
    cluster.on("n2").heal()
    second.start(launch_of(tmp_path, SLEEP, 3, attempt=2))


def test_a_new_leader_that_knows_fewer_ranks_waits_for_all_that_the_last_one_started(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The config may have changed between the two leaders."""
    first, pids = running(cluster, tmp_path)
    first.line.close()
    lost = cluster.on(first.nodes[2])
    lost.cut()
    began = time.monotonic()
    second = Leader(cluster, tmp_path, epoch=2, size=2)
    second.engine.kill(launch_of(tmp_path, SLEEP, 2), ())
    second.first(WorkersGone)
    assert time.monotonic() - began > LOST_AFTER
    assert not any(map(lives, pids))


def test_a_new_leader_that_joins_late_does_not_wait_again(cluster: Cluster, tmp_path: Path) -> None:
    """model_dir is its own from before it has joined the cluster."""
    first, pids = running(cluster, tmp_path)
    first.line.close()
    cluster.on("n2").cut()
    began = first.clock.now()
    assert eventually(lambda: not any(map(lives, pids)))
    first.turn(LOST_AFTER + MARGIN)
    second = Leader(cluster, tmp_path, epoch=2, size=3, began=began)
    made = second.clock.now()
    assert killed(second, tmp_path).at < made + LOST_AFTER + MARGIN
    cluster.on("n2").heal()
    second.start(launch_of(tmp_path, SLEEP, 3, attempt=2))


def test_of_two_leaders_the_one_with_the_higher_epoch_is_obeyed(
    cluster: Cluster, tmp_path: Path
) -> None:
    first, _ = running(cluster, tmp_path)
    second = Leader(cluster, tmp_path, epoch=2, size=3)
    killed(second, tmp_path)
    pids = second.start(launch_of(tmp_path, SLEEP, 3, attempt=2)).pids
    first.engine.kill(launch_of(tmp_path, SLEEP, 3, attempt=9), ())
    first.turn(0.2)
    second.turn(2 * LOST_AFTER)
    assert all(map(lives, pids)), "it was not killed, and is answered by the second leader alone"
    first.turn(0.2)
    assert "host-unusable" in first.notices()


def test_no_person_is_told_to_kill_what_an_agent_ends(cluster: Cluster, tmp_path: Path) -> None:
    """The next leader on the host finds the workers alive: the fence ends them, or it does."""
    job = os.urandom(6).hex()
    lineage = f"{job}@{'0' * 32}"
    leader = Leader(cluster, tmp_path, size=3)
    pids = leader.start(replace(launch_of(tmp_path, SLEEP, 3), lineage=lineage)).pids
    with subprocess.Popen(["sleep", "600"], env={"SUPERVISE_LINEAGE": lineage}) as stray:
        try:
            is_named = lambda: stray.pid in processes_naming_job(job, tmp_path)  # noqa: E731
            leader.until(is_named)
            assert processes_naming_job(job, tmp_path) == [stray.pid]
            assert all(map(lives, pids))
        finally:
            stray.kill()
    killed(leader, tmp_path)


@pytest.mark.parametrize("share", [0.6, 2.0])
def test_a_leader_that_pauses_costs_nothing_or_one_free_restart(
    cluster: Cluster, tmp_path: Path, share: float
) -> None:
    """Up to 0.7 of `lost_after` costs nothing. Of so short a time that leaves 75 ms for an answer:
    this tries 0.6, and `test_fleet_simulation` and `tests/cluster` 0.7."""
    leader, pids = running(cluster, tmp_path)
    leader.turn(0.5)
    time.sleep(share * LOST_AFTER)  # it does not run: nobody is answered
    leader.turn(1.0)
    if share < 1:
        assert all(map(lives, pids))
        assert leader.of(WorkersObserved) == []
        return
    assert gone_within(PATIENCE, pids)
    leader.first(WorkersObserved, has_ended(1))
    failure = killed(leader, tmp_path).failure
    assert failure is not None
    assert (failure.rule, failure.charge) == ("host-lost", Charge.NOTHING)
    assert failure.cause == "this supervisor did not run"
    assert "leader-slept" in leader.notices()
    assert "host-lost" not in leader.notices()
    leader.start(launch_of(tmp_path, SLEEP, 3, attempt=2))


def test_a_host_that_keeps_the_others_waiting_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """The leader compares the times of all hosts: an agent knows of its own ranks alone."""
    script = (
        "case $SUPERVISE_RANK in 2) busy=0.9;; *) busy=0.1;; esac\n"
        "while :; do\n"
        '  echo "{\\"v\\":1,\\"kind\\":\\"host_time\\",\\"seconds\\":$busy,\\"step_seconds\\":1.0}"'
        " > /proc/self/fd/$SUPERVISE_PROGRESS_FD\n"
        "  sleep 0.1\n"
        "done\n"
    )
    leader, _ = running(cluster, tmp_path, script)
    found = leader.first(StragglerFound).straggler
    assert (found.rank, found.host) == (2, leader.nodes[2])
    killed(leader, tmp_path)


def test_a_new_leader_with_a_shorter_time_waits_for_the_longer_one_of_the_last(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A host that it cannot reach may hold an answer that the last leader gave."""
    first, _ = running(cluster, tmp_path)
    first.line.close()
    cluster.on("n2").cut()
    began = time.monotonic()
    killed(Leader(cluster, tmp_path, epoch=2, size=3, before=LOST_AFTER + 2.0), tmp_path)
    assert time.monotonic() - began > LOST_AFTER + 2.0
