"""What to do about the slice of a job: a pure function over all that is seen of it.

    WANTED --seen--> SEEN --the job ended--> ENDING --all is gone--> ENDED
      ^  |            |
      |  +--refused--+|  lost, failed, silent, too long in the queue
      |               v
      +--all is gone-- LEAVING

Level-triggered: each turn looks at all slices of the job that there are, and says what is to be
done about them. What is kept are intents, never what was done: so an action that was lost, done
twice, or done by a loop that was killed right after it is harmless. There is one slice at a time,
and the next one is asked for only once all others are gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

from pydantic import TypeAdapter

from supervisor.core.exit_codes import ExitCode
from supervisor.ports import Refusal, Slice, SliceState
from supervisor.protocol.reading import parse_object

VERSION = 1
_MAX_GENERATION = 10**9


class Stage(StrEnum):
    """What is intended."""

    WANTED = "WANTED"
    """A slice of this generation: it is asked for until it is seen."""
    SEEN = "SEEN"
    """To keep it; it has been seen."""
    LEAVING = "LEAVING"
    """To delete all that there is, and then to ask for the next generation."""
    ENDING = "ENDING"
    """To delete all that there is, and then to end."""
    ENDED = "ENDED"


@dataclass(frozen=True, slots=True)
class State:
    """All that one turn leaves to the next, also to that of another loop. Times are seconds of the
    wall clock; `rung` is a number of chips."""

    owner: str
    """The loop that may act."""
    config: str
    """A digest of what was asked for."""
    stage: Stage = Stage.LEAVING
    generation: int = 0
    rung: int = 0
    reason: str = ""
    """Why it is LEAVING or ENDING."""
    since: float | None = None
    """Since when this rung has been asked for in vain."""
    not_before: float = 0.0
    """When to ask again."""
    refusals: int = 0
    """Tries in a row that came to nothing."""
    mute: int = 0
    """Slices in a row whose job was never heard of."""
    unusable: int = 0
    """Slices in a row of which the job said that it cannot use them, without a new checkpoint
    between."""
    step: int | None = None
    """The highest committed step that the job reported when it could not use a slice."""
    stale: str = ""
    """What status.json said before this generation: it says nothing of it."""
    sign: str = ""
    """The last sign of life of the job."""
    heard_at: float | None = None
    """When that was, or when the slice became ACTIVE; None: it did not yet."""
    spoken: bool = False
    """Whether the job was heard of on this slice."""
    ended_at: float | None = None
    """When the job was first seen to have ended."""
    exit_code: int | None = None


_STATE = TypeAdapter(State)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What the job says of itself, in status.json."""

    digest: str
    """Of all that it says, the time included: two that are equal are one."""
    exit_code: int | None = None
    step: int | None = None
    """The highest step ever committed."""
    words: str = ""
    """For people."""


@dataclass(frozen=True, slots=True)
class MachineReport:
    """What the slice says of the job where that cannot: it did not boot, or its unit has ended."""

    failed: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """All that is seen in one turn. `sign` is another one whenever the job has given a sign of
    life; `refusal` is what the cloud answered just now to being asked."""

    slices: Mapping[int, Slice] = field(default_factory=dict)
    status: JobStatus | None = None
    machine: MachineReport = MachineReport()
    sign: str = ""
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """What is asked for, and how long what may take, in seconds."""

    config: str
    rungs: tuple[int, ...]
    """Numbers of chips, the full one first."""
    smaller_after: float = 1800.0
    poll: float = 30.0
    poll_deletion: float = 10.0
    backoff_first: float = 60.0
    backoff_max: float = 600.0
    boot_within: float = 1800.0
    """From ACTIVE to the first sign of life of the job."""
    silent_after: float = 900.0
    """From one sign of life to the next, of which there should be one each 10 s."""
    max_mute: int = 3
    max_unusable: int = 3
    upload_patience: float = 60.0
    """From the end of the job to that of its machine, if that does not say that all has ended."""


@dataclass(frozen=True, slots=True)
class Create:
    """Ask for a slice."""

    generation: int
    rung: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Give a slice back."""

    generation: int


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Look again then."""

    at: float


@dataclass(frozen=True, slots=True)
class End:
    """There is nothing left to do, and no slice."""

    exit_code: int
    reason: str


Action = Create | Delete | WaitUntil | End
Outcome = tuple[State, tuple[Action, ...]]


def take_over(state: State | None, owner: str, policy: Policy) -> State:
    """The state of a loop that begins: where the last one stood, or at the beginning if that one
    had ended, unless it ended in success and nothing has changed since."""
    if state is None:
        return State(owner, policy.config, rung=policy.rungs[0])
    succeeded = state.exit_code == ExitCode.SUCCEEDED and state.config == policy.config
    if state.stage is Stage.ENDED and not succeeded:
        return State(owner, policy.config, generation=state.generation, rung=policy.rungs[0])
    return replace(state, owner=owner)


