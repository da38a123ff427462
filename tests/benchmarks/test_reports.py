"""What the benchmarks conclude from their samples, and what of it gets into the docs."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.floor import gaps
from benchmarks.goodput import CONTESTANTS, conclude, in_turn, storm
from benchmarks.many_hosts import Found
from benchmarks.many_hosts import conclude as conclude_many_hosts
from benchmarks.overhead import Measurements
from benchmarks.overhead import conclude as conclude_overhead
from benchmarks.report import _T95, Report
from benchmarks.tables import ALL_TABLES, PAGES, RESULTS, SUMMARY, TABLES, rewritten

README = Path(__file__).parents[2] / "README.md"


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
    assert "| supervise | 20 (10 to 30) | 3 |" in once
    assert "| n (deaths) |" in once
    assert "old" not in once
    assert "bash" not in once
    assert once.startswith("before\n<!-- benchmark: floor -->\n|")
    assert once.endswith("<!-- end -->\nafter\n")
    assert rewritten(once, tmp_path) == once


@pytest.mark.parametrize("name", ["floor", SUMMARY])
def test_what_was_not_measured_is_said_to_be(name: str, tmp_path: Path) -> None:
    text = f"<!-- benchmark: {name} -->\n<!-- end -->"
    assert "Not measured yet" in rewritten(text, tmp_path)


def test_each_table_has_a_place() -> None:
    page = ALL_TABLES.read_text()
    for name in TABLES:
        assert f"<!-- benchmark: {name} -->\n" in page
    assert f"<!-- benchmark: {SUMMARY} -->\n" in README.read_text()


def test_every_page_with_a_table_is_written() -> None:
    found = {README, *(README.parent / "docs").rglob("*.md")}
    assert {page for page in found if "<!-- benchmark: " in page.read_text()} == set(PAGES)


def summary(results: Path) -> list[list[str]]:
    """The cells of the summary, row by row."""
    text = rewritten(f"<!-- benchmark: {SUMMARY} -->\n<!-- end -->", results)
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ")
    ]


def test_the_summary_has_only_what_was_measured(tmp_path: Path) -> None:
    floor = Report("floor")
    floor.spread("standby", "ms", [9.0])
    floor.spread("bash", "ms", [8.0])
    floor.finish(tmp_path / "floor.json")
    overhead = Report("overhead")
    overhead.spread("defaults", "pss_mb", [300.0])
    overhead.finish(tmp_path / "overhead.json")
    head, _, *rows = summary(tmp_path)
    assert head == ["median", "supervise, with a standby", "bash `until`"]
    assert rows == [
        ["death of a trivial program until its next start, ms", "9", "8"],
        ["memory of supervise (PSS), MB", "300", ""],
    ]


@pytest.mark.parametrize("name", ["supervisor", "supervised"])
def test_the_summary_knows_the_names_of_older_results(name: str, tmp_path: Path) -> None:
    report = Report("overhead")
    report.spread(name, "cpu_percent", [0.25])
    report.finish(tmp_path / "overhead.json")
    head, _, row = summary(tmp_path)
    assert head == ["median", "supervise, without"]
    assert row == ["CPU time of supervise, % of one core", "0.25"]


def test_a_gap_is_from_a_death_to_the_beginning_after_it() -> None:
    lines = ["began 1.0", "dies 2.0", "began 2.5", "dies 4.0", "began 4.25"]
    assert gaps(lines) == [500.0, 250.0]


def test_a_storm_is_the_same_for_all() -> None:
    kills = list(storm(10.0, 1000.0))
    assert kills == list(storm(10.0, 1000.0))
    assert all(a < b for a, b in pairwise(kills))
    assert 70 < len(kills) < 130
    assert kills[-1] < 1000.0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_are_those_of_the_results(page: Path) -> None:
    text = page.read_text()
    assert rewritten(text, RESULTS) == text, "run: python -m benchmarks.tables"


@pytest.mark.parametrize("degrees", [1, 2, 9, 30])
def test_the_intervals_hold_95_percent(degrees: int) -> None:
    """By integrating Student's density from 0 to the table's value."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    scale /= math.sqrt(degrees * math.pi)
    step = _T95[degrees - 1] / 20_000
    middles = (step * (number + 0.5) for number in range(20_000))
    within = sum((1 + x * x / degrees) ** (-(degrees + 1) / 2) for x in middles) * step * scale
    assert 2 * within == pytest.approx(0.95, abs=1e-4)


def test_pairs_are_compared_with_an_interval() -> None:
    report = Report("x")
    report.paired("r", {1: 2.0, 2: 8.0, 3: 4.0, 5: 9.0}, {1: 1.0, 2: 2.0, 3: 1.0, 4: 7.0})
    deviation = math.log(2) / math.sqrt(3)  # of log 2, log 4, log 4
    mean = math.log(32) / 3
    half = 4.303 * deviation / math.sqrt(3)
    assert report.samples["r"] == [2.0, 4.0, 4.0]
    assert report.figures["r"] == pytest.approx(math.exp(mean), rel=1e-3)
    assert report.figures["r_low"] == pytest.approx(math.exp(mean - half), rel=1e-3)
    assert report.figures["r_high"] == pytest.approx(math.exp(mean + half), rel=1e-3)


