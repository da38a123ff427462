"""Weights that training only reads: in the state, in checkpoints or made again, never another's."""

# mypy: allow-untyped-calls
from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from supervisor.config.training.layout import Rung
from trainer.mesh import make_mesh
from trainer.weights_fingerprint import weights_fingerprint

from .harness import MakeTrainer


def test_a_fingerprint_depends_on_every_bit_and_not_on_the_devices() -> None:
    weights = {"a": jnp.arange(24, dtype=jnp.float32).reshape(4, 6), "b": jnp.ones(3, jnp.bfloat16)}
    own = weights_fingerprint(weights)
    assert own is not None
    mesh = make_mesh(Rung(4, 1, 4, 1, 1))
    sharded = jax.device_put(weights["a"], NamedSharding(mesh, PartitionSpec("fsdp")))
    assert weights_fingerprint(weights | {"a": sharded}) == own
    bits = np.array(weights["a"]).view(np.uint32)
    bits[2, 3] ^= 1
    swapped = weights["a"][::-1]
    others = (
        weights | {"a": jnp.asarray(bits.view(np.float32))},
        weights | {"a": swapped},
        weights | {"a": weights["a"].reshape(6, 4)},
        {"a": weights["a"], "c": weights["b"]},
        weights | {"b": jnp.ones(3, jnp.float16)},
    )
    found = [weights_fingerprint(other) for other in others]
    assert own not in found
    assert len(set(found)) == len(others)


def test_nothing_has_no_fingerprint() -> None:
    assert weights_fingerprint({}) is None


def test_a_phase_does_not_take_up_or_lose_a_reference_on_the_way(make_trainer: MakeTrainer) -> None:
    """Where no supervisor has refused the change of the config."""
    plain, paired = make_trainer("plain", max_steps=3), make_trainer("paired", max_steps=3)
    data = paired.folder / "pairs.jsonl"
    data.write_text(json.dumps({"good": "yes", "bad": "no"}) + "\n")
    paired.mapping["trainer"]["fit"]["train_dataloader"] = {
        "paths": str(data),
        "sequence_length": 8,
        "chosen_field": "good",
        "rejected_field": "bad",
    }
    fits = [trainer.mapping["trainer"].pop("fit") for trainer in (plain, paired)]
    for trainer, fit, other, told in (
        (plain, fits[0], fits[1], "it was made without frozen weights"),
        (paired, fits[1], fits[0], "it was made with frozen weights"),
    ):
        trainer.mapping["trainer"]["fit"] = fit
        trainer.finish()
        trainer.mapping["trainer"]["fit"] = other
        trainer.mapping["trainer"]["init"]["loop"]["max_steps"] = 4
        assert trainer.run().returncode == 1
        assert told in trainer.failure().exceptions[-1].message
