"""A trained model leaves as a folder of Hugging Face, with the logits that it has here. That
`transformers` agrees is shown where `make test-layouts` has installed it."""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from flax import nnx

from supervisor.config.training.resolved import TrainerConfig, parse
from supervisor.config.training.sections import ModelConfig
from trainer.export import export, trained_weights
from trainer.pretrained_weights import load_pretrained

from .harness import MakeTrainer, Trainer, assert_same_bits, spec_of

GIVEN = Path(__file__).parent / "pretrained"
REFERENCE = GIVEN / "reference.py"
NEW = {
    "hidden_size": 32,
    "num_layers": 1,
    "num_heads": 4,
    "num_kv_heads": 2,
    "rope_scaling": {
        "factor": 4,
        "low_freq_factor": 1,
        "high_freq_factor": 4,
        "original_max_position_embeddings": 16,
    },
}
KINDS: dict[str, dict[str, Any]] = {
    "adapters of qwen3": {"model": {"pretrained": str(GIVEN / "qwen3")}, "lora": {"rank": 2}},
    "all of llama": {"model": {"pretrained": str(GIVEN / "llama")}},
    "a new model": {"model": NEW},
}


@pytest.fixture
def trained(make_trainer: MakeTrainer, request: pytest.FixtureRequest) -> Trainer:
    """A trainer that has done two steps."""
    trainer = make_trainer(max_steps=2)
    trainer.mapping["trainer"]["init"] |= KINDS[request.param]
    trainer.mapping["trainer"]["init"]["optimizer"]["learning_rate"] = 0.1
    del trainer.mapping["trainer"]["fit"]["validation"]
    if "pretrained" in KINDS[request.param]["model"]:
        pytest.importorskip("tokenizers")
    trainer.finish()
    write_phase(trainer, 1)
    return trainer


def write_phase(trainer: Trainer, day: int) -> None:
    """Write the config as it is now as that of the phase which began on this day."""
    phase = trainer.folder / f"202601{day:02}_000000_restartable"
    phase.mkdir(exist_ok=True)
    (phase / "params.yaml").write_text(yaml.safe_dump(trainer.mapping))


def run(trainer: Trainer, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "trainer.export", str(trainer.folder), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, **options)


def exported_weights(config: TrainerConfig, folder: Path) -> tuple[ModelConfig, Any]:
    model = ModelConfig.model_validate({"pretrained": str(folder)})
    return model, load_pretrained(folder, model, spec_of(config).weights)


@pytest.mark.parametrize("trained", KINDS, indirect=True)
def test_what_is_exported_computes_the_same(trained: Trainer, tmp_path: Path) -> None:
    config, folder = parse(trained.mapping), tmp_path / "exported"
    plan, ours = spec_of(config), trained_weights(config, 2)
    export(config, 2, folder, "float32", largest=20_000)
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 1
    model, theirs = exported_weights(config, folder)
    assert_same_bits(ours, theirs)
    expected, given = config.init.model.shape, model.shape
    assert {key for key in expected if expected[key] != given[key]} <= {"dropout"}
    tokens = jax.random.randint(jax.random.key(0), (2, 40), 0, model.vocab_size)
    logits = nnx.merge(plan.reference_graph, theirs)(tokens)
    if config.init.model.folder is not None:
        before = nnx.merge(
            plan.reference_graph, exported_weights(config, config.init.model.folder)[1]
        )
        assert np.abs(logits - before(tokens)).max() > 0.1, "it has learned something"
        tokenizer = (config.init.model.folder / "tokenizer.json").read_bytes()
        assert (folder / "tokenizer.json").read_bytes() == tokenizer
    if "LAYOUTS_VENV" in os.environ:
        np.savez(folder / "golden.npz", tokens=tokens, logits=logits)
        argv = [f"{os.environ['LAYOUTS_VENV']}/bin/python", str(REFERENCE), "check", str(folder)]
        said = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
        assert said["apart"] < 1e-4 * max(1.0, said["scale"]), said


