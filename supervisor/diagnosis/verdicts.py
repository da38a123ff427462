"""Judges the evidence of an attempt's end: success, or a failure with cause and verdict.

Each error of each rank is judged by itself. The failure of the attempt is the judgement of the most
likely root cause (see `weighing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from errno import EACCES, ENOENT, ENOEXEC, ENOTDIR, errorcode
from typing import TypeVar

from supervisor.config.judgement import Remedy
from supervisor.config.patterns import SlowPatternError
from supervisor.diagnosis.certainty import grounds, is_certain
from supervisor.diagnosis.chain import Chain
from supervisor.diagnosis.comparing import is_compared, signature_of
from supervisor.diagnosis.crash import place_of_crash, python_stack
from supervisor.diagnosis.doubt import hidden_failure
from supervisor.diagnosis.failure import Evidence, Failure, WorkerExit, told_survivors
from supervisor.diagnosis.outcome import Charge, Confidence, Verdict
from supervisor.diagnosis.rules import NOT_FINITE, NOT_NUMBERS, RULES, STILL_RUNNING, Rule
from supervisor.diagnosis.stores import is_of_a_store
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.weighing import Judgement, is_hearsay, ranked_judgements
from supervisor.host.notice import Notice, Tell
from supervisor.protocol.failure_record import FailureRecord
from supervisor.protocol.messages import Stage, printable

_MAX_ROOT_CAUSE = 400
_MAX_BEGINNING = 240
_Answer = TypeVar("_Answer")


def succeeded(evidence: Evidence, success: Success) -> bool:
    """True if the attempt has done the work of its phase.

    A worker that got SIGTERM may exit with the success code before its work is done, so then the
    exit code alone proves nothing. Nor does it where it hides a failure.
    """
    if any(rank.exit.code != success.exit_code for rank in evidence.ranks) or not evidence.ranks:
        return False
    told_to_stop = any(rank.exit.told_to_stop for rank in evidence.ranks)
    if not success.is_proof and (evidence.survivors or told_to_stop):
        return False
    if not success.is_proof and any(map(hidden_failure, evidence.ranks)):
        return False
    if success.step is not None:
        step = evidence.committed
        if not success.committed:
            step = max((s for s in (step, evidence.step) if s is not None), default=None)
        return step is not None and step >= success.step
    if success.pattern is not None:
        return evidence.pattern_seen
    return success.file is None or evidence.file_exists


def judge(
    evidence: Evidence,
    success: Success,
    rules: tuple[Rule, ...] = RULES,
    redact: Callable[[str], str] = str,
) -> Failure | None:
    """Returns the failure that the evidence shows, by the first rule that matches; None: success.

    `redact` removes secrets from texts before they are shortened: half a secret would not be
    recognised.
    """
    if succeeded(evidence, success):
        return None
    found, _ = ranked_judgements(evidence, success, rules)
    return failure_of(found[0], evidence, redact)


def judge_in_time(
    evidence: Evidence,
    success: Success,
    rules: tuple[Rule, ...],
    tell: Tell,
    redact: Callable[[str], str] = str,
) -> Failure | None:
    """Judge, leaving out rules of the config whose patterns take too long; `tell` of each of
    them."""
    return in_time(lambda rules: judge(evidence, success, rules, redact), rules, tell)


def in_time(
    ask: Callable[[tuple[Rule, ...]], _Answer],
    rules: tuple[Rule, ...],
    tell: Tell,
) -> _Answer:
    """Returns `ask(rules)`, leaving out rules of the config whose patterns take too long; `tell` of
    each of them."""
    while True:
        try:
            return ask(rules)
        except SlowPatternError as slow:
            tell(
                Notice(
                    "pattern-slow",
                    f"{slow}: its rule is passed over; make the pattern simpler",
                    detail=slow.source,
                )
            )
            rules = tuple(rule for rule in rules if slow.source not in rule.patterns)


_HANG_ADVICE = (
    "Read in the stacks (rank*stacks.txt) what it waits for, and mend that. Only if they show it "
    "at work, give it more time: a longer trainer.init.autorestart.deadlines.{stage} (in the "
    "config, or by --set)."
)


def hang_failure(end: Failure | None, stage: Stage, seconds: float, stood_at: str = "") -> Failure:
    """Returns the failure of a group that was stopped because it hung; `end` is its judged end, and
    `stood_at` the place where it stood, if it is known.

    `end` is None if it ended with success, as a trainer does that saves on SIGTERM. A FATAL `end`
    is returned instead of a hang: a rank that failed may hang in its exit handlers for minutes. It
    becomes a guess, because the error may come from its SIGTERM handler.
    """
    if end is not None and end.says_fatal:
        return _doubted(end) if end.certain else end
    ended = end.exit if end is not None else "well"
    return Failure(
        cause=f"hang in stage {stage}",
        verdict=Verdict.RESTART,
        rule="hang",
        reason=f"The deadline of the stage passed; nothing was reported for {seconds:.1f} s.",
        advice=_HANG_ADVICE.format(stage=stage),
        root_cause=f"silent for {seconds:.1f} s in stage {stage}, then ended by supervise: {ended}",
        rank=end.rank if end is not None else 0,
        exit=ended,
        certain=False,
        confidence=Confidence.HIGH,
        hardware=True,  # a device may hang too
        machine=stage is Stage.INITIALIZING,
        traceback=end.traceback if end is not None else "",
        where=stood_at,
    )


def not_finite_failure(
    end: Failure | None, since: int, times: int, finite: int | None, before: int | None
) -> Failure:
    """Returns the failure of a group that was killed because its losses stayed NaN or Inf from step
    `since` on; `end` is its judged end.

    `times` is how many such losses came in a row, `finite` the last step with a finite one, and
    `before` the newest step that was committed before them, if these are known. A FATAL `end` is
    returned instead: the program had found an error itself.
    """
    if end is not None and end.says_fatal:
        return end
    cause, reason, _ = NOT_NUMBERS
    kept = "No checkpoint from before it is known."
    if before is not None:
        kept = f"The newest checkpoint from before it is that of step {before}, as far as is seen."
    return Failure(
        cause=cause,
        verdict=Verdict.POLICY,
        rule=NOT_FINITE,
        reason=reason,
        advice=f"Look at the data and the learning rate at step {since}. {kept} What was saved at "
        f"step {since} or later may hold the NaN or Inf: move only that aside before you run the "
        "command again.",
        root_cause=f"{times} losses in a row are NaN or Inf, from step {since} on",
        rank=0,
        exit=end.exit if end is not None else "well",
        certain=False,
        confidence=Confidence.HIGH,
        remedy=Remedy.ROLL_BACK,
        step=finite if finite == since - 1 else None,  # else it is not known which step gave it
    )


def _doubted(end: Failure) -> Failure:
    why = "a guess: the group hung and got SIGTERM, so the error may come from a SIGTERM handler"
    return replace(end, certain=False, grounds=why, compared=True)


def launch_failure(error: OSError | ValueError, argv: tuple[str, ...]) -> Failure:
    """Returns the failure of a command that could not be started.

    It is a ValueError if the workers cannot share the devices of the rung.
    """
    if isinstance(error, ValueError):
        return Failure(
            cause="the workers cannot be placed on the devices",
            verdict=Verdict.FATAL,
            rule="launch",
            reason="The supervisor cannot make the variables that give each worker its devices.",
            advice="Correct init.devices, init.workers or autorestart.ladder.",
            root_cause=printable(f"{argv[0]}: {error}"),
            rank=0,
            exit="not started",
            certain=False,
            grounds="a guess: another number of devices may work",
            signature="launch-ValueError",
            per_rung=True,
        )
    for_good = error.errno in (ENOENT, EACCES, ENOEXEC, ENOTDIR)
    return Failure(
        cause="the command cannot be started",
        verdict=Verdict.FATAL if for_good else Verdict.RESTART,
        rule="launch",
        reason=(
            "The program is missing or not executable."
            if for_good
            else "The system refused to start it; that may pass."
        ),
        advice="Correct command.argv."
        if for_good
        else "Check the limits on processes and memory (ulimit, cgroup).",
        root_cause=printable(f"{argv[0]}: {error.strerror}"),
        rank=0,
        exit="not started",
        certain=False,
        grounds="a guess: a mount that is gone for a while looks like this, too"
        if for_good
        else "",
        signature=f"launch-{errorcode[error.errno or 0]}" if for_good else None,
    )


def no_hosts_failure(why: str) -> Failure:
    """Returns the failure of an attempt that could not be started for lack of hosts, for the reason
    `why`. It charges nothing."""
    return Failure(
        cause="the hosts of the attempt are not there",
        verdict=Verdict.RESTART,
        rule="host-lost",
        reason="A host was lost, or did not become ready, before the workers were started.",
        advice="Nothing, unless it happens often: then look at the cluster.",
        root_cause=printable(why),
        rank=0,
        exit="not started",
        charge=Charge.NOTHING,
        compared=False,
        struck=True,
    )


def host_lost_failure(end: Failure, host: str, why: str) -> Failure:
    """Returns the failure of an attempt that ended because `host` was lost, or cut off from the
    supervisor; `end` is the judged end of its rank. It charges nothing: no program can help it."""
    return replace(
        end,
        cause="a host was lost",
        verdict=Verdict.RESTART,
        certain=True,
        grounds="",
        remedy=None,
        rule="host-lost",
        reason="The host ended, or was cut off: its guard killed the worker at the deadline.",
        advice="Nothing, unless it happens often: then look at that host and its network.",
        root_cause=printable(f"{host}: {why}"),
        charge=Charge.NOTHING,
        signature=None,
        compared=False,
        blames_host=False,
    )


def leader_slept_failure(end: Failure, why: str) -> Failure:
    """Returns the failure of an attempt whose workers were killed because the supervisor itself did
    not run, and answered no host; `end` is the judged end of a rank. It charges nothing."""
    return replace(
        host_lost_failure(end, "", ""),
        cause="this supervisor did not run",
        reason="No host was answered for `lost_after`: so their guards killed the workers.",
        advice="Nothing, unless it happens often: then see what stops or slows the machine of this "
        "supervisor, or give it more time by `init.hosts.lost_after`.",
        root_cause=printable(why),
    )


def damaged_checkpoints(steps: Sequence[int], reason: str, directory: str) -> Failure:
    """Returns the failure of a launch before which every checkpoint in `directory` was found
    damaged; `reason` is what is wrong with the first one of `steps`."""
    told = f"steps {', '.join(map(str, steps))}" if len(steps) > 1 else f"step {steps[0]}"
    return Failure(
        cause="every checkpoint is damaged",
        verdict=Verdict.FATAL,
        rule="no-usable-checkpoint",
        reason=(
            "The files of every checkpoint differ from what was committed; only a person may "
            "decide to start from the beginning."
        ),
        advice=(
            f"Nothing was moved. Put an undamaged copy into {directory}, or, to start from the "
            "beginning, move the damaged checkpoints away; then run the same command again. "
            "Suspect the storage."
        ),
        root_cause=printable(f"{told}; of step {steps[0]}, {reason}"),
        rank=0,
        exit="not started",
        grounds="certain: their files were compared with what was committed",
        confidence=Confidence.HIGH,
    )


def unavailable_checkpoint(step: int, why: str, directory: str) -> Failure:
    """Returns the failure of a launch whose checkpoint in `directory` is not there now, perhaps
    because its disk is not mounted."""
    return Failure(
        cause="a checkpoint is not there now",
        verdict=Verdict.RESTART,
        rule="launch",
        reason="Its disk may not be mounted. Without it the program would begin further back.",
        advice=(
            f"Mount the disk. If the checkpoint is gone for good, remove what is left of it in "
            f"{directory}."
        ),
        root_cause=printable(f"step {step}: {why}"),
        rank=0,
        exit="not started",
        charge=Charge.NOTHING,
        certain=False,
        remedy=Remedy.WAIT_FOR_STORAGE,
    )


def immovable_checkpoint(step: int, error: OSError) -> Failure:
    """Returns the failure of a launch whose program would restore a damaged checkpoint, because
    that cannot be moved aside."""
    return Failure(
        cause="a damaged checkpoint cannot be moved aside",
        verdict=Verdict.RESTART,
        rule="launch",
        reason="The program would restore it; the next try may move it.",
        advice="Move it away yourself; the error says what prevents it.",
        root_cause=printable(f"step {step}: {error.strerror or error}"),
        rank=0,
        exit="not started",
        certain=False,
    )


def store_failure(error: OSError, ended: WorkerExit) -> Failure:
    """Returns the failure of an end whose success file is in a store that does not answer."""
    return Failure(
        cause="storage or network trouble",
        verdict=Verdict.RESTART,
        rule="success-file",
        reason="The success file is in a bucket, which did not answer.",
        advice="Check that this host can read the bucket; the next attempt may find the work done.",
        root_cause=printable(error.strerror or str(error)),
        rank=ended.rank,
        exit=str(ended),
        charge=Charge.NOTHING,
        certain=False,
        remedy=Remedy.WAIT_FOR_STORAGE,
    )


def unproven_failure(
    step: int, target: int, last: int | None, exits: Sequence[WorkerExit]
) -> Failure:
    """Returns the failure of an attempt that ended well, but whose success only the committed
    `step` would prove, which may be a base model's: nothing shows that the program trained so far.
    `last` is the last step that the program told."""
    ended = exits[0] if exits else None
    at = "which is" if step == target else "above"
    told = "" if last is None else f" (the last step that it told: {last})"
    return Failure(
        cause="ended before its work was done, as far as is known",
        verdict=Verdict.RESTART,
        rule="early-exit",
        reason=(
            f"Step {step} is committed, {at} success.step ({target}), but nothing shows that "
            f"the program trained so far{told}: it may be a base model's."
        ),
        advice=(
            "If the work is done, give its last step (`--success-step N`), or how the output tells "
            "steps (`--set 'trainer.command.progress.pattern=...'`). Keep base models out of the "
            "folder where the program saves."
        ),
        root_cause=f"{ended or 'ended well'}, but step {step} may be a base model's",
        rank=ended.rank if ended is not None else 0,
        exit=str(ended or ""),
        confidence=Confidence.MEDIUM,
    )


def with_target(
    failure: Failure, evidence: Evidence, success: Success, recognised: int | None
) -> Failure:
    """Returns the `failure` with the steps that were compared, if `success.step` is not reached.
    `recognised` is the last step that was only recognised in the output; None: none was."""
    if failure.rule != "early-exit" or success.step is None:
        return failure
    known = [evidence.committed, None if success.committed else evidence.step]
    reached = max((step for step in known if step is not None), default=None)
    if reached is None:
        return failure
    what = "the newest committed step" if reached == evidence.committed else "the last step"
    failure = replace(
        failure,
        reason=f"It exited with code 0 at step {reached} ({what}), before success.step "
        f"({success.step}).",
    )
    if recognised is None or recognised < success.step or success.committed:
        return failure
    return replace(
        failure,
        advice=(
            f"The output shows step {recognised}, which was only recognised there, and proves "
            "nothing. If it is right, give `--set 'trainer.command.progress.pattern=...'`, or have "
            "the program save its last step."
        ),
    )


def without_peers(failure: Failure) -> Failure:
    """Returns the `failure` of a job with one worker, told without peers: it has none."""
    if failure.rule != "lost-peer":
        return failure
    connection = next(rule for rule in RULES if rule.name == "connection")
    return replace(
        failure, cause=connection.cause, reason=connection.reason, advice=connection.advice
    )


def unjudged_failure(error: Exception, exits: Sequence[WorkerExit]) -> Failure:
    """Returns the failure of an end whose judgement raised `error`, which is a bug of ours."""
    ended = next((each for each in exits if not each.clean), exits[0])
    return Failure(
        cause="unknown error, which supervise failed to judge",
        verdict=Verdict.RESTART,
        rule="unjudged",
        reason=f"The judgement itself failed, with {type(error).__name__}; another try may pass.",
        advice="Read the attempt's log; report the exception, which is a bug of supervise.",
        root_cause=str(ended),
        rank=ended.rank,
        exit=str(ended),
        certain=False,
    )


def failure_of(
    judgement: Judgement, evidence: Evidence, redact: Callable[[str], str] = str
) -> Failure:
    """Returns the failure whose root cause is `judgement`; for `redact` see `judge`."""
    rule, rank, chain, member = judgement.rule, judgement.rank, judgement.chain, judgement.member
    line = member.line if member is not None else str(rank.exit)
    if STILL_RUNNING in rule.facts:
        line = f"{line}, but still running: {told_survivors(evidence.survivors)}"
    charge, remedy = rule.charge, rule.remedy
    if (
        rule.store_trouble_is_free
        and chain is not None
        and member is not None
        and is_of_a_store(chain, member)
    ):
        charge, remedy = Charge.NOTHING, Remedy.WAIT_FOR_STORAGE
    return Failure(
        cause=rule.cause,
        verdict=rule.verdict,
        rule=rule.name,
        reason=rule.reason,
        advice=rule.advice,
        root_cause=one_line(redact(line)),
        rank=rank.exit.rank,
        exit=str(rank.exit),
        charge=charge,
        certain=is_certain(judgement),
        grounds=grounds(judgement),
        confidence=_confidence(rule, chain),
        signature=signature_of(judgement, evidence),
        compared=is_compared(judgement),
        remedy=remedy,
        hardware=rule.hardware,
        machine=rule.hardware,
        per_rung=rule.per_rung,
        struck=judgement.killed_first,
        blames_host=rule.verdict is not Verdict.FATAL
        and charge is Charge.RESTARTS
        and not rule.victim,
        step=rank.record.step if rank.record is not None else None,
        traceback=_traceback(rank.record, chain) or python_stack(rank),
        where=one_line(redact(place_of(judgement))),
    )


def place_of(judgement: Judgement) -> str:
    """Returns the innermost place in the user's own code that the error passed through, or that
    called native code when this crashed; empty: not known."""
    said = judgement.member.at if judgement.member is not None else ""
    return said or place_of_crash(python_stack(judgement.rank))


def _traceback(record: FailureRecord | None, chain: Chain | None) -> str:
    """Returns the traceback of the failure record; empty if the root cause is another error, that
    the output shows."""
    is_of_output = chain is not None and not chain.is_recorded
    return "" if record is None or is_of_output else record.traceback


def one_line(text: str) -> str:
    """Returns `text` in one line, without the middle of a long one: its end may be the name of a
    file. `text` must hold no secrets."""
    if len(text) > _MAX_ROOT_CAUSE:
        text = f"{text[:_MAX_BEGINNING]}...{text[_MAX_BEGINNING + 3 - _MAX_ROOT_CAUSE :]}"
    return printable(text)


def _confidence(rule: Rule, chain: Chain | None) -> Confidence:
    caught = is_hearsay(chain)
    if caught and rule.confidence is Confidence.HIGH:
        return Confidence.MEDIUM
    return Confidence.LOW if caught else rule.confidence
