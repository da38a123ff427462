"""Fixtures that make trainers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.once import once
from trainer.train_state import TrainState

from .harness import MakeTrainer, Trainer, tiny


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, cache: dict[str, str]) -> TrainState:
    """What the tiny trainer ends with on one device where nothing strikes it."""

    def trainer(folder: Path) -> Trainer:
        return Trainer(folder, cache, 1, tiny(folder / "checkpoints"))

    folder = once(tmp_path_factory, "undisturbed-trainer", lambda new: trainer(new).finish())
    return trainer(folder).state(17)


@pytest.fixture
def make_trainer(tmp_path: Path, cache: dict[str, str]) -> MakeTrainer:
    """Makes a `Trainer` in a folder of this name; further keywords go to `loop`."""

    def make(name: str = "run", num_devices: int = 1, **loop: int) -> Trainer:
        folder = tmp_path / name
        folder.mkdir()
        mapping = tiny(folder / "checkpoints", **loop)
        return Trainer(folder, cache, num_devices, mapping)

    return make
