"""The alerts and the dashboard of `deploy`: each metric in them exists, and the alerts come when
they are to come, in a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.web.metric_families import BUILD, JOB, METRICS, READABLE

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "supervise.json"
EXPORTED = {metric.series for metric in (*METRICS, READABLE, BUILD)}
LABELS = {JOB, "instance", "job", *(label for metric in METRICS for label in metric.labels)}
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool (apt install prometheus)"
)


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((PROMETHEUS / "rules.yaml").read_text())["groups"]
    return list(group["rules"])


def queries(value: Any) -> Iterator[str]:
    """Yields all queries in the dashboard."""
    match value:
        case {"expr": str(text)} | {"query": str(text)} if "supervise" in text:
            yield text
    children = value.values() if isinstance(value, dict) else value
    for each in children if not isinstance(children, str | int | float | None) else ():
        yield from queries(each)


def named(query: str) -> set[str]:
    """Returns the metrics of ours in a query, without the label that is called like one."""
    return set(re.findall(r"\bsupervise_\w+", re.sub(r"\{[^}]*\}|by \([^)]*\)", "", query)))


EXPRESSIONS = [
    *(rule["expr"] for rule in alerts()),
    *queries(json.loads(DASHBOARD.read_text())),
]


def test_the_queries_are_found() -> None:
    assert len(alerts()) >= 8
    assert len(EXPRESSIONS) >= len(alerts()) + 14


@pytest.mark.parametrize("query", EXPRESSIONS)
def test_each_metric_and_each_label_exists(query: str) -> None:
    assert named(query) <= EXPORTED
    grouped = re.findall(r"(?:by|on) \(([^)]*)\)", query)
    selected = re.findall(r"[{,]\s*(\w+)\s*=", query)
    used = {label.strip() for each in grouped for label in each.split(",")} | set(selected)
    assert used <= LABELS


def test_an_alert_says_what_is_wrong_and_what_to_do() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


@needs_promtool
@pytest.mark.parametrize(
    "command",
    [
        ("check", "rules", "--lint-fatal", "rules.yaml"),
        ("check", "config", "prometheus.yaml"),
        ("test", "rules", "rules_test.yaml"),
    ],
    ids=" ".join,
)
def test_prometheus_takes_the_rules_and_raises_each_alert(command: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case_of_its_own() -> None:
    cases = (PROMETHEUS / "rules_test.yaml").read_text()
    assert [rule["alert"] for rule in alerts() if f'"{rule["alert"]}"' not in cases] == []
