"""Find what changed in a config since the job last ran, and which changes are refused.

A config may be changed: the change is told, and it resets nothing. A change is refused only if it
would make the checkpoint of the phase unusable, or differ from what a completed phase has computed.
The last phase is not complete any more if its target grows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from supervisor.config.problems import Location, key_path, shown
from supervisor.config.secret_names import without_secrets
from supervisor.core.state import JobState

_UNUSABLE_CHECKPOINT: tuple[Location, ...] = (
    ("init", "model"),
    ("init", "lora"),
    ("init", "optimizer", "name"),
    ("init", "determinism", "elastic"),
    ("start_from",),
)
_PLACES: tuple[Location, ...] = (("init", "model", "pretrained"),)
"""Where something is that the checkpoint has itself, or knows by its fingerprint."""
_RESOLVED_LATER: tuple[Location, ...] = tuple(
    ("init", "model", key) for key in ("head_size", "norm_epsilon", "qk_norm")
)
"""Keys with a default that older versions did not know."""
_UNUSABLE_WITHOUT_FROZEN: tuple[Location, ...] = (("init", "seed"),)
"""Where checkpoints do not hold the frozen weights, and these are not another phase's."""
_UNUSABLE_IF_BITWISE: tuple[Location, ...] = (
    ("init", "loop", "micro_batch_size"),
    ("init", "loop", "remat"),
    ("init", "loop", "scan_layers"),
)
_UNUSABLE_WITH_ROLLOUTS: tuple[Location, ...] = (
    ("init", "loop", "global_batch_size"),
    ("fit", "train_dataloader", "sequence_length"),
)
"""Where checkpoints hold a batch of completions (GRPO)."""
_UNUSABLE_IF_GIVEN: tuple[Location, ...] = (
    ("fit", "train_dataloader", "chosen_field"),
    ("init", "grpo"),
)
"""With this key the checkpoints of the phase hold more than without it, whatever its value."""
_BETA: Location = ("init", "grpo", "beta")
_COMPUTES_NOTHING: tuple[Location, ...] = (
    ("init", "autorestart"),
    ("init", "devices"),
    ("init", "checkpoint"),
    ("init", "provision"),
    ("init", "compile_cache"),
    ("init", "sdc"),
    ("init", "limits"),
    ("init", "metrics"),
    ("init", "notify"),
    ("faults",),
)
_TELL_OF_IT: tuple[Location, ...] = (("command", "success"), ("command", "progress"))
"""Keys that say how a command is understood, not what it does."""
_TARGETS: tuple[Location, ...] = (
    ("init", "loop", "max_steps"),
    ("command", "success", "step"),
)
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Change:
    """One key of phase `phase` that is different now; `key` is relative to the phase."""

    phase: int
    key: Location
    old: Any
    new: Any
    is_bitwise: bool = False
    """Whether the phase is to give the same bits on every rung."""
    remakes_frozen: bool = False
    """Whether a restart of the phase makes its frozen weights again, from the seed."""
    has_rollouts: bool = False
    """Whether the checkpoints of the phase hold a batch of completions."""
    is_of_only_phase: bool = False
    """Whether the job has no other phase."""

    def __str__(self) -> str:
        old, new = ("(not set)" if side is None else side for side in self.sides)
        return f"{self.path}: {old} -> {new}"

    @property
    def path(self) -> str:
        """The key as a person writes it, of the whole config: with the number of its phase if there
        are several."""
        phase = () if self.is_of_only_phase else (self.phase,)
        return key_path(("trainer", *phase, *self.key))

    @property
    def sides(self) -> tuple[str | None, str | None]:
        """What stood there and what stands there now, as bounded JSON without secrets, from shortly
        before where they differ; None: it was not set."""
        old, new = _apart(without_secrets(self.old), without_secrets(self.new))
        return _side(old), _side(new)

    def grows(self) -> bool:
        """Whether the value is a number that became larger."""
        both = isinstance(self.old, int) and isinstance(self.new, int)
        return both and bool(self.new > self.old)


