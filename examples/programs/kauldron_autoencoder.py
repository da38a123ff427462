# /// script
# requires-python = "==3.12.*"
# dependencies = [
#   "kauldron==1.4.4",
#   "flax==0.12.12",
#   "jax==0.12.0.1",
#   "numpy==2.5.5",
#   "optax==0.2.8",
#   "orbax-checkpoint==0.12.8",
#   # Without this pin, pip takes a python-dateutil that is too new for google-cloud-bigquery (which
#   # xmanager needs), and then tries the older versions of google-cloud-bigquery one by one.
#   "python-dateutil==2.9.0.post0",
# ]
# ///
"""A tiny autoencoder, trained by the `Trainer` of Kauldron.

supervise run -- python examples/programs/kauldron_autoencoder.py --workdir out

Kauldron saves to `out/checkpoints/ckpt_N` by Orbax, with its place in the data, and goes on from
the newest one by itself. It counts from 0, saves before it trains a step, and also trains step
`--steps`.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import linen as nn
from kauldron import kd

EXAMPLES, BATCH, WIDTH = 4096, 32, 8


class Images:
    """Images of one square each, on a dark ground: an image depends on its number alone."""

    def __init__(self, step_seconds: float) -> None:
        self._seconds = step_seconds / BATCH

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        time.sleep(self._seconds)
        image = np.zeros((WIDTH, WIDTH, 1), np.float32)
        row, column = np.random.default_rng(number).integers(0, WIDTH - 2, 2)
        image[row : row + 3, column : column + 3] = 1.0
        return {"image": image}


def digest(parameters: Any) -> str:
    sha256 = hashlib.sha256()
    for path, array in sorted(
        (jax.tree_util.keystr(path), array)
        for path, array in jax.tree_util.tree_leaves_with_path(parameters)
    ):
        sha256.update(path.encode() + np.asarray(array).tobytes())
    return sha256.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=10, help="steps between two saves")
    parser.add_argument("--step-seconds", type=float, default=0.05)
    arguments = parser.parse_args()

    trainer = kd.train.Trainer(
        seed=0,
        workdir=arguments.workdir.absolute(),
        train_ds=kd.data.py.DataSource(
            data_source=Images(arguments.step_seconds),
            shuffle=True,
            batch_size=BATCH,
            num_workers=0,
        ),
        model=kd.nn.FlatAutoencoder(
            inputs="batch.image",
            encoder=nn.Dense(features=16),
            decoder=nn.Dense(features=WIDTH * WIDTH),
        ),
        num_train_steps=arguments.steps,
        train_losses={"recon": kd.losses.L2(preds="preds.image", targets="batch.image")},
        optimizer=optax.adam(0.003),
        checkpointer=kd.ckpts.Checkpointer(save_interval_steps=arguments.every),
    )
    state, _ = trainer.train()
    print("parameters sha256:", digest(state.params))


if __name__ == "__main__":
    main()
