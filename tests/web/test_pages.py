"""The pages: what they show, what they never show, and how they are kept up to date."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import pytest

from supervisor.cli.serve import named
from supervisor.core.state import JobState
from supervisor.files.live_status import LiveProgress
from supervisor.files.segments import JOURNAL
from supervisor.narrative.standing import standing
from supervisor.protocol.location import Uri
from supervisor.web.job_facts import JobFacts
from supervisor.web.web_pages import live_part
from tests.adapters.test_golden_journals import JOURNALS
from tests.adapters.test_hostile_worker import POLICY
from tests.report.long_job import write_long_job
from tests.web.served import NOW, Served, model_dir, served


def test_all_jobs_are_on_one_page_and_each_has_its_report(tmp_path: Path) -> None:
    places = [
        model_dir(tmp_path / "one", "format2_restart"),
        model_dir(tmp_path / "two", "format2_budget"),
    ]
    with served(places) as it:
        page, report = it.get("/")[1], it.get("/job/2/")
        data = json.loads(it.get("/job/2/report.json")[1])
    for number, name in enumerate(("one", "two"), 1):
        assert f'<a href="/job/{number}/">{name}</a>' in page
    assert page.index("SUCCEEDED") < page.index("FAILED")
    assert "exit code 76" in page
    status, body, headers = report
    assert status == 200
    assert "<h2" in body
    assert 'src="/live.js"' in body
    assert "Content-Security-Policy" not in body, "the header has it"
    assert "script-src 'self' 'sha256-" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert data["head"]["status"] == "FAILED"


def test_jobs_of_equal_names_are_told_apart(tmp_path: Path) -> None:
    first, second = tmp_path / "x" / "job", tmp_path / "y" / "job"
    bucket = Uri("gs", "b", "y/other")
    told = dict(named([first, second, tmp_path / "only", bucket]))
    assert told == {
        first: str(first),
        second: str(second),
        tmp_path / "only": "only",
        bucket: "other",
    }
    with served([model_dir(first), model_dir(second)]) as it:
        metrics = it.get("/metrics")[1]
    for place in (first, second):
        assert f'supervise_attempts_total{{job_name="{place}"}} 2.0' in metrics


def test_what_is_no_text_of_ours_is_escaped_everywhere(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>\"'\\\n"
    with served([tmp_path / name]) as it:
        for path in ("/", "/job/1/", "/metrics"):
            body = it.get(path)[1]
            assert "<img" not in body or path == "/metrics"
            assert len(body.splitlines()) == len([line for line in body.splitlines() if line])
        assert r"alert(1)>\"'\\\n" in it.get("/metrics")[1]


def test_a_stream_tells_of_each_change(tmp_path: Path) -> None:
    whole = (JOURNALS / "format2_restart.jsonl").read_bytes().splitlines(keepends=True)
    place = model_dir(tmp_path / "job")
    (place / JOURNAL).write_bytes(b"".join(whole[:-2]))
    with served([place]) as it, it.connection() as connection:
        before = it.jobs.changes("job")
        connection.sendall(b"GET /job/1/events HTTP/1.0\r\nHost: localhost\r\n\r\n")
        lines = connection.makefile("rb")
        assert _next_event(lines) == f"{before} {len(whole) - 2}"
        (place / JOURNAL).write_bytes(b"".join(whole))
        assert _next_event(lines) == f"{before + 1} {len(whole)}"


def _next_event(lines: object) -> str:
    for line in lines:  # type: ignore[attr-defined]
        if line.startswith(b"data: "):
            return str(line[6:].strip().decode())
    raise AssertionError("the stream has ended")


def test_a_job_that_goes_away_has_a_page_that_says_so(tmp_path: Path) -> None:
    place = model_dir(tmp_path / "job")
    with served([place]) as it:
        assert it.get("/job/1/")[0] == 200
        (place / JOURNAL).unlink()
        place.rmdir()
        _wait_until_changed(it, 1)
        status, body, _ = it.get("/job/1/")
        assert status == 503
        assert "holds no job" in unescape(body)
        model_dir(place)
        _wait_until_changed(it, 2)
        assert it.get("/job/1/")[0] == 200


def test_a_report_that_takes_long_is_made_beside_the_requests(tmp_path: Path) -> None:
    for name, attempts in (("job", 60), ("later", 61)):
        (tmp_path / name).mkdir()
        write_long_job(tmp_path / name, attempts)
    place = tmp_path / "job"
    with served([place], seconds_for_report=0) as it:
        it.wait_until_all_are_seen()
        status, body, headers = it.get("/job/1/")
        assert (status, headers["refresh"]) == (503, "5")
        assert "its report is being made" in body
        while (answer := it.get("/job/1/"))[0] == 503:
            pass
        assert answer[0] == 200
        assert "refresh" not in answer[2]
        before = _records(answer[1])
        shutil.rmtree(place)
        (tmp_path / "later").rename(place)
        _wait_until_changed(it, 1)
        while not isinstance(it.jobs.seen()["job"], JobFacts):
            it.jobs.wait_for_change(None, it.jobs.changes(None), 0.1)
        status, body, _ = it.get("/job/1/")
        assert (status, _records(body)) == (200, before), "the one before, until the next is made"
        while _records(it.get("/job/1/")[1]) == before:
            pass


def _records(page: str) -> str:
    """The last record that a page of a job shows; a stream that tells of another loads it again."""
    found = re.search(r'data-records="(\d+)"', page)
    assert found is not None
    return found[1]


def _wait_until_changed(it: Served, changes: int) -> None:
    while it.jobs.changes(None) <= changes:
        it.jobs.wait_for_change(None, it.jobs.changes(None), 0.1)


def test_it_is_ready_once_each_job_was_looked_at(tmp_path: Path) -> None:
    with served([tmp_path], looks=False) as it:
        assert it.get("/readyz")[0] == 503
        assert it.get("/healthz")[0] == 200
        assert it.get("/job/1/")[0] == 503
        it.jobs.start()
        it.wait_until_all_are_seen()
        assert it.get("/readyz")[0] == 200


@pytest.mark.parametrize(
    ("age", "told"), [(3, "step 45, 2 a second"), (41, "step 45 (41 s ago), 2 a second")]
)
def test_a_step_that_is_old_has_its_age_beside_it(age: int, told: str) -> None:
    live = LiveProgress(
        step=45, step_at=datetime.fromtimestamp(NOW - age, UTC), steps_per_second=2.0
    )
    state = JobState()
    facts = JobFacts(
        9, state, standing(state, POLICY), None, None, None, "", "pid 7", "", None, 1, live=live
    )
    assert told in live_part(facts, NOW)
