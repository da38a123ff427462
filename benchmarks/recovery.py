"""Measures how long a training pauses after a kill -9, and how many steps it repeats.

    python -m benchmarks.recovery [--quick] [--json FILE]

Runs the quickstart's trainer under supervise, with each kind of standby and with snapshots in
memory, and under the programs that people use instead, with the same caches. `defaults` and
`bash_defaults` have only the required settings. In each round, every contestant starts once and its
trainer is killed several times, at random steps that are the same for all, when a checkpoint is a
few steps old and the standby, if there is one, is ready.

Measures the seconds from the SIGKILL to the next completed step, as the trainer records it;
`samples` has supervise's own account of them.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.contest import FailedError
from benchmarks.peers import UnavailableError
from benchmarks.report import Report, options
from benchmarks.training import (
    BASH_DEFAULTS,
    DEFAULTS,
    PEERS,
    Contestant,
    training,
)

_EVERY = 20
"""Steps between checkpoints."""
_SNAPSHOT = {"snapshot": {"every": 1}}
_STANDBY_TAKES = 300.0
"""Longest wait in seconds for a standby: its preparation uses only the CPU time that training
leaves."""

CONTESTANTS = (
    Contestant("off_orbax", autorestart={"standby": "off"}),
    Contestant("imports_orbax", autorestart={"standby": "imports"}),
    Contestant("ready_orbax", autorestart={"standby": "ready"}),
    Contestant("imports_snapshot", autorestart={"standby": "imports"}, checkpoint=_SNAPSHOT),
    Contestant("ready_snapshot", autorestart={"standby": "ready"}, checkpoint=_SNAPSHOT),
    DEFAULTS,
    *PEERS,
    BASH_DEFAULTS,
)


def main() -> None:
    """Measure in turns and report."""
    given = options(__doc__)
    rounds, kills = (1, 1) if given.quick else (2, 5)
    report = Report("recovery")
    seconds: dict[str, list[float]] = {contestant.name: [] for contestant in CONTESTANTS}
    lost: dict[str, list[float]] = {contestant.name: [] for contestant in CONTESTANTS}
    parts: dict[str, list[Any]] = {}
    for turn in range(rounds):
        for contestant in CONTESTANTS:
            name = contestant.name
            if name in report.left_out:
                continue
            try:
                found = _one(contestant, kills, random.Random(turn))
            except (UnavailableError, FailedError) as error:
                report.left_out[name] = str(error)
                continue
            seconds[name] += found.seconds
            lost[name] += found.lost
            parts.setdefault(name, []).extend(found.reported)
    for name, taken in seconds.items():
        report.spread(name, "s", taken)
        report.spread(name, "lost_steps", lost[name])
    report.samples["told"] = {name: told for name, told in parts.items() if told}
    report.least("best_peer_s", [f"{peer.name}_s" for peer in PEERS])
    report.ratio("ready_snapshot_over_best_peer", "ready_snapshot_s", "best_peer_s")
    report.ratio("imports_orbax_over_best_peer", "imports_orbax_s", "best_peer_s")
    report.finish(given.json)


class _Recoveries:
    """The results of one run of a contestant, one value for each kill."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.lost: list[float] = []
        self.reported: list[dict[str, Any]] = []
        """supervise's account of its recoveries."""


def _one(contestant: Contestant, kills: int, lots: random.Random) -> _Recoveries:
    found = _Recoveries()
    with (
        tempfile.TemporaryDirectory() as name,
        training(contestant, Path(name), every=_EVERY, max_steps=1_000_000) as run,
    ):
        step = run.wait_for_step(1)
        for number in range(1, kills + 1):
            # At least 8 steps after the next checkpoint, so that it is committed.
            target = (step.number // _EVERY + 1) * _EVERY + lots.randrange(8, _EVERY)
            run.wait_for_step(target, since=step.at)
            if contestant.has_standby:
                run.wait_for_event("standby-ready", number, _STANDBY_TAKES)
            began = time.monotonic()
            last = run.kill_trainer()
            step = run.wait_for_step(0, since=began, not_by=[last.pid])
            found.seconds.append(step.at - began)
            found.lost.append(max(0, run.last_of(last.pid).number - (step.number - 1)))
        if contestant.peer is None:
            run.wait_for("what supervise reports", lambda: len(run.recoveries()) == kills)
            found.reported = run.recoveries()
    return found


if __name__ == "__main__":
    main()
