"""How right the verdicts are on a corpus of failures: `python -m tests.corpus_report FILE`.

Accuracy and the confusion table; a RESTART that should have been FATAL burns a night on a bug, and
a FATAL that should have been RESTART kills a healthy job, so the two are counted apart.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.corpus.cases import CORPUS, Judged, judged, read_cases

VERDICTS = ("FATAL", "RESTART", "POLICY")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report of a file; 0 if every case that can be told from its log is right."""
    parser = argparse.ArgumentParser(prog="corpus_report", description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=CORPUS, metavar="FILE")
    parser.add_argument("--all", action="store_true", help="tell every case, not only the wrong")
    options = parser.parse_args(argv)
    try:
        found = judged(read_cases(options.file))
    except (OSError, ValueError) as error:
        print(f"corpus_report: {error}", file=sys.stderr)
        return 66
    print("\n".join(report(found, every=options.all)))
    return int(any(not item.right and not item.case.undecidable for item in found))


def report(found: Sequence[Judged], *, every: bool = False) -> Iterator[str]:
    """The lines of the report."""
    decidable = [item for item in found if not item.case.undecidable]
    yield f"verdicts: {_share(found)} right; where the log can tell: {_share(decidable)}"
    table = Counter((item.case.verdict, str(item.failure.verdict)) for item in found)
    yield "right \\ judged" + "".join(f"{verdict:>9}" for verdict in VERDICTS)
    for right in VERDICTS:
        counts = "".join(f"{table[right, verdict]:>9}" for verdict in VERDICTS)
        yield f"{right:>14}{counts}"
    yield f"FATAL for RESTART (a healthy job is killed): {table['RESTART', 'FATAL']}"
    yield f"RESTART for FATAL (a night is burned on a bug): {table['FATAL', 'RESTART']}"
    roots = [item for item in found if item.case.root_line]
    named = sum(_names_root(item) for item in roots)
    yield f"root line found: {named} of {len(roots)}"
    for item in found:
        if every or not item.right:
            yield from _told(item)


def _share(found: Sequence[Judged]) -> str:
    right = sum(item.right for item in found)
    return f"{right} of {len(found)} ({right / max(1, len(found)):.1%})"


def _names_root(item: Judged) -> bool:
    """Whether the root cause is the root line of the case (as far as it was kept)."""
    told = item.failure.root_cause[:60].removesuffix("...")
    return told in item.case.root_line or item.case.root_line[:60] in item.failure.root_cause


def _told(item: Judged) -> Iterator[str]:
    case, failure = item.case, item.failure
    tags = f" [{', '.join(case.tags)}]" if case.tags else ""
    yield f"{case.id}: {failure.verdict}, right is {case.verdict}{tags}: {case.why}"
    yield f"    rule {failure.rule} ({failure.confidence}): {failure.root_cause[:140]}"


if __name__ == "__main__":
    sys.exit(main())
