"""Collects the evidence of an attempt's end, has it judged, and makes the event `WorkersGone`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from traceback import extract_tb

from supervisor.config import placeholders
from supervisor.config.judgement import Remedy
from supervisor.config.shell_pipes import pipe_that_hides_failure
from supervisor.core.events import WorkersGone
from supervisor.diagnosis.doubt import doubt
from supervisor.diagnosis.failure import (
    Evidence,
    Failure,
    HostFacts,
    RankEvidence,
    Survivor,
    WorkerExit,
)
from supervisor.diagnosis.rules import FULL_DISK_RULES, UNDECODABLE_RULES
from supervisor.diagnosis.signals import WITH_STACKS, signal_of
from supervisor.diagnosis.stack_groups import standing_place
from supervisor.diagnosis.verdicts import (
    judge_in_time,
    one_line,
    store_failure,
    succeeded,
    unjudged_failure,
    with_target,
    without_peers,
)
from supervisor.engines.group import WorkerGroup
from supervisor.engines.host_port import HostFiles
from supervisor.engines.launch import Launch
from supervisor.engines.stack_comparison import MAX_STACKS, compared, stacks_left
from supervisor.host.notice import Notice, Tell
from supervisor.protocol.failure_record import MAX_RECORD, FailureRecord, parse_failure_record
from supervisor.protocol.messages import Stage

_TORN = (
    "{} is not complete: it was being written when the program was killed, or the disk was full. "
    "If that is what the program loads, move it into another folder and run the command again: it "
    "goes on from an older one. To write under another name, and rename at the end, prevents it. "
    "If not:"
)
_CUT = "{} is not complete: look at the space left there first."
_UNSAVED = (
    "{} is not complete: look for saves that failed in the output, and at the space left there."
)


@dataclass(frozen=True, slots=True)
class SeenRank:
    """What an engine has seen of one rank."""

    output: str
    """The part of its output that may tell why it ended (see `diagnosis.digest`)."""
    stage: Stage | None = None
    told_to_stop: bool = False
    """Whether somebody else sent it SIGTERM before the engine did."""
    heard_no_sigterm: bool = False
    """Whether it ended without having been told of any SIGTERM."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What an engine has seen of an attempt, besides the files that the attempt left.

    The defaults are for an attempt of which only the files are known.
    """

    ranks: Mapping[int, SeenRank] = field(default_factory=dict)
    """If a rank is missing here, its output is read from its file."""
    ended_before_kill: int = 0
    """How many ranks had ended when the engine killed the others: they come first in `exits`. See
    `RankEvidence.ended_before_kill`."""
    step: int | None = None
    """The last completed step that was reported; else the last one that the output showed."""
    step_recognised: bool = False
    """Whether `step` was only recognised in the output: then it proves nothing."""
    every_step: bool = False
    """Whether the output told every completed step, so that the next one is the one that failed."""
    resumed_from: int | None = None
    from_snapshot: bool = False
    starting_step: int | None = None
    adjustable: tuple[str, ...] = ()
    pattern_seen: bool = False
    """Whether an output matched the pattern that means success."""
    oom_kills: int | None = None
    lost_guard: bool = False
    survivors: tuple[Survivor, ...] = ()
    """The survivors of successful workers that still ran when the engine killed the attempt."""


Judge = Callable[
    [
        float,
        HostFiles,
        Launch,
        Sequence[WorkerExit],
        Seen,
        int | None,
        Tell,
        Callable[[str], str],
    ],
    WorkersGone,
]
"""Makes the event of an attempt's end: `judged`, or what hands the evidence to somebody else."""


