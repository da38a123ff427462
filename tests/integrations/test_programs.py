"""Every program of `examples/programs` with its real library: killed ten times, asked to stop and
run again, it ends where an undisturbed run ends.

`make test-integrations` runs all of them, each in an environment of its libraries; `ONLY=name` runs
one. Those that are `in_ci` also run in `make test-slow`. What was
seen is written to `results`, from which `table` makes a table of the docs.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from supervisor.diagnosis.step_lines import loss_in
from tests.integrations.environments import MissingPythonError, command, dependencies, variables
from tests.integrations.programs import PROGRAMS, Program
from tests.integrations.schedule import KILLS, Schedule
from tests.integrations.supervised import Run, run_supervised
from tests.integrations.table import RESULTS
from tests.running import leaving_nothing

DIGEST = "parameters sha256: "
LIMIT = 1800.0
"""Seconds after which a run is taken for one that hangs: on a busy machine some programs take a
minute to start, and they start eleven times."""
STEP_SECONDS = 0.05
"""The least time of a step, which is the default of all programs."""


def _marked(program: Program) -> Any:
    marks = [pytest.mark.integrations, *([pytest.mark.slow] if program.in_ci else [])]
    return pytest.param(program, id=program.path.stem, marks=marks)


@pytest.mark.parametrize("program", [_marked(each) for each in PROGRAMS])
def test_a_program_killed_ten_times_ends_where_an_undisturbed_run_ends(
    program: Program, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print(f"SEED={seed}")
    try:
        argv, env = command(program), {**os.environ, **variables(program)}
    except MissingPythonError as missing:
        pytest.skip(str(missing))
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    unpaced = [*argv, *program.unpaced]  # nothing strikes it
    done = subprocess.run(
        unpaced, cwd=alone, env=env, timeout=LIMIT, stdin=subprocess.DEVNULL, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    undisturbed = _digest(done.stdout.decode().splitlines())

    longest = program.every * STEP_SECONDS
    schedule = Schedule(
        random.Random(seed), longest, program.last_stop, knows_standby=not program.uses_jax
    )
    with leaving_nothing() as mark:
        env |= mark
        first = run_supervised(argv, together, env, LIMIT, program.options, schedule)
        print(first.log())
        assert (first.code, first.kills) == (75, KILLS), first.output()[-50:]
        last = run_supervised(argv, together, env, LIMIT, program.options)
        print(last.log())
    assert last.code == 0, last.output()[-50:]
    assert last.all("job-ended")[-1]["status"] == "SUCCEEDED"
    assert first.all("budget-used")[-1]["restarts_in_all"] == KILLS
    assert last.all("job-resumed")[-1]["restarts_in_all"] == KILLS
    assert [each["code"] for each in first.all("attempt-failed")] == ["sigkill"] * KILLS
    assert not last.all("attempt-failed")
    assert program.uses_jax or not first.all("standby-ready"), "then the stop may wait for it"
    newest = last.all("attempt-ended")[-1]["newest_committed_step"]
    assert newest in (program.last_number - 1, program.last_number)  # some programs count from 0
    is_same = _digest(last.output()) == undisturbed
    assert is_same or not program.deterministic
    _write(program, _result(program, first, last, together, is_same))


def _digest(lines: list[str]) -> str:
    (last,) = [line for line in lines if line.startswith(DIGEST)][-1:]
    return last.removeprefix(DIGEST)


def _result(program: Program, first: Run, last: Run, folder: Path, is_same: bool) -> dict[str, Any]:
    """What was seen, without anything that is different each time."""
    told = [each["detail"] for each in first.all("steps-recognised")]
    ended = [each["ending_step"] for each in first.all("attempt-ended")]
    (stopped,) = first.all("attempt-stopped")
    saved = stopped["saved"] and not program.is_due(stopped["step"])
    return {
        "name": program.name,
        "script": program.script,
        "python": ".".join(map(str, program.python)),
        "libraries": dependencies(program),
        "options": list(program.options),
        "kills": first.kills,
        "exit_code": last.code,
        "checkpoints": _checkpoint_name(program, first, folder),
        "steps_from": _form(told[0]) if told else "reports" if any(ended) else None,
        "loss": loss_in(told[0]) is not None if told else None,
        "standby": _standby((first, last)),
        "deterministic": program.deterministic,
        "why_not_deterministic": program.why_not_deterministic,
        "same_bits": is_same,
        "sigterm": {"exit_code": first.code, "saved": saved, "again": last.code},
    }


def _standby(runs: Sequence[Run]) -> list[str] | None:
    """Return the kinds of standby that were ready; None: a busy machine left no time for one."""
    events = [event for run in runs for event in run.all("standby-ready", "standby-failed")]
    return sorted({event["kind"] for event in events if "kind" in event}) if events else None


def _checkpoint_name(program: Program, run: Run, folder: Path) -> str | None:
    """Return the path of a checkpoint in the directory that was found, with N for the step."""
    places = [each["place"] for each in run.all("checkpoints-found")]
    if not places:
        return None
    place = Path(places[-1])
    last = program.last_number
    number = re.compile(rf"(?<!\d)0*(?:{last}|{last - 1})(?!\d)")
    names = [f"{each.name}/" if each.is_dir() else each.name for each in place.iterdir()]
    found = min((name for name in names if number.search(name)), key=len)
    return str((place / number.sub("N", found)).relative_to(folder)) + "/" * found.endswith("/")


def _form(line: str) -> str:
    """Return a line with N for each of its numbers, and no padding of one: numbers, spaces and the
    bar of tqdm are as long as the step says."""
    line = re.sub(r"(?<=%\|)[^|]*(?=\|)", "…", line)
    line = re.sub(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?", "N", line)
    return re.sub(r" +", " ", line)


def _write(program: Program, result: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{program.path.stem}.json"
    if result["standby"] is None and path.exists():  # then what was seen last is still true
        result["standby"] = json.loads(path.read_text(encoding="utf-8"))["standby"]
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
