# /// script
# requires-python = ">=3.11"
# dependencies = ["keras==3.15.1", "jax==0.10.2", "numpy==2.4.6"]
# ///
"""A tiny network in Keras 3 with the JAX backend, trained by `Model.fit`.

supervise run -- python examples/programs/keras_fit.py --workdir out

Its `ModelCheckpoint` saves `out/model-E.keras` after epoch E, and it goes on from the newest one
that is complete. With `BackupAndRestore` a kill can train an epoch twice, because weights and epoch
are in two files. Keras saves no state of random layers: with `Dropout` the end has other bits.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
import zipfile
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

BATCH, WIDTH = 16, 16


class Pace(keras.callbacks.Callback):
    """Has each step take some time, as a real one does."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds, self._began = seconds, time.monotonic()

    def on_train_batch_begin(self, *_: Any, **__: Any) -> None:
        time.sleep(max(0.0, self._began + self._seconds - time.monotonic()))
        self._began = time.monotonic()


def fresh_model() -> keras.Model:
    """Learns to move each number of a row to the next place."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(64, activation="gelu"),
            keras.layers.Dense(WIDTH),
        ]
    )
    model.compile(optimizer=keras.optimizers.AdamW(1e-3), loss="mean_squared_error")
    return model


def epoch_of(path: Path) -> int:
    return int(path.stem.removeprefix("model-"))


def newest_complete(workdir: Path) -> Path | None:
    """The directory of a zip archive is written last: without it the save was interrupted."""
    complete = [path for path in workdir.glob("model-*.keras") if zipfile.is_zipfile(path)]
    return max(complete, key=epoch_of, default=None)


def digest(model: keras.Model) -> str:
    sha256 = hashlib.sha256()
    for array in model.get_weights():
        sha256.update(array.tobytes())
    return sha256.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=10, help="steps of an epoch")
    parser.add_argument("--step-seconds", type=float, default=0.05)
    arguments = parser.parse_args()

    arguments.workdir.mkdir(parents=True, exist_ok=True)
    newest = newest_complete(arguments.workdir)
    model = keras.models.load_model(newest) if newest else fresh_model()
    rows = np.random.default_rng(0).normal(size=(arguments.every * BATCH, WIDTH)).astype(np.float32)
    # With shuffle=True the order depends on a state that no checkpoint has.
    model.fit(
        rows,
        np.roll(rows, 1, axis=-1),
        batch_size=BATCH,
        epochs=arguments.steps // arguments.every,
        initial_epoch=epoch_of(newest) if newest else 0,
        shuffle=False,
        callbacks=[
            Pace(arguments.step_seconds),
            keras.callbacks.ModelCheckpoint(arguments.workdir / "model-{epoch}.keras"),
        ],
    )
    print("parameters sha256:", digest(model))


if __name__ == "__main__":
    main()
