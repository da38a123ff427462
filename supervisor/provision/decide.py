"""Decides what to do about the slice of a job: a pure function of what the loop observes.

    WANTED --seen--> SEEN --the job ended--> ENDING --all is gone--> ENDED
      ^  |            |
      |  +--refused--+|  lost, failed, silent, too long in the queue
      |               v
      +--all is gone-- LEAVING

It is level-triggered: each turn observes all slices of the job that exist, and decides what to do
about them. The state has intents, never actions that were done. So it does no harm if an action is
lost, done twice, or done by a loop that is killed right after it. The job has one slice at a time:
the loop requests the next one only after all others are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from supervisor.core.exit_codes import ExitCode
from supervisor.host.retry import Pauses
from supervisor.ports import CloudSlice, Refusal, SliceState
from supervisor.provision.intent import LoopPolicy, ProvisionStage, ProvisionState


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What the job reports in status.json."""

    digest: str
    """The digest of the whole file, which has a time in it. The same digest means the same
    report."""
    exit_code: int | None = None
    step: int | None = None
    """The highest step ever committed."""
    words: str = ""
    """Status, attempt and step, as text for people."""


@dataclass(frozen=True, slots=True)
class MachineReport:
    """What the machine reports in place of the job: its boot failed, or the job's unit has
    ended."""

    failed: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What the loop observes in one turn."""

    slices: Mapping[int, CloudSlice] = field(default_factory=dict)
    """The slices of the job that exist, by generation."""
    status: JobStatus | None = None
    machine: MachineReport = MachineReport()
    sign: str = ""
    """Another text after each sign of life of the job."""
    refusal: Refusal | None = None
    """How the cloud has refused the request for a slice in this turn."""


@dataclass(frozen=True, slots=True)
class Create:
    """Request a slice."""

    generation: int
    rung: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a slice."""

    generation: int


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Make the next turn at the time `at`."""

    at: float


@dataclass(frozen=True, slots=True)
class End:
    """End the loop: the job has no slice any more, and nothing is left to do."""

    exit_code: int
    reason: str


Action = Create | Delete | WaitUntil | End
Outcome = tuple[ProvisionState, tuple[Action, ...]]


def take_over(state: ProvisionState | None, owner: str, policy: LoopPolicy) -> ProvisionState:
    """Returns the first state of a new loop, whose name is `owner`.

    The loop continues from `state`, the state of the previous loop. It begins anew if there is none
    or if that loop had ended. But if that loop had ended with success and the config is the same,
    the new loop ends too.
    """
    if state is None:
        return ProvisionState(owner, policy.config, rung=policy.rungs[0])
    succeeded = state.exit_code == ExitCode.SUCCEEDED and state.config == policy.config
    if state.stage is ProvisionStage.ENDED and not succeeded:
        return ProvisionState(
            owner, policy.config, generation=state.generation, rung=policy.rungs[0]
        )
    return replace(state, owner=owner)


def decide(state: ProvisionState, seen: Observation, now: float, policy: LoopPolicy) -> Outcome:
    """Returns the next state, which the loop must save first, and the actions to do after that."""
    if state.stage in (ProvisionStage.WANTED, ProvisionStage.SEEN):
        state = _judge(state, seen, now, policy)
    if state.stage in (ProvisionStage.LEAVING, ProvisionStage.ENDING) and seen.slices:
        state = replace(state, generation=max(state.generation, *seen.slices))
        return state, (*_deletions(seen), WaitUntil(now + policy.poll_deletion))
    if state.stage is ProvisionStage.ENDING:
        state = replace(state, stage=ProvisionStage.ENDED)
    if state.stage is ProvisionStage.ENDED:
        assert state.exit_code is not None
        return state, (End(state.exit_code, state.reason),)
    if state.stage is ProvisionStage.LEAVING:
        state = _want_next(state, seen, now, policy)
    if state.stage is ProvisionStage.SEEN or seen.slices:
        strays = _deletions(seen, but=state.generation)
        return state, (*strays, WaitUntil(now + policy.poll))
    if now < state.not_before:
        return state, (WaitUntil(state.not_before),)
    return state, (Create(state.generation, state.rung), WaitUntil(now + policy.poll))


def _deletions(seen: Observation, but: int | None = None) -> tuple[Delete, ...]:
    """Returns deletions of all slices that exist and are not being deleted yet, except `but`."""
    return tuple(
        Delete(generation)
        for generation, one in sorted(seen.slices.items())
        if generation != but and one.state is not SliceState.DELETING
    )


def _judge(
    state: ProvisionState, seen: Observation, now: float, policy: LoopPolicy
) -> ProvisionState:
    """Returns the state after the loop has observed the job and the slice of this generation."""
    if state.config != policy.config:
        return _start_afresh(state, policy)
    code = _exit_code(state, seen)
    if code is not None and _is_final(code):
        return _await_upload(state, code, seen, now, policy)
    if seen.refusal is not None:
        return _handle_refusal(state, seen.refusal, now, policy)
    one = seen.slices.get(state.generation)
    if one is None:
        return (
            state
            if state.stage is ProvisionStage.WANTED
            else _replace_lost(state, "is gone", now, policy)
        )
    state = replace(state, stage=ProvisionStage.SEEN)
    match one.state:
        case SliceState.ACTIVE:
            return _check_active(state, seen, now, policy)
        case SliceState.FAILED:
            refusal = one.refusal or Refusal("it does not say why", may_pass=True)
            return _handle_refusal(state, refusal, now, policy)
        case SliceState.SUSPENDING | SliceState.SUSPENDED | SliceState.DELETING:
            return _replace_lost(state, f"is {one.state}", now, policy)
    if _rung_to_request(state, now, policy) != state.rung:
        return _request_another(state, f"none of {state.rung} chips for too long", now, policy)
    return state


def _await_upload(
    state: ProvisionState, code: int, seen: Observation, now: float, policy: LoopPolicy
) -> ProvisionState:
    """The job has ended with `code`: end the loop.

    The machine may still upload files of the job. So if the slice is ACTIVE, the loop first waits
    for the report of the machine, for `upload_patience` at most.
    """
    ended_at = now if state.ended_at is None else state.ended_at
    one = seen.slices.get(state.generation)
    runs = one is not None and one.state is SliceState.ACTIVE and seen.machine.exit_code != code
    if runs and now - ended_at < policy.upload_patience:
        return replace(state, ended_at=ended_at)
    return _end(state, code, f"the job ended with exit code {code}")


def _exit_code(state: ProvisionState, seen: Observation) -> int | None:
    """Returns the exit code of the job on this slice; None: it has not ended.

    Both the machine and the job report it. A final code (`_is_final`) is preferred.
    """
    codes = [seen.machine.exit_code]
    if seen.status is not None and seen.status.digest != state.stale:
        codes.append(seen.status.exit_code)
    known = [code for code in codes if code is not None]
    return next((code for code in known if _is_final(code)), known[0] if known else None)


def _is_final(code: int) -> bool:
    """True if the job must not run again automatically after this exit code. A code that is no
    `ExitCode` is an accident, and not final."""
    return code in ExitCode.__members__.values() and not ExitCode(code).run_again


def _check_active(
    state: ProvisionState, seen: Observation, now: float, policy: LoopPolicy
) -> ProvisionState:
    """The slice exists: check that its job is alive."""
    state = replace(state, since=None)
    if seen.sign != state.sign:
        state = replace(state, sign=seen.sign, heard_at=now, spoken=True, refusals=0, mute=0)
    if seen.machine.failed is not None:
        return _replace_silent(state, f"did not boot: {seen.machine.failed}", now, policy)
    if _exit_code(state, seen) == ExitCode.NO_CAPACITY:
        return _replace_unusable(state, seen, now, policy)
    if state.heard_at is None:
        return replace(state, heard_at=now)
    silence = now - state.heard_at
    if silence > (policy.silent_after if state.spoken else policy.boot_within):
        return _replace_silent(state, f"was silent for {silence / 60:.0f} minutes", now, policy)
    return state


def _replace_silent(
    state: ProvisionState, what: str, now: float, policy: LoopPolicy
) -> ProvisionState:
    """The slice exists, but its job reports nothing: replace the slice, or end the loop after
    `max_mute` such slices in a row."""
    state = replace(state, mute=state.mute + 1)
    if state.mute < policy.max_mute:
        return _request_another(state, f"slice {state.generation} {what}", now, policy)
    why = f"slice {state.generation} {what}; so did {policy.max_mute} in a row"
    return _end(state, ExitCode.FAILED, why)


def _replace_unusable(
    state: ProvisionState, seen: Observation, now: float, policy: LoopPolicy
) -> ProvisionState:
    """The job cannot use the devices of its slice (69): they are missing, stay busy or are broken.

    Replace the slice. After `max_unusable` such slices in a row without a new checkpoint, end the
    loop: another slice would not help.
    """
    step = seen.status.step if seen.status is not None else None
    went_on = step is not None and (state.step is None or step > state.step)
    times = 1 if went_on else state.unusable + 1
    state = replace(state, unusable=times, step=step if went_on else state.step)
    what = "has devices that cannot be used, says the job (69)"
    if times < policy.max_unusable:
        told = f"{what}; {times} of {policy.max_unusable} in a row without a new checkpoint"
        return _replace_lost(state, told, now, policy)
    many = f"so had {policy.max_unusable} in a row, without a new checkpoint between"
    return _end(state, ExitCode.FAILED, f"slice {state.generation} {what}; {many}")


def _replace_lost(
    state: ProvisionState, what: str, now: float, policy: LoopPolicy
) -> ProvisionState:
    """The slice is lost. If its job was running, request the next slice at once, on the full rung;
    else pause first."""
    why = f"slice {state.generation} {what}"
    if not state.spoken:
        return _request_another(state, why, now, policy)
    rung = policy.rungs[0]
    return replace(
        state, stage=ProvisionStage.LEAVING, reason=why, rung=rung, since=None, not_before=now
    )


def _handle_refusal(
    state: ProvisionState, refusal: Refusal, now: float, policy: LoopPolicy
) -> ProvisionState:
    if not refusal.may_pass:
        return _end(state, ExitCode.INVALID_CONFIG, f"the cloud refuses: {refusal.text}")
    return _request_another(state, refusal.text, now, policy)


def _request_another(
    state: ProvisionState, why: str, now: float, policy: LoopPolicy
) -> ProvisionState:
    """Request another slice, after a pause that grows with each try. If it is time for a smaller
    rung, request that at once."""
    rung = _rung_to_request(state, now, policy)
    since = state.since if rung == state.rung else None
    pause = Pauses(policy.backoff_first, policy.backoff_max).before(state.refusals + 1)
    return replace(
        state,
        stage=ProvisionStage.LEAVING,
        reason=why,
        rung=rung,
        since=since,
        refusals=state.refusals + 1 if rung == state.rung else 0,
        not_before=now + pause if rung == state.rung else now,
    )


def _rung_to_request(state: ProvisionState, now: float, policy: LoopPolicy) -> int:
    """Returns the rung to request: the next smaller one if the loop has tried the present one for
    `smaller_after` seconds in vain."""
    if state.since is None or now - state.since < policy.smaller_after:
        return state.rung
    return next((rung for rung in policy.rungs if rung < state.rung), state.rung)


def _end(state: ProvisionState, code: int, reason: str) -> ProvisionState:
    return replace(state, stage=ProvisionStage.ENDING, exit_code=int(code), reason=reason)


def _start_afresh(state: ProvisionState, policy: LoopPolicy) -> ProvisionState:
    """The config has changed: replace the slice, and forget all counts and times."""
    afresh = ProvisionState(state.owner, policy.config, generation=state.generation)
    return replace(afresh, rung=policy.rungs[0], reason="the config has changed")


def _want_next(
    state: ProvisionState, seen: Observation, now: float, policy: LoopPolicy
) -> ProvisionState:
    """All slices are gone: returns the state that wants the next generation."""
    if state.config != policy.config:
        state = _start_afresh(state, policy)
    return replace(
        state,
        stage=ProvisionStage.WANTED,
        generation=state.generation + 1,
        since=now if state.since is None else state.since,
        stale=seen.status.digest if seen.status is not None else "",
        sign=seen.sign,
        heard_at=None,
        spoken=False,
    )
