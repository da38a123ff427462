"""People keep folders of their own where a job saves its checkpoints: the job leaves them alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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
