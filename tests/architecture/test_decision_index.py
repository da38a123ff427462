"""The index of the decisions has each page in its table, its links and its table of contents."""

from __future__ import annotations

import re
from pathlib import Path

ADR = Path(__file__).parents[2] / "docs" / "adr"


def test_each_decision_is_in_the_index_three_times() -> None:
    index = (ADR / "index.md").read_text("utf-8")
    pages = sorted(each.stem for each in ADR.glob("[0-9]*.md"))
    numbers = sorted(int(page[:4]) for page in pages)
    assert sorted(int(each) for each in re.findall(r"^\| \[(\d+)\] \|", index, re.M)) == numbers
    linked = re.findall(r"^\[(\d+)\]: (.+)\.md$", index, re.M)
    assert sorted(page for _, page in linked) == pages
    assert all(int(number) == int(page[:4]) for number, page in linked)
    assert sorted(re.findall(r"^(\d{4}-.+)$", index, re.M)) == pages
