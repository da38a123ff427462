"""Fine-tunes a tiny Llama with Tunix's `PeftTrainer`, as `benchmarks.fine_tuning` asks.

    python tunix_loop.py WORKDIR EVERY full|lora

Runs in Tunix's own environment, so it imports nothing of ours. The model, the batch and the
optimizer are those of `fine_tuning.config`. When a step ends, its line goes to BENCHMARK_WITNESS.
"""

# mypy: disable-error-code="attr-defined,misc"
from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import optax
import orbax.checkpoint as ocp
import qwix
from flax import nnx
from tunix.models.llama3 import model as llama
from tunix.sft import hooks, peft_trainer, utils

_FOR_EVER = 1_000_000
_VOCABULARY, _BATCH, _LENGTH = 264, 8, 32


class _Witness(hooks.TrainingHooks):
    def __init__(self) -> None:
        path = os.environ["BENCHMARK_WITNESS"]
        self._record = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def on_train_step_end(self, train_ctx: Any, train_step: int, train_loss: float) -> None:
        line = f"{time.monotonic()} {os.getpid()} {train_step}\n"
        os.write(self._record, line.encode())

    def on_train_start(self, train_ctx: Any) -> None: ...
    def on_train_end(self, train_ctx: Any) -> None: ...
    def on_train_step_start(self, train_ctx: Any) -> None: ...
    def on_eval_step_start(self, train_ctx: Any) -> None: ...
    def on_eval_step_end(self, train_ctx: Any, eval_loss: float) -> None: ...


def _model(kind: str) -> nnx.Module:
    config = llama.ModelConfig(
        num_layers=2,
        vocab_size=_VOCABULARY,
        embed_dim=64,
        hidden_dim=128,
        num_heads=4,
        head_dim=16,
        num_kv_heads=2,
        rope_theta=10_000,
        norm_eps=1e-6,
        weight_tying=True,
    )
    base: nnx.Module = llama.Llama3(config, rngs=nnx.Rngs(0))
    if kind == "full":
        return base
    provider = qwix.LoraProvider(
        module_path=".*q_proj|.*kv_proj|.*o_proj|.*gate_proj|.*up_proj|.*down_proj",
        rank=4,
        alpha=8.0,
    )
    adapted: nnx.Module = qwix.apply_lora_to_model(
        base, provider, rngs=nnx.Rngs(1), **base.get_model_input()
    )
    return adapted


def _batches() -> Iterator[peft_trainer.TrainingInput]:
    number = 0
    while True:
        starts = np.random.default_rng(number).integers(1, 256 - _LENGTH, (_BATCH, 1))
        tokens = (starts + np.arange(_LENGTH)).astype(np.int32)
        yield peft_trainer.TrainingInput(input_tokens=tokens, input_mask=np.ones_like(tokens))
        number += 1


def _model_input(batch: peft_trainer.TrainingInput) -> dict[str, Any]:
    real = batch.input_tokens != 0
    return {
        "input_tokens": batch.input_tokens,
        "input_mask": batch.input_mask,
        "positions": utils.build_positions_from_mask(real),
        "attention_mask": utils.make_causal_attn_mask(real),
    }


def main() -> None:
    """Train until killed."""
    workdir, every, kind = sys.argv[1:]
    config = peft_trainer.TrainingConfig(
        eval_every_n_steps=_FOR_EVER,
        max_steps=_FOR_EVER,
        checkpoint_root_directory=f"{workdir}/checkpoints",
        checkpointing_options=ocp.CheckpointManagerOptions(
            save_interval_steps=int(every), max_to_keep=2
        ),
    )
    trainer = peft_trainer.PeftTrainer(_model(kind), optax.adamw(1e-3), config)
    trainer = trainer.with_gen_model_input_fn(_model_input)
    trainer.with_training_hooks(_Witness())
    trainer.train(_batches())


if __name__ == "__main__":
    main()
