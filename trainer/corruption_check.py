"""The search for silent data corruption: a device that computes wrongly, and nobody notices.

In bitwise mode the bits of a step do not depend on which device computes what. So a check computes
a step a second time, by the same program on a mesh with the devices in another order, and compares
every bit. A difference proves that a device has computed wrongly. Then the step is computed by
another program, which tells what each device contributes, in three orders: the devices outvote the
one that is wrong. That cannot tell which one it was if it computes rightly by then.

What a device contributes to the gradients is spread to all: only a check of that very step can
find that it was wrong. But each device updates a copy of the state of its own. So the check
compares these copies, too, from before the step: what has ever gone wrong in one of them is found
at the next check, however long ago that was.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from supervisor.protocol import suspect_steps
from supervisor.protocol.messages import Stage
from supervisor.protocol.reporter import Reporter
from trainer.data import Batch
from trainer.mesh import batch_sharding, replicated
from trainer.step import Metrics, jit_digests_of_copies, jit_train_step, jit_witnessed_step
from trainer.train_state import TrainState, TrainStateSpec
from trainer.training_setup import TrainingSetup

_PROGRAM = "checked step"
_ORDERS = 3
UNKNOWN = "something wrong"
"""What is said where no computation that was tried again is wrong."""

Digests = npt.NDArray[np.uint32]
"""Digests of equal length: [number, lanes]."""
Votes = Sequence[tuple[int, bytes]]
"""What several devices have computed of the same: the place of each, and the digest of its result.
One device may have computed it more than once."""


class SilentCorruptionError(RuntimeError):
    """A device has computed wrongly without an error. The text says which one, if it is known."""


@dataclass(frozen=True, slots=True)
class Computed:
    """One computation of the step, as digests; each device has done the work of the place that is
    `shift` after its own."""

    shift: int
    micro_batches: Digests
    """Of the results for the micro-batches, in the order of the batch."""
    slices: Digests
    """Of the sums of slices of these results, in their order."""
    copies: Digests
    """Of each device's copy of the state after the step."""


class CorruptionCheck:
    """Checks steps. It gets its program at the first check, so that a restart does not wait for
    it."""

    def __init__(
        self,
        every: int,
        setup: TrainingSetup,
        reporter: Reporter,
        begin: int = 0,
        wrong_devices: Callable[[], Collection[jax.Device]] = tuple,
        is_drill: Callable[[], bool] = lambda: False,
    ) -> None:
        """The state of step `begin` is taken to be right; `wrong_devices` are those of this process
        that simulate wrong results at present, and `is_drill` says whether any process has some."""
        self._every = every
        self._setup = setup
        self._spec = setup.spec
        self._other = _in_another_order(setup.spec)
        self._sharder = replace(setup.sharder, mesh=self._other.mesh)
        self._reporter = reporter
        self._passed = begin
        self._wrong_devices = wrong_devices
        self._is_drill = is_drill
        self._program: Any = None
        self._digests = {spec.mesh: jit_digests_of_copies(spec) for spec in self._both}

    @property
    def _both(self) -> tuple[TrainStateSpec, TrainStateSpec]:
        return self._spec, self._other

    def due(self, step: int) -> bool:
        """Whether `step` is checked."""
        return step % self._every == 0

    def step(
        self, train_step: Callable[..., Any], state: TrainState, batch: Batch, step: int
    ) -> tuple[TrainState, Metrics]:
        """Compute `step` by `train_step`, and check it; returns what that returns. No other step is
        in flight.

        Raises:
            SilentCorruptionError: a device has computed wrongly. Which one is reported, if it can
                be told.
        """
        program = self._obtained(step)
        before, kept = self._copies(self._spec, state), jax.tree.map(jnp.copy, state)
        after, metrics = train_step(state, self._setup.sharder.put(batch))
        own = self._copies(self._spec, after)
        again, _ = program(self._moved(kept), self._sharder.put(batch))
        others = self._copies(self._other, again)
        del again
        if len({*map(bytes, before)}) > 1 or len({*map(bytes, own), *map(bytes, others)}) > 1:
            raise self._corruption(step, *self._blamed(before, own, kept, batch))
        self._passed = step
        return after, metrics

    def _obtained(self, step: int) -> Callable[..., Any]:
        if self._program is None:
            self._reporter.stage(Stage.COMPILING, step - 1)
            self._program = compiled_check(self._setup).result()
            self._reporter.stage(Stage.TRAINING, step - 1)
        if wrong := _places(self._other, self._wrong_devices()):
            faulty: Callable[..., Any] = jit_train_step(replace(self._other, wrong_places=wrong))
            return faulty
        program: Callable[..., Any] = self._program
        return program

    def _copies(self, spec: TrainStateSpec, state: TrainState) -> Digests:
        """Return the digests of the devices' copies of `state`, which is on the mesh of `spec`."""
        digests: jax.Array = self._digests[spec.mesh](state)
        return np.asarray(digests.addressable_data(0))

    def _moved(self, state: TrainState) -> TrainState:
        """Return a copy of `state` on the other mesh: each device has the copy that it had."""

        def moved(leaf: jax.Array, like: Any) -> jax.Array:
            copies = [shard.data for shard in jnp.copy(leaf).addressable_shards]
            by_device = {copy.device: copy for copy in copies}
            own = [one for one in like.sharding.mesh.devices.flat if one in by_device]
            return jax.make_array_from_single_device_arrays(
                leaf.shape, like.sharding, [by_device[device] for device in own]
            )

        found: TrainState = jax.tree.map(moved, state, self._other.abstract)
        return found

    def _blamed(
        self, before: Digests, own: Digests, state: TrainState, batch: Batch
    ) -> tuple[list[int], str]:
        """Return which devices are wrong, and in what; see `blamed`. `own` are the copies after the
        step."""
        wrong = _places(self._spec, self._wrong_devices())
        program = jit_witnessed_step(replace(self._spec, wrong_places=wrong))
        computed = []
        for order in range(_ORDERS):
            shift = order % self._spec.mesh.size
            tokens = self._setup.sharder.put(batch, shift)
            after, _, witness = program(state, tokens, _whole(self._spec, shift))
            micro, slices = (np.asarray(one.addressable_data(0)) for one in witness)
            computed.append(Computed(shift, micro, slices, self._copies(self._spec, after)))
        places, what = blamed(before, computed)
        if not places and what == UNKNOWN:  # a single event: only a copy may still show it
            places, what = blamed(before, [replace(computed[0], copies=own)])
        return places, what

    def _corruption(self, step: int, places: Sequence[int], what: str) -> SilentCorruptionError:
        """Report the devices at these places, and return the error to raise. Every process reports
        them: one of them may not get that far."""
        is_drill = self._is_drill()
        devices = [self._spec.mesh.devices.flat[place] for place in places]
        for device in devices:
            mark = "simulated: " if is_drill else ""
            local = [one for one in jax.devices() if one.process_index == device.process_index]
            self._reporter.wrong_device(
                step, device.process_index, local.index(device), f"{mark}{what} of step {step}"
            )
        mark = " (simulated)" if is_drill else ""
        if not devices:
            return SilentCorruptionError(
                f"step {step}: a device has computed {what}{mark}: the same step has other bits "
                "with the devices in another order; which device it was cannot be told. "
                f"{self._suspect(step)}"
            )
        which = ", ".join(str(device) for device in devices)
        return SilentCorruptionError(
            f"step {step}: {which} has computed {what}{mark}. {self._suspect(step)}"
        )

    def _suspect(self, step: int) -> str:
        """Return a sentence on the steps up to `step` that nothing shows to be right."""
        return suspect_steps.in_words(min(self._passed + 1, step), step)


