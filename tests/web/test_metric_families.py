"""What Prometheus gets: valid, complete, and what the journal says."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from supervisor.adapters.stores.journal import FileJournal
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.cli.served_job import Renewals
from supervisor.core.events import LaunchFailed, WorkersGone
from supervisor.files.segments import ARCHIVE, JOURNAL
from supervisor.web.metric_families import JOB, METRICS
from tests.adapters.test_golden_journals import FILES
from tests.web.served import model_dir, served

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def samples(text: str, job: str) -> dict[str, float]:
    """Returns the values of the series of a job that have no other label."""
    found = [sample for family in parse_text(text) for sample in family.samples]
    return {each.name: each.value for each in found if each.labels == {JOB: job}}


@pytest.mark.parametrize("journal", [path.stem for path in FILES])
def test_each_answer_is_valid_openmetrics_and_plain_text(tmp_path: Path, journal: str) -> None:
    with served([model_dir(tmp_path / "one", journal), tmp_path / "missing"]) as it:
        _, strict, headers = it.get("/metrics", headers={"Accept": OPENMETRICS})
        _, plain, plain_headers = it.get("/metrics")
    assert headers["content-type"].startswith("application/openmetrics-text")
    assert plain_headers["content-type"].startswith("text/plain")
    families = {family.name for family in parse_openmetrics(strict)}  # type: ignore[no-untyped-call]
    assert {metric.family for metric in METRICS} <= families
    assert samples(plain, "missing") == {"supervise_journal_readable": 0}


def test_the_values_are_those_of_the_journal(tmp_path: Path) -> None:
    place = model_dir(tmp_path / "job", "format2_budget")
    history = FileJournal(LocalStorage(place)).peek()
    with served([place]) as it:
        text = it.get("/metrics")[1]
    found, state = samples(text, "job"), history.state
    assert found["supervise_journal_readable"] == 1
    assert found["supervise_attempts_total"] == state.attempt == 2
    assert found["supervise_exit_code"] == state.exit_code == 76
    assert found["supervise_needs_person"] == 1
    assert found["supervise_supervisor_up"] == 0
    assert found["supervise_restarts_charged"] == state.budget.restarts
    assert found["supervise_restarts_total"] == state.budget.total
    assert found["supervise_committed_step"] == state.budget.highest == 2
    ends = [each.event for each in history.transitions]
    failures = [
        each.failure
        for each in ends
        if isinstance(each, WorkersGone | LaunchFailed) and each.failure
    ]
    told = [
        sample
        for family in parse_text(text)
        for sample in family.samples
        if sample.name == "supervise_failures_total"
    ]
    assert sum(sample.value for sample in told) == len(failures) > 0
    assert {sample.labels["code"] for sample in told} == {each.rule for each in failures}
    states = [
        sample.labels["supervise_status"]
        for family in parse_text(text)
        if family.name == "supervise_status"
        for sample in family.samples
        if sample.value
    ]
    assert states == ["FAILED"]


def test_the_parts_add_up_to_the_wall_time(tmp_path: Path) -> None:
    with served([model_dir(tmp_path / "job", "format2_restart")]) as it:
        text = it.get("/metrics")[1]
    parts = [
        sample.value
        for family in parse_text(text)
        for sample in family.samples
        if sample.name == "supervise_wall_time_part_seconds"
    ]
    assert sum(parts) == pytest.approx(samples(text, "job")["supervise_wall_time_seconds"])


def test_a_journal_that_is_damaged_or_gone_is_told_and_hides_no_other_job(tmp_path: Path) -> None:
    places = [model_dir(tmp_path / name) for name in ("sound", "gone", "damaged")]
    with served(places) as it:
        (tmp_path / "gone" / JOURNAL).unlink()
        (tmp_path / "damaged" / JOURNAL).write_text("no journal\n{}\n")
        before = it.jobs.changes(None)
        while it.jobs.changes(None) < before + 2:
            it.jobs.wait_for_change(None, it.jobs.changes(None), 0.1)
        text, page = it.get("/metrics")[1], it.get("/")[1]
    readable = {name: samples(text, name)["supervise_journal_readable"] for name in _names(places)}
    assert readable == {"sound": 1, "gone": 0, "damaged": 0}
    assert samples(text, "sound")["supervise_attempts_total"] == 2
    assert "gone holds no job" in page
    assert "SUCCEEDED" in page


def _names(places: list[Path]) -> list[str]:
    return [place.name for place in places]


def test_archived_records_count_too(tmp_path: Path) -> None:
    whole = model_dir(tmp_path / "whole", "format2_found")
    short = tmp_path / "short"
    short.mkdir()
    journal = FileJournal(LocalStorage(short), compact_after=3)
    journal.read()
    for transition in FileJournal(LocalStorage(whole)).peek().transitions:
        journal.append(transition, durable=False)
    assert list((short / ARCHIVE).iterdir())
    with served([whole, short]) as it:
        text = it.get("/metrics")[1]
    for name in ("supervise_failures_total", "supervise_committed_timestamp_seconds"):
        told = [
            {key: value for key, value in sample.labels.items() if key != JOB} | {"": sample.value}
            for family in parse_text(text)
            for sample in family.samples
            if sample.name == name
        ]
        assert told[: len(told) // 2] == told[len(told) // 2 :] != []


def test_a_file_ages_by_the_clock_of_the_reader_alone(tmp_path: Path) -> None:
    path, now = tmp_path / "lease.json", [100.0]
    renewals = Renewals(path, lambda: now[0])
    assert renewals.age() is None
    path.write_text("1")
    assert renewals.age() == 0
    now[0] += 70
    assert renewals.age() == 70
    path.write_text("22")
    assert renewals.age() == 0
