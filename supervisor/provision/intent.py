"""The state of the slice loop between two turns, which is kept in provision.json.

It has intents, never actions that were done (see `decide`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from pydantic import TypeAdapter

from supervisor.protocol.reading import parse_object

VERSION = 1
_MAX_GENERATION = 10**9


class ProvisionStage(StrEnum):
    """The intent of the loop."""

    WANTED = "WANTED"
    """Request a slice of this generation until it is seen."""
    SEEN = "SEEN"
    """The slice was seen: keep it."""
    LEAVING = "LEAVING"
    """Delete all slices, then request the next generation."""
    ENDING = "ENDING"
    """Delete all slices, then end."""
    ENDED = "ENDED"


@dataclass(frozen=True, slots=True)
class ProvisionState:
    """The state that a turn saves for the next turn, which another loop may make. Times are seconds
    of the wall clock; `rung` is a number of chips."""

    owner: str
    """The name of the loop that may act."""
    config: str
    """The digest of the request that the slice was made from (`LoopPolicy.config`)."""
    stage: ProvisionStage = ProvisionStage.LEAVING
    generation: int = 0
    rung: int = 0
    reason: str = ""
    """Why the stage is LEAVING or ENDING."""
    since: float | None = None
    """The time since which the loop has requested this rung in vain; None: a slice was there."""
    not_before: float = 0.0
    """The earliest time of the next request."""
    refusals: int = 0
    """Requests in a row that gave no slice whose job was heard."""
    mute: int = 0
    """Slices in a row that did not boot, or whose job fell silent."""
    unusable: int = 0
    """Slices in a row that the job could not use, without a new checkpoint between."""
    step: int | None = None
    """The highest committed step that the job reported when it could not use a slice."""
    stale: str = ""
    """The digest of status.json before this generation: that report is about an earlier slice."""
    sign: str = ""
    """The last sign of life of the job (`Observation.sign`)."""
    heard_at: float | None = None
    """The time of that sign, or the time when the slice became ACTIVE; None: it is not ACTIVE
    yet."""
    spoken: bool = False
    """Whether the job has given a sign of life on this slice."""
    ended_at: float | None = None
    """The time when the loop first saw that the job had ended."""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class LoopPolicy:
    """The rungs to request, and the time limits of the loop in seconds."""

    config: str
    """The digest of the request for the full rung."""
    rungs: tuple[int, ...]
    """Numbers of chips, the full one first."""
    smaller_after: float = 1800.0
    """From the first request of a rung to that of the next smaller one."""
    poll: float = 30.0
    """From one turn to the next."""
    poll_deletion: float = 10.0
    """From one turn to the next while slices are being deleted."""
    backoff_first: float = 60.0
    backoff_max: float = 600.0
    boot_within: float = 1800.0
    """From ACTIVE to the first sign of life of the job."""
    silent_after: float = 900.0
    """From one sign of life of the job to the next. A healthy job gives one every 10 s."""
    max_mute: int = 3
    """How many slices in a row may fail to boot or fall silent before the loop ends."""
    max_unusable: int = 3
    """How many slices in a row may have unusable devices before the loop ends."""
    upload_patience: float = 60.0
    """From the end of the job to the deletion of its slice, if the machine does not report the end
    before."""


_STATE = TypeAdapter(ProvisionState)


def encode(state: ProvisionState) -> bytes:
    """Returns the content of provision.json for `state`."""
    return json.dumps({"v": VERSION, **asdict(state)}, indent=1).encode()


def decode(data: bytes) -> ProvisionState:
    """Parses the content of provision.json.

    Raises:
        ValueError: `data` is no state, or one of another version.
    """
    found = parse_object(data, "provision.json")
    if found.pop("v", None) != VERSION:
        raise ValueError(f"is not a state of version {VERSION}")
    try:
        return _STATE.validate_python({**asdict(ProvisionState(**found)), "stage": found["stage"]})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"is not a state of version {VERSION}: {type(error).__name__}") from error


def check(state: ProvisionState, policy: LoopPolicy) -> None:
    """Checks a state from the bucket. Everybody who can write to the bucket can write one, and it
    must not make the loop request anything that is not in `policy`.

    Raises:
        ValueError: no loop with this policy can have written the state.
    """
    if state.config == policy.config and state.rung not in policy.rungs:
        raise ValueError(f"asks for {state.rung} chips, which is no rung of this config")
    if not 0 <= state.generation <= _MAX_GENERATION:
        raise ValueError(f"names the generation {state.generation}, which is none of ours")
    if state.stage in (ProvisionStage.ENDING, ProvisionStage.ENDED) and state.exit_code is None:
        raise ValueError(f"is {state.stage} without an exit code")