def changes(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[Change]:
    """What is different between two resolved configs, phase by phase.

    Resolved paths are absolute: a model_dir that was moved, or is reached by another path, is the
    same one and no change, nor is what stands below it.
    """
    found = []
    for phase, (then, now) in enumerate(zip(old, new, strict=False)):
        before, after = then["trainer"], now["trainer"]
        before = _moved(before, before["init"]["model_dir"], after["init"]["model_dir"])
        is_bitwise = before["init"].get("determinism", {}).get("elastic") == "bitwise"
        remakes_frozen = _remakes_frozen(before)
        has_rollouts = "grpo" in before["init"]
        found += [
            Change(phase, *different, is_bitwise, remakes_frozen, has_rollouts, len(new) == 1)
            for different in _different(before, after, ())
        ]
    return found


def _remakes_frozen(phase: dict[str, Any]) -> bool:
    """Whether a restart of `phase` makes its frozen weights again, from the seed."""
    init = phase["init"]
    if init.get("checkpoint", {}).get("save_frozen", True) or "start_from" in phase:
        return False
    reads_reference = init.get("grpo", {}).get("beta", 0) > 0
    return (
        "lora" in init
        or reads_reference
        or "chosen_field" in phase["fit"].get("train_dataloader", {})
    )


def _moved(value: Any, old: str, new: str) -> Any:
    """Returns `value` with `old` replaced by `new` in each path at or below `old`."""
    if isinstance(value, dict):
        return {key: _moved(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_moved(item, old, new) for item in value]
    if isinstance(value, str) and (value == old or value.startswith(f"{old}/")):
        return new + value[len(old) :]
    return value


def refused(
    state: JobState, found: Sequence[Change], num_phases: int, *, once: bool
) -> Iterator[tuple[int, str]]:
    """The changes that `state` forbids: the phase, and the message with its remedy.

    No phase of a job that begins anew is complete; `once`: see `SupervisorStarted`.
    """
    if num_phases <= state.phase:
        message = f"the job is in phase {state.phase + 1} already; give it back its phases"
        yield num_phases - 1, f"there are only {num_phases} phases left: {message}"
    goes_on = any(
        change.phase == state.phase and change.key in _TARGETS and change.grows()
        for change in found
    )
    for change in found:
        if change.key in _PLACES or (change.old is _ABSENT and change.key in _RESOLVED_LATER):
            continue
        reopened = goes_on and change.phase == state.phase
        if state.has_completed(change.phase, once=once) and not reopened:
            if not _under(change.key, _COMPUTES_NOTHING):
                yield (
                    change.phase,
                    f"{change}: the phase is complete and cannot be changed; {_REMEDY}",
                )
            continue
        step = state.budget.highest if change.phase == state.phase else None
        if step is not None and _makes_unusable(change):
            yield (
                change.phase,
                f"{change}: the checkpoint of step {step} does not fit it; {_REMEDY}",
            )


def computes_something_else(found: Sequence[Change], phase: int) -> bool:
    """Whether one of the changes is to what `phase` computes."""
    return any(
        change.phase == phase
        and change.key not in _TARGETS
        and not _under(change.key, (*_COMPUTES_NOTHING, *_TELL_OF_IT))
        for change in found
    )


def _makes_unusable(change: Change) -> bool:
    """Whether the change makes the checkpoints of its phase unusable."""
    was_known = change.old is not _ABSENT  # older versions did not resolve the micro-batch
    spoils_bits = change.is_bitwise and was_known and _under(change.key, _UNUSABLE_IF_BITWISE)
    spoils_base = change.remakes_frozen and _under(change.key, _UNUSABLE_WITHOUT_FROZEN)
    if change.has_rollouts and _under(change.key, _UNUSABLE_WITH_ROLLOUTS):
        return True
    if change.key == _BETA and 0 in (change.old, change.new):  # then there is a reference or none
        return True
    if _ABSENT in (change.old, change.new) and change.key in _UNUSABLE_IF_GIVEN:
        return True
    return spoils_bits or spoils_base or _under(change.key, _UNUSABLE_CHECKPOINT)


_REMEDY = "take it back, or use another model_dir"


def _under(key: Location, roots: Sequence[Location]) -> bool:
    return any(key[: len(root)] == root for root in roots)


def _different(old: Any, new: Any, key: Location) -> Iterator[tuple[Location, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            yield from _different(old.get(name, _ABSENT), new.get(name, _ABSENT), (*key, name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (then, now) in enumerate(zip(old, new, strict=True)):
            yield from _different(then, now, (*key, index))
    elif _as_text(old) != _as_text(new):
        yield key, old, new


def _as_text(value: Any) -> str:
    """Returns JSON to compare by: here nan equals nan, and true does not equal 1."""
    return json.dumps(value, sort_keys=True, default=str)


def _apart(old: Any, new: Any) -> tuple[Any, Any]:
    """Both from where they differ, so that a long beginning that they share hides nothing."""
    if isinstance(old, str) and isinstance(new, str):
        if begin := max(0, _shared(old, new) - _CONTEXT):
            return "..." + old[begin:], "..." + new[begin:]
    elif isinstance(old, list) and isinstance(new, list) and (begin := _shared(old, new)):
        return ["...", *old[begin:]], ["...", *new[begin:]]
    return old, new


_CONTEXT = 20
"""Characters before a difference."""


def _shared(old: Sequence[Any], new: Sequence[Any]) -> int:
    """With how many equal items both begin."""
    pairs = enumerate(zip(old, new, strict=False))
    differ = (at for at, (then, now) in pairs if _as_text(then) != _as_text(now))
    return next(differ, min(len(old), len(new)))


def _side(value: Any) -> str | None:
    return None if value is _ABSENT else shown(value)
