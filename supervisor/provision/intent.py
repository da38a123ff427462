"""What one turn of the slice loop leaves to the next: its intent, kept in provision.json.

What is kept are intents, never what was done (see `decide`).
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
class ProvisionState:
    """All that one turn leaves to the next, also to that of another loop. Times are seconds of the
    wall clock; `rung` is a number of chips."""

    owner: str
    """The loop that may act."""
    config: str
    """A digest of what was asked for."""
    stage: ProvisionStage = ProvisionStage.LEAVING
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


_STATE = TypeAdapter(ProvisionState)


def encode(state: ProvisionState) -> bytes:
    """The state as provision.json holds it."""
    return json.dumps({"v": VERSION, **asdict(state)}, indent=1).encode()


def decode(data: bytes) -> ProvisionState:
    """The state in provision.json.

    Raises:
        ValueError: it is none, or one of another version.
    """
    found = parse_object(data, "provision.json")
    if found.pop("v", None) != VERSION:
        raise ValueError(f"is not a state of version {VERSION}")
    try:
        return _STATE.validate_python({**asdict(ProvisionState(**found)), "stage": found["stage"]})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"is not a state of version {VERSION}: {type(error).__name__}") from error


def check(state: ProvisionState, policy: Policy) -> None:
    """Whoever may write to the bucket may have written the state: nothing is asked of the cloud
    that `policy` does not have.

    Raises:
        ValueError: no loop under this policy has come to it.
    """
    if state.config == policy.config and state.rung not in policy.rungs:
        raise ValueError(f"asks for {state.rung} chips, which is no rung of this config")
    if not 0 <= state.generation <= _MAX_GENERATION:
        raise ValueError(f"names the generation {state.generation}, which is none of ours")
    if state.stage in (ProvisionStage.ENDING, ProvisionStage.ENDED) and state.exit_code is None:
        raise ValueError(f"is {state.stage} without an exit code")