def decide(state: State, seen: Observation, now: float, policy: Policy) -> Outcome:
    """The next state, which is to be written down first, and what is then to be done."""
    if state.stage in (Stage.WANTED, Stage.SEEN):
        state = _judged(state, seen, now, policy)
    if state.stage in (Stage.LEAVING, Stage.ENDING) and seen.slices:
        state = replace(state, generation=max(state.generation, *seen.slices))
        return state, (*_deletions(seen), WaitUntil(now + policy.poll_deletion))
    if state.stage is Stage.ENDING:
        state = replace(state, stage=Stage.ENDED)
    if state.stage is Stage.ENDED:
        assert state.exit_code is not None
        return state, (End(state.exit_code, state.reason),)
    if state.stage is Stage.LEAVING:
        state = _next(state, seen, now, policy)
    if state.stage is Stage.SEEN or seen.slices:
        strays = _deletions(seen, but=state.generation)
        return state, (*strays, WaitUntil(now + policy.poll))
    if now < state.not_before:
        return state, (WaitUntil(state.not_before),)
    return state, (Create(state.generation, state.rung), WaitUntil(now + policy.poll))


def _deletions(seen: Observation, but: int | None = None) -> tuple[Delete, ...]:
    """What is there and is not being deleted yet."""
    return tuple(
        Delete(generation)
        for generation, one in sorted(seen.slices.items())
        if generation != but and one.state is not SliceState.DELETING
    )


def _judged(state: State, seen: Observation, now: float, policy: Policy) -> State:
    """The state after a look at the job and at the slice of this generation."""
    if state.config != policy.config:
        return _afresh(state, policy)
    code = _exit_code(state, seen)
    if code is not None and _is_final(code):
        return _ended(state, code, seen, now, policy)
    if seen.refusal is not None:
        return _refused(state, seen.refusal, now, policy)
    one = seen.slices.get(state.generation)
    if one is None:
        return state if state.stage is Stage.WANTED else _lost(state, "is gone", now, policy)
    state = replace(state, stage=Stage.SEEN)
    match one.state:
        case SliceState.ACTIVE:
            return _active(state, seen, now, policy)
        case SliceState.FAILED:
            refusal = one.refusal or Refusal("it does not say why", may_pass=True)
            return _refused(state, refusal, now, policy)
        case SliceState.SUSPENDING | SliceState.SUSPENDED | SliceState.DELETING:
            return _lost(state, f"is {one.state}", now, policy)
    if _smaller(state, now, policy) != state.rung:
        return _again(state, f"none of {state.rung} chips for too long", now, policy)
    return state


def _ended(state: State, code: int, seen: Observation, now: float, policy: Policy) -> State:
    """The job says that it has ended: its machine may have some of its files still to upload."""
    ended_at = now if state.ended_at is None else state.ended_at
    one = seen.slices.get(state.generation)
    runs = one is not None and one.state is SliceState.ACTIVE and seen.machine.exit_code != code
    if runs and now - ended_at < policy.upload_patience:
        return replace(state, ended_at=ended_at)
    return _ending(state, code, f"the job ended with exit code {code}")


def _exit_code(state: State, seen: Observation) -> int | None:
    """With what the job on this slice has ended, the final one of two accounts."""
    codes = [seen.machine.exit_code]
    if seen.status is not None and seen.status.digest != state.stale:
        codes.append(seen.status.exit_code)
    known = [code for code in codes if code is not None]
    return next((code for code in known if _is_final(code)), known[0] if known else None)


def _is_final(code: int) -> bool:
    """Whether nobody should run it again by itself; a code that is in no table is an accident."""
    return code in ExitCode.__members__.values() and not ExitCode(code).run_again


def _active(state: State, seen: Observation, now: float, policy: Policy) -> State:
    """The slice is there: whether its job lives."""
    state = replace(state, since=None)
    if seen.sign != state.sign:
        state = replace(state, sign=seen.sign, heard_at=now, spoken=True, refusals=0, mute=0)
    if seen.machine.failed is not None:
        return _mute(state, f"did not boot: {seen.machine.failed}", now, policy)
    if _exit_code(state, seen) == ExitCode.NO_CAPACITY:
        return _unusable(state, seen, now, policy)
    if state.heard_at is None:
        return replace(state, heard_at=now)
    silence = now - state.heard_at
    if silence > (policy.silent_after if state.spoken else policy.boot_within):
        return _mute(state, f"was silent for {silence / 60:.0f} minutes", now, policy)
    return state


