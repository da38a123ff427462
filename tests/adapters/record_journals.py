"""Writes the golden journals of the newest format, by real runs: see `test_golden_journals`.

    python -m tests.adapters.record_journals

A journal that is there is never written anew: what an earlier version has written is what a later
one must read. Whoever makes a new format runs this once, and adds an upcaster from the old one.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from supervisor.files.segments import JOURNAL
from supervisor.history.upcasters import FORMAT
from tests.running import TOY, Start, command_config, eventually, starting

JOURNALS = Path(__file__).with_name("journals")
SIX = {"step": 6}

LOSES_AND_GETS_BACK = """
import itertools, json, os, signal, sys, time
from pathlib import Path
from supervisor.protocol.failure_record import write_failure_record
from supervisor.protocol.messages import Stage
from supervisor.protocol.reporter import Reporter

place, attempt = Path(sys.argv[1]), int(os.environ["SUPERVISE_ATTEMPT"])

def devices(**broken):
    (place / "simulated_devices.json").write_text(json.dumps(broken))

def commit(step):
    temporary = place / "checkpoints" / f"{step}.orbax-checkpoint-tmp"
    temporary.mkdir(parents=True)
    (temporary / "commit_success.txt").touch()
    temporary.rename(place / "checkpoints" / str(step))

reporter = Reporter.connect()
reporter.stage(Stage.TRAINING)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
if attempt == 1:
    devices(wrong=["1"], lost=["3"])
    error = RuntimeError("INTERNAL: observed errors are: [Hardware]")
    write_failure_record(error, stage=Stage.TRAINING, step=None)
    os._exit(1)
devices(wrong=["1"])
for step in itertools.count(100 * attempt):
    time.sleep(4.0)
    reporter.step(step)
    reporter.stage(Stage.SAVING, step)
    commit(step)
    reporter.saved(step, 0.1)
    reporter.stage(Stage.TRAINING, step)
    if attempt == 3:
        break
"""
"""Of four devices one computes wrongly and one is lost; the latter comes back."""


SAVES_ELSEWHERE = """
import os, signal, sys
from pathlib import Path

place = Path(sys.argv[2], "checkpoints", "actor")
step = max((int(each.name) for each in place.glob("*[0-9]")), default=0)
if step < 2:
    temporary = place / f"{step + 1}.orbax-checkpoint-tmp"
    temporary.mkdir(parents=True)
    (temporary / "commit_success.txt").touch()
    temporary.rename(place / str(step + 1))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def success(folder: Path, start: Start) -> None:
    start(command_config(folder / "run", "none", success=SIX)).result()


def restart(folder: Path, start: Start) -> None:
    toy, bounds = ("SIGKILL", "--at", "5", "--once"), {"max_num_restarts": 3}
    start(command_config(folder / "run", *toy, restart=bounds, success=SIX)).result()


def budget(folder: Path, start: Start) -> None:
    start(command_config(folder / "run", "exit9", "--at", "3", success=SIX)).result()


def drain(folder: Path, start: Start) -> None:
    toy = ("--polite", "--seconds", "0.02", "--every", "4", "--steps", "100000")
    running = start(command_config(folder / "run", *toy, success={"step": 100_000}))
    running.wait_for_event("checkpoint-committed", step=8)
    running.signal(signal.SIGTERM)
    running.result()


def midjob(folder: Path, start: Start) -> None:
    """The supervisor is killed while it waits before the third attempt."""
    toy = ("SIGKILL", "--at", "3", "--strike-each", "--seconds", "0.02", "--every", "100")
    waits = {"max_num_restarts": 3, "backoff": {"first": 600, "max": 600}}
    running = start(command_config(folder / "run", *toy, restart=waits, success=SIX))
    running.wait_for_event("backoff")
    running.signal(signal.SIGKILL)
    running.result()


def phases(folder: Path, start: Start) -> None:
    """Two phases, of which each ends by its exit code alone."""
    init = {"model_dir": str(folder / "run"), "autorestart": {"max_num_restarts": 1}}
    command = [sys.executable, "-c", "print('ok')"]
    names = ("pretrain", "tune")
    trainers = [{"trainer": {"name": n, "init": init, "command": command}} for n in names]
    start({"trainer": trainers}).result()


def regrow(folder: Path, start: Start) -> None:
    """It shrinks, with a device in quarantine, and makes way for a larger rung at a checkpoint."""
    program = folder / "prog.py"
    program.write_text(LOSES_AND_GETS_BACK)
    restart = {
        "ladder": [4, 3, 2],
        "min_num_devices": 2,
        "regrow": "at_checkpoint",
        "regrow_after": 0,
        "standby": "off",
    }
    argv = [sys.executable, str(program), str(folder / "run")]
    job = command_config(folder / "run", restart=restart, argv=argv, elastic=True)
    job["trainer"]["init"]["devices"] = {"platform": "cpu", "count": 4}
    start(job).result()


def found(folder: Path, start: Start) -> None:
    """Its config names no checkpoint directory; it is killed after each of two commits."""
    program = folder / "prog.py"
    program.write_text(SAVES_ELSEWHERE)
    argv = [sys.executable, str(program), "--workdir", str(folder / "out")]
    start(command_config(folder / "run", argv=argv, success={"step": 2})).result()


RECIPES: Mapping[str, Callable[[Path, Start], None]] = {
    each.__name__: each for each in (success, restart, budget, drain, midjob, phases, regrow, found)
}


def recorded(name: str) -> bytes:
    """The journal of a run, with paths that are of no machine."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with starting(folder) as start:
            RECIPES[name](folder, start)
        journal = folder / "run" / JOURNAL
        assert eventually(journal.exists)
        text = journal.read_text()
        of_here: dict[str, Any] = {
            str(folder / "run"): "/job",
            str(folder): "/job",
            TOY: "/job/toy.py",
            sys.executable: "/usr/bin/python",
        }
        for path, other in of_here.items():
            text = text.replace(path, other)
    return text.encode()


def main() -> None:
    """Write those that are missing."""
    for name in RECIPES:
        path = JOURNALS / f"format{FORMAT}_{name}.jsonl"
        if not path.exists():
            path.write_bytes(recorded(name))
            print(f"wrote {path}; add where it leads to `test_golden_journals.ENDS`")


if __name__ == "__main__":
    main()
