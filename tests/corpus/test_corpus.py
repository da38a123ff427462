"""The verdicts about real failures: every one right, but those that their logs cannot tell."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.diagnosis.outcome import Verdict
from tests import corpus_report
from tests.corpus.cases import (
    CANNOT_BE_TOLD,
    COMPOSED,
    CORPUS,
    PROVOKED,
    Case,
    judge_together,
    judged,
    judged_file,
    read_cases,
)
from tests.corpus.precision import precision

ROOT = Path(__file__).parents[2]
CASES = read_cases()
BY_ID = {case.id: case for case in CASES}


@pytest.mark.parametrize("path", [CORPUS, PROVOKED, COMPOSED], ids=lambda path: path.stem)
def test_every_verdict_is_right(path: Path) -> None:
    wrong = [item.case.id for item in judged_file(path) if not item.right]
    assert wrong == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_each_log_by_itself(case: Case) -> None:
    right = judge_together([case]).verdict == case.verdict
    assert right is (case.id not in CANNOT_BE_TOLD)
    assert right or case.undecidable


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_without_the_stage_the_verdict_is_the_same(case: Case) -> None:
    (alone,) = judged([replace(case, stage=None)])
    assert alone.right or case.id in CANNOT_BE_TOLD


def test_the_root_cause_is_the_line_that_a_person_would_name() -> None:
    """But for victims, of whose lines any is as good as another; and for hf-429, where the corpus
    names the outer error and we the one that it came of, which says 429."""
    alone = [(case, judge_together([case])) for case in CASES if case.root_line]
    missed = [
        case.id
        for case, failure in alone
        if failure.root_cause[:60] not in case.root_line
        and failure.rule not in ("lost-peer", "hang")
    ]
    assert missed == ["hf-429"]


def test_the_culprit_of_several_ranks_is_named() -> None:
    together = judge_together([BY_ID["mp-user-exc-h0"], BY_ID["mp-user-exc-h1"]])
    assert (together.verdict, together.rank) == (Verdict.FATAL, 1)
    assert together.root_cause == BY_ID["mp-user-exc-h1"].root_line


ALONE = [c for c in CASES if c.incident is None and c.verdict != "RESTART" and c.root_line]


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.id)
@pytest.mark.parametrize("rank", [0, 1])
def test_beside_a_rank_that_lost_its_peer_the_culprit_stays_the_same(case: Case, rank: int) -> None:
    victim = replace(BY_ID["mp-gloo-reset-h0"], rank=1 - rank)
    ranks = sorted((replace(case, rank=rank), victim), key=lambda item: item.rank)
    together = judge_together(ranks)
    assert (together.verdict, together.rank) == (case.verdict, rank)


def run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.corpus_report", *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def changed(path: Path, ids: Sequence[str], **changes: object) -> Path:
    """A corpus of some cases, each with other values."""
    rows = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    chosen = [json.dumps({**row, **changes}) for row in rows if row["id"] in ids]
    path.write_text("\n".join(chosen) + "\n", encoding="utf-8")
    return path


def test_the_report_of_the_development_set() -> None:
    done = run(CORPUS)
    assert done.returncode == 0, done.stderr
    assert "verdicts: 66 of 66 (100.0%) right" in done.stdout
    assert "FATAL for RESTART (a healthy job is killed): 0\n" in done.stdout
    assert "RESTART for FATAL (a night is burned on a bug): 0\n" in done.stdout


def test_the_report_counts_the_two_kinds_of_harm_apart(tmp_path: Path) -> None:
    harmless = changed(tmp_path / "a.jsonl", ["imp-syntax", "plain-assert"], verdict="RESTART")
    done = run(harmless)
    assert done.returncode == 1
    assert "verdicts: 0 of 2 (0.0%) right" in done.stdout
    assert "a healthy job is killed): 2\n" in done.stdout
    assert "imp-syntax: FATAL, ends at once, right is RESTART" in done.stdout
    burned = changed(tmp_path / "b.jsonl", ["broken-pipe"], verdict="FATAL")
    assert "a night is burned on a bug): 1\n" in run(burned).stdout


@pytest.mark.parametrize(
    ("text", "complaint"),
    [('{"id": "x"}\n', "c.jsonl:1: no case: KeyError: 'verdict'"), ("nonsense\n", "c.jsonl:1: no")],
)
def test_the_report_names_the_line_that_is_no_case(
    tmp_path: Path, text: str, complaint: str
) -> None:
    (tmp_path / "c.jsonl").write_text(text)
    done = run(tmp_path / "c.jsonl")
    assert done.returncode == 66
    assert complaint in done.stderr


def probe(want: str, line: str) -> str:
    traceback = (
        f'Traceback (most recent call last):\n  File "/app/t.py", line 1, in <module>\n{line}'
    )
    row = {"id": f"{want}: {line}", "want": want, "exit": "exit code 1", "stderr": traceback}
    return json.dumps(row) + "\n"


def test_the_report_of_cases_that_say_only_what_another_try_would_bring(tmp_path: Path) -> None:
    lines = (
        "TypeError: f() takes 1 positional argument but 2 were given",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data'",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    )
    cases = tmp_path / "probes.jsonl"
    cases.write_text(
        "".join(probe(want, line) for want in ("transient", "permanent") for line in lines)
    )
    done = run(cases)
    assert done.returncode == 1
    assert "verdicts: 3 of 6 (50.0%) right" in done.stdout
    for want in ("transient", "permanent"):
        ends = "ends the job: at once 1, at the second 1, never 1\n"
        assert f"{want}, if it always comes back the same, {ends}" in done.stdout
    assert "transient: ConnectionResetError" not in done.stdout, "only what is wrong is told"
    assert "permanent: ConnectionResetError" in done.stdout


def test_the_report_has_the_precision_of_each_rule(tmp_path: Path) -> None:
    cases = tmp_path / "probes.jsonl"
    line = "TypeError: f() takes 1 positional argument but 2 were given"
    cases.write_text(probe("transient", line) + probe("permanent", line))
    rows = [row.split() for row in run(cases).stdout.splitlines()]
    assert ["own-error", "FATAL", "2", "1", "2", "1"] in rows
    assert ["all", "FATAL", "2", "1", "2", "1"] in rows


def test_a_failure_of_several_ranks_counts_once_in_the_precision() -> None:
    both = judged([BY_ID["mp-user-exc-h0"], BY_ID["mp-user-exc-h1"]])
    assert [row.cases for row in precision(both)] == [1]


def test_the_report_of_a_file_that_is_missing() -> None:
    done = run("nowhere.jsonl")
    assert done.returncode == 66
    assert "nowhere.jsonl" in done.stderr


def test_the_table_has_a_line_for_each_verdict() -> None:
    lines = list(corpus_report.report(judged_file()))
    assert [line.split()[0] for line in lines[2:5]] == ["FATAL", "RESTART", "POLICY"]