def _mute(state: State, what: str, now: float, policy: Policy) -> State:
    """A slice is there whose job is not heard of."""
    state = replace(state, mute=state.mute + 1)
    if state.mute < policy.max_mute:
        return _again(state, f"slice {state.generation} {what}", now, policy)
    why = f"slice {state.generation} {what}; so did {policy.max_mute} in a row"
    return _ending(state, ExitCode.FAILED, why)


def _unusable(state: State, seen: Observation, now: float, policy: Policy) -> State:
    """The job cannot use the devices of its slice (69): they are missing, busy for good or broken.
    Where so many slices are, one after the other, it is not for the next one to help."""
    step = seen.status.step if seen.status is not None else None
    went_on = step is not None and (state.step is None or step > state.step)
    times = 1 if went_on else state.unusable + 1
    state = replace(state, unusable=times, step=step if went_on else state.step)
    what = "has devices that cannot be used, says the job (69)"
    if times < policy.max_unusable:
        told = f"{what}; {times} of {policy.max_unusable} in a row without a new checkpoint"
        return _lost(state, told, now, policy)
    many = f"so had {policy.max_unusable} in a row, without a new checkpoint between"
    return _ending(state, ExitCode.FAILED, f"slice {state.generation} {what}; {many}")


def _lost(state: State, what: str, now: float, policy: Policy) -> State:
    """A slice is no more: the next one at once, on the full rung, if its job had been running."""
    why = f"slice {state.generation} {what}"
    if not state.spoken:
        return _again(state, why, now, policy)
    rung = policy.rungs[0]
    return replace(state, stage=Stage.LEAVING, reason=why, rung=rung, since=None, not_before=now)


def _refused(state: State, refusal: Refusal, now: float, policy: Policy) -> State:
    if not refusal.may_pass:
        return _ending(state, ExitCode.INVALID_CONFIG, f"the cloud refuses: {refusal.text}")
    return _again(state, refusal.text, now, policy)


def _again(state: State, why: str, now: float, policy: Policy) -> State:
    """Another try, after a pause that grows with each, on a smaller rung if it is time for that."""
    rung = _smaller(state, now, policy)
    since = state.since if rung == state.rung else None
    pause = min(policy.backoff_first * 2.0 ** min(state.refusals, 30), policy.backoff_max)
    return replace(
        state,
        stage=Stage.LEAVING,
        reason=why,
        rung=rung,
        since=since,
        refusals=state.refusals + 1 if rung == state.rung else 0,
        not_before=now + pause if rung == state.rung else now,
    )


def _smaller(state: State, now: float, policy: Policy) -> int:
    """The rung to ask for: the next smaller one, once this one was asked for in vain for long."""
    if state.since is None or now - state.since < policy.smaller_after:
        return state.rung
    return next((rung for rung in policy.rungs if rung < state.rung), state.rung)


def _ending(state: State, code: int, reason: str) -> State:
    return replace(state, stage=Stage.ENDING, exit_code=int(code), reason=reason)


def _afresh(state: State, policy: Policy) -> State:
    """What was asked for until now is of no use."""
    afresh = State(state.owner, policy.config, generation=state.generation)
    return replace(afresh, rung=policy.rungs[0], reason="the config has changed")


def _next(state: State, seen: Observation, now: float, policy: Policy) -> State:
    """The next generation is wanted; all earlier ones are gone."""
    if state.config != policy.config:
        state = _afresh(state, policy)
    return replace(
        state,
        stage=Stage.WANTED,
        generation=state.generation + 1,
        since=now if state.since is None else state.since,
        stale=seen.status.digest if seen.status is not None else "",
        sign=seen.sign,
        heard_at=None,
        spoken=False,
    )


def encode(state: State) -> bytes:
    """The state as provision.json holds it."""
    return json.dumps({"v": VERSION, **asdict(state)}, indent=1).encode()


def decode(data: bytes) -> State:
    """The state in provision.json.

    Raises:
        ValueError: it is none, or one of another version.
    """
    found = parse_object(data, "provision.json")
    if found.pop("v", None) != VERSION:
        raise ValueError(f"is not a state of version {VERSION}")
    try:
        return _STATE.validate_python({**asdict(State(**found)), "stage": found["stage"]})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"is not a state of version {VERSION}: {type(error).__name__}") from error


def check(state: State, policy: Policy) -> None:
    """Whoever may write to the bucket may have written the state: nothing is asked of the cloud
    that `policy` does not have.

    Raises:
        ValueError: no loop under this policy has come to it.
    """
    if state.config == policy.config and state.rung not in policy.rungs:
        raise ValueError(f"asks for {state.rung} chips, which is no rung of this config")
    if not 0 <= state.generation <= _MAX_GENERATION:
        raise ValueError(f"names the generation {state.generation}, which is none of ours")
    if state.stage in (Stage.ENDING, Stage.ENDED) and state.exit_code is None:
        raise ValueError(f"is {state.stage} without an exit code")
