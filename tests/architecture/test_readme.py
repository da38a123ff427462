"""The README is short, and its links lead somewhere. (Sphinx checks those of docs/.)"""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
LINKS = sorted({*re.findall(r"\]\(([^)\s]+)\)", TEXT), *re.findall(r"^\[.+\]: (\S+)$", TEXT, re.M)})


def test_it_is_read_in_a_few_minutes() -> None:
    assert README.stat().st_size <= 10_000


@pytest.mark.parametrize("link", LINKS)
def test_a_link_leads_to_a_file_and_a_heading(link: str) -> None:
    name, _, heading = link.partition("#")
    assert (ROOT / name).is_file()
    if heading:
        titles = re.findall(r"^#+ (.*)$", (ROOT / name).read_text(encoding="utf-8"), re.M)
        assert heading in {
            re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles
        }


def test_every_name_in_brackets_has_its_link() -> None:
    prose = re.sub(r"(```|`).*?\1", "", TEXT, flags=re.S)
    used = set(re.findall(r"\[([^\]]+)\](?![(:])", prose))
    assert used == set(re.findall(r"^\[(.+)\]: ", TEXT, re.M))


def test_the_picture_shows_what_is_said_of_it() -> None:
    """From the drill, which must not have scrolled away, to the panel as it is now."""
    (said,) = re.findall(r"!\[(.*?)\]\(docs/_static/session.svg\)", TEXT, re.S)
    (seconds,) = re.findall(r"after (\d\.\d\d) s", said)
    picture = (ROOT / "docs/_static/session.svg").read_text(encoding="utf-8")
    shown = html.unescape(re.sub(r"<[^>]+>", "", picture)).replace("\xa0", " ")
    assert "SIGKILL right after step 170" in shown
    assert f"resumed at step 151 in {seconds} s" in shown
    assert re.search(r"loss .*\d% \d+ s left", shown, re.S)
    losses = re.findall(r"step 170  loss (\S+)", shown)
    assert len(losses) == 2
    assert losses[0] == losses[1]
