"""The page: complete in itself, safe whatever the job says, and short however long the job is."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.report import report_of
from supervisor.report.job_report import Lane, Report, Span
from supervisor.report.page import html_of
from supervisor.report.text import text_of
from tests.report.long_job import HOSTILE, write_long_job

UPLOT = {
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""uPlot 1.6.32 as the npm registry has it: package/LICENSE and package/dist."""
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
LARGEST_PAGE = 3_000_000


class Elements(HTMLParser):
    """The elements of a page: names, attributes and texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag
        if tag in ("script", "style"):
            self.text.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in self.text:
            self.text[self._inside][-1] += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model_dir of a job of 12 attempts."""
    place = tmp_path_factory.mktemp("job")
    write_long_job(place, 12)
    return place


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    return report_of(folder)


def repeated(report: Report, times: int) -> Report:
    """The report of a job that did all of this again and again."""
    length = report.until - report.began
    shifts = [length * number for number in range(times)]
    last = report.commits[-1].step
    attempts, per = report.attempts, len(report.attempts)

    def again(values: tuple[Any, ...], **names: str) -> Iterator[Any]:
        for number, shift in enumerate(shifts):
            for each in values:
                later = {
                    name: getattr(each, name) + shift for name in names.get("time", "").split()
                }
                later |= {
                    n: getattr(each, n) + number * last for n in names.get("step", "").split()
                }
                later |= {
                    n: getattr(each, n) + number * per for n in names.get("count", "").split()
                }
                yield replace(each, **later)

    spans = tuple(Span(each.lane, each.start, each.end) for each in report.spans)
    return replace(
        report,
        until=report.began + length * times,
        spans=tuple(again(spans, time="start end")),
        attempts=tuple(again(attempts, time="started ended", count="number")),
        failures=tuple(again(report.failures, time="time", count="attempt")),
        recoveries=tuple(again(report.recoveries, time="time", count="attempt")),
        steps=tuple(again(report.steps, time="time", step="step", count="attempt")),
        commits=tuple(again(report.commits, time="time", step="step")),
        rungs=tuple(again(report.rungs, time="time")),
    )


def test_uplot_is_the_one_of_the_registry() -> None:
    folder = files("supervisor.report") / "assets" / "uplot"
    assert {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()
    } == UPLOT


