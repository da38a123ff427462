"""Progress messages: one JSON object a line, at most `MAX_LINE` bytes, worker to supervisor.

The reader trusts nothing: it refuses a line that is too long, is not JSON, has values of wrong
types, or has an unknown protocol version. It ignores a message of an unknown kind: a newer worker
may send more kinds.
"""

from __future__ import annotations

import json
import math
import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .environment import PROTOCOL_VERSION
from .loss_spikes import LossSpike
from .shortening import keep_beginning

MAX_LINE = 4096
"""PIPE_BUF on Linux: writes of up to this size are atomic, so lines never mix."""

MAX_STEP = 2**62
MAX_NOTICE = 2000
"""Most characters of a notice that are sent. The log shows fewer: the supervisor redacts a notice
before it shortens it (`supervisor.engines.hearing`)."""
_MAX_WIDE_NOTICE = 300
"""Most characters of a notice that is too long for a line. JSON escapes some characters as two
surrogates, which take twelve bytes."""
_CODE = re.compile(r"[a-z][a-z0-9-]{0,39}")
_MAX_TEXT = 80
_MAX_NAMES = 16


class NoticeCode(StrEnum):
    """The codes of notices that have a log event of their own, with the same name."""

    BATCH_SKIPPED = "batch-skipped"
    BOOTSTRAP_LEFT_OUT = "bootstrap-left-out"
    CHECKPOINTS_FOREIGN = "checkpoints-foreign"
    CHECKPOINT_DAMAGED = "checkpoint-damaged"
    CHECKPOINT_NOT_REMOVED = "checkpoint-not-removed"
    CHECKPOINT_NOT_PINNED = "checkpoint-not-pinned"
    CHECKPOINT_NOT_TRUSTED = "checkpoint-not-trusted"
    CHECKPOINT_READ_BROKEN_OFF = "checkpoint-read-broken-off"
    CHECKPOINT_SKIPPED = "checkpoint-skipped"
    CHECKPOINT_UNVERIFIED = "checkpoint-unverified"
    DATA_SLOW = "data-slow"
    EXECUTABLES_OFF = "executables-off"
    EXECUTABLE_NOT_KEPT = "executable-not-kept"
    EXECUTABLE_REMOVED = "executable-removed"
    FOREIGN_SET_ASIDE = "foreign-set-aside"
    LEDGER_UNUSABLE = "ledger-unusable"
    MANIFEST_NOT_WRITTEN = "manifest-not-written"
    METRICS_UNWRITABLE = "metrics-unwritable"
    RESUME_DIFFERS = "resume-differs"
    ROLLOUT_MESH_CHOSEN = "rollout-mesh-chosen"
    SAVE_AWAITED = "save-awaited"
    SAVE_FAILED = "save-failed"
    SAVE_INTERVAL_CHOSEN = "save-interval-chosen"
    SAVE_ON_SIGTERM_OFF = "save-on-sigterm-off"
    SILENT_CORRUPTION = "silent-corruption"
    SNAPSHOTS_STOPPED = "snapshots-stopped"
    SNAPSHOT_NOT_USED = "snapshot-not-used"


class Stage(StrEnum):
    """The stage of its work that a worker reports."""

    STARTING = "STARTING"
    INITIALIZING = "INITIALIZING"
    RESTORING = "RESTORING"
    COMPILING = "COMPILING"
    TRAINING = "TRAINING"
    EVALUATING = "EVALUATING"
    SAVING = "SAVING"
    FINISHING = "FINISHING"


class ProtocolError(ValueError):
    """A line that is not a message of this protocol; the text says why."""


@dataclass(frozen=True, slots=True)
class StageMessage:
    """The worker entered a stage, at a step if it knows one.

    `inferred`: the program reports no stages, and the bootstrap inferred this one from outside. It
    calls all time between the stages that it can recognise TRAINING, so TRAINING may be anything.
    """

    stage: Stage
    step: int | None = None
    inferred: bool = False


