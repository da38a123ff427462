"""Models of Hugging Face folders: they compute what `transformers` does, and training starts from
them."""

# mypy: allow-untyped-calls
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from supervisor.config.training.resolved import parse
from supervisor.config.training.safetensors import Tensor, read_headers
from supervisor.config.training.sections import ModelConfig
from trainer.first_state import first_state
from trainer.lora import merged
from trainer.model import Decoder
from trainer.not_finite import WeightsNotFiniteError
from trainer.pretrained_weights import load_pretrained

from .harness import MakeTrainer, Mapping, assert_same_bits, spec, spec_of, tiny

GIVEN = Path(__file__).parent / "pretrained"
NAMES = ("llama", "qwen3")


def config_of(folder: Path, **init: Any) -> Mapping:
    mapping = tiny("/tmp/checkpoints")
    mapping["trainer"]["init"] |= {"model": {"pretrained": str(folder)}, **init}
    return mapping


def decoder_of(folder: Path, **model: Any) -> Decoder:
    config = ModelConfig.model_validate({"pretrained": str(folder), **model})
    init = parse(config_of(folder)).init.model_copy(update={"model": config})
    plan = spec(init)
    return nnx.merge(plan.reference_graph, load_pretrained(folder, config, plan.weights))


@pytest.mark.parametrize("name", NAMES)
def test_the_logits_are_those_of_the_reference(name: str) -> None:
    golden = np.load(GIVEN / name / "golden.npz")
    logits = decoder_of(GIVEN / name)(golden["tokens"])
    np.testing.assert_allclose(logits, golden["logits"], rtol=1e-4, atol=2e-4)
    assert np.abs(golden["logits"]).max() > 5, "they are not all about zero"


@pytest.mark.parametrize("name", NAMES)
def test_each_key_of_the_file_matters(name: str, tmp_path: Path) -> None:
    """What config.json says of numbers alone is not ignored: no shape would tell."""
    golden = np.load(GIVEN / name / "golden.npz")
    folder = Path(shutil.copytree(GIVEN / name, tmp_path / name))
    config = (folder / "config.json").read_text()
    changes = [
        ('"rms_norm_eps": ', '"rms_norm_eps": 0.1, "another": '),
        ('"rope_theta": ', '"rope_theta": 7'),
    ]
    if name == "llama":
        changes += [
            ('"factor": 8', '"factor": 4'),
            ('"rope_type": "llama3"', '"rope_type": "default"'),
        ]
    for old, new in changes:
        assert old in config
        (folder / "config.json").write_text(config.replace(old, new))
        logits = decoder_of(folder)(golden["tokens"])
        assert np.abs(logits - golden["logits"]).max() > 1e-3, old


def with_an_infinite_weight(folder: Path) -> Tensor:
    """Make `folder` one with a model of which one number is infinite; returns the tensor."""
    shutil.copytree(GIVEN / "qwen3", folder)
    tensor = read_headers(folder)["model.embed_tokens.weight"]
    assert tensor.kind == "BF16"
    with tensor.file.open("r+b") as file:
        file.seek(tensor.begin + 2 * (117 * tensor.shape[1] + 13))
        file.write(b"\x80\x7f")
    return tensor


def test_weights_that_are_not_finite_are_refused_before_anything_is_compiled(
    tmp_path: Path,
) -> None:
    with_an_infinite_weight(folder := tmp_path / "model")
    plan, compiled = spec(parse(config_of(folder)).init), list[str]()

    def heard(event: str, duration_secs: float, **_: str | int) -> None:
        compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        with pytest.raises(WeightsNotFiniteError):
            first_state(None, plan, lambda *_: None)
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)
    assert not compiled


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    tensor = with_an_infinite_weight(folder := tmp_path / "model")
    with pytest.raises(WeightsNotFiniteError) as error:
        decoder_of(folder)
    assert str(error.value).startswith(
        f"{tensor.file}: the tensor model.embed_tokens.weight holds NaN or Inf as float32: 1 of "
        f"{tensor.shape[0] * tensor.shape[1]} numbers, the first at [117, 13]. "
    )


def test_no_token_attends_to_another_document() -> None:
    """Two documents in a sequence have the logits that each has alone."""
    tokens = np.load(GIVEN / "qwen3" / "golden.npz")["tokens"][:1]
    model = decoder_of(GIVEN / "qwen3")
    documents = jnp.repeat(jnp.array([[0, 1, 2]]), jnp.array([20, 17, 11]), axis=1)
    packed = model(tokens, documents=documents)
    for begin, end in ((0, 20), (20, 37), (37, 48)):
        alone = model(tokens[:, begin:end])
        np.testing.assert_allclose(packed[:, begin:end], alone, rtol=1e-3, atol=1e-3)
    assert np.abs(packed - model(tokens))[:, 20:].max() > 0.1


def test_the_weights_are_spread_over_the_devices() -> None:
    plan = spec(parse(config_of(GIVEN / "llama")).init, num_devices=4, fsdp=2)
    state = first_state(None, plan, lambda *_: None)
    alone = first_state(None, spec(plan.config), lambda *_: None)
    assert_same_bits(state.params, alone.params)
    kernel = state.params["blocks"][0]["mlp"]["up"]["kernel"][...]
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(32, 24)}


@pytest.mark.parametrize("save_frozen", [True, False])
def test_adapters_begin_as_the_model_and_its_base_is_known(
    make_trainer: MakeTrainer, tmp_path: Path, save_frozen: bool
) -> None:
    """A base that was changed under the adapters is refused by its fingerprint."""
    folder = Path(shutil.copytree(GIVEN / "qwen3", tmp_path / "model"))
    trainer = make_trainer("adapters", max_steps=3)
    init = trainer.mapping["trainer"]["init"]
    init |= {"model": {"pretrained": str(folder)}, "lora": {"rank": 2}}
    init["checkpoint"] |= {"save_frozen": save_frozen, "every": 1}
    out = trainer.finish()
    assert f"loaded the pretrained weights in {folder}" in out
    plan = spec_of(parse(trainer.mapping))
    start = first_state(None, plan, lambda *_: None)
    base = merged(start.params, start.frozen, 1.0)
    golden = np.load(folder / "golden.npz")
    logits = nnx.merge(plan.reference_graph, base)(golden["tokens"])
    np.testing.assert_allclose(logits, golden["logits"], rtol=1e-4, atol=2e-4)
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2:] = b"\x00\x00"
    weights.write_bytes(data)
    init["loop"]["max_steps"] = 4
    done = trainer.run()
    assert (done.returncode == 0) is save_frozen, done.stdout
    if not save_frozen:
        assert "its frozen weights have the fingerprint" in trainer.failure().exceptions[0].message
        assert "pretrained" in trainer.failure().exceptions[0].message


def test_a_folder_that_vanishes_is_no_traceback_of_ours(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer()
    trainer.mapping["trainer"]["init"]["model"] = {"pretrained": str(tmp_path / "none")}
    assert trainer.run().returncode == 1
    assert "none/config.json: there is no such file" in trainer.failure().exceptions[0].message
