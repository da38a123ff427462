# /// script
# requires-python = "==3.11.*"
# dependencies = [
#   "google-tunix==0.1.7",
#   "flax==0.12.8",
#   "jax==0.10.2",
#   "numpy",
#   "optax==0.2.8",
#   "orbax-checkpoint==0.12.8",
#   "qwix==0.1.8",
# ]
# ///
"""A `PeftTrainer` of Tunix in trouble: dropout that it cannot resume, NaN, an end that never comes.

python tunix_trouble.py WORKDIR [--dropout RATE] [--nan-at STEP] [--stay]
"""

# mypy: ignore-errors
# Tunix is not in the environment of this project.

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import qwix
from flax import nnx
from tunix.models.llama3 import model as llama
from tunix.sft import hooks, peft_trainer, utils

STEPS, EVERY = 60, 10
CONFIG = llama.ModelConfig(
    num_layers=1,
    vocab_size=64,
    embed_dim=16,
    hidden_dim=32,
    num_heads=2,
    head_dim=8,
    num_kv_heads=1,
    rope_theta=10_000,
    norm_eps=1e-5,
    weight_tying=True,
)


def lora_model(dropout: float) -> nnx.Module:
    base = llama.Llama3(CONFIG, rngs=nnx.Rngs(0))
    provider = qwix.LoraProvider(
        module_path=".*q_proj|.*kv_proj", rank=2, alpha=4.0, dropout=dropout
    )
    model = qwix.apply_lora_to_model(base, provider, rngs=nnx.Rngs(1), **base.get_model_input())
    if dropout > 0.0:
        model.set_attributes(qwix_rngs=nnx.Rngs(dropout=2))
    return model


def batches() -> Iterator[peft_trainer.TrainingInput]:
    tokens = np.random.default_rng(0).integers(1, 64, (4, 16)).astype(np.int32)
    while True:
        yield peft_trainer.TrainingInput(input_tokens=tokens, input_mask=np.ones_like(tokens))


def model_input(batch: peft_trainer.TrainingInput) -> dict[str, Any]:
    real = batch.input_tokens != 0
    return {
        "input_tokens": batch.input_tokens,
        "input_mask": batch.input_mask,
        "positions": utils.build_positions_from_mask(real),
        "attention_mask": utils.make_causal_attn_mask(real),
    }


class Trouble(hooks.TrainingHooks):
    """Takes a tenth of a second for each step, and has the weights be NaN after one of them."""

    def __init__(self, nan_at: int | None) -> None:
        self._nan_at = nan_at

    def on_train_step_start(self, train_ctx: Any) -> None:
        time.sleep(0.1)
        if train_ctx.train_steps == self._nan_at:
            state = nnx.state(train_ctx.model, nnx.LoRAParam)
            nnx.update(train_ctx.model, jax.tree.map(lambda weight: weight * np.nan, state))

    def on_train_start(self, train_ctx: Any) -> None: ...
    def on_train_end(self, train_ctx: Any) -> None: ...
    def on_train_step_end(self, train_ctx: Any, train_step: int, train_loss: float) -> None: ...
    def on_eval_step_start(self, train_ctx: Any) -> None: ...
    def on_eval_step_end(self, train_ctx: Any, eval_loss: float) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--nan-at", type=int)
    parser.add_argument("--stay", action="store_true")
    arguments = parser.parse_args()
    trainer = peft_trainer.PeftTrainer(
        lora_model(arguments.dropout),
        optax.adamw(1e-3),
        peft_trainer.TrainingConfig(
            eval_every_n_steps=STEPS,
            max_steps=STEPS,
            checkpoint_root_directory=str(arguments.workdir.absolute() / "checkpoints"),
            checkpointing_options=ocp.CheckpointManagerOptions(
                save_interval_steps=EVERY, max_to_keep=3
            ),
        ),
    ).with_gen_model_input_fn(model_input)
    trainer.with_training_hooks(Trouble(arguments.nan_at))
    trainer.train(batches())
    if arguments.stay:
        threading.Event().wait()


if __name__ == "__main__":
    main()
