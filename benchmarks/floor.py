"""Measures the supervisor's own share of a restart, with a trivial child.

    python -m benchmarks.floor [--quick] [--json FILE]

The child (`trivial.py`) is a bare Python program that runs for half a second and kills itself with
SIGKILL. It runs in turns under each contestant. Milliseconds from its death to the first line of
the next one. `subprocess` is the floor: a Python loop that only starts the child again; most of its
time is the start of the child's interpreter. `standby` is supervise with a standby, whose
interpreter runs already; the child runs for 7 seconds then.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.contest import (
    ROOT,
    EventReader,
    FailedError,
    run_contestant,
    supervise_command,
    wait_for,
)
from benchmarks.peers import (
    BASH,
    CIRCUS,
    FT_LAUNCHER,
    SUBPROCESS,
    SUPERVISORD,
    TORCHRUN,
    Peer,
    UnavailableError,
)
from benchmarks.report import Report, options

PEERS = (SUBPROCESS, BASH, TORCHRUN, SUPERVISORD, FT_LAUNCHER, CIRCUS)
SUPERVISE = "supervise"
STANDBY = "standby"
_HOLD = 0.5
_HOLD_FOR_STANDBY = 7.0
"""Seconds that the child runs: supervise checks every five whether it can prepare a standby."""
_TIMEOUT = 60.0


def main() -> None:
    """Measure in turns and report."""
    given = options(__doc__)
    rounds, deaths = (1, 2) if given.quick else (4, 6)
    report = Report("floor")
    contestants = (SUPERVISE, STANDBY, *PEERS)
    times: dict[str, list[float]] = {_name(one): [] for one in contestants}
    for _ in range(rounds):
        for one in contestants:
            name = _name(one)
            if name in report.left_out:
                continue
            try:
                times[name] += _one(one, deaths)
            except (UnavailableError, FailedError) as error:
                report.left_out[name] = str(error)
    for name, taken in times.items():
        report.spread(name, "ms", taken)
    report.ratio("supervise_over_subprocess", "supervise_ms", "subprocess_ms")
    peers = [f"{peer.name}_ms" for peer in PEERS[1:]]
    report.least("best_peer_ms", peers)
    report.finish(given.json)


def _name(contestant: Peer | str) -> str:
    return contestant if isinstance(contestant, str) else contestant.name


def _one(contestant: Peer | str, deaths: int) -> list[float]:
    """Returns the milliseconds of each of `deaths` restarts."""
    hold = _HOLD_FOR_STANDBY if contestant == STANDBY else _HOLD
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record = folder / "record"
        child = str(ROOT / "benchmarks" / "trivial.py")
        argv = [sys.executable, "-P", child, str(record), str(deaths), str(hold)]
        if isinstance(contestant, Peer):
            command = contestant.prepared(argv, folder)
        else:
            command = _supervise(argv, folder, standby=contestant == STANDBY)
        with run_contestant(command, {}, folder) as process:
            last = deaths + 1

            def done() -> bool:
                return record.exists() and record.read_text().count("began") >= last

            wait_for(f"start {last}", done, process, _TIMEOUT + deaths * 10.0)
        if contestant == STANDBY:
            taken = len(EventReader(folder / "output").events("standby-used"))
            if taken != deaths:
                raise FailedError(f"the standby took over {taken} times of {deaths}")
        return gaps(record.read_text().splitlines())


def _supervise(argv: Sequence[str], folder: Path, *, standby: bool) -> list[str]:
    kind = "imports" if standby else "off"
    restart = {"max_num_restarts": 1000, "backoff": {"first": 0.0}, "standby": kind}
    init = {"model_dir": str(folder / "run"), "autorestart": restart}
    command: dict[str, Any] = {"argv": list(argv), "bootstrap": standby}
    if standby:
        command |= {"preload": ["signal"], "progress": {"pattern": r"step (\d+)"}}
    return supervise_command({"trainer": {"init": init, "command": command}}, folder)


def gaps(lines: Sequence[str]) -> list[float]:
    """Returns the milliseconds from each death to the next beginning, from the lines of RECORD (see
    `trivial.py`)."""
    words = [line.split() for line in lines]
    pairs = pairwise(words)
    return [
        1e3 * (float(b[1]) - float(a[1])) for a, b in pairs if (a[0], b[0]) == ("dies", "began")
    ]


if __name__ == "__main__":
    main()
