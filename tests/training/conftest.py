"""Fixtures that make trainers."""

# mypy: allow-untyped-calls
from __future__ import annotations

from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests.once import once
from trainer.train_state import TrainState

from .harness import MakeTrainer, Trainer, tiny


@pytest.fixture(scope="session", autouse=True)
def _compile_once(cache: dict[str, str]) -> None:
    """Share what is compiled in this process with the other worker processes and with trainers."""
    jax.config.update("jax_compilation_cache_dir", cache["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    compilation_cache.reset_cache()


@pytest.fixture(scope="session")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, unoptimised: dict[str, str]
) -> TrainState:
    """What the tiny trainer ends with on one device where nothing strikes it."""

    def trainer(folder: Path) -> Trainer:
        return Trainer(folder, unoptimised, 1, tiny(folder / "checkpoints"))

    folder = once(tmp_path_factory, "undisturbed-trainer", lambda new: trainer(new).finish())
    return trainer(folder).state(17)


@pytest.fixture
def make_trainer(tmp_path: Path, unoptimised: dict[str, str]) -> MakeTrainer:
    """Makes a `Trainer` in a folder of this name; further keywords go to `loop`."""

    def make(name: str = "run", num_devices: int = 1, **loop: int) -> Trainer:
        folder = tmp_path / name
        folder.mkdir()
        mapping = tiny(folder / "checkpoints", **loop)
        return Trainer(folder, unoptimised, num_devices, mapping)

    return make
