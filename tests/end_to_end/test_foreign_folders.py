"""People keep folders of their own where a job saves its checkpoints: the job leaves them alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.adapters.kernel.clock import SystemClock
from supervisor.host.notice import Notice
from supervisor.model_dir_ownership import own_checkpoints
from tests.foreign import fingerprint
from tests.running import Result

from .test_training import config

Supervise = Callable[..., Result]


def test_folders_of_years_beside_the_checkpoints_are_left_and_named_in_the_log(
    supervise: Supervise, tmp_path: Path, cache: dict[str, str]
) -> None:
    job = config(tmp_path / "job", faults=[{"step": 12, "signal": "SIGKILL"}])
    mine = tmp_path / "job" / "mine"
    for year in ("2023", "2024"):
        (mine / year).mkdir(parents=True)
        (mine / year / "results.csv").write_text(year)
    before = fingerprint(mine)
    result = supervise(job, "--set", f"trainer.init.checkpoint.directory={mine}", env=cache)
    assert result.code == 0, result.out
    assert before.items() <= fingerprint(mine).items()
    assert sorted(path.name for path in mine.glob("[0-9]*")) == ["15", "17", "2023", "2024"]
    told = result.event("checkpoints-foreign")
    assert f"{mine} has what this job did not save: '2023', '2024'" in told["text"]
    assert result.event("attempt-started", attempt=2)["step"] is not None


@pytest.mark.parametrize("directory", ["job/checkpoints", "elsewhere"])
def test_where_another_job_saves_a_job_is_refused(
    supervise: Supervise, tmp_path: Path, directory: str
) -> None:
    place, told = tmp_path / directory, list[Notice]()
    chosen = ("--set", f"trainer.init.checkpoint.directory={place}")
    with own_checkpoints([place], tmp_path / "other", SystemClock(), told.append):
        result = supervise(config(tmp_path / "job"), *chosen)
    assert result.code == 73, result.out
    assert "where checkpoints are saved, is owned by supervisor" in result.err
    assert not told
