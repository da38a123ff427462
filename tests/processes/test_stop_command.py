"""`supervise stop`: a job saves and ends, and only that of the supervisor that ran then does."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.adapters.stores.requests import StopJob, write_request
from supervisor.cli.job_view import view
from tests.forked import forked, start_forked
from tests.processes.test_stopping import waiting
from tests.running import Start, command_config


def test_a_running_job_saves_and_ends_with_79(start: Start, model_dir: Path) -> None:
    running = waiting(start, model_dir, "save-on-sigterm", "ready to save")
    asked = forked("stop", model_dir)
    assert (asked.returncode, asked.stderr) == (0, "")
    told, ended = asked.stdout.splitlines()
    assert told.startswith("asked the supervisor (pid ")
    assert told.endswith(f") of {model_dir} to stop: the program may save, and it ends with 79")
    assert ended.startswith("DRAINED: phase 'phase1', attempt 1")
    result = running.result()
    assert result.code == 79
    assert result.event("stop-requested")["detail"].startswith("supervise stop, by ")
    assert result.summary["highest_committed_step"] == 300
    assert not list((model_dir / "requests").iterdir())


def test_the_only_job_that_runs_here_is_stopped_and_of_several_none(
    start: Start, model_dir: Path
) -> None:
    here, other = model_dir.parent, model_dir.with_name("other")
    nobody = forked("stop", cwd=here)
    assert (nobody.returncode, "no job that runs is here: give the" in nobody.stderr) == (64, True)
    one = waiting(start, model_dir, "save-on-sigterm", "ready to save")
    two = waiting(start, other, "save-on-sigterm", "ready to save")
    for verb in ("stop", "save", "restart"):
        asked = forked(verb, cwd=here)
        assert asked.returncode == 64
        assert f"2 jobs run here, other, {model_dir.name}: give the job's model_dir" in asked.stderr
    assert forked("stop", other).returncode == 0
    assert two.result().code == 79
    asked = forked("stop", cwd=here)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert f") of {model_dir.name} to stop: " in asked.stdout
    assert one.result().code == 79


def test_who_asks_a_second_time_does_not_cut_the_save_short(start: Start, model_dir: Path) -> None:
    config = command_config(model_dir, "save-on-sigterm", "--once", "--save-seconds", "7")
    running = start(config)
    running.wait_for("ready to save")
    first = start_forked("stop", str(model_dir), env=os.environ)
    running.wait_for("saving")
    job = view(model_dir)
    assert job.identity is not None
    write_request(model_dir, StopJob("somebody who saw no stop yet", job.identity))
    second = forked("stop", model_dir)
    assert (second.returncode, second.stderr) == (0, "")
    told, ended = second.stdout.splitlines()
    assert told.endswith(" stops already: the program may save, and it ends")
    assert ended.startswith("DRAINED: phase 'phase1', attempt 1, last checkpoint: step 300")
    first.communicate()
    result = running.result()
    assert (first.wait(), result.code) == (0, 79)
    assert not result.has_event("stop-hurried")
    assert not list((model_dir / "requests").iterdir())


def test_where_nothing_runs_nothing_is_stopped(start: Start, model_dir: Path) -> None:
    assert start(command_config(model_dir, success={"step": 6})).result().code == 0
    asked = forked("stop", model_dir)
    assert asked.returncode == 64
    assert "no supervisor of" in asked.stderr
    assert "there is nothing to stop: SUCCEEDED" in asked.stderr
    assert not (model_dir / "requests").exists()
