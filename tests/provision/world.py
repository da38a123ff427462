"""A cloud, a bucket and a job in one process, under a virtual clock, where all may go wrong.

One seed decides everything. Until `calm_at` slices are refused, fail, are preempted in any state,
boot into nothing; calls fail before and after they took effect; loops are killed between any two
effects, and a second one is started beside the first. After that nothing goes wrong any more.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from supervisor.ports import (
    CloudSlice,
    Objects,
    Refusal,
    SliceState,
    UnavailableError,
)
from supervisor.provision.boot import report_path
from supervisor.provision.decide import End
from supervisor.provision.intent import LoopPolicy
from supervisor.provision.provision_loop import ProvisionLoop, TakenOverError
from tests.memory_objects import MemoryObjects

_T = TypeVar("_T")

RUNGS = (8, 4)
TICK = 10.0
_NEXT = {
    SliceState.CREATING: SliceState.WAITING_FOR_RESOURCES,
    SliceState.PROVISIONING: SliceState.ACTIVE,
    SliceState.SUSPENDING: SliceState.SUSPENDED,
}
_LIVE = frozenset(SliceState) - {SliceState.SUSPENDED, SliceState.FAILED, SliceState.DELETING}


class KilledError(Exception):
    """The loop is killed here."""


@dataclass
class Given:
    """A slice, and how far its machine has come."""

    rung: int
    state: SliceState = SliceState.CREATING
    age: int = 0
    broken: bool = False
    unusable: bool = False
    """The job finds its devices busy for good."""


class World:
    """All that a loop acts on."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seconds = 0.0
        self.calm_at = self.random.choice([0.0, 3_000.0, 20_000.0])
        self.code = self.random.choice([0, 0, 70, 73, 76, 78, 79])
        """With what the job ends, once it has done its work."""
        self.work = self.random.randint(1, 60)
        self.broken = self.random.choice([0.1, 0.9])
        """How often a machine boots into nothing."""
        self.unusable = self.random.choice([0.0, 0.3, 1.0])
        """How often a machine has devices that cannot be used."""
        self.step = 0
        self.refused: dict[int, int] = {}
        """The slices that the job said it cannot use, and the step that was committed by then."""
        self.given: dict[int, Given] = {}
        self.bucket = MemoryObjects()
        self.said: list[str] = []
        self.created = 0

    # --- time, and what happens in it -------------------------------------------------------------

    def wall(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def now(self) -> float:
        return self.seconds

    @property
    def calm(self) -> bool:
        return self.seconds >= self.calm_at

    def chance(self, probability: float) -> bool:
        """Whether something goes wrong now."""
        return self.random.random() < probability and not self.calm

    def tick(self) -> None:
        self.seconds += TICK
        for generation, one in list(self.given.items()):
            if one.state is SliceState.DELETING:
                if self.random.random() < 0.5:
                    del self.given[generation]
                continue
            if self.chance(0.01):
                one.state = self.random.choice([SliceState.SUSPENDING, SliceState.FAILED])
            elif one.state is SliceState.WAITING_FOR_RESOURCES:
                if self.calm or self.random.random() < 0.02:
                    one.state = SliceState.PROVISIONING
            elif one.state is SliceState.ACTIVE:
                self._boots(generation, one)
            else:
                one.state = _NEXT.get(one.state, one.state)

    def _boots(self, generation: int, one: Given) -> None:
        """What runs on a slice that is there."""
        if one.age == 0:
            one.broken = self.chance(self.broken)
            one.unusable = self.chance(self.unusable)
            if one.broken and self.random.random() < 0.5:
                self.bucket.write(report_path(generation), b"failed at line 9\nno network\n")
        one.age += 1
        if one.broken or one.age < 5:
            return
        self.bucket.write("lease.json", b"{}")
        if one.unusable or self.chance(0.01):
            self.refused[generation] = self.step
            self._says("FAILED", 69)
        elif self.chance(0.02):
            self._says("FAILED", self.random.choice([74, 75, 1]))
        elif self.work > 0:
            self.work -= 1
            self.step += self.random.choice([0, 1])
            self._says("RUNNING", None)
        elif self.random.random() < 0.5:  # it tells of its end by itself, or the machine does
            self._says("ENDED", self.code)
        else:
            self.bucket.write(report_path(generation), f"exit {self.code}\n".encode())

    def _says(self, status: str, code: int | None) -> None:
        told = {"status": status, "exit_code": code, "attempt": 1, "step": self.step or None}
        told["time"] = self.wall().isoformat()
        self.bucket.write("status.json", json.dumps(told).encode())

    # --- what may fail or be the last thing that a loop does --------------------------------------

    def effect(self, act: Callable[[], _T]) -> _T:
        if self.chance(0.01):
            raise KilledError
        if self.chance(0.02):
            raise UnavailableError("no answer")
        done = act()
        if self.chance(0.01):
            raise KilledError
        if self.chance(0.02):
            raise UnavailableError("the answer was lost")
        return done

    def loop(self, owner: str) -> ProvisionLoop:
        return ProvisionLoop(
            _Slices(self),
            _Unsteady(self),
            LoopPolicy("config", RUNGS),
            self,
            owner=owner,
            say=self.said.append,
            pause=lambda seconds: None,
            accelerator_type=lambda rung: f"v5e-{rung}",
        )


class _Slices:
    """The port `Slices`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def all(self, current: int) -> Mapping[int, CloudSlice]:
        refusal = Refusal("stockout", may_pass=True)
        given = self._world.given
        return self._world.effect(
            lambda: {
                generation: CloudSlice(
                    one.state, refusal if one.state is SliceState.FAILED else None
                )
                for generation, one in given.items()
            }
        )

    def create(self, generation: int, rung: int) -> Refusal | None:
        return self._world.effect(lambda: self._create(generation, rung))

    def _create(self, generation: int, rung: int) -> Refusal | None:
        world = self._world
        if world.chance(0.3):
            return Refusal("no capacity", may_pass=True)
        if generation not in world.given:
            world.given[generation] = Given(rung)
            world.created += 1
        live = [one for one in world.given.values() if one.state in _LIVE]
        assert len(live) == 1, f"two slices of one job: {world.given}"
        assert len(world.given) == 1, f"asked for before the last one was gone: {world.given}"
        return None

    def delete(self, generation: int) -> None:
        self._world.effect(lambda: self._delete(generation))

    def _delete(self, generation: int) -> None:
        if generation in self._world.given:
            self._world.given[generation].state = SliceState.DELETING


class _Unsteady:
    """The bucket, whose calls may fail or be the last."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._bucket: Objects = world.bucket

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._bucket, name)
        return lambda *args, **more: self._world.effect(lambda: method(*args, **more))


@dataclass
class Ended:
    """How a history ended."""

    world: World
    end: End
    loops: int


def play(seed: int, limit: float = 100_000.0) -> Ended:
    """One history: loops are started whenever there is none, and sometimes beside another."""
    world = World(seed)
    alive: list[tuple[ProvisionLoop, float]] = []
    started = 0
    while world.seconds < limit:
        if not alive or world.chance(0.002):
            started += 1
            alive.append((world.loop(f"loop{started}"), world.seconds))
        for loop, due in list(alive):
            if world.seconds < due:
                continue
            alive.remove((loop, due))
            try:
                outcome = loop.turn()
            except (KilledError, TakenOverError):
                continue
            except UnavailableError:
                outcome = world.seconds + TICK
            if isinstance(outcome, End):
                return Ended(world, outcome, started)
            alive.append((loop, outcome))
        world.tick()
    raise AssertionError(f"it never ended: {world.said[-10:]}")
