# /// script
# requires-python = "==3.11.*"
# dependencies = [
#   "google-tunix==0.1.7",
#   "flax==0.12.8",
#   "jax==0.10.2",
#   "numpy==2.4.6",
#   "optax==0.2.8",
#   "orbax-checkpoint==0.12.8",
#   "qwix==0.1.8",
# ]
# ///
"""Supervised fine-tuning of a tiny Llama with Tunix: its `PeftTrainer`, with LoRA by qwix.

supervise run -- python examples/programs/tunix_sft.py --workdir out

Tunix saves to `out/checkpoints/N` by Orbax, and goes on from the newest one by itself.
"""

from __future__ import annotations

import argparse
import hashlib
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

VOCABULARY, BATCH, LENGTH = 256, 8, 32

CONFIG = llama.ModelConfig(
    num_layers=2,
    vocab_size=VOCABULARY,
    embed_dim=64,
    hidden_dim=128,
    num_heads=4,
    head_dim=16,
    num_kv_heads=2,
    rope_theta=10_000,
    norm_eps=1e-5,
    weight_tying=True,
)


def lora_model() -> nnx.Module:
    base = llama.Llama3(CONFIG, rngs=nnx.Rngs(0))
    provider = qwix.LoraProvider(
        module_path=".*q_proj|.*kv_proj|.*gate_proj|.*up_proj|.*down_proj", rank=4, alpha=8.0
    )
    return qwix.apply_lora_to_model(base, provider, rngs=nnx.Rngs(1), **base.get_model_input())


def batches() -> Iterator[peft_trainer.TrainingInput]:
    """Counting up from a random number. Each batch depends on its number alone: Tunix goes through
    the ones that it has trained before it goes on."""
    number = 0
    while True:
        starts = np.random.default_rng(number).integers(1, VOCABULARY - LENGTH, (BATCH, 1))
        tokens = (starts + np.arange(LENGTH)).astype(np.int32)
        yield peft_trainer.TrainingInput(input_tokens=tokens, input_mask=np.ones_like(tokens))
        number += 1


def model_input(batch: peft_trainer.TrainingInput) -> dict[str, Any]:
    real = batch.input_tokens != 0
    return {
        "input_tokens": batch.input_tokens,
        "input_mask": batch.input_mask,
        "positions": utils.build_positions_from_mask(real),
        "attention_mask": utils.make_causal_attn_mask(real),
    }


class Pace(hooks.TrainingHooks):
    """Has each step take some time, as a real one does."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._began = seconds, time.monotonic()

    def on_train_step_start(self, train_ctx: Any) -> None:
        time.sleep(max(0.0, self._began + self._seconds - time.monotonic()))
        self._began = time.monotonic()

    def on_train_start(self, train_ctx: Any) -> None: ...
    def on_train_end(self, train_ctx: Any) -> None: ...
    def on_train_step_end(self, train_ctx: Any, train_step: int, train_loss: float) -> None: ...
    def on_eval_step_start(self, train_ctx: Any) -> None: ...
    def on_eval_step_end(self, train_ctx: Any, eval_loss: float) -> None: ...


def digest(parameters: Any) -> str:
    sha256 = hashlib.sha256()
    leaves = jax.tree_util.tree_leaves_with_path(parameters)
    for _, array in sorted((jax.tree_util.keystr(path), array) for path, array in leaves):
        sha256.update(np.asarray(array).tobytes())
    return sha256.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--every", type=int, default=20, help="steps between two saves")
    parser.add_argument("--step-seconds", type=float, default=0.05)
    arguments = parser.parse_args()

    model = lora_model()
    trainer = peft_trainer.PeftTrainer(
        model,
        optax.adamw(1e-3),
        peft_trainer.TrainingConfig(
            eval_every_n_steps=arguments.steps,
            max_steps=arguments.steps,
            checkpoint_root_directory=str(arguments.workdir.absolute() / "checkpoints"),
            checkpointing_options=ocp.CheckpointManagerOptions(
                save_interval_steps=arguments.every, max_to_keep=3
            ),
        ),
    ).with_gen_model_input_fn(model_input)
    trainer.with_training_hooks(Pace(arguments.step_seconds))
    trainer.train(batches())
    print("parameters sha256:", digest(nnx.state(model, nnx.Param)))


if __name__ == "__main__":
    main()
