"""A folder with a pretrained model gives its shape, and what is wrong with it is told by file, key
and remedy before anything starts."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.main import main
from supervisor.config.training.check import check
from supervisor.config.training.pretrained import read_shape
from supervisor.config.training.pretrained_tensors import weights
from supervisor.config.training.safetensors import read_headers
from supervisor.config.training.sections import ModelConfig
from tests.config.files import FIT
from tests.training.configs import tiny

GIVEN = Path(__file__).parents[1] / "training" / "pretrained"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sharded model of the type llama, which a test may spoil."""
    return Path(shutil.copytree(GIVEN / "llama", tmp_path / "model"))


def refusals(folder: Path, **model: Any) -> list[str]:
    """What the check says about a config with this folder; each is about `init.model`."""
    mapping = tiny("/tmp/checkpoints")
    mapping["trainer"]["init"]["model"] = {"pretrained": str(folder), **model}
    found = check(mapping["trainer"], [1]).problems
    assert {tuple(where[:2]) for where, _ in found} <= {("init", "model")}
    return [message for _, message in found]


def changed(folder: Path, **keys: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_the_files_hold_each_parameter_of_the_shape(name: str) -> None:
    assert refusals(GIVEN / name) == []
    headers = read_headers(GIVEN / name)
    assert {
        one.name for one in weights(ModelConfig.model_validate({"pretrained": str(GIVEN / name)}))
    } == set(headers)


def test_the_shape_is_that_of_the_file(tmp_path: Path) -> None:
    shape = read_shape(GIVEN / "qwen3")
    assert (shape["qk_norm"], shape["head_size"], shape["tie_embeddings"]) == (True, 16, False)
    model = ModelConfig.model_validate({"pretrained": str(GIVEN / "llama"), "dropout": 0.1})
    assert model.rope_scaling is not None
    assert (model.rope_theta, model.rope_scaling.factor, model.dropout) == (500.0, 8.0, 0.1)
    again = ModelConfig.model_validate(model.model_dump(mode="json", exclude_none=True))
    assert again == model, "params.yaml has the folder and the shape"


def test_files_before_transformers_5_say_the_same(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    del config["head_dim"]
    (folder / "config.json").write_text(json.dumps(config))
    assert read_shape(folder) == read_shape(GIVEN / "llama")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"model_type": "mamba"}, "model_type is not supported: use a model of type llama"),
        ({"model_type": ["llama"]}, "model_type is not supported"),
        ({"hidden_size": "32"}, "hidden_size must be a whole number above 0: download the model"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number"),
        ({"hidden_act": "gelu"}, "hidden_act is not supported: use a model without it (value"),
        ({"attention_bias": True}, "attention_bias is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        ({"layer_types": ["sliding_attention"]}, "layer_types is not supported"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"rms_norm_eps": -1}, "rms_norm_eps must be a number above 0"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
            "rope_parameters.rope_type is not supported: use a model with",
        ),
        (
            {"rope_parameters": None, "rope_scaling": {"type": "linear"}},
            "rope_scaling.type is not supported",
        ),
        (
            {"rope_parameters": {"rope_type": "llama3"}},
            "rope_parameters.factor must be a number above 0",
        ),
        ({"rope_parameters": [1]}, "rope_parameters must be a mapping"),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor is not",
        ),
    ],
)
def test_what_the_decoder_does_not_compute_is_refused_by_name(
    folder: Path, keys: dict[str, Any], told: str
) -> None:
    changed(folder, **keys)
    (message,) = refusals(folder)
    assert f"{folder}/config.json: {told}" in message


def test_a_key_beside_the_folder_must_say_the_same(folder: Path) -> None:
    assert refusals(folder, hidden_size=32) == []
    (message,) = refusals(folder, hidden_size=64)
    assert f"hidden_size is 64 beside pretrained, but {folder}/config.json says 32" in message


