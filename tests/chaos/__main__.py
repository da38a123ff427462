"""`python -m tests.chaos`: the storm, its table, and whether everything holds that must."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.faults import CATALOGUE
from tests.chaos.run import Report, run_storm
from tests.chaos.table import as_json, summary, table

_FAULTS, _FAULTS_SHORT = len(CATALOGUE), 9


def main(argv: Sequence[str] | None = None) -> int:
    """Run a storm; 0 if everything holds that must, else 1."""
    options = _parser().parse_args(argv)
    seed = options.seed if options.seed is not None else random.randrange(10_000)
    count = options.faults or (_FAULTS_SHORT if options.short else _FAULTS)
    again = f"python -m tests.chaos --seed {seed} --faults {count}"
    print(f"seed {seed}, {count} faults; again: {again}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        report = run_storm(seed, count, Path(folder), say=lambda text: print(text, flush=True))
    _print(report, time.monotonic() - began)
    if options.json is not None:
        body = {"seed": seed, "again": again, **as_json(report.outcomes, report.checks)}
        options.json.write_text(json.dumps(body, indent=2) + "\n")
    if not report.good:
        print(f"FAILED with seed {seed}; again: {again}")
        return 1
    return 0


def _print(report: Report, seconds: float) -> None:
    for line in table(report.outcomes):
        print(line)
    for line in summary(report.outcomes, report.checks):
        print(line)
    for skipped in report.skipped:
        print(f"SKIPPED  {skipped}")
    print(
        f"{report.attempts} attempts in {report.runs} runs of the command; {seconds:.0f} s in all"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="decides which faults strike, and when")
    parser.add_argument("--short", action="store_true", help=f"{_FAULTS_SHORT} faults only")
    parser.add_argument("--faults", type=int, metavar="N", help="how many faults")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