def seen_of(group: WorkerGroup, exits: Sequence[WorkerExit]) -> Seen:
    """Returns what was seen of `group`. All its ranks must have ended: an output may be read only
    after that."""
    ended = group.num_ended_before_kill
    return Seen(
        ranks={
            worker.rank: SeenRank(
                worker.output.reader.evidence(),
                worker.stage,
                worker.told_to_stop,
                worker.heard_no_sigterm,
            )
            for worker in group.workers
        },
        ended_before_kill=len(exits) if ended is None else ended,
        step=group.step,
        step_recognised=group.step is not None and group.reported_step is None,
        every_step=group.every_step,
        resumed_from=group.resumed_from,
        from_snapshot=group.from_snapshot,
        starting_step=group.starting_step,
        adjustable=group.adjustable,
        pattern_seen=any(each.success_seen for each in group.outputs),
        oom_kills=group.oom.rise(),
        lost_guard=group.lost_guard,
        survivors=group.late,
    )


def judged(
    at: float,
    files: HostFiles,
    launch: Launch,
    exits: Sequence[WorkerExit],
    seen: Seen,
    committed: int | None,
    tell: Tell,
    redact: Callable[[str], str],
) -> WorkersGone:
    """Judges the end of the attempt, and returns the event. All processes were gone at `at`.

    `exits` are in the order in which the engine saw the ranks end, `committed` is the newest
    committed step, and `redact` removes secrets.
    """
    ranks = tuple(evidence_of_ranks(files, launch, exits, seen, tell))
    return judged_by(at, files, launch, exits, ranks, seen, committed, tell, redact)


def judged_by(
    at: float,
    files: HostFiles,
    launch: Launch,
    exits: Sequence[WorkerExit],
    ranks: tuple[RankEvidence, ...],
    seen: Seen,
    committed: int | None,
    tell: Tell,
    redact: Callable[[str], str],
) -> WorkersGone:
    """Judges the end of an attempt by the evidence of its `ranks`: see `judged`."""
    stood = stacks_left(files, launch, exits)
    if stood and len(exits) > 1:
        tell(compared(stood))
    try:
        file_exists = _success_file_exists(files, launch, exits, committed)
        unanswered = None
    except OSError as error:
        file_exists, unanswered = False, store_failure(error, exits[0])
    evidence = Evidence(
        ranks=ranks,
        step=None if seen.step_recognised else seen.step,
        committed=committed,
        pattern_seen=seen.pattern_seen,
        file_exists=file_exists,
        host=HostFacts(
            oom_kills=seen.oom_kills,
            guard_lost=seen.lost_guard,
            free_disk=files.free_bytes(launch.model_dir),
        ),
        survivors=seen.survivors,
    )
    doubtful: str | None = None
    try:
        failure = _failure(launch, evidence, unanswered, tell, redact)
        if failure is not None:
            recognised = seen.step if seen.step_recognised else None
            failure = with_target(failure, evidence, launch.success, recognised)
            if launch.world_size == 1:
                failure = without_peers(failure)
        if failure is not None and _lacks_its_step(failure) and seen.every_step:
            failure = replace(failure, step=seen.step)
        if failure is None:
            doubtful = doubt(evidence, redact, is_proven=launch.success.is_proof)
    except Exception as error:  # output may hold anything, and a bug of ours must not stop the job
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
        resumed_from=seen.resumed_from,
        step=seen.step,
        committed=committed,
        adjustable=seen.adjustable,
        from_snapshot=seen.from_snapshot,
        starting_step=seen.starting_step,
        doubt=doubtful,
        exits=tuple(exits),
        step_recognised=seen.step_recognised,
        stood_at=one_line(redact(standing_place(stood))),
        heard_no_sigterm=bool(seen.ranks) and all(r.heard_no_sigterm for r in seen.ranks.values()),
    )


