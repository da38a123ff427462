"""What the runs of real trainers share."""

from __future__ import annotations

import pytest

from tests.end_to_end.test_training import config
from tests.running import starting
from tests.training.harness import final_state
from trainer.train_state import TrainState


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, cache: dict[str, str]) -> TrainState:
    """What the job of `config` ends with on one device where nothing strikes it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    job = config(folder / "run")
    with starting(folder) as start:
        assert start(job, env=cache).result().code == 0
    return final_state(job, folder / "run")