def compiled_check(setup: TrainingSetup) -> Future[Callable[..., Any]]:
    """Load or compile the step on the mesh with another order; returns its future."""
    spec = _in_another_order(setup.spec)
    tokens = jax.ShapeDtypeStruct(
        setup.tokens.shape, setup.tokens.dtype, sharding=batch_sharding(spec.mesh)
    )
    return setup.executables.get(_PROGRAM, jit_train_step(spec), spec.abstract, tokens)


def _in_another_order(spec: TrainStateSpec) -> TrainStateSpec:
    """Return `spec` on a mesh in which each device is in the place of the next one."""
    mesh = spec.mesh
    devices = np.roll(mesh.devices.reshape(-1), -1).reshape(mesh.devices.shape)
    other = Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types)
    return TrainStateSpec.of(spec.config, other, spec.objective)


def _places(spec: TrainStateSpec, devices: Collection[jax.Device]) -> tuple[int, ...]:
    """Return the places of `devices` in the mesh of `spec`."""
    return tuple(place for place, one in enumerate(spec.mesh.devices.flat) if one in devices)


def _whole(spec: TrainStateSpec, number: int) -> jax.Array:
    placed: jax.Array = jax.device_put(jnp.int32(number), replicated(spec.mesh))
    return placed


def blamed(before: Digests, computed: Sequence[Computed]) -> tuple[list[int], str]:
    """Return the places of the devices that have computed wrongly (none: it cannot be told), and
    what it is that they have computed wrongly. What is wrong first explains all that follows."""
    looks: tuple[tuple[str, Callable[[], Iterator[Votes]]], ...] = (
        ("a wrong state (an earlier step, or its memory)", lambda: iter([_own(before)])),
        ("wrong gradients", lambda: _of_work(computed, lambda one: one.micro_batches)),
        ("wrong sums of gradients", lambda: _of_work(computed, lambda one: one.slices)),
        ("a wrong update", lambda: iter([[v for one in computed for v in _own(one.copies)]])),
    )
    for what, votes in looks:
        disputed = [each for each in votes() if len({digest for _, digest in each}) > 1]
        if disputed:
            places = set[int]().union(*map(_outvoted, disputed))
            return sorted(places), what
    return [], UNKNOWN


def _own(copies: Digests) -> Votes:
    return [(place, copy.tobytes()) for place, copy in enumerate(copies)]


def _of_work(
    computed: Sequence[Computed], digests: Callable[[Computed], Digests]
) -> Iterator[Votes]:
    """Yield the votes for each piece of work."""
    count = len(computed[0].copies)
    for index in range(len(digests(computed[0]))):
        yield [((index - one.shift) % count, digests(one)[index].tobytes()) for one in computed]


def _outvoted(votes: Votes) -> set[int]:
    """Return the devices that have computed something else than the others. A device that is at
    odds with itself is wrong; else more devices must agree than not."""
    by_device = defaultdict[int, set[bytes]](set)
    for place, digest in votes:
        by_device[place].add(digest)
    fickle = {place for place, found in by_device.items() if len(found) > 1}
    if fickle:
        return fickle
    counts = Counter(digest for found in by_device.values() for digest in found)
    (most, times), *_ = counts.most_common()
    if 2 * times <= len(by_device):
        return set()
    return {place for place, found in by_device.items() if most not in found}
