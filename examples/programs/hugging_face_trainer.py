# /// script
# requires-python = ">=3.11"
# dependencies = ["accelerate==1.15.0", "torch==2.13.0", "transformers==5.23.0"]
# ///
"""A tiny GPT-2, trained by the `Trainer` of Hugging Face transformers.

supervise run -- python examples/programs/hugging_face_trainer.py --workdir out

It saves to `out/checkpoint-N`, and goes on from the newest one that is complete.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

VOCABULARY, EXAMPLES, LENGTH, BATCH = 256, 64, 32, 8


class Counting(torch.utils.data.Dataset):
    """Example k counts up from a random number."""

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        drawn = torch.Generator().manual_seed(index)
        start = torch.randint(VOCABULARY - LENGTH, (1,), generator=drawn)
        tokens = start + torch.arange(LENGTH)
        return {"input_ids": tokens, "labels": tokens}


class Pace(TrainerCallback):
    """Has each step take some time, as a real one does."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._began = seconds, time.monotonic()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        time.sleep(max(0.0, self._began + self._seconds - time.monotonic()))
        self._began = time.monotonic()


def newest_complete(workdir: Path) -> Path | None:
    """The Trainer writes `trainer_state.json` last: without it the save was interrupted."""
    complete = [path.parent for path in workdir.glob("checkpoint-*/trainer_state.json")]
    return max(complete, key=lambda path: int(path.name.split("-")[1]), default=None)


def digest(model: torch.nn.Module) -> str:
    sha256 = hashlib.sha256()
    for _, tensor in sorted(model.state_dict().items()):
        sha256.update(tensor.numpy().tobytes())
    return sha256.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--every", type=int, default=20, help="steps between two saves")
    parser.add_argument("--step-seconds", type=float, default=0.05)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2)
    )
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(arguments.workdir),
            max_steps=arguments.steps,
            per_device_train_batch_size=BATCH,
            save_steps=arguments.every,
            save_total_limit=3,
            logging_steps=5,
            learning_rate=1e-3,
            seed=0,
            use_cpu=True,
            report_to="none",
        ),
        train_dataset=Counting(),
        callbacks=[Pace(arguments.step_seconds)],
    )
    newest = newest_complete(arguments.workdir)
    trainer.train(resume_from_checkpoint=str(newest) if newest else None)
    print("parameters sha256:", digest(model))


if __name__ == "__main__":
    main()
