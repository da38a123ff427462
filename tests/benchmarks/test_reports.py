"""What the benchmarks conclude from their samples, and what of it gets into the README."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from benchmarks.floor import gaps
from benchmarks.goodput import storm
from benchmarks.report import Report
from benchmarks.tables import TABLES, rewritten


def test_a_figure_that_was_not_measured_is_in_no_conclusion(tmp_path: Path) -> None:
    report = Report("floor")
    report.spread("supervise", "ms", [30.0, 10.0, 20.0])
    report.spread("bash", "ms", [])
    report.ratio("supervise_over_bash", "supervise_ms", "bash_ms")
    report.least("best_peer_ms", ["bash_ms"])
    report.ratio("itself", "supervise_ms", "supervise_ms")
    path = tmp_path / "x" / "floor.json"
    report.finish(path)
    written = json.loads(path.read_text())
    assert written["figures"] == {
        "supervise_ms": 20.0,
        "supervise_least_ms": 10.0,
        "supervise_most_ms": 30.0,
        "itself": 1.0,
    }
    assert {"benchmark", "machine", "samples", "left_out"} <= set(written)


def test_a_table_is_rewritten_in_its_place(tmp_path: Path) -> None:
    report = Report("floor")
    report.spread("supervise", "ms", [10.0, 30.0, 20.0])
    report.finish(tmp_path / "floor.json")
    text = "before\n<!-- benchmark: floor -->\nold\n<!-- end -->\nafter\n"
    once = rewritten(text, tmp_path)
    assert "| supervise | 20 (10 to 30) |" in once
    assert "old" not in once
    assert "bash" not in once
    assert once.startswith("before\n<!-- benchmark: floor -->\n|")
    assert once.endswith("<!-- end -->\nafter\n")
    assert rewritten(once, tmp_path) == once


def test_what_was_not_measured_is_said_to_be(tmp_path: Path) -> None:
    text = "<!-- benchmark: floor -->\n<!-- end -->"
    assert "Not measured yet" in rewritten(text, tmp_path)


def test_the_readme_has_a_place_for_each_table() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for name in TABLES:
        assert f"<!-- benchmark: {name} -->\n" in readme


def test_a_gap_is_from_a_death_to_the_beginning_after_it() -> None:
    lines = ["began 1.0", "dies 2.0", "began 2.5", "dies 4.0", "began 4.25"]
    assert gaps(lines) == [500.0, 250.0]


def test_a_storm_is_the_same_for_all() -> None:
    kills = list(storm(10.0, 1000.0))
    assert kills == list(storm(10.0, 1000.0))
    assert all(a < b for a, b in pairwise(kills))
    assert 70 < len(kills) < 130
    assert kills[-1] < 1000.0