def test_the_page_asks_for_nothing_else_and_runs_our_scripts_alone(report: Report) -> None:
    page = html_of(report)
    elements = Elements(page)
    for _, attributes in elements.found:
        assert not {"src", "srcset", "style", "onload", "onerror", "onclick"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(a["content"] or "" for t, a in elements.found if t == "meta" and "content" in a)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for name, texts in (("script", elements.text["script"][1:]), ("style", elements.text["style"])):
        digests = [hashlib.sha256(text.encode()).digest() for text in texts]
        hashes = [f"'sha256-{base64.b64encode(each).decode()}'" for each in digests]
        assert f"{name}-src {' '.join(hashes)};" in policy
    assert "The MIT License (MIT)\n\nCopyright (c) 2022 Leon Sorokin" in page


def test_what_a_job_says_is_text(report: Report) -> None:
    hostile = replace(
        report,
        head=replace(report.head, job=HOSTILE, model_dir=HOSTILE, cause=HOSTILE, advice=HOSTILE),
        attempts=tuple(replace(each, phase=HOSTILE, code=HOSTILE) for each in report.attempts),
        failures=tuple(
            replace(each, code=HOSTILE, cause=HOSTILE, stage=HOSTILE, traceback=(HOSTILE,))
            for each in report.failures
        ),
        recoveries=tuple(replace(each, parts={HOSTILE: 1.0}) for each in report.recoveries),
        losses=tuple(replace(each, phase=HOSTILE) for each in report.losses * 2),
        no_losses=HOSTILE,
        missing=HOSTILE,
    )
    elements = Elements(html_of(hostile))
    assert [tag for tag, _ in elements.found].count("script") == 3
    assert "img" not in [tag for tag, _ in elements.found]
    data = json.loads(elements.text["script"][0])
    assert data["recoveries"]["names"] == [HOSTILE]


def test_every_section_is_there_and_can_be_reached(report: Report) -> None:
    elements = Elements(html_of(report))
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {(a["href"] or "")[1:] for tag, a in elements.found if tag == "a"}
    assert targets == {
        *("timeline", "failures", "recoveries", "goodput"),
        *("progress", "loss", "rungs", "checkpoints"),
    }
    assert targets <= set(ids)
    named = set(re.findall(r"make\(\"([a-z]+-chart)\"", elements.text["script"][2]))
    assert {*named, "loss-0-chart"} == {each for each in ids if (each or "").endswith("-chart")}


@pytest.mark.parametrize("form", [html_of, text_of])
def test_a_job_of_ten_thousand_attempts_is_short(report: Report, form: Any) -> None:
    long = repeated(report, 840)
    assert len(long.attempts) > 10_000
    assert long.commits[-1].step > 1_000_000
    assert len(form(long).encode()) < LARGEST_PAGE


@pytest.mark.parametrize("form", [html_of, text_of])
def test_a_job_that_has_only_begun_has_a_report(report: Report, form: Any) -> None:
    empty = replace(
        report,
        until=report.began,
        spans=(),
        attempts=(),
        failures=(),
        recoveries=(),
        goodput=None,
        steps=(),
        commits=(),
        rungs=(),
        losses=(),
        no_losses="there is no metrics.jsonl",
    )
    assert "there is no metrics.jsonl" in form(empty)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
@pytest.mark.parametrize("times", [1, 840])
def test_a_browser_draws_all_charts_and_runs_nothing_of_the_job(
    report: Report, times: int, tmp_path: Path
) -> None:
    assert CHROMIUM is not None
    page = tmp_path / "report.html"
    page.write_text(html_of(repeated(report, times)), encoding="utf-8")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    options = ["--headless", "--no-sandbox", "--disable-gpu", profile, "--enable-logging=stderr"]
    done = subprocess.run(
        [CHROMIUM, *options, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r'<html lang="en" data-drawn="\d+">', done.stdout)
    assert f"<title>job longjob: {report.head.status}</title>" in done.stdout
    assert done.stdout.count("<canvas") == 6
    assert "CONSOLE" not in done.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
@pytest.mark.parametrize("seconds", [223, 90_000])
def test_the_timeline_has_all_its_labels_on_a_phone(
    report: Report, seconds: float, tmp_path: Path
) -> None:
    assert CHROMIUM is not None
    lanes = tuple(Span(lane, report.began, report.began + 1) for lane in Lane)
    until = report.began + seconds
    short = replace(
        report, until=until, spans=lanes, steps=(), commits=(), rungs=(), losses=(), recoveries=()
    )
    page = re.sub(r"<meta http-equiv=[^>]*>", "", html_of(short))
    (path := tmp_path / "report.html").write_text(page.replace("<script>", SPY + "<script>", 1))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'p'}"]
    done = subprocess.run(
        [CHROMIUM, *options, "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        check=True,
    )
    told = re.search(r'data-told="([^"]*)"', done.stdout)
    assert told is not None
    ticks = [each for each in told[1].split("|") if re.match(r"\d\d[:-]\d\d", each)]
    assert len(ticks) >= 2, told[1]
    left = re.search(r'data-left="([^"]*)"', done.stdout)
    assert left is not None
    assert float(left[1]) >= 0, "no name of a lane is cut off"


SPY = """<style>body { max-width: 390px !important; }</style><script>
let left = 1e9;
const told = [], fillText = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  told.push(text);
  document.documentElement.dataset.told = told.join("|");
  if (this.textAlign === "right") left = Math.min(left, rest[0] - this.measureText(text).width);
  document.documentElement.dataset.left = left;
  return fillText.call(this, text, ...rest);
};
</script>"""
"""Makes the page as narrow as a phone, and keeps what its charts write."""


def test_steps_that_the_journal_has_not_yet_are_no_claim_about_the_program(report: Report) -> None:
    page = html_of(replace(report, steps=(), commits=()))
    assert "The journal has no steps yet: it gets them at changes of stage" in page


def test_the_goodput_is_named_once(report: Report) -> None:
    assert "goodput</dt><dd>goodput" not in html_of(report)
    assert re.search(r"goodput</dt><dd>\d", html_of(report))