def test_one_pair_decides_nothing() -> None:
    report = Report("x")
    report.paired("r", {1: 2.0}, {1: 1.0})
    assert report.figures == {}


def goodput(tmp_path: Path, windows: int) -> str:
    """The table of so many windows, in which torchrun is better than supervise."""
    report = Report("goodput")
    for mean in ("10", "30"):
        rates = {"bash": 100.0, "supervise": 110.0, "torchrun": 150.0}
        found = {
            name: {number: rate + number for number in range(windows)}
            for name, rate in rates.items()
        }
        conclude(report, f"mtbf_{mean}s", found)
    report.finish(tmp_path / "goodput.json")
    return rewritten("<!-- benchmark: goodput -->\n<!-- end -->", tmp_path)


def test_goodput_of_few_windows_is_not_published(tmp_path: Path) -> None:
    assert "Not published: it takes 10 windows for each row, and there are 9." in goodput(
        tmp_path, 9
    )


def test_a_peer_that_is_better_stays_in(tmp_path: Path) -> None:
    table = goodput(tmp_path, 10)
    (torchrun,) = [line for line in table.splitlines() if line.startswith("| torchrun |")]
    assert torchrun.endswith("| 10 |")
    assert "| 154.5 | 1.479 (1.469 to 1.489) |" in torchrun
    assert "| bash `until` | 104.5 |  | 104.5 |  | 10 |" in table
    assert "| supervise | 114.5 |" in table


def test_windows_are_paired_by_their_storm() -> None:
    """A window that a contestant did not get through is left out of its pairs alone."""
    report = Report("goodput")
    conclude(report, "k", {"bash": {0: 10.0, 1: 20.0, 2: 40.0}, "supervise": {1: 22.0, 2: 44.0}})
    assert report.samples["supervise_over_bash_k"] == [1.1, 1.1]
    assert len(report.samples["bash_k_steps_per_hour"]) == 3


def test_nobody_is_always_first() -> None:
    orders = [in_turn(CONTESTANTS, number) for number in range(len(CONTESTANTS))]
    assert {order[0].name for order in orders} == {one.name for one in CONTESTANTS}
    names = sorted(one.name for one in CONTESTANTS)
    assert all(sorted(one.name for one in order) == names for order in orders)


def test_each_row_says_of_how_many_measurements_it_is(tmp_path: Path) -> None:
    report = Report("elastic")
    report.spread("smaller", "s", [1.0, 2.0, 3.0])
    report.spread("same_rung", "s", [1.0, 2.0])
    report.ratio("smaller_over_same_rung", "smaller_s", "same_rung_s")
    report.figure("storm_changes", 50)
    report.finish(tmp_path / "elastic.json")
    table = rewritten("<!-- benchmark: elastic -->\n<!-- end -->", tmp_path)
    assert "| restart on a smaller rung, compile prefetched | 2 (1 to 3) | 3 |" in table
    assert "| smaller over same rung | 1.333 | 2 |" in table
    assert "| devices lost and returned in a storm | 50 | 1 |" in table


def test_overhead_is_that_of_all_that_waits_against_the_bare_run_beside_it() -> None:
    report = Report("overhead")
    found = {
        "bare": Measurements(rates={0: 10.0, 1: 12.0, 3: 1.0}),
        "defaults": Measurements(rates={0: 9.0, 1: 10.8}, shares=[1.0, 2.0], memory=[300.0, 310.0]),
        "supervised_each_step": Measurements(rates={0: 9.0}, shares=[0.5], memory=[40.0]),
    }
    conclude_overhead(report, found)
    assert report.figures["defaults_over_bare"] == pytest.approx(0.9)
    assert report.figures["defaults_cpu_percent"] == 1.5
    assert report.figures["defaults_pss_mb"] == 305.0
    assert "supervised_each_step_over_bare" not in report.figures, "one pair decides nothing"


def test_a_lost_host_is_compared_with_a_kill_and_the_fence() -> None:
    report = Report("many_hosts")
    found = Found(
        seconds={"kill_hosts": [3.0, 2.0], "kill_one_host": [2.0, 2.0], "vanished": [8.0, 7.5]},
        rates={"bare": {0: 10.0, 1: 20.0, 2: 5.0}, "supervised": {0: 10.0, 1: 20.0}},
    )
    conclude_many_hosts(report, found)
    assert report.figures["kill_over_one_host"] == 1.25
    assert report.samples["beyond_fence_s"] == [1.5, 1.0], "2.5 s for a kill, 4 s for the fence"
    assert report.figures["supervised_over_bare"] == 1.0
