"""`supervise validate`: what a person should know before anything is launched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.end_to_end.test_training import config
from tests.forked import forked
from tests.running import command_config


def validate(tmp_path: Path, job: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "trainer.yaml"
    path.write_text(yaml.safe_dump(job))
    return forked("validate", path)


def test_device_counts_without_a_rung_are_named(tmp_path: Path, model_dir: Path) -> None:
    done = validate(tmp_path, config(model_dir, 8))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "#         4  data 4 x fsdp 1                 1             2" in lines
    assert "# no rung: 7-5, 3 devices: global_batch_size 8 does not divide among them" in lines
    yaml.safe_load(done.stdout)
    assert "no rung" not in validate(tmp_path, config(model_dir, 2)).stdout
    job = config(model_dir, 8)
    job["trainer"]["init"]["autorestart"]["ladder"] = [8, 6]
    done = validate(tmp_path, job)
    assert done.returncode == 78
    assert (
        "trainer.init.autorestart.ladder[1]: 6 devices: global_batch_size 8 does not divide"
        in done.stderr
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("init.model.vocab_size", 100, "must be at least 257, the tokenizer's"),
        ("fit.train_dataloader.paths", "no-such.txt", "matches no file here"),
        ("init.loop.global_batch_size", 7, "does not divide among 2 devices"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_its_line(
    tmp_path: Path, model_dir: Path, key: str, value: object, message: str
) -> None:
    job = config(model_dir, 2)
    *parents, last = key.split(".")
    section = job["trainer"]
    for parent in parents:
        section = section[parent]
    section[last] = value
    done = validate(tmp_path, job)
    assert done.returncode == 78
    assert f"trainer.{key}: " in done.stderr
    assert message in done.stderr
    assert "trainer.yaml:" in done.stderr


def test_a_record_that_is_not_as_the_config_says_is_named(tmp_path: Path, model_dir: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"ids": [1, 264]}\n')
    job = config(model_dir, 2)
    job["trainer"]["fit"]["train_dataloader"] |= {"paths": str(data), "tokens_field": "ids"}
    done = validate(tmp_path, job)
    assert done.returncode == 78
    assert "trainer.fit.train_dataloader.paths: " in done.stderr
    assert f"{data}:1: token id 264 at position 1 is outside the vocabulary" in done.stderr


def test_too_little_data_is_refused_unless_an_earlier_command_may_write_more(
    tmp_path: Path, model_dir: Path
) -> None:
    data = tmp_path / "data.jsonl"
    data.touch()
    training, making = config(model_dir, 2)["trainer"], command_config(model_dir)["trainer"]
    training["fit"]["train_dataloader"] |= {"paths": str(data)}
    training["name"], making["name"] = "training", "making"
    late = validate(tmp_path, {"trainer": [{"trainer": training}, {"trainer": making}]})
    assert late.returncode == 78
    assert f"fit.train_dataloader.paths: there is no record in {data}: add some" in late.stderr
    done = validate(tmp_path, {"trainer": [{"trainer": making}, {"trainer": training}]})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "argv",
    [
        ["{model_dir}/train", "x"],
        [sys.executable, "{model_dir}/train.py"],
        [sys.executable, "-m", "train"],
        ["bash", "-c", "no-such-program"],
    ],
)
def test_what_is_known_only_when_it_runs_is_not_looked_for(
    tmp_path: Path, model_dir: Path, argv: list[str]
) -> None:
    job = command_config(model_dir)
    job["trainer"]["command"] = argv
    done = validate(tmp_path, job)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("variable", "devices", "shown", "too_few", "wrong", "why", "right"),
    [
        (
            "CUDA_VISIBLE_DEVICES",
            {"platform": "gpu", "count": 4},
            "2,GPU-8932f937",
            "shows 2 of the 4 GPUs that init.devices.count asks for (value '2,GPU-8932f937'): name "
            "as many, or lower the count",
            "0,1,2,2",
            "names 2 twice",
            "0,1,2,3",
        ),
        (
            "TPU_VISIBLE_CHIPS",
            {"platform": "tpu", "type": "v5e-8"},
            "0,1,2,3",
            "shows 4 of the 8 chips that init.devices asks for (value '0,1,2,3'): name as many, "
            "unset it, or ask for 4",
            "9,a,-1",
            "has '9', which is no chip of a TPU host",
            "7,6,5,4,3,2,1,0",
        ),
    ],
)
def test_a_list_that_shows_other_devices_than_the_job_is_to_have_is_refused(
    tmp_path: Path,
    model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    devices: dict[str, Any],
    shown: str,
    too_few: str,
    wrong: str,
    why: str,
    right: str,
) -> None:
    job = command_config(model_dir, "true")
    job["trainer"]["init"]["devices"] = devices
    monkeypatch.setenv(variable, shown)
    done = validate(tmp_path, job)
    assert done.returncode == 78
    assert f"trainer.init.devices: {variable} in the environment {too_few}" in done.stderr
    assert "Traceback" not in done.stderr
    job["trainer"]["command"]["env"] = {variable: wrong}
    done = validate(tmp_path, job)
    assert done.returncode == 78
    assert f"command.env.{variable}: {why}" in done.stderr
    job["trainer"]["command"]["env"] = {variable: right}
    assert validate(tmp_path, job).returncode == 0


@pytest.mark.parametrize(
    ("devices", "platforms", "refused"),
    [
        ({"platform": "gpu", "count": 2}, "cpu", True),
        ({"platform": "gpu", "count": 2}, "cuda,cpu", True),
        ({"platform": "gpu", "count": 2}, "", True),
        ({"platform": "tpu", "type": "v5e-8"}, "cpu", True),
        ({"platform": "tpu", "type": "v5e-8"}, "tpu,cpu", False),
        ({"platform": "gpu", "count": 2}, "cuda", False),
        ({"platform": "cpu", "count": 2}, "cpu", False),
    ],
)
def test_a_platform_that_its_own_environment_takes_away_is_refused(
    tmp_path: Path, model_dir: Path, devices: dict[str, Any], platforms: str, refused: bool
) -> None:
    job = command_config(model_dir, "true")
    job["trainer"]["init"]["devices"] = devices
    job["trainer"]["command"]["env"] = {"JAX_PLATFORMS": platforms}
    done = validate(tmp_path, job)
    told = f"command.env.JAX_PLATFORMS: is {platforms!r}: with it jax may silently run on the CPU"
    assert (done.returncode == 78) == refused, done.stderr
    assert (told in done.stderr) == refused
    assert ("remove it (JAX_PLATFORMS is set for you)" in done.stderr) == refused


def test_a_ready_standby_that_a_gpu_has_no_memory_for_is_told(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = config(model_dir, 2)
    job["trainer"]["init"]["devices"] = {"platform": "gpu", "count": 2}
    job["trainer"]["init"]["autorestart"]["standby"] = "ready"
    done = validate(tmp_path, job)
    assert done.returncode == 0, done.stderr
    assert "has a standby of `imports` instead of `ready`: each process takes 75%" in done.stdout
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", ".45")
    assert "instead of `ready`" not in validate(tmp_path, job).stdout


def test_a_start_without_a_checkpoint_is_told_before_the_launch(
    tmp_path: Path, model_dir: Path
) -> None:
    other = tmp_path / "other"
    job = config(model_dir)
    trainer = job["trainer"]
    where = "trainer.start_from.directory: "
    trainer["start_from"] = {"directory": str(other)}
    done = validate(tmp_path, job)
    assert done.returncode == 78
    assert f'{where}is no directory here (value "{other}"): give the directory' in done.stderr
    (other / "checkpoints" / "100").mkdir(parents=True)
    assert "has no committed checkpoint" in validate(tmp_path, job).stderr
    (other / "checkpoints" / "100" / "commit_success.txt").touch()
    done = validate(tmp_path, job)
    assert f"give {other}/checkpoints, which has one" in done.stderr
    trainer["start_from"] = {"directory": f"{other}/checkpoints"}
    assert validate(tmp_path, job).returncode == 0
    # A phase that has begun reads it no more, and an earlier phase may be what fills it.
    trainer["start_from"] = {"directory": str(tmp_path / "gone")}
    (model_dir / "checkpoints" / "5").mkdir(parents=True)
    (model_dir / "checkpoints" / "5" / "commit_success.txt").touch()
    assert validate(tmp_path, job).returncode == 0
    first = {**trainer, "name": "first", "init": {**trainer["init"]}}
    del first["start_from"]
    first["init"]["checkpoint"] = {**first["init"]["checkpoint"], "directory": str(other / "new")}
    second = {**trainer, "name": "second", "start_from": {"directory": str(other / "new")}}
    both = {"trainer": [{"trainer": first}, {"trainer": second}]}
    assert validate(tmp_path, both).returncode == 0