def with_torn_step(gone: WorkersGone, torn: Path | None) -> WorkersGone:
    """Returns the end of an attempt with `torn`, a newest step that is not complete. Its failure
    names that step if it may have failed on it (it could not decode something, or raised before its
    first step), and if the step shows what failed: its disk was full, or a save did not end."""
    if torn is None:
        return gone
    gone, failure = replace(gone, torn=str(torn)), gone.failure
    if failure is None:
        return gone
    raised_at_once = gone.step is None and failure.rule in ("program-error", "exception")
    if raised_at_once or failure.rule in UNDECODABLE_RULES:
        told = _TORN
    elif failure.rule in FULL_DISK_RULES:
        told = _CUT
    elif failure.rule == "early-exit":
        told = _UNSAVED
    else:
        return gone
    return replace(gone, failure=replace(failure, advice=f"{told.format(torn)} {failure.advice}"))


def _failure(
    launch: Launch,
    evidence: Evidence,
    unanswered: Failure | None,
    tell: Tell,
    redact: Callable[[str], str],
) -> Failure | None:
    """Returns the failure that the evidence shows, None for success; `unanswered` takes
    precedence."""
    failure = unanswered or judge_in_time(evidence, launch.success, launch.rules, tell, redact)
    return redacted(failure, redact) if failure is not None else None


def _lacks_its_step(failure: Failure) -> bool:
    """True if the batch to skip depends on the failure's step, which its record does not tell."""
    return failure.remedy is Remedy.ROLL_BACK and failure.step is None


def _told_mistake(error: Exception) -> str:
    """Returns the type of the exception and where it was raised. Its message may hold a secret."""
    frames = extract_tb(error.__traceback__)
    at = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"the end of the attempt cannot be judged ({type(error).__name__}{at})"


def redacted(failure: Failure, redact: Callable[[str], str]) -> Failure:
    """Returns `failure` with its texts redacted."""
    return replace(
        failure,
        root_cause=redact(failure.root_cause),
        traceback=redact(failure.traceback),
        where=redact(failure.where),
    )


def evidence_of_ranks(
    files: HostFiles,
    launch: Launch,
    exits: Sequence[WorkerExit],
    seen: Seen,
    tell: Tell,
) -> Iterator[RankEvidence]:
    """Yields the evidence of each rank, in the order of `exits`; `tell` gets what is unusable."""
    code_of_reader = pipe_that_hides_failure(launch.plan.argv) is not None
    for number, ended in enumerate(exits):
        record = _failure_record(files, launch, ended.rank, tell)
        stacks = _stacks_of_crash(files, launch, ended, tell)
        rank = seen.ranks.get(ended.rank)
        if rank is None:
            rank = SeenRank(
                _output(files, launch, ended.rank, tell), told_to_stop=ended.told_to_stop
            )
        told = replace(ended, told_to_stop=rank.told_to_stop and not rank.heard_no_sigterm)
        before_kill = number < seen.ended_before_kill
        yield RankEvidence(
            told, record, rank.output, rank.stage, before_kill, stacks, code_of_reader
        )


def _failure_record(
    files: HostFiles, launch: Launch, rank: int, tell: Tell
) -> FailureRecord | None:
    """Returns the worker's failure record; None: there is none, or it is unusable (`tell` gets a
    notice)."""
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
    """Returns the Python stacks of a worker whose native code crashed; empty: there are none."""
    if signal_of(ended) not in WITH_STACKS:
        return ""
    path = launch.file(ended.rank, "stacks.txt")
    try:
        return files.read(path, MAX_STACKS, launch.model_dir).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        text = f"the stacks of rank {ended.rank} cannot be used: {error}"
        tell(Notice("evidence-unusable", text, rank=ended.rank, reason=str(error)))
        return ""


def _output(files: HostFiles, launch: Launch, rank: int, tell: Tell) -> str:
    """Returns the part of a worker's output file that may tell why the worker ended."""
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
    """True if the file that proves success exists. It is looked for only if it matters: the config
    names one, and all ranks ended with the exit code of success.

    Raises:
        OSError: the bucket or file system does not answer.
    """
    success = launch.success
    if success.file is None or {ended.code for ended in exits} != {success.exit_code}:
        return False
    file = placeholders.expand(success.file, launch.values(committed))
    return files.success_file_exists(file)
