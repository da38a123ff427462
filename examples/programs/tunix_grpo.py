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
"""Reinforcement learning of a tiny Llama with Tunix: `GRPOLearner` in an `RLCluster`, with LoRA.

supervise run -- python examples/programs/tunix_grpo.py --workdir out

Tunix saves the actor to `out/checkpoints/actor/N` by Orbax, and goes on from the newest one by
itself.
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
from tunix.rl import rl_cluster
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout

VOCABULARY, PROMPTS, PROMPT_LENGTH, NEW_TOKENS = 128, 2, 8, 16

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


class Characters:
    """A tokenizer: each character of ASCII is a token."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(character) % VOCABULARY for character in text]

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(chr(int(token)) for token in ids)

    def pad_id(self) -> int:
        return 0

    def bos_id(self) -> int:
        return 1

    def eos_id(self) -> int:
        return 2


class CountVowels:
    """The reward of a completion: how many vowels it has. It takes some time, as a real one
    does."""

    __name__ = "vowels"

    def __init__(self, seconds: float) -> None:
        self._seconds, self._began = seconds, time.monotonic()

    def __call__(self, prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        time.sleep(max(0.0, self._began + self._seconds - time.monotonic()))
        self._began = time.monotonic()
        return [float(sum(text.count(vowel) for vowel in "aeiou")) for text in completions]


def prompts() -> Iterator[dict[str, np.ndarray]]:
    """Each batch depends on its number alone: Tunix goes through the ones that it has trained
    before it goes on."""
    number = 0
    while True:
        letters = np.random.default_rng(number).integers(ord("a"), ord("z") + 1, (PROMPTS, 4))
        yield {"prompts": np.array(["".join(map(chr, row)) for row in letters])}
        number += 1


def digest(parameters: Any) -> str:
    sha256 = hashlib.sha256()
    leaves = jax.tree_util.tree_leaves_with_path(parameters)
    for _, array in sorted((jax.tree_util.keystr(path), array) for path, array in leaves):
        sha256.update(np.asarray(array).tobytes())
    return sha256.hexdigest()


def cluster(arguments: argparse.Namespace) -> rl_cluster.RLCluster:
    reference = llama.Llama3(CONFIG, rngs=nnx.Rngs(0))
    provider = qwix.LoraProvider(
        module_path=".*q_proj|.*kv_proj|.*gate_proj|.*up_proj|.*down_proj", rank=4, alpha=8.0
    )
    actor = qwix.apply_lora_to_model(
        reference, provider, rngs=nnx.Rngs(1), **reference.get_model_input()
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    return rl_cluster.RLCluster(
        actor=actor,
        reference=reference,
        tokenizer=Characters(),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys(roles, mesh),
            rollout_engine="vanilla",
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.adamw(1e-3),
                eval_every_n_steps=arguments.steps,
                max_steps=arguments.steps,
                checkpoint_root_directory=str(arguments.workdir.absolute() / "checkpoints"),
                checkpointing_options=ocp.CheckpointManagerOptions(
                    save_interval_steps=arguments.every, max_to_keep=3
                ),
            ),
            rollout_config=base_rollout.RolloutConfig(
                max_tokens_to_generate=NEW_TOKENS,
                max_prompt_length=PROMPT_LENGTH,
                kv_cache_size=64,
            ),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--every", type=int, default=20, help="steps between two saves")
    parser.add_argument("--step-seconds", type=float, default=0.05)
    arguments = parser.parse_args()

    roles = cluster(arguments)
    actor = roles.actor_trainer.model
    grpo_learner.GRPOLearner(
        rl_cluster=roles,
        reward_fns=CountVowels(arguments.step_seconds),
        algo_config=grpo_learner.GRPOConfig(num_generations=4),
    ).train(prompts())
    print("parameters sha256:", digest(nnx.state(actor, nnx.Param)))


if __name__ == "__main__":
    main()
