"""From what a worker group left behind to what is told of its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from supervisor.adapters.output import read_evidence
from supervisor.adapters.space import free_bytes
from supervisor.config import placeholders
from supervisor.core.events import WorkersGone
from supervisor.core.failure import Evidence, Failure, HostFacts, RankEvidence, WorkerExit
from supervisor.core.verdicts import judge, store_failure
from supervisor.engines.committed import exists
from supervisor.engines.group import Group
from supervisor.engines.launch import Launch
from supervisor.protocol.failure import FailureRecord, parse_failure_record
from supervisor.protocol.location import Uri

Tell = Callable[[str], None]


def judged(
    at: float,
    launch: Launch,
    exits: Sequence[WorkerExit],
    group: Group | None,
    committed: int | None,
    tell: Tell,
) -> WorkersGone:
    """What the end of the attempt was, known at the time `at`; `committed` is the newest committed
    step. Of a `group` that another supervisor started, there is what is in its files."""
    step = group.step if group is not None else None
    try:
        file_exists = _success_file_exists(launch, exits, committed)
        unanswered = None
    except OSError as error:
        file_exists, unanswered = False, store_failure(error, exits[0])
    evidence = Evidence(
        ranks=tuple(_ranks(launch, exits, group, tell)),
        step=step,
        committed=committed,
        pattern_seen=group is not None and any(w.pump.success_seen for w in group.workers),
        file_exists=file_exists,
        host=HostFacts(
            oom_kills=group.oom.rise() if group is not None else 0,
            free_disk=free_bytes(launch.model_dir),
        ),
    )
    return WorkersGone(
        at,
        launch.attempt,
        unanswered or judge(evidence, launch.success, launch.rules),
        resumed_from=group.resumed_from if group is not None else None,
        step=step,
        committed=committed,
        adjustable=group.adjustable if group is not None else (),
        from_snapshot=group is not None and group.from_snapshot,
    )


def redacted(failure: Failure, redact: Callable[[str], str]) -> Failure:
    """`failure` without the secrets that `redact` takes out."""
    return replace(
        failure,
        root_cause=redact(failure.root_cause),
        traceback=redact(failure.traceback),
    )


def _ranks(
    launch: Launch, exits: Sequence[WorkerExit], group: Group | None, tell: Tell
) -> Iterator[RankEvidence]:
    for number, ended in enumerate(exits):
        record = _failure_record(launch.file(ended.rank, "failure.json"), tell)
        if group is None:
            yield RankEvidence(ended, record, read_evidence(launch.file(ended.rank, "log")))
        else:
            worker = group.workers[ended.rank]
            fell = group.fallen is None or number < group.fallen
            yield RankEvidence(ended, record, worker.pump.evidence(), worker.stage, fell)


def _failure_record(path: Path, tell: Tell) -> FailureRecord | None:
    try:
        return parse_failure_record(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        tell(f"the failure record {path.name} cannot be used: {error}")
        return None


def _success_file_exists(
    launch: Launch, exits: Sequence[WorkerExit], committed: int | None
) -> bool:
    """Whether the file is there that tells of success; where it decides nothing, nobody looks.

    Raises:
        OSError: it would be in a bucket, which does not answer.
    """
    success = launch.success
    if success.file is None or {ended.code for ended in exits} != {success.exit_code}:
        return False
    file = placeholders.expand(success.file, launch.values(committed))
    place = Uri.parse(file)
    return Path(file).exists() if place is None else exists(place)
