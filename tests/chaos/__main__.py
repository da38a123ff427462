"""`python -m tests.chaos`: runs the storm, and prints its table and whether everything holds that
must."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.run import Report, run
from tests.chaos.table import as_json, summary, table
from tests.running import may_mount

_FAULTS_SHORT = 12


def main(argv: Sequence[str]) -> int:
    """Run a storm. Returns 0 if everything holds that must, else 1."""
    options = _parser().parse_args(argv)
    if not options.own_disk and may_mount():
        same = [sys.executable, "-m", "tests.chaos", "--own-disk", *argv]
        os.execvp("unshare", ["unshare", "-m", *same])
    seed = options.seed if options.seed is not None else random.randrange(10_000)
    count = options.faults or (_FAULTS_SHORT if options.short else None)
    again = f"python -m tests.chaos --seed {seed}" + (f" --faults {count}" if count else "")
    print(f"seed {seed}; again: {again}", flush=True)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    report = run(
        seed, count, folder, own_disk=options.own_disk, patience=options.patience, say=_say
    )
    _print(report, time.monotonic() - began)
    if options.json is not None:
        told = as_json(report.outcomes, report.checks, report.skipped)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"seed": seed, "again": again, **told}, indent=2) + "\n")
    if not report.good:
        options.keep.mkdir(parents=True, exist_ok=True)
        kept = str(options.keep / f"chaos-{seed}")
        subprocess.run(["cp", "-a", str(folder), kept], check=True)  # copies FIFOs and links too
        print(f"FAILED; all of it is in {options.keep}/chaos-{seed}; again: {again}")
    shutil.rmtree(folder, ignore_errors=True)  # a mounted disk goes away with this process
    return 0 if report.good else 1


def _say(text: str) -> None:
    print(text, flush=True)


def _print(report: Report, seconds: float) -> None:
    for line in table(report.outcomes):
        print(line)
    for line in summary(report.outcomes, report.checks, report.skipped):
        print(line)
    print(
        f"{report.attempts} attempts in {report.runs} runs of the command; {seconds:.0f} s in all"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="decides which faults strike, and when")
    parser.add_argument("--short", action="store_true", help=f"{_FAULTS_SHORT} faults only")
    parser.add_argument("--faults", type=int, metavar="N", help="how many faults")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON too")
    parser.add_argument(
        "--keep", type=Path, default=Path("runs"), metavar="DIR", help="where a bad run goes (runs)"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="makes deadlines and waits longer, for a machine that is busy elsewhere (1)",
    )
    parser.add_argument("--own-disk", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