def cut(folder: Path) -> None:
    path = folder / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def cut_in_the_header(folder: Path) -> None:
    path = folder / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the header of a file, which has the same length then or is padded to it."""
    path = folder / "model-00003-of-00003.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    new = json.dumps(header).encode()
    path.write_bytes(len(new).to_bytes(8, "little") + new + data[8 + length :])


def without_a_tensor(folder: Path) -> None:
    rewritten(folder, lambda header: header.update(other=header.pop("model.norm.weight")))


def with_another(folder: Path) -> None:
    nothing = {"shape": [0], "data_offsets": [0, 0]}
    rewritten(folder, lambda header: header.update(bias=header["model.norm.weight"] | nothing))


def of_another_shape(folder: Path) -> None:
    changed(folder, intermediate_size=64)


def of_another_type(folder: Path) -> None:
    rewritten(folder, lambda header: header["model.norm.weight"].update(dtype="F8_E4M3"))


def of_a_size_that_does_not_fit(folder: Path) -> None:
    rewritten(folder, lambda header: header["model.norm.weight"].update(shape=[31]))


def with_two_at_one_place(folder: Path) -> None:
    def change(header: dict[str, Any]) -> None:
        shape = header["model.norm.weight"]["shape"]
        place = header["model.norm.weight"]["data_offsets"]
        other = next(name for name, one in header.items() if one.get("shape") == shape)
        header[other]["data_offsets"] = place

    rewritten(folder, change)


def of_an_endless_shape(folder: Path) -> None:
    shape = [10**290] * 100_000
    rewritten(folder, lambda header: header["model.norm.weight"].update(shape=shape))


def with_a_file_of_no_name(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "a\0b"}}))


def without_a_file(folder: Path) -> None:
    (folder / "model-00001-of-00003.safetensors").unlink()


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()


def with_more_layers(folder: Path) -> None:
    changed(folder, num_hidden_layers=3)


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def with_a_broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


SPOILED: dict[Callable[[Path], None], str] = {
    cut: r"-00002-of-00003\.safetensors: has \d+ bytes, but its header says \d+",
    cut_in_the_header: r"-00002-of-00003\.safetensors: is no safetensors file, or is cut",
    without_a_tensor: r"-00003-of-00003\.safetensors: lacks the tensor model\.norm\.weight",
    with_another: r"-00003-of-00003\.safetensors: has the tensor bias, which our",
    of_another_shape: r"the tensor .*\.0\.mlp\.gate_proj\.weight has the shape \[48, 32\]",
    of_another_type: r"the tensor model\.norm\.weight has the type F8_E4M3",
    of_a_size_that_does_not_fit: r"the tensor model\.norm\.weight has 64 bytes, but",
    with_two_at_one_place: r"the tensor .* does not begin where the one before it ends: download",
    of_an_endless_shape: r"the header says no place of the tensor model\.norm\.weight",
    with_a_file_of_no_name: r"index\.json: weight_map must map tensors to file names",
    without_a_file: r"-00001-of-00003\.safetensors: there is no such file: download it again",
    without_weights: r"there are no weights: neither model\.safetensors nor",
    with_more_layers: r"the weights lack the tensor .*\.2\.input_layernorm\.weight and 8 more",
    without_config: r"config\.json: there is no such file: name a folder as",
    with_a_broken_config: r"config\.json is not JSON: .*: download the model again",
}


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
def test_a_folder_that_is_not_whole_is_refused(folder: Path, spoil: Callable[[Path], None]) -> None:
    spoil(folder)
    (message,) = refusals(folder)
    assert str(folder) in message
    assert re.search(SPOILED[spoil], message), message


def test_the_command_tells_it_by_file_and_line(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trainer.yaml"
    shape = "{hidden_size: 16, num_layers: 1, num_heads: 4}"
    path.write_text(FIT.replace(shape, f"{{pretrained: {folder}}}"))
    assert main(["validate", str(path)]) == 0
    cut(folder)
    assert main(["validate", str(path)]) == 78
    told = capfd.readouterr().err
    assert f"{path}:3: trainer.init.model.pretrained: {folder}/model-00002" in told
    (folder / "config.json").unlink()
    assert main(["validate", str(path)]) == 78
    told = capfd.readouterr().err
    assert f"{path}:3: trainer.init.model: {folder}/config.json: there is no such file" in told
    assert "Traceback" not in told
