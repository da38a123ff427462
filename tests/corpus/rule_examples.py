"""Writes the example of each rule, which `supervise rules` and the cookbook show.

python -m tests.corpus.rule_examples

An example is a part of a log of the corpus: whole lines in their order, long ones cut, and a mark
where lines are left out. Where no log of the corpus is decided by a rule, it is the example of the
rule's own test. Nothing is made up: a test holds each against its source, and has it judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from supervisor.cli import rule_examples
from supervisor.diagnosis.failure import Evidence, RankEvidence
from supervisor.diagnosis.frames import frame_in
from supervisor.diagnosis.ownership import is_own
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.diagnosis.weighing import ranked_judgements
from tests.corpus.cases import (
    COMPOSED,
    DEVELOPMENT,
    PROBES,
    THREADS,
    Case,
    Judged,
    digest,
    judged_file,
)
from tests.diagnosis.test_rules_reached import EXAMPLES as TESTED

FILE = Path(rule_examples.__file__).with_suffix(".json")
MARK = "[...]"
CUT = "..."
_MOST = 14
"""Lines of an example."""
_WIDTH = 160
_NEVER_REACHED = Success(step=10**9)
_BEFORE = (0, 1, 2, 4, 6, 8, 12)
"""How many lines before the error are tried, the fewest first."""
_RANKED = {THREADS: 1, PROBES: 1, COMPOSED: 2}
"""Sets whose logs are used only if there is none in those that a real program has written here."""
_TESTS = "tests/diagnosis/test_rules_reached.py"


def examples() -> dict[str, Any]:
    """Return the example of each rule, as JSON, in the order of the rules."""
    found: dict[str, list[tuple[Path, Judged]]] = {}
    for path in DEVELOPMENT:
        for item in judged_file(path):
            is_alone = item.case.incident is None or item.case.rank == item.failure.rank
            if item.right and not item.case.undecidable and is_alone:
                found.setdefault(item.failure.rule, []).append((path, item))
    return {rule.name: _example(rule.name, found.get(rule.name, [])) for rule in RULES}


def _example(rule: str, items: Sequence[tuple[Path, Judged]]) -> dict[str, Any]:
    shortened = (
        (lines, path, item.case) for path, item in items if (lines := _shortened(item)) is not None
    )
    best = min(
        shortened,
        key=lambda each: (
            _RANKED.get(each[1], 0),
            not _tells_a_place(each[0]),
            not any("jax" in line.lower() for line in each[0]),
            len(each[0]),
            each[2].id,
        ),
        default=None,
    )
    if best is None:
        tested = TESTED[rule]
        ranks = [_rank(rank, rank.output.splitlines()) for rank in tested.ranks]
        return {"source": _TESTS, "ranks": ranks, "also": _also(tested)}
    lines, path, case = best
    source, rank = f"tests/corpus/{path.name}, {case.id}", evidence_of(case, lines)
    return {"source": source, "ranks": [_rank(rank, lines)], "also": _also(Evidence((rank,)))}


def _also(evidence: Evidence) -> list[str]:
    """Return the names of the later rules that match the root cause, too."""
    judgements, _ = ranked_judgements(evidence, _NEVER_REACHED, RULES)
    _, *later = judgements[0].matches()
    return [rule.name for rule, _ in later]


def _tells_a_place(lines: Sequence[str]) -> bool:
    return any(line.startswith('  File "') for line in lines)


def _rank(rank: RankEvidence, lines: Sequence[str]) -> dict[str, Any]:
    told = {"rank": rank.exit.rank, "ended": str(rank.exit)}
    stage = {"stage": str(rank.stage)} if rank.stage is not None else {}
    return told | stage | {"lines": list(lines)}


def evidence_of(case: Case, lines: Sequence[str]) -> RankEvidence:
    text = "".join(f"{line}\n" for line in lines)
    return RankEvidence(case.ended, output=digest(text), stage=case.stage)


def is_judged_by(rule: str, rank: RankEvidence) -> bool:
    """Whether `rule` decides about this one rank."""
    failure = judge(Evidence((rank,)), _NEVER_REACHED)
    return failure is not None and failure.rule == rule


def _shortened(item: Judged) -> list[str] | None:
    """Return the fewest lines that are still judged by the same rule; None: they are too many."""
    rule, case = item.failure.rule, item.case
    lines = case.output.splitlines()
    for kept in _parts(lines, item.failure.root_cause):
        told = [_cut(line) for line in kept]
        if len(told) <= _MOST and is_judged_by(rule, evidence_of(case, told)):
            return told
    return None


def _cut(line: str) -> str:
    line = line.rstrip()
    return line if len(line) <= _WIDTH else line[:_WIDTH].rstrip() + CUT


def _parts(lines: Sequence[str], root: str) -> Iterator[list[str]]:
    """Yield parts of the log, the best first: each has the error and something before it."""
    start = root.removesuffix(CUT)[:60]
    ends = [n for n, line in enumerate(lines) if start and start in line]
    if not ends:
        yield list(lines[-3:])
        yield list(lines)
        return
    end = ends[-1]
    head = max((n for n in range(end) if lines[n].startswith("Traceback (")), default=None)
    if head is not None and (frame := _own_frame(lines, head, end)) is not None:
        last = 1 + max(n for n in range(frame, min(frame + 2, end)))
        yield _joined(lines, (range(head, head + 1), range(frame, last), range(end, end + 1)))
    for before in _BEFORE:
        first = max(0, end - before)
        if head is None or head >= first:
            yield list(lines[first : end + 1])
        elif before:
            yield _joined(lines, (range(head, head + 1), range(first, end + 1)))
    for after in (2, 5):
        yield list(lines[max(0, end - 4) : end + 1 + after])
    yield list(lines)


def _own_frame(lines: Sequence[str], head: int, end: int) -> int | None:
    """Return the innermost line between `head` and `end` that names the user's own code."""
    frames = ((n, frame_in(lines[n])) for n in range(head, end) if lines[n].startswith("  File "))
    return max((n for n, frame in frames if frame is not None and is_own(frame.path)), default=None)


def _joined(lines: Sequence[str], parts: Sequence[range]) -> list[str]:
    """Return these parts of the log, with a mark where lines between them are left out."""
    kept: list[str] = []
    last = parts[0].start
    for part in parts:
        between = [line for line in lines[last : part.start] if not _only_marks(line)]
        kept += [MARK] if between else []
        kept += [lines[n] for n in part if not _only_marks(lines[n])]
        last = part.stop
    return kept


def _only_marks(line: str) -> bool:
    """Whether the line only marks a part of the line above it."""
    return bool(line.strip()) and not line.strip(" ^~")


if __name__ == "__main__":
    text = json.dumps(examples(), indent=1, ensure_ascii=False)
    FILE.write_text(f"{text}\n", encoding="utf-8")