@dataclass(frozen=True, slots=True)
class StepMessage:
    """Optimizer step `step` is complete. `metrics` are floats such as `loss`.

    The supervisor's reader sets the other fields, which are not on the wire.
    """

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    first: int | None = None
    """The first of several steps that were read together; `step` is the last. None: only one was.
    """
    in_output: bool = False
    """True: it was read from the worker's output, which buffering may delay without bound."""
    recognised: bool = False
    """True: nobody said which lines of the output tell the steps, so it may be no step at all. It
    is for people, and decides nothing."""
    every: int | None = None
    """By how much the step rises from line to line of the output; None: not known."""

    @property
    def earliest(self) -> int:
        """Return the first step that this message stands for."""
        return self.step if self.first is None else self.first


@dataclass(frozen=True, slots=True)
class StepsDroppedMessage:
    """The steps that were recognised (`StepMessage.recognised`) were none. Not on the wire."""


@dataclass(frozen=True, slots=True)
class RestoredMessage:
    """The state of `step` was restored; None: there was nothing to restore, a fresh start.

    `snapshot`: it was restored from a snapshot in memory, not from a committed checkpoint.
    """

    step: int | None
    snapshot: bool = False


@dataclass(frozen=True, slots=True)
class SavedMessage:
    """The worker believes that it has committed a checkpoint. The supervisor then checks that.

    `step`: None if unknown. `seconds`: how long the save took; None if unknown.
    """

    step: int | None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class EvaluatedMessage:
    """An evaluation after optimizer step `step` is complete."""

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DevicesMessage:
    """The accelerators that the worker's backend found."""

    platform: str
    count: int
    device_kind: str = ""


@dataclass(frozen=True, slots=True)
class CompiledMessage:
    """A long compilation is complete; with a `source`, the program was loaded from there."""

    seconds: float
    name: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class StacksMessage:
    """The worker dumps its stacks when it gets `stacks.STACK_SIGNAL`."""


@dataclass(frozen=True, slots=True)
class SigtermMessage:
    """The worker got SIGTERM, or jax told it that another process of the group got one."""


@dataclass(frozen=True, slots=True)
class SigtermKeptMessage:
    """The program ends, and was never told to stop: jax handles SIGTERM, and whatever came it has
    kept to itself."""


@dataclass(frozen=True, slots=True)
class AdjustableMessage:
    """The fields of `adjustments.Adjustments` that this worker could still adjust in the next
    attempt."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SavesOnRequestMessage:
    """The worker looks for the file of `save_request`, and saves when it is asked to."""


@dataclass(frozen=True, slots=True)
class NoticeMessage:
    """One line for a person to read; a long one is truncated when it is sent."""

    text: str
    code: str = ""
    """The notice's name for tools: a `NoticeCode`, or one that the program chose; empty: none
    (older versions send no codes)."""
    step: int | None = None
    """The step that it is about; None: no step."""


@dataclass(frozen=True, slots=True)
class WroteMessage:
    """The worker makes a folder, or begins to write something whose name may be a checkpoint's.

    It says only who writes there: whether a checkpoint is committed, the supervisor finds out.
    """

    path: str
    """The absolute path; of what may be a checkpoint, one is sent for each directory and kind of
    name."""


@dataclass(frozen=True, slots=True)
class HostTimeMessage:
    """How long a step took this worker's host before it gave the devices their work: the wait for
    data, and what the host does with it.

    Inside a collective all ranks wait for the slowest, so the time of a whole step is the same on
    each; this part of it is not.
    """

    seconds: float
    """Of a step, on average since the last such message."""
    step_seconds: float
    """The whole time of a step, on average over the same steps."""


@dataclass(frozen=True, slots=True)
class WrongDeviceMessage:
    """A check has found a device that computes wrongly without an error."""

    step: int
    """The step that was checked."""
    rank: int
    """The rank whose process has the device."""
    device: int
    """The place of the device among those of that process."""
    text: str
    """What it has computed wrongly, for people."""


Message = (
    StageMessage
    | StepMessage
    | StepsDroppedMessage
    | RestoredMessage
    | SavedMessage
    | EvaluatedMessage
    | DevicesMessage
    | CompiledMessage
    | StacksMessage
    | SigtermMessage
    | SigtermKeptMessage
    | AdjustableMessage
    | SavesOnRequestMessage
    | NoticeMessage
    | WroteMessage
    | HostTimeMessage
    | WrongDeviceMessage
    | LossSpike
)

_OF_THE_READER = frozenset({"first", "in_output", "recognised", "every"})
"""Fields that are not on the wire; the supervisor's reader sets them."""

