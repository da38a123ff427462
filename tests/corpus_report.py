"""How many verdicts on a corpus of failures are right: `python -m tests.corpus_report [FILE ...]`.

It prints the accuracy and the confusion table. Two kinds of error are counted apart: a RESTART that
should have been FATAL wastes a night on a bug, and a FATAL that should have been RESTART kills a
healthy job. Then comes the precision of each rule. Without a FILE it reads all development sets.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.corpus.cases import DEVELOPMENT, Ends, Judged, judged, read_cases
from tests.corpus.precision import precision, sums

VERDICTS = ("FATAL", "RESTART", "POLICY")
PROBED = ("transient", "permanent", "policy")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report of the files. Returns 0 if each case that its log can decide is judged
    right."""
    parser = argparse.ArgumentParser(prog="corpus_report", description=__doc__)
    parser.add_argument("files", type=Path, nargs="*", default=DEVELOPMENT, metavar="FILE")
    parser.add_argument("--all", action="store_true", help="tell every case, not only the wrong")
    options = parser.parse_args(argv)
    try:
        found = [item for path in options.files for item in judged(read_cases(path))]
    except (OSError, ValueError) as error:
        print(f"corpus_report: {error}", file=sys.stderr)
        return 66
    print("\n".join(report(found, every=options.all)))
    return int(any(not item.right and not item.case.undecidable for item in found))


def report(found: Sequence[Judged], *, every: bool = False) -> Iterator[str]:
    """Yield the lines of the report."""
    decidable = [item for item in found if not item.case.undecidable]
    yield f"verdicts: {_share(found)} right; where the log can tell: {_share(decidable)}"
    table = Counter((item.case.verdict, str(item.failure.verdict)) for item in found)
    yield "right \\ judged" + "".join(f"{verdict:>9}" for verdict in VERDICTS)
    for right in (*VERDICTS, *PROBED):
        if right in VERDICTS or any(table[right, verdict] for verdict in VERDICTS):
            counts = "".join(f"{table[right, verdict]:>9}" for verdict in VERDICTS)
            yield f"{right:>14}{counts}"
    yield f"FATAL for RESTART (a healthy job is killed): {table['RESTART', 'FATAL']}"
    yield f"RESTART for FATAL (a night is burned on a bug): {table['FATAL', 'RESTART']}"
    for wanted in ("transient", "RESTART", "POLICY", "permanent", "FATAL"):
        if of_kind := [item.ends for item in found if item.case.verdict == wanted]:
            counts = ", ".join(f"{each} {of_kind.count(each)}" for each in Ends)
            yield f"{wanted}, if it always comes back the same, ends the job: {counts}"
    roots = [item for item in found if item.case.root_line]
    named = sum(_names_root(item) for item in roots)
    yield f"root line found: {named} of {len(roots)}"
    yield from _precision(found)
    for item in found:
        if every or not item.right:
            yield from _told(item)


def _precision(found: Sequence[Judged]) -> Iterator[str]:
    rows = precision(found)
    yield f"{'rule':<28}{'verdict':>9}{'cases':>7}{'right':>7}{'certain':>9}{'right':>7}"
    for row in (*rows, *sums(rows)):
        counts = f"{row.cases:>7}{row.right:>7}{row.certain:>9}{row.certain_right:>7}"
        yield f"{row.rule:<28}{row.verdict:>9}{counts}"


def _share(found: Sequence[Judged]) -> str:
    right = sum(item.right for item in found)
    return f"{right} of {len(found)} ({right / max(1, len(found)):.1%})"


def _names_root(item: Judged) -> bool:
    """True if the root cause found and the root line of the case agree, as far as they were
    kept."""
    told = item.failure.root_cause[:60].removesuffix("...")
    return told in item.case.root_line or item.case.root_line[:60] in item.failure.root_cause


def _told(item: Judged) -> Iterator[str]:
    case, failure = item.case, item.failure
    tags = f" [{', '.join(case.tags)}]" if case.tags else ""
    why = f": {case.why}" if case.why else ""
    yield f"{case.id}: {failure.verdict}, ends {item.ends}, right is {case.verdict}{tags}{why}"
    yield f"    rule {failure.rule} ({failure.confidence}): {failure.root_cause[:140]}"


if __name__ == "__main__":
    sys.exit(main())
