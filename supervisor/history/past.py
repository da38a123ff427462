"""Facts about a job's past that commands need again and again.

They are kept beside its state, so that no command reads thousands of records for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from supervisor.core.decisions import TellRecovery
from supervisor.core.events import LaunchFailed, SupervisorStarted, WorkersGone
from supervisor.core.state import JobState
from supervisor.ports import Transition
from supervisor.protocol.loss_spikes import LossSpike

_SPIKES_KEPT = 20
"""Spikes of completed phases that are kept: the newest."""
_CHANGES_KEPT = 20
"""Changed keys of the config that are kept: the first ones."""


@dataclass(frozen=True, slots=True)
class PhaseSpike:
    """A spike of the loss in a phase that the job has left."""

    phase: int
    spike: LossSpike
    """Which step, and what was usual before it."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """What a person changed in the config between two attempts."""

    after_attempt: int
    """The last attempt under the config before."""
    keys: tuple[str, ...]
    """Changed keys, each with what stood there and what stands there now."""
    others: int = 0
    """How many more keys changed."""


@dataclass(frozen=True, slots=True)
class Past:
    """Facts about a job's past: a fold over all its transitions."""

    directories: tuple[str, ...] = ()
    """The folders of its phases, oldest first."""
    last_failed: int | None = None
    """The number of the last attempt that failed; None: none has."""
    stepped: tuple[int, ...] = ()
    """The indices of the phases in which an attempt has reported a step."""
    last_end: WorkersGone | None = None
    """The end of the last attempt; None: none has ended."""
    was_asked: bool = False
    """True: the job was being stopped when the last attempt ended."""
    reached: int | None = None
    """The highest step that was run before a recovery which is not over; None: none is known, or no
    recovery goes on."""
    version: str = ""
    """The version of the last supervisor; empty: it did not record it."""
    lost_after: float = 0.0
    """The longest `init.hosts.lost_after` of the configs before the last one under which workers of
    an attempt on several hosts may still live; 0: there is no such config."""
    lease_epoch: int = 0
    """The highest `SupervisorStarted.lease_epoch`; 0: no supervisor has recorded one."""
    loss_spikes: tuple[PhaseSpike, ...] = ()
    """The newest spikes of phases that the job has left, in the order of these phases; of a phase
    that was run again, those of the last run with any. The state has those of the present one."""
    config_change: ConfigChange | None = None
    """The last change of the config; None: it never changed, or an older version recorded it."""

    def after(self, transition: Transition) -> Past:
        """Returns the past after one more transition."""
        event, before, after = transition.event, transition.before, transition.after
        past = self
        if after.directory is not None and after.directory not in past.directories:
            past = replace(past, directories=(*past.directories, after.directory))
        if isinstance(event, WorkersGone | LaunchFailed) and event.failure is not None:
            past = replace(past, last_failed=event.attempt)
        if isinstance(event, SupervisorStarted):
            epoch = max(past.lease_epoch, event.lease_epoch)
            past = replace(past, version=event.version, lease_epoch=epoch)
        if isinstance(event, WorkersGone):
            past = past._ended(event, before.phase, was_asked=before.drains)
        told = any(isinstance(decision, TellRecovery) for decision in transition.decisions)
        if told or after.phase != before.phase:
            past = replace(past, reached=None)
        if before.loss_spikes and not after.loss_spikes:
            past = past._left(before)
        return past

    def config_replaced(
        self, config: Sequence[Mapping[str, Any]] | None, changed: Sequence[str], attempt: int
    ) -> Past:
        """Returns the past once another config has taken the place of `config`, after `attempt`
        (0: none, so that no attempt can fail of it); `changed`: the keys that differ, in words."""
        past = replace(self, lost_after=max(self.lost_after, lost_after_in(config)))
        if not changed or attempt == 0:
            return past
        known, keys, others = self.config_change, tuple(changed), 0
        if known is not None and known.after_attempt == attempt:
            keys, others = (*known.keys, *keys), known.others
        others += len(keys[_CHANGES_KEPT:])
        change = ConfigChange(attempt, keys[:_CHANGES_KEPT], others)
        return replace(past, config_change=change)

    def _ended(self, event: WorkersGone, phase: int, *, was_asked: bool) -> Past:
        known = [step for step in (self.reached, event.step) if step is not None]
        stepped = self.stepped
        if event.step is not None and not event.step_recognised and phase not in stepped:
            stepped = (*stepped, phase)
        reached = max(known, default=None)
        return replace(self, last_end=event, was_asked=was_asked, stepped=stepped, reached=reached)

    def _left(self, state: JobState) -> Past:
        """Returns the past once the job has left the phase of `state`, whose spikes it drops."""
        others = (each for each in self.loss_spikes if each.phase != state.phase)
        left = (PhaseSpike(state.phase, spike) for spike in state.loss_spikes)
        return replace(self, loss_spikes=(*others, *left)[-_SPIKES_KEPT:])


def lost_after_in(config: Sequence[Mapping[str, Any]] | None) -> float:
    """Returns `init.hosts.lost_after` of a config as the journal has it; 0: it has none."""
    trainer = config[0].get("trainer") if config else None
    init = trainer.get("init") if isinstance(trainer, Mapping) else None
    hosts = init.get("hosts") if isinstance(init, Mapping) else None
    found = hosts.get("lost_after") if isinstance(hosts, Mapping) else None
    return float(found) if isinstance(found, int | float) else 0.0