@pytest.mark.parametrize("trained", ["adapters of qwen3"], indirect=True)
def test_the_command_exports_the_newest_step_and_says_what_is_wrong(
    trained: Trainer, tmp_path: Path
) -> None:
    folder = tmp_path / "exported"
    done = run(trained, str(folder), "--dtype", "bfloat16", umask=0o077)
    assert (done.returncode, done.stdout) == (0, f"exported step 2 to {folder}\n"), done.stderr
    assert (folder / "model.safetensors").stat().st_size < 120_000
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700, "the umask holds for what is learned"
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    for arguments, code, told in (
        ([str(folder)], 78, "is there already, and is not overwritten"),
        ([str(link)], 78, "is there already, and is not overwritten"),
        ([str(tmp_path / "a" / "b")], 78, "its parent folder does not exist"),
        ([str(tmp_path / "b"), "--step", "1"], 78, "--step 1: is not committed in"),
        ([str(tmp_path / "b"), "--phase", "x"], 78, "has the phases phase1"),
    ):
        refused = run(trained, *arguments)
        assert (refused.returncode, refused.stdout) == (code, "")
        assert told in refused.stderr
        assert "Traceback" not in refused.stderr
    shutil.rmtree(folder)
    largest = max((trained.checkpoints / "2").rglob("*"), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    refused = run(trained, str(folder))
    assert refused.returncode == 70
    assert "does not have the content that was saved" in refused.stderr
    assert not folder.exists()
    params = trained.folder / "20260101_000000_restartable" / "params.yaml"
    for text in ("{", "", "[1]", "[" * 100_000, "trainer: \x01"):
        params.write_text(text)
        refused = run(trained, str(folder))
        assert (refused.returncode, refused.stdout) == (78, "")
        assert f"{params}: is no config of a phase" in refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("trained", ["a new model"], indirect=True)
def test_an_export_that_finds_no_room_leaves_nothing(trained: Trainer, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()

    def little_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    done = run(trained, str(small / "exported"), preexec_fn=little_room)
    assert (done.returncode, done.stdout) == (74, ""), done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(small.iterdir()) == []


@pytest.mark.parametrize("trained", ["adapters of qwen3"], indirect=True)
def test_an_export_needs_no_data_and_skips_phases_that_only_evaluate(
    trained: Trainer, tmp_path: Path
) -> None:
    init, fit = trained.mapping["trainer"]["init"], trained.mapping["trainer"]["fit"]
    fit["train_dataloader"]["paths"] = ["gone.jsonl"]
    write_phase(trained, 1)
    del init["optimizer"], init["lora"], init["loop"]["max_steps"]
    fit["validation"] = {"steps": 1, "dataloader": fit.pop("train_dataloader")}
    trained.mapping["trainer"]["name"] = "judge"
    write_phase(trained, 2)
    folder = tmp_path / "exported"
    refused = run(trained, str(folder), "--phase", "judge")
    assert (refused.returncode, refused.stdout) == (78, "")
    assert "--phase judge: it only evaluates" in refused.stderr
    done = run(trained, str(folder))
    assert (done.returncode, done.stdout) == (0, f"exported step 2 to {folder}\n"), done.stderr


@pytest.mark.parametrize("trained", ["all of llama"], indirect=True)
def test_an_export_is_on_the_disk_and_its_tokenizer_the_one_that_was_trained_with(
    trained: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, sync = list[str](), os.fsync

    def noted(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append(path.name if path.is_file() else str(path))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    own, given = tmp_path / "own", GIVEN / "llama"
    own.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (own / name).write_text((given / name).read_text() + "\n")
    trained.mapping["trainer"]["init"]["tokenizer"] = str(own)
    folder = tmp_path / "exported"
    export(parse(trained.mapping), 2, folder, "float32", largest=1 << 30)
    assert {path.name for path in folder.iterdir()} <= set(synced)
    assert synced[-1] == str(tmp_path), "the new name, too"
    for file in own.iterdir():
        assert (folder / file.name).read_bytes() == file.read_bytes()
    assert not (folder / "chat_template.jinja").exists(), "it belongs to the other tokenizer"
    assert (folder / "generation_config.json").exists(), "it belongs to the model"
