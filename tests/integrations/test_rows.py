"""The rows, heads and tables of the programs: what can be said of them without running one."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path
from random import Random

import pytest

from tests.integrations.environments import dependencies, metadata
from tests.integrations.programs import FOLDER, PROGRAMS, ROOT, Program
from tests.integrations.schedule import KILLS, MOST_IN_A_ROW, Schedule
from tests.integrations.table import GAINS, PAGE, RESULTS, page, programs

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
OURS = re.compile(
    r"\bsupervise (?:run|init)\b|supervise_worker|(?:import|from) (?:supervisor|trainer)\b"
)
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.path.stem)


def test_every_program_has_one_row() -> None:
    scripts = sorted(path.name for path in FOLDER.iterdir() if path.is_file())
    assert sorted(program.script for program in PROGRAMS) == scripts


@each_program
def test_a_row_leaves_room_for_the_kills_and_says_why_its_bits_may_differ(program: Program) -> None:
    assert program.steps % program.every == 0
    assert program.steps >= 16 * program.every
    assert program.deterministic == (program.why_not_deterministic == "")


@each_program
def test_a_save_that_was_due_is_not_one_because_of_sigterm(program: Program) -> None:
    assert program.is_due(program.last_stop)
    assert program.is_due(program.last_number)
    assert program.counts_epochs or not program.is_due(program.last_stop + 1)


@each_program
def test_a_program_says_how_it_is_run_and_knows_nothing_of_us(program: Program) -> None:
    text = program.path.read_text(encoding="utf-8")
    runner = "bash" if program.path.suffix == ".sh" else "python"
    line = f" -- {runner} examples/programs/{program.script} --workdir out\n"
    (told,) = [each for each in text.splitlines(keepends=True) if OURS.search(each)]
    assert told.lstrip("# ").startswith("supervise run ")
    assert told.endswith(line)


@each_program
def test_a_program_knows_the_options_that_it_is_given(program: Program) -> None:
    text = program.path.read_text(encoding="utf-8")
    given = (*program.arguments, *program.unpaced)
    unknown = [each for each in given if each.startswith("--") and each not in text]
    assert unknown == []
    assert program.is_paced == ("--step-seconds" in text)


@each_program
def test_the_libraries_of_a_program_are_pinned(program: Program) -> None:
    wanted = dependencies(program)
    assert all(re.fullmatch(r"[\w.\[\],-]+==[\w.+]+", each) for each in wanted)
    if wanted:
        assert str(metadata(program.path)["requires-python"])
    if program.in_ci:
        assert [each for each in wanted if f"\n{each} " not in LOCK] == []


def test_the_tables_are_those_that_the_tests_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.integrations.table"


def test_a_program_that_nobody_has_run_yet_is_in_the_table(tmp_path: Path) -> None:
    results = Path(shutil.copytree(RESULTS, tmp_path / "results"))
    (results / "torch_loop.json").unlink()
    whole, shorter = list(programs()), list(programs(results))
    assert len(whole) == len(shorter) == 2 + len(PROGRAMS)
    ((seen, not_seen),) = [rows for rows in zip(whole, shorter, strict=True) if len(set(rows)) > 1]
    assert (
        not_seen == "| [torch](../../examples/programs/torch_loop.py) |  |  |  |  | not seen yet |"
    )
    assert seen.startswith("| [torch](../../examples/programs/torch_loop.py) | Python ")


def test_every_test_that_the_table_of_levels_names_is_there() -> None:
    named = [test for row in GAINS.values() for _, test in row.values()]
    for path, _, name in (test.partition(":") for test in named):
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("seed", range(100))
def test_at_most_two_kills_come_between_two_commits(seed: int) -> None:
    schedule = Schedule(Random(seed), 1.0, last=10**6)
    drawn = Random(seed)
    committed = in_a_row = 0
    is_stopped = False
    schedule.seen({"event": "standby-ready"})
    while not is_stopped:
        schedule.seen({"event": "workers-started"})
        commits = [schedule.seen({"event": "recovered"})] if in_a_row else []
        if not commits or commits[0] is None:
            in_a_row, committed = 0, committed + 10
            commits = [schedule.seen({"event": "checkpoint-committed", "step": committed})]
        assert commits[0] is not None
        assert 0 <= commits[0] <= 1
        if not schedule.kills:
            assert schedule.seen({"event": "recovered"}) is None, "it stops after a commit"
            schedule.stopped()
            is_stopped = True
        else:
            schedule.killed()
            if drawn.random() < 0.2:  # made before the kill, and told after it
                in_a_row, committed = 0, committed + 10
                schedule.seen({"event": "checkpoint-committed", "step": committed})
            in_a_row += 1
        assert in_a_row <= MOST_IN_A_ROW
    assert committed <= 10 * (KILLS + 1) * 2
    assert schedule.seen({"event": "checkpoint-committed", "step": 10**6}) is None


def test_the_stop_waits_for_a_standby_as_long_as_there_is_time() -> None:
    for told, last in (({"event": "standby-failed"}, 100), ({"event": "attempt-started"}, 20)):
        schedule = Schedule(Random(1), 1.0, last, kills=0)
        schedule.seen({"event": "workers-started"})
        assert schedule.seen({"event": "checkpoint-committed", "step": 10}) is None
        schedule.seen(told)
        assert schedule.seen({"event": "checkpoint-committed", "step": 20}) is not None
