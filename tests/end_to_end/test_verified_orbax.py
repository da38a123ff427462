"""`checkpoint.verify` with the real Orbax, which restores most flipped bits without an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints.step_manifest import damage_of, make_manifest
from tests.running import PATIENCE, Start, eventually

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import jax, jax.numpy as jnp
import orbax.checkpoint as ocp

folder, pauses = Path(sys.argv[1]).absolute(), len(sys.argv) > 2
options = ocp.CheckpointManagerOptions(max_to_keep=3, enable_async_checkpointing=False)
manager = ocp.CheckpointManager(folder, options=options)
state = {"w": jax.random.normal(jax.random.key(0), (128, 128)), "m": jnp.zeros((128, 128))}
newest = manager.latest_step()
if newest is not None:
    state = manager.restore(newest, args=ocp.args.StandardRestore(state))
print("starts after", newest, flush=True)

@jax.jit
def train(state):
    m = 0.9 * state["m"] + jnp.tanh(state["w"] @ state["w"].T)
    return {"w": state["w"] - 0.01 * m, "m": m}

for step in range((newest or 0) + 1, 7):
    state = train(state)
    manager.save(step, args=ocp.args.StandardSave(state))
    manager.wait_until_finished()
    if step == 4 and pauses and not Path("struck").exists():
        Path("struck").touch()
        signal.pause()
for name, array in sorted(state.items()):
    Path(f"{folder.name}.{name}").write_bytes(jax.device_get(array).tobytes())
"""
Damage = Callable[[Path], None]


def files(step: Path) -> list[Path]:
    return sorted(path for path in step.rglob("*") if path.is_file() and path.stat().st_size)


def flip_in_an_array(step: Path) -> None:
    path = max(files(step), key=lambda each: each.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(step: Path) -> None:
    path = max(files(step), key=lambda each: each.stat().st_size)
    path.write_bytes(path.read_bytes()[:-7])


def lose_the_manifest(step: Path) -> None:
    for path in step.rglob("manifest.ocdbt"):
        path.unlink()


def lose_the_metadata(step: Path) -> None:
    for path in step.rglob("_METADATA"):
        path.unlink()
    (step / "_CHECKPOINT_METADATA").unlink()


def lose_everything(step: Path) -> None:
    for path in files(step):
        path.unlink()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("calm")
    (folder / "program.py").write_text(PROGRAM)
    subprocess.run(
        [sys.executable, "program.py", "steps"], check=True, cwd=folder, timeout=PATIENCE
    )
    return folder


@pytest.mark.slow  # it imports jax and Orbax
def test_each_of_120_flipped_bits_is_found(calm: Path) -> None:
    step = calm / "steps" / "6"
    manifest = make_manifest(step)
    assert manifest is not None
    paths = files(step)
    for number in range(120):
        path = paths[number % len(paths)]
        before = path.read_bytes()
        content = bytearray(before)
        place = number * 104_729 % (8 * len(content))
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)
        assert damage_of(step, manifest).keys() == {str(path.relative_to(step))}, number
        path.write_bytes(before)
    assert damage_of(step, manifest) == {}


@pytest.mark.slow  # three programs import jax and Orbax
@pytest.mark.parametrize(
    "damage",
    [flip_in_an_array, truncate, lose_the_manifest, lose_the_metadata, lose_everything],
)
def test_a_job_ends_with_the_bits_of_an_undisturbed_run(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calm: Path, damage: Damage
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    init: dict[str, Any] = {
        "model_dir": "run",
        "checkpoint": {"verify": True, "directory": "steps"},
        "autorestart": {"max_num_restarts": 1, "standby": "off"},
    }
    command = [sys.executable, "program.py", "steps", "pauses"]
    running = start({"trainer": {"init": init, "command": command}})
    (worker,) = running.wait_for_event("workers-started")["pids"]
    running.wait_for_event("checkpoint-committed", step=4)
    assert eventually(lambda: list(tmp_path.glob("run/checkpoint_manifests/*/4.json")))
    damage(tmp_path / "steps" / "4")
    os.kill(worker, signal.SIGKILL)
    result = running.result()
    assert result.code == 0, result.log
    assert result.event("checkpoint-damaged")["step"] == 4
    assert b"starts after 3" in result.rank_log(2)
    for name in ("steps.w", "steps.m"):
        assert (tmp_path / name).read_bytes() == (calm / name).read_bytes()
