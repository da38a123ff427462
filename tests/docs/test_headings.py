"""The numbers of the sections of a page rise by one, so that a link to a section means only one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import pages

NUMBERED = re.compile(r"^## (\d+)\. ", re.M)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_numbered_sections_count_from_one(page: Path) -> None:
    numbers = [int(each) for each in NUMBERED.findall(page.read_text(encoding="utf-8"))]
    assert numbers == list(range(1, len(numbers) + 1))
