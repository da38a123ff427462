"""What the runs of real trainers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.test_training import config
from tests.once import once
from tests.running import starting
from tests.training.harness import final_state
from trainer.train_state import TrainState


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, cache: dict[str, str]) -> TrainState:
    """What the job of `config` ends with on one device where nothing strikes it."""

    def run(folder: Path) -> None:
        with starting(folder) as start:
            assert start(config(folder / "run"), env=cache).result().code == 0

    model_dir = once(tmp_path_factory, "undisturbed-job", run) / "run"
    return final_state(config(model_dir), model_dir)
