"""The messages between the leader and its agents, and their encoding: compact JSON with a version.

Each is a frozen value. What the leader says has the leader's epoch: an agent obeys the highest one
that it has heard, and drops what has a lower one. What is about a worker group has its attempt.

Messages may get lost, come twice or come late. So both sides repeat themselves: the agent asks
again and says what it runs (`Question`), and the leader repeats a command until that has changed.
A command that is repeated is answered again, and done once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from supervisor.core.events import (
    BadUnit,
    CheckpointCommitted,
    CheckpointsFound,
    DeviceFoundWrong,
    LossesNotFinite,
    LossSpiked,
    RungCompileFailed,
    SaveMeasured,
    SilenceExcused,
    WorkerReported,
    WorkersIdle,
)
from supervisor.diagnosis.failure import Failure, RankEvidence, Survivor, WorkerExit
from supervisor.history.encoding import EncodingError, encode
from supervisor.history.encoding import decode as decode_json
from supervisor.host.identity import Identity
from supervisor.protocol.reading import UnreadableError, parse_object

VERSION = 2
"""Rises when a message changes. Leader and agents of one job must have the same."""
MAX_DIGEST = 2048
"""Most bytes of a rank's digest in a message: 2 KiB."""
MAX_SUSPECTS = 16
"""Of how many ranks the leader asks for the whole evidence."""
MAX_EVIDENCE = 64 * 1024
"""Most bytes of all texts in the evidence of one rank, in a message: 64 KiB."""


class MessageError(ValueError):
    """A payload is no message of this version; the text says why."""


# --- from the leader ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lead:
    """A leader introduces itself. Answered by `Hello`."""

    epoch: int
    version: str
    """The version of supervise: the agent must have the same."""
    lost_after: float
    """Seconds after the last answered question at which the ranks are killed."""
    owner_file: str
    """The file in model_dir that has the leader's token; empty: there is none."""
    announcer: str = "none"
    """The service that may announce the end of the agent's machine: `preemption.source` of the
    config."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the agent's question with this number."""

    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class ReservePorts:
    """Find free ports for an attempt of which the agent will have rank 0. Answered by `Ports`."""

    epoch: int
    attempt: int
    count: int


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start the agent's ranks of an attempt. Answered by `Started` or `NotStarted`."""

    epoch: int
    attempt: int
    launch: str
    """The attempt and the agent's part in it: see `launch_text`."""
    newest: int | None
    """The newest committed step, which all hosts must agree on."""
    cache: Mapping[str, str]
    """The variables of the compilation cache."""


@dataclass(frozen=True, slots=True)
class PrepareStandby:
    """Prepare a standby for a rank of an attempt of which the agent has none, as its host may have
    to take over. Not answered: `Question.prepared` and `Question.has_standby` show what came of
    it."""

    epoch: int
    attempt: int
    launch: str
    """As in `StartRanks`; its rank is an example."""
    newest: int | None
    """See `StartRanks`."""
    cache: Mapping[str, str]
    """See `StartRanks`."""


@dataclass(frozen=True, slots=True)
class TerminateRanks:
    """Ask the ranks of an attempt to save and exit. Answered by `Observed` with their ends."""

    epoch: int
    attempt: int
    interrupt: bool = False
    """See `Engine.terminate`."""


@dataclass(frozen=True, slots=True)
class KillRanks:
    """Kill all that the agent has started, whatever attempt it is of. Answered by `Gone`."""

    epoch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ShowEvidence:
    """Show all evidence of these ranks, which are gone. Answered by `Evidences`."""

    epoch: int
    attempt: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DumpRankStacks:
    """Have the ranks of an attempt write their stacks. Not answered."""

    epoch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ProbeHost:
    """Probe the agent's devices. Answered by `Probed` with this number."""

    epoch: int
    number: int
    launch: str
    """As in `StartRanks`; only its plan matters."""


@dataclass(frozen=True, slots=True)
class NameHolders:
    """Tell who keeps an accelerator busy. Answered by notices alone."""

    epoch: int


Command = (
    Lead
    | Answer
    | ReservePorts
    | StartRanks
    | PrepareStandby
    | TerminateRanks
    | KillRanks
    | ShowEvidence
    | DumpRankStacks
    | ProbeHost
    | NameHolders
)

# --- from an agent --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """An agent introduces itself to the leader of this epoch."""

    epoch: int
    version: str
    host: Identity
    """Its process. The boot id and the pid namespace name its machine."""
    token: str | None
    """The token that it read in the leader's owner file; None: it found none."""
    problem: str = ""
    """Why its host cannot be used; empty: it can."""
    config: str = ""
    """The digest of the config of its host (`gang_config`); empty: it has none of its own."""


