"""Measures the supervisor of many hosts with 2,000 simulated agents, under a virtual clock.

    python -m benchmarks.leader_scale [--quick] [--json FILE]

The leader's engine and the agents are the real ones, and their messages go through the real
protocol, encoded and decoded; ranks, guards and the network are simulated (`tests.fleet`). Time is
virtual, so only CPU time is measured, and only that of the leader: what its main loop does. What
carries the messages is not in it (Ray, and the helper that speaks to it).

* `busy_*`: CPU time of the leader for a second of training, in percent of one core.
* `question_*`: CPU time for a question of an agent and its answer, microseconds.
* `kill_*`: CPU time from the news that a rank has failed until the last agent is told to kill,
  milliseconds: nobody waits less for the kill than this.
* `restart_*`: CPU time of the whole restart, from that news until all ranks run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.report import Report, options
from tests.fleet.simulated_fleet import Leader, World

_WINDOW = 20.0
"""Virtual seconds of training."""
_FAILED = "a rank has failed"


class _Measured(Leader):
    """A leader whose CPU time is counted."""

    def __init__(self, world: World, size: int) -> None:
        self.cpu = 0.0
        self.turns = 0
        self._began = 0.0
        self.told_to_kill: float | None = None
        """What `cpu` was when the last agent was told to kill its ranks."""
        super().__init__(world, 1, 0, size, 0)
        run = self.process.run

        def timed(callback: Callable[[], None]) -> None:
            self._began = time.process_time()
            run(callback)
            self.cpu += time.process_time() - self._began
            self.turns += 1

        self.process.run = timed  # type: ignore[method-assign]

    def send(self, agent: str, payload: bytes) -> None:
        """See `Transport`. What delivers the message is not the leader."""
        host = self.world.hosts.get(agent)
        if b'"KillRanks"' in payload:
            self.told_to_kill = self.cpu + time.process_time() - self._began
        if host is not None:
            deliver = lambda: host.process.run(lambda: host.agent.heard(payload))  # noqa: E731
            self.world.carry(deliver, is_open=host.to_agent)


def main() -> None:
    """Measure and report."""
    given = options(__doc__)
    report = Report("leader_scale")
    sizes = (50, 200) if given.quick else (500, 2_000)
    for size in sizes:
        found: dict[str, list[float]] = {"busy": [], "question": [], "kill": [], "restart": []}
        for turn in range(1 if given.quick else 3):
            for name, value in _measured(size, turn).items():
                found[name].append(value)
        for name, unit in (("busy", "percent"), ("question", "us"), ("kill", "ms")):
            report.spread(f"{name}_{size}", unit, found[name])
        report.spread(f"restart_{size}", "s", found["restart"])
    report.finish(given.json)


def _measured(size: int, seed: int) -> dict[str, float]:
    """Returns the figures of one job on so many hosts."""
    world = World(seed, nodes=size, loses=0.0)
    leader = _Measured(world, size)
    _until(world, lambda: leader.phase == "running")
    world.pass_time(world.now + 15.0)
    cpu, turns, began = leader.cpu, leader.turns, world.now
    world.pass_time(began + _WINDOW)
    busy, num_turns = leader.cpu - cpu, leader.turns - turns
    cpu, leader.told_to_kill = leader.cpu, None
    victim = next(iter(world.hosts.values()))
    victim.fail_rank(_FAILED)
    _until(world, lambda: leader.phase == "dying")
    cpu_then = leader.cpu
    _until(world, lambda: leader.told_to_kill is not None)
    assert leader.told_to_kill is not None
    kill = leader.told_to_kill - cpu_then
    _until(world, lambda: leader.phase == "running" and leader.attempt == 2)
    return {
        "busy": 100 * busy / _WINDOW,
        "question": 1e6 * busy / num_turns,
        "kill": 1e3 * kill,
        "restart": leader.cpu - cpu,
    }


def _until(world: World, condition: Callable[[], bool]) -> None:
    """Let time pass until the condition holds."""
    end = world.now + 300.0
    while not condition():
        assert world.now < end, "it never comes"
        world.pass_time(world.now + 0.02)


if __name__ == "__main__":
    main()
