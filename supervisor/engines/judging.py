"""From what a worker group left behind to what is told of its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from traceback import extract_tb

from supervisor.config import placeholders
from supervisor.core.events import WorkersGone
from supervisor.diagnosis.doubt import doubt
from supervisor.diagnosis.failure import Evidence, Failure, HostFacts, RankEvidence, WorkerExit
from supervisor.diagnosis.signals import WITH_STACKS, signal_of
from supervisor.diagnosis.verdicts import (
    judge_in_time,
    store_failure,
    succeeded,
    unjudged_failure,
)
from supervisor.engines.group import WorkerGroup
from supervisor.engines.host_port import HostFiles
from supervisor.engines.launch import Launch
from supervisor.host.notice import Notice, Tell
from supervisor.protocol.failure_record import MAX_RECORD, FailureRecord, parse_failure_record

_MAX_STACKS = 1 << 20
"""Bytes: 100 threads of 100 frames each."""


def judged(
    at: float,
    files: HostFiles,
    launch: Launch,
    exits: Sequence[WorkerExit],
    group: WorkerGroup | None,
    committed: int | None,
    tell: Tell,
    redact: Callable[[str], str],
) -> WorkersGone:
    """What the end of the attempt was, known at the time `at`; `committed` is the newest committed
    step. Of a `group` that another supervisor started, there is what is in its files. `redact`
    takes the secrets out."""
    step = group.step if group is not None else None
    try:
        file_exists = _success_file_exists(files, launch, exits, committed)
        unanswered = None
    except OSError as error:
        file_exists, unanswered = False, store_failure(error, exits[0])
    evidence = Evidence(
        ranks=tuple(_ranks(files, launch, exits, group, tell)),
        step=step,
        committed=committed,
        pattern_seen=group is not None and any(each.success_seen for each in group.outputs),
        file_exists=file_exists,
        host=HostFacts(
            oom_kills=group.oom.rise() if group is not None else None,
            guard_lost=group is not None and group.lost_guard,
            free_disk=files.free_bytes(launch.model_dir),
        ),
        survivors=group.late if group is not None else (),
    )
    doubtful: str | None = None
    try:
        failure = _failure(launch, evidence, unanswered, tell, redact)
        if failure is None:
            doubtful = doubt(evidence, redact)
    except Exception as error:  # an output may hold anything: a mistake of ours must stop no job
        tell(
            Notice(
                "judging-failed",
                f"{_told_mistake(error)}: this is a bug of supervise; please report it",
                reason=str(error),
            )
        )
        done = succeeded(evidence, launch.success)
        failure = None if done else unjudged_failure(error, exits)
    return WorkersGone(
        at,
        launch.attempt,
        failure,
        resumed_from=group.resumed_from if group is not None else None,
        step=step,
        committed=committed,
        adjustable=group.adjustable if group is not None else (),
        from_snapshot=group is not None and group.from_snapshot,
        starting_step=group.starting_step if group is not None else None,
        doubt=doubtful,
    )


def _failure(
    launch: Launch,
    evidence: Evidence,
    unanswered: Failure | None,
    tell: Tell,
    redact: Callable[[str], str],
) -> Failure | None:
    """The failure that the evidence shows; `unanswered` if nobody knows whether it is one."""
    failure = unanswered or judge_in_time(evidence, launch.success, launch.rules, tell, redact)
    return redacted(failure, redact) if failure is not None else None


def _told_mistake(error: Exception) -> str:
    """Names the exception and where it was raised. Its words are left out: they may be a secret."""
    frames = extract_tb(error.__traceback__)
    at = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"the end of the attempt cannot be judged ({type(error).__name__}{at})"


def redacted(failure: Failure, redact: Callable[[str], str]) -> Failure:
    """`failure` without the secrets that `redact` takes out."""
    return replace(
        failure,
        root_cause=redact(failure.root_cause),
        traceback=redact(failure.traceback),
        where=redact(failure.where),
    )


def _ranks(
    files: HostFiles,
    launch: Launch,
    exits: Sequence[WorkerExit],
    group: WorkerGroup | None,
    tell: Tell,
) -> Iterator[RankEvidence]:
    for number, ended in enumerate(exits):
        record = _failure_record(files, launch, ended.rank, tell)
        stacks = _stacks_of_crash(files, launch, ended, tell)
        if group is None:
            output = _output(files, launch, ended.rank, tell)
            yield RankEvidence(ended, record, output, stacks=stacks)
        else:
            worker = group.workers[ended.rank]
            # What is in its output may be read only after its exit is known.
            told = replace(ended, told_to_stop=worker.told_to_stop)
            before_kill = group.ended_at_kill is None or number < group.ended_at_kill
            output = worker.output.reader.evidence()
            yield RankEvidence(told, record, output, worker.stage, before_kill, stacks)


def _failure_record(
    files: HostFiles, launch: Launch, rank: int, tell: Tell
) -> FailureRecord | None:
    """What the worker left; one that cannot be used is told, and judged as if there were none."""
    path = launch.file(rank, "failure.json")
    try:
        data = files.read(path, MAX_RECORD, launch.model_dir)
        return parse_failure_record(data, path)
    except FileNotFoundError:
        return None
    except OSError as error:
        tell(
            Notice(
                "evidence-unusable",
                f"the failure record of rank {rank} cannot be used: {error}",
                rank=rank,
                reason=str(error),
            )
        )
        return None


def _stacks_of_crash(files: HostFiles, launch: Launch, ended: WorkerExit, tell: Tell) -> str:
    """What was written of the Python stacks of a worker whose native code crashed."""
    if signal_of(ended) not in WITH_STACKS:
        return ""
    path = launch.file(ended.rank, "stacks.txt")
    try:
        return files.read(path, _MAX_STACKS, launch.model_dir).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        text = f"the stacks of rank {ended.rank} cannot be used: {error}"
        tell(Notice("evidence-unusable", text, rank=ended.rank, reason=str(error)))
        return ""


def _output(files: HostFiles, launch: Launch, rank: int, tell: Tell) -> str:
    """What is worth judging of the output of a worker that another supervisor started."""
    path = launch.file(rank, "log")
    try:
        return files.evidence(path, launch.model_dir)
    except OSError as error:
        tell(
            Notice(
                "evidence-unusable",
                f"the output of rank {rank} is not judged: {error}",
                rank=rank,
                reason=str(error),
            )
        )
        return ""


def _success_file_exists(
    files: HostFiles, launch: Launch, exits: Sequence[WorkerExit], committed: int | None
) -> bool:
    """Whether the file is there that tells of success; where it decides nothing, nobody looks.

    Raises:
        OSError: it would be in a bucket, which does not answer.
    """
    success = launch.success
    if success.file is None or {ended.code for ended in exits} != {success.exit_code}:
        return False
    file = placeholders.expand(success.file, launch.values(committed))
    return files.success_file_exists(file)
