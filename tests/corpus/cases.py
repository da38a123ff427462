"""Reads a corpus of failures and judges it as the product would: one JSON object a line.

All rows of one incident are the evidence of one failure: each rank's output goes through the same
digest as that of a live worker, and they are judged together.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from supervisor.cli.classify import STAGES
from supervisor.diagnosis.digest import LogDigest
from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import hang_failure, judge
from supervisor.protocol.messages import Stage

CORPUS = Path(__file__).with_name("failures.jsonl")
"""Failures that were staged with many libraries, two of several hosts."""
PROVOKED = Path(__file__).with_name("provoked.jsonl")
"""Failures that were provoked with the libraries of our own environment."""
UNDECIDABLE = frozenset({"twin", "ambiguous"})
"""Tags of the cases whose log alone cannot tell."""
CANNOT_BE_TOLD = {
    "mp-user-exc-h0": "the error is in the log of another host; alone it looks like a lost peer",
}
"""Cases whose own log gives another verdict than the right one, and why no rule can help that."""
COMPOSED = Path(__file__).with_name("composed.jsonl")
"""Logs written by hand after real ones of launchers and libraries that are not installed here."""
PROBES = Path(__file__).with_name("probes.jsonl")
"""Short cases that say only whether another try would have succeeded (`want`)."""
IO = Path(__file__).with_name("io.jsonl")
"""What real I/O libraries raised of servers that refuse, fail, stop and break off; as `PROBES`."""
STAGED = Path(__file__).with_name("staged.jsonl")
"""Failures that were staged by somebody who did not know the rules: jax 0.12 on Python 3.12, jax
0.4.30, and the I/O libraries of November 2026 against local servers."""
THREADS = Path(__file__).with_name("threads.jsonl")
"""Logs as people paste them into public threads (`source`), labelled by what the thread says came
of it; where it does not, by judgement (`sure: false`). As `PROBES`."""
DEVELOPMENT = (CORPUS, PROVOKED, COMPOSED, PROBES, IO, STAGED, THREADS)
"""Every set that the rules are developed with."""
_NEVER_REACHED = Success(step=10**9)


class Ends(StrEnum):
    """When a failure that always comes back the same ends its job."""

    AT_ONCE = "at once"
    SECOND = "at the second"
    """A guess, or one whose signature is compared."""
    NEVER = "never"
    """Only when the budget is spent."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row: what one rank of a failure printed, how it ended, and the right verdict."""

    id: str
    verdict: str
    """FATAL, RESTART or POLICY; in a file of probes what is wanted: transient, permanent, policy.
    """
    subclass: str
    stage: Stage | None
    exit: str
    tags: tuple[str, ...]
    why: str
    root_line: str
    output: str
    incident: str | None
    rank: int

    @property
    def undecidable(self) -> bool:
        """Whether its log alone cannot tell."""
        return bool(UNDECIDABLE & set(self.tags))

    @property
    def ended(self) -> WorkerExit:
        """The exit that its words describe."""
        if match := re.search(r"exit(?:ed)?(?: with)?(?: code| status)? (\d+)", self.exit):
            return WorkerExit(self.rank, code=int(match[1]))
        match = re.search(r"\bSIG[A-Z]+\b", self.exit)
        return WorkerExit(self.rank, signal=match[0] if match else None)

    @property
    def hung(self) -> bool:
        """Whether it had to be ended because nothing was heard of it."""
        return "hung" in self.exit


@dataclass(frozen=True, slots=True)
class Judged:
    """A case with what was made of it."""

    case: Case
    failure: Failure

    @property
    def right(self) -> bool:
        """Whether the verdict is the right one, or does what is wanted."""
        match self.case.verdict:
            case "transient":
                return self.failure.verdict != Verdict.FATAL
            case "permanent":
                return self.ends is not Ends.NEVER
            case verdict:
                return self.failure.verdict == verdict.upper()

    @property
    def ends(self) -> Ends:
        """When it ends its job, if it always comes back the same."""
        failure = self.failure
        if failure.verdict is Verdict.FATAL:
            return Ends.AT_ONCE if failure.certain else Ends.SECOND
        known = failure.signature is not None and failure.compared
        return Ends.SECOND if known else Ends.NEVER


def read_cases(path: Path = CORPUS) -> list[Case]:
    """The cases in the file at `path`.

    Raises:
        ValueError: a line is no case; the text says which, and what is missing.
    """
    with path.open(encoding="utf-8") as file:
        return [_case(path, number, line) for number, line in enumerate(file, 1) if line.strip()]


def _case(path: Path, number: int, line: str) -> Case:
    try:
        row = json.loads(line)
        return Case(
            id=row["id"],
            verdict=row["want"] if "want" in row else row["verdict"],
            subclass=row.get("subclass", ""),
            stage=STAGES.get(row.get("stage", "")),
            exit=row["exit"],
            tags=tuple(row.get("tags", ())),
            why=row.get("why", ""),
            root_line=row.get("root_line") or "",
            output=row["stderr"],
            incident=row.get("incident"),
            rank=row.get("rank") or 0,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}:{number}: no case: {type(error).__name__}: {error}") from error


def judged(cases: Iterable[Case]) -> list[Judged]:
    """Each case, judged by all that is known of its incident."""
    incidents: dict[str, list[Case]] = defaultdict(list)
    cases = list(cases)
    for case in cases:
        incidents[case.incident or case.id].append(case)
    verdicts = {name: judge_together(group) for name, group in incidents.items()}
    return [Judged(case, verdicts[case.incident or case.id]) for case in cases]


@cache
def judged_file(path: Path = CORPUS) -> tuple[Judged, ...]:
    """The cases in the file at `path`, which does not change, judged once for all who ask."""
    return tuple(judged(read_cases(path)))


def judge_together(cases: Sequence[Case]) -> Failure:
    """The failure that the outputs of one incident show."""
    ranks = tuple(
        RankEvidence(case.ended, output=digest(case.output), stage=case.stage) for case in cases
    )
    failure = judge(Evidence(ranks), _NEVER_REACHED)
    assert failure is not None
    hung = next((case for case in cases if case.hung), None)
    if hung is not None:
        return hang_failure(failure, hung.stage or Stage.STARTING, seconds=90.0)
    return failure


def digest(output: str) -> str:
    """What is kept of an output."""
    log = LogDigest()
    log.feed(output.encode())
    return log.text()
