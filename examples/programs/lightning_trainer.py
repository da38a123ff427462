# /// script
# requires-python = ">=3.11"
# dependencies = ["lightning==2.6.6", "torch==2.13.0"]
# ///
"""A tiny network in PyTorch, trained by the `Trainer` of Lightning.

supervise run -- python examples/programs/lightning_trainer.py --workdir out

Its `ModelCheckpoint` saves `out/epoch=E-step=N.ckpt` and `out/last.ckpt`, and `ckpt_path="last"`
goes on from the latter. It saves within the epoch: from a save at the end of one, Lightning 2.6
goes on with one more step of the same epoch.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

import lightning as L  # noqa: N812
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

BATCH, WIDTH = 16, 16


class Rolling(L.LightningModule):
    """Learns to move each number of a row to the next place. A batch depends on its step alone."""

    def __init__(self, step_seconds: float) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 64), torch.nn.GELU(), torch.nn.Linear(64, WIDTH)
        )
        self._step_seconds = step_seconds

    def training_step(self, _: list[torch.Tensor], __: int) -> torch.Tensor:
        time.sleep(self._step_seconds)
        drawn = torch.Generator().manual_seed(self.global_step)
        rows = torch.randn(BATCH, WIDTH, generator=drawn)
        loss = torch.nn.functional.mse_loss(self.layers(rows), rows.roll(1, dims=-1))
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def digest(model: torch.nn.Module) -> str:
    sha256 = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha256.update(name.encode() + tensor.numpy().tobytes())
    return sha256.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=10, help="steps between two saves")
    parser.add_argument("--step-seconds", type=float, default=0.05)
    arguments = parser.parse_args()

    L.seed_everything(0)
    model = Rolling(arguments.step_seconds)
    numbers = DataLoader(TensorDataset(torch.arange(arguments.steps + 1)), batch_size=1)
    saving = ModelCheckpoint(
        arguments.workdir, save_top_k=-1, save_last=True, every_n_train_steps=arguments.every
    )
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=arguments.steps,
        callbacks=[saving],
        logger=False,
        log_every_n_steps=1,
        enable_model_summary=False,
    )
    trainer.fit(model, numbers, ckpt_path="last")
    print("parameters sha256:", digest(model))


if __name__ == "__main__":
    main()