_NAMES: dict[type[Any], str] = {
    StageMessage: "stage",
    StepMessage: "step",
    RestoredMessage: "restored",
    SavedMessage: "saved",
    EvaluatedMessage: "evaluated",
    DevicesMessage: "devices",
    CompiledMessage: "compiled",
    StacksMessage: "stacks",
    SigtermMessage: "sigterm",
    SigtermKeptMessage: "sigterm_kept",
    AdjustableMessage: "adjustable",
    SavesOnRequestMessage: "saves_on_request",
    NoticeMessage: "notice",
    WroteMessage: "wrote",
    HostTimeMessage: "host_time",
    WrongDeviceMessage: "wrong_device",
    LossSpike: "loss_spike",
}
_LONGEST: dict[type[Any], int] = {NoticeMessage: MAX_NOTICE, WroteMessage: _MAX_WIDE_NOTICE}
"""Most characters of a text, where that is not `_MAX_TEXT`."""


def encode(message: Message) -> bytes:
    """Encode a message as one line with its newline, of at most `MAX_LINE` bytes; metrics that do
    not fit are dropped."""
    body: dict[str, Any] = {"v": PROTOCOL_VERSION, "kind": _NAMES[type(message)]}
    longest = _LONGEST.get(type(message), _MAX_TEXT)
    for name in message.__slots__:
        if name in _OF_THE_READER:
            continue
        value = getattr(message, name)
        if isinstance(value, Mapping):
            value = dict(value)
        elif isinstance(value, str):
            value = keep_beginning(value, longest)
        body[name] = value
    line = _line(body)
    if len(line) > MAX_LINE and "metrics" in body:
        line = _line({**body, "metrics": {}})
    if len(line) > MAX_LINE and "text" in body:
        line = _line({**body, "text": keep_beginning(body["text"], _MAX_WIDE_NOTICE)})
    return line


def _line(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), default=_number).encode() + b"\n"


def _number(value: Any) -> int | float:
    """Convert a step or metric of a numeric library's own type."""
    try:
        return operator.index(value)
    except TypeError:
        return float(value)


def decode(line: bytes) -> Message | None:
    """Parse a line; None: this version does not know the kind of message.

    Raises:
        ProtocolError: it is no message, or has another protocol version.
    """
    if len(line) > MAX_LINE:
        raise ProtocolError(f"line of more than {MAX_LINE} bytes")
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("not JSON") from error
    if not isinstance(body, dict):
        raise ProtocolError("not a JSON object")
    if body.get("v") != PROTOCOL_VERSION:
        told = body.get("v")
        version = str(told)[:20] if isinstance(told, int | str | None) else ""
        raise ProtocolError(f"protocol {version!r}, this supervisor speaks {PROTOCOL_VERSION}")
    kind = body.get("kind")
    if not isinstance(kind, str):
        raise ProtocolError("no kind")
    parse = _PARSERS.get(kind)
    return None if parse is None else parse(body)


def _stage(body: dict[str, Any]) -> Stage:
    try:
        return Stage(_text(body, "stage"))
    except ValueError:
        raise ProtocolError("unknown stage") from None


def _step(body: dict[str, Any], *, optional: bool) -> int | None:
    step = body.get("step")
    if step is None and optional:
        return None
    if type(step) is not int or not 0 <= step <= MAX_STEP:
        raise ProtocolError("step is not a natural number")
    return step


def _required_step(body: dict[str, Any]) -> int:
    step = _step(body, optional=False)
    assert step is not None
    return step


def _count(body: dict[str, Any]) -> int:
    count = body.get("count")
    if type(count) is not int or not 0 <= count <= 10**6:
        raise ProtocolError("count is not a number of devices")
    return count


