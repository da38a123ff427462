"""Tells a person what is new after a turn of the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from supervisor.ports import SliceState
from supervisor.provision.decide import Observation
from supervisor.provision.intent import ProvisionStage, ProvisionState

_MEANING = {
    SliceState.ACCEPTED: "waits in the queue for capacity",
    SliceState.WAITING_FOR_RESOURCES: "waits in the queue for capacity",
    SliceState.PROVISIONING: "is being made",
    SliceState.ACTIVE: "is there, and boots into the job",
}


def lines(
    before: ProvisionState,
    after: ProvisionState,
    was: Observation,
    seen: Observation,
    now: float,
    accelerator_type: Callable[[int], str],
) -> Iterator[str]:
    """Yields the lines about a turn.

    `before` and `after` are the states before and after it. `seen` is its observation, and `was`
    that of the previous turn.
    """
    now_there, was_there = seen.slices.get(before.generation), was.slices.get(before.generation)
    if now_there is not None and (was_there is None or was_there.state is not now_there.state):
        meaning = _MEANING.get(now_there.state)
        text = f"slice {before.generation} is {now_there.state}"
        yield f"{text}: it {meaning}" if meaning else text
    status = seen.status
    if status is not None and (was.status is None or status.words != was.status.words):
        yield f"the job says: {status.words}"
    yield from _intent(before, after, seen, now, accelerator_type)


def _intent(
    before: ProvisionState,
    after: ProvisionState,
    seen: Observation,
    now: float,
    accelerator_type: Callable[[int], str],
) -> Iterator[str]:
    reason = f": {after.reason}" if after.reason else ""
    if after.stage is not before.stage and after.stage in (
        ProvisionStage.LEAVING,
        ProvisionStage.ENDING,
    ):
        there = ", ".join(str(generation) for generation in sorted(seen.slices))
        yield f"slice {there} is deleted{reason}"
    if after.stage is ProvisionStage.WANTED and after.generation != before.generation:
        pause = max(0.0, after.not_before - now)
        when = f"in {pause:.0f} s" if pause else "now"
        told = before.stage is ProvisionStage.LEAVING
        what = f"slice {after.generation}, a {accelerator_type(after.rung)}, is asked for {when}"
        yield what if told else what + reason