@dataclass(frozen=True, slots=True)
class Question:
    """Does the leader still lead? The agent's ranks die unless it is answered in time."""

    epoch: int
    """The highest epoch that it has heard; 0: none."""
    number: int
    attempt: int | None
    """The attempt of which it runs ranks; None: nothing runs."""
    gone: int | None
    """The last attempt of which it had ranks, and has none any more; None: there was none."""
    answered: int
    """The highest number of its questions that was answered; 0: none was."""
    prepared: int = 0
    """The last attempt for which it was told to prepare a standby, and has done so; 0: none."""
    has_standby: bool = False
    """Whether a standby is ready on its host."""
    leaving: str = ""
    """What has announced that its machine is about to go, for people; empty: nothing has."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Free ports for an attempt; empty: there are none, for the reason `problem`."""

    attempt: int
    ports: tuple[int, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """The agent's ranks of the attempt run: the pid of each, in the order of the ranks."""

    attempt: int
    pids: tuple[int, ...]
    standby: bool
    """Whether all of them were standbys."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The agent's ranks could not be started, and what was started is gone."""

    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How a rank ended."""

    exit: WorkerExit
    ago: float
    """How many seconds ago that was seen, when the message was sent."""
    fenced: bool = False
    """Whether the fence killed it: the agent had no answer for too long."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The ends so far of the agent's ranks, in the order in which they were seen."""

    attempt: int
    ends: tuple[RankEnd, ...]
    survivors: tuple[Survivor, ...] = ()


@dataclass(frozen=True, slots=True)
class ToldNotice:
    """A notice for people: `supervisor.host.notice.Notice`, with its keys as JSON."""

    event: str
    text: str
    keys: str
    routine: bool


Forwarded = (
    WorkerReported
    | CheckpointCommitted
    | CheckpointsFound
    | SaveMeasured
    | SilenceExcused
    | WorkersIdle
    | LossesNotFinite
    | DeviceFoundWrong
    | LossSpiked
    | RungCompileFailed
    | ToldNotice
)
"""Events of the agent's engine that the leader takes over, with a time of its own. Only the speaker
sends what all ranks report alike."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the agent's engine has posted since the last such message, in order."""

    attempt: int
    events: tuple[Forwarded, ...]


@dataclass(frozen=True, slots=True)
class RankDigest:
    """What the agent saw of a rank's end, in short."""

    end: RankEnd
    stage: str | None
    ended_before_kill: bool
    has_record: bool
    """Whether it left a failure record."""
    digest: str
    """Its error in at most `MAX_DIGEST` bytes."""


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """What the agent saw of its ranks as a group: see `judging.Seen`."""

    step: int | None = None
    step_recognised: bool = False
    every_step: bool = False
    resumed_from: int | None = None
    from_snapshot: bool = False
    starting_step: int | None = None
    adjustable: tuple[str, ...] = ()
    pattern_seen: bool = False
    oom_kills: int | None = None
    lost_guard: bool = False
    survivors: tuple[Survivor, ...] = ()


@dataclass(frozen=True, slots=True)
class Gone:
    """No process of the attempt, or of an earlier one, lives on the agent's host."""

    attempt: int
    ranks: tuple[RankDigest, ...]
    """In the order in which they ended; empty: it had none of this attempt."""
    seen: GroupSeen
    world_size: int = 0
    """How many ranks the attempt had on all hosts; 0: the agent had none of this attempt."""


@dataclass(frozen=True, slots=True)
class Evidences:
    """All evidence of the ranks that the leader has asked for, of at most `MAX_EVIDENCE` each."""

    attempt: int
    wall: float
    """The Unix time on the agent's host when this was sent: failure records have its times."""
    ranks: tuple[RankEvidence, ...]


@dataclass(frozen=True, slots=True)
class Probed:
    """The answer to the probe with this number: see `DevicesProbed`."""

    number: int
    healthy: tuple[str, ...]
    bad: tuple[BadUnit, ...]
    problem: str | None = None


Report = (
    Hello | Question | Ports | Started | NotStarted | Observed | Told | Gone | Evidences | Probed
)

_VERSION = "v"


def encoded(message: Command | Report) -> bytes:
    """Returns the payload of a message."""
    kind = Command if isinstance(message, get_args(Command)) else Report
    body = {_VERSION: VERSION, **encode(message, kind)}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def command_of(payload: bytes) -> Command:
    """Returns the leader's message in a payload.

    Raises:
        MessageError: there is none.
    """
    command: Command = _decoded(payload, Command)
    return command


def report_of(payload: bytes) -> Report:
    """Returns the agent's message in a payload.

    Raises:
        MessageError: there is none.
    """
    report: Report = _decoded(payload, Report)
    return report


def _decoded(payload: bytes, kind: Any) -> Any:
    try:
        body = parse_object(payload, "a message")
    except UnreadableError as error:
        raise MessageError(f"a message {error.why}") from error
    if (version := body.pop(_VERSION, None)) != VERSION:
        told = version if isinstance(version, int) else "none"
        raise MessageError(f"a message has version {told}, and this supervise speaks {VERSION}")
    try:
        return decode_json(body, kind)
    except EncodingError as error:
        raise MessageError(f"a message is not understood: {error}") from error