def _seconds(body: dict[str, Any]) -> float:
    seconds: Any = body.get("seconds")
    if type(seconds) not in (int, float) or not 0 <= seconds <= 10**9:
        raise ProtocolError("seconds is not a duration")
    return float(seconds)


def _finite(body: dict[str, Any], name: str) -> float:
    value: Any = body.get(name)
    if type(value) not in (int, float) or not abs(value) < math.inf:
        raise ProtocolError(f"{name} is not a finite number")
    return float(value)


def _text(body: dict[str, Any], name: str, limit: int = _MAX_TEXT) -> str:
    value = body.get(name, "")
    if not isinstance(value, str):
        raise ProtocolError(f"{name} is not a string")
    return printable(keep_beginning(value, limit))


def _path(body: dict[str, Any]) -> str:
    """Return a path as the system has it: what shows it to people makes it printable."""
    value = body.get("path", "")
    if not isinstance(value, str) or "\0" in value:
        raise ProtocolError("path is not a path")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise ProtocolError("path is not a path") from None
    return value


def _code(body: dict[str, Any]) -> str:
    code = _text(body, "code")
    return code if _CODE.fullmatch(code) else ""


def _names(body: dict[str, Any]) -> tuple[str, ...]:
    names = body.get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ProtocolError("names is not a list of strings")
    return tuple(printable(name[:_MAX_TEXT]) for name in names[:_MAX_NAMES])


def _metrics(body: dict[str, Any]) -> dict[str, float]:
    metrics = body.get("metrics", {})
    if not isinstance(metrics, dict):
        raise ProtocolError("metrics is not an object")
    clean: dict[str, float] = {}
    for name, value in list(metrics.items())[:64]:
        if type(value) not in (int, float):
            raise ProtocolError("a metric is not a number")
        try:
            clean[printable(name[:_MAX_TEXT])] = float(value)
        except OverflowError:
            clean[printable(name[:_MAX_TEXT])] = math.inf
    return clean


def printable(text: str) -> str:
    """Return `text` with control characters escaped: a worker must not control a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


_PARSERS: dict[str, Callable[[dict[str, Any]], Message]] = {
    "stage": lambda body: StageMessage(
        _stage(body), _step(body, optional=True), inferred=body.get("inferred") is True
    ),
    "step": lambda body: StepMessage(_required_step(body), _metrics(body)),
    "restored": lambda body: RestoredMessage(
        _step(body, optional=True), snapshot=body.get("snapshot") is True
    ),
    "saved": lambda body: SavedMessage(
        _step(body, optional=True), _seconds(body) if body.get("seconds") is not None else None
    ),
    "evaluated": lambda body: EvaluatedMessage(_required_step(body), _metrics(body)),
    "devices": lambda body: DevicesMessage(
        _text(body, "platform"), _count(body), _text(body, "device_kind")
    ),
    "compiled": lambda body: CompiledMessage(
        _seconds(body), _text(body, "name"), _text(body, "source")
    ),
    "stacks": lambda body: StacksMessage(),
    "sigterm": lambda body: SigtermMessage(),
    "sigterm_kept": lambda body: SigtermKeptMessage(),
    "adjustable": lambda body: AdjustableMessage(_names(body)),
    "saves_on_request": lambda body: SavesOnRequestMessage(),
    "notice": lambda body: NoticeMessage(
        _text(body, "text", MAX_NOTICE), _code(body), _step(body, optional=True)
    ),
    "wrote": lambda body: WroteMessage(_path(body)),
    "host_time": lambda body: HostTimeMessage(
        _seconds(body), _seconds({"seconds": body.get("step_seconds")})
    ),
    "wrong_device": lambda body: WrongDeviceMessage(
        _required_step(body),
        _count({"count": body.get("rank")}),
        _count({"count": body.get("device")}),
        _text(body, "text"),
    ),
    "loss_spike": lambda body: LossSpike(
        _required_step(body), *(_finite(body, name) for name in ("loss", "usual", "bound"))
    ),
}
