"""Measures how long a save stalls the training and how long a verified restore takes, by size.

    python -m benchmarks.checkpoint [--quick] [--json FILE]

Compares saves and restores of our trainer, of plain Orbax with the same arrays, and a raw copy as
the lower bound (to memory for the stall; to a file and back for the rest). They run in turns in one
process, after a first round that does not count. Each round begins with another of them, because
the disk is still busy with what the one before has written. `commit` lasts until the checkpoint is
durable; ours includes its manifest. Restores read from the page cache. One CPU device, random
numbers, milliseconds.
"""

# mypy: allow-untyped-calls, disable-error-code="attr-defined"
from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from benchmarks.report import Report, options
from supervisor.config.training.layout import Rung
from supervisor.config.training.resolved import InitConfig
from trainer.checkpoint import CheckpointSaver, restore
from trainer.checkpoint_steps import steps_in
from trainer.mesh import make_mesh
from trainer.train_state import TrainState, TrainStateSpec

SIZES = {"60mb": (256, 6), "200mb": (512, 5), "1gb": (1024, 7)}
"""Hidden size and layers of decoders, by the approximate size of their state (parameters and two
moments)."""

Samples = defaultdict[str, list[float]]


def main() -> None:
    """Measure in turns and report."""
    given = options(__doc__)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    report = Report("checkpoint")
    for size, (hidden, layers) in SIZES.items():
        if given.quick and size == "1gb":
            report.left_out[size] = "takes too long for a quick run"
            continue
        samples: Samples = defaultdict(list)
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as directory:
            _measure(
                _state_spec(hidden, layers), Path(directory), 3 if given.quick else 12, samples
            )
        for name, values in samples.items():
            report.spread(f"{name}_{size}", "ms", values)
        for name in ("save_stall", "commit"):
            ratio = f"{name}_over_orbax_{size}"
            report.ratio(ratio, f"{name}_supervise_{size}_ms", f"{name}_orbax_{size}_ms")
        verified, unverified = (f"restore_{how}_{size}_ms" for how in ("verified", "unverified"))
        report.ratio(f"verified_over_unverified_{size}", verified, unverified)
    report.finish(given.json)


def _state_spec(hidden: int, layers: int) -> TrainStateSpec:
    init = InitConfig.model_validate(
        {
            "model": {"hidden_size": hidden, "num_layers": layers, "num_heads": 4},
            "optimizer": {"name": "adamw", "learning_rate": 1e-3},
            "loop": {"max_steps": 10, "global_batch_size": 8},
            "checkpoint": {"directory": "/nowhere"},
        }
    )
    return TrainStateSpec.of(init, make_mesh(Rung(1, 1, 1, 8, 1)))


def _random(spec: TrainStateSpec) -> TrainState:
    generator = np.random.default_rng(0)

    def fill(leaf: Any) -> jax.Array:
        numbers = generator.random(leaf.shape, np.float32).astype(leaf.dtype)
        placed: jax.Array = jax.device_put(numbers, leaf.sharding)
        return placed

    state: TrainState = jax.tree.map(fill, spec.abstract)
    return state


def _measure(spec: TrainStateSpec, directory: Path, rounds: int, samples: Samples) -> None:
    state, abstract = _random(spec), spec.abstract
    arrays = [np.asarray(x) for x in jax.tree.leaves((state.params, state.optimizer))]
    ours = CheckpointSaver(steps_in(directory / "ours"), 1, {}, print)
    plain = ocp.CheckpointManager(
        directory / "plain", options=ocp.CheckpointManagerOptions(max_to_keep=1)
    )

    def save_raw(step: int, into: Samples) -> None:
        with _clock(into, "save_stall_raw_copy"):
            copies = [array.copy() for array in arrays]
        with _clock(into, "commit_raw_copy"):
            _write(directory / "raw", copies)

    def save_ours(step: int, into: Samples) -> None:
        with _clock(into, "commit_supervise"):
            with _clock(into, "save_stall_supervise"):
                ours.save(state, step, {})
            ours.committed(wait=True)
            ours.wait_for_manifest()

    def save_plain(step: int, into: Samples) -> None:
        with _clock(into, "commit_orbax"):
            with _clock(into, "save_stall_orbax"):
                plain.save(step, args=_plain(ocp.args.StandardSave, state))
            plain.wait_until_finished()

    saves = (save_raw, save_ours, save_plain)

    def read(step: int, into: Samples) -> None:
        reads: dict[str, Callable[[], Any]] = {
            "restore_verified": lambda: ours.restore(abstract),
            "restore_unverified": lambda: restore(directory / "ours", step, abstract),
            "restore_orbax": lambda: list(
                plain.restore(step, args=_plain(ocp.args.StandardRestore, abstract)).values()
            ),
            "restore_raw_copy": lambda: jax.device_put(_read(directory / "raw", arrays)),
        }
        for name in sorted(reads, reverse=bool(step % 2)):
            with _clock(into, name):
                jax.block_until_ready(reads[name]())

    for step in range(rounds + 1):
        into: Samples = samples if step else defaultdict(list)
        first = step % len(saves)
        for save in (*saves[first:], *saves[:first]):
            save(step, into)
        for _ in range(2):
            read(step, into)
    ours.close()
    plain.close()


def _plain(item: Any, state: TrainState) -> Any:
    names = ("params", "optimizer")
    return ocp.args.Composite(**{name: item(getattr(state, name)) for name in names})


def _write(path: Path, arrays: list[Any]) -> None:
    with path.open("wb") as file:
        for array in arrays:
            array.tofile(file)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, like: list[Any]) -> list[Any]:
    with path.open("rb") as file:
        return [np.fromfile(file, one.dtype, one.size).reshape(one.shape) for one in like]


@contextmanager
def _clock(samples: Samples, name: str) -> Iterator[None]:
    """Add the milliseconds that the block takes to `samples`."""
    began = time.perf_counter()
    yield
    samples[name].append((time.perf_counter() - began) * 1e3)


if __name__ == "__main__":
    main()
