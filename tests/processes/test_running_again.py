"""The same command after a success that nothing but the exit code told."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running import Result

Supervise = Callable[..., Result]

COUNT = "import sys; open(sys.argv[1], 'a').write('ran\\n')"


def config(model_dir: Path, *phases: str, **command: Any) -> dict[str, Any]:
    """Phases that each note in a file of their own that they ran."""
    return {
        "trainer": [
            {
                "trainer": {
                    "name": name,
                    "init": {"model_dir": str(model_dir), "autorestart": {"max_num_restarts": 1}},
                    "command": {
                        "argv": [sys.executable, "-c", COUNT, str(model_dir.parent / name)],
                        **command,
                    },
                }
            }
            for name in phases
        ]
    }


def ran(model_dir: Path, phase: str) -> int:
    return len((model_dir.parent / phase).read_text().split())


def test_exit_code_0_alone_is_not_final(supervise: Supervise, model_dir: Path) -> None:
    first = supervise(config(model_dir, "one", "two"))
    assert first.has_event("success-by-exit-code", phase="two")
    why = "the job had succeeded by its exit code alone, which is not final"
    assert not any(why in told["reason"] for told in first.events("phase-starting"))
    again = supervise(config(model_dir, "one", "two"))
    assert (first.code, again.code) == (0, 0)
    assert (ran(model_dir, "one"), ran(model_dir, "two")) == (2, 2)
    assert why in again.events("phase-starting")[0]["reason"]
    assert again.has_event("attempt-started", attempt=3, step=None, reason="phase 'one' starts")
    records = [json.loads(p.read_text()) for p in sorted(model_dir.glob("*/summary.json"))]
    assert [record["attempts"][0]["attempt"] for record in records] == [1, 2, 3, 4]
    assert len({record["job"] for record in records}) == 1, "history is kept in one journal"


def test_the_changed_command_of_a_success_that_is_not_final_is_accepted(
    supervise: Supervise, model_dir: Path
) -> None:
    assert supervise(config(model_dir, "one")).code == 0
    changed = config(model_dir, "one", env={"NEW": "1"})
    assert supervise(changed, "--once").code == 78
    assert supervise(changed).code == 0
    assert ran(model_dir, "one") == 2


def test_a_finished_program_needs_no_steps_when_it_runs_again(
    supervise: Supervise, model_dir: Path
) -> None:
    script = f"test -e {model_dir}/done && echo all done || echo step 7; touch {model_dir}/done"
    job = config(model_dir, "one", progress={"pattern": r"step (\d+)"})
    job["trainer"][0]["trainer"]["command"]["argv"] = ["bash", "-c", script]
    first, again = supervise(job), supervise(job)
    assert (first.code, again.code) == (0, 0)
    assert again.has_event("output", text="all done")
    assert not again.has_event("pattern-unmatched")


@pytest.mark.parametrize("declared", [False, True])
def test_success_stays_success_with_once_or_where_it_is_declared(
    supervise: Supervise, model_dir: Path, declared: bool
) -> None:
    command = {"success": {"file": str(model_dir.parent / "one")}} if declared else {}
    options = [] if declared else ["--once"]
    assert supervise(config(model_dir, "one", **command), *options).code == 0
    again = supervise(config(model_dir, "one", **command), *options)
    assert again.code == 0
    assert "has succeeded already: nothing to do" in again.raw, "a sentence alone: no job runs"
    assert ran(model_dir, "one") == 1
