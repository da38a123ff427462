"""What the pages show is what happens. How: see the head of this package."""

from __future__ import annotations

import re
import shutil
from argparse import _SubParsersAction
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.cli.main import VERBS, parser_of_all_verbs
from supervisor.diagnosis.rules import RULES
from supervisor.narrative.catalogue import kinds
from tests.docs import behind_the_scenes, in_the_cloud
from tests.docs.pages import (
    LANGUAGES,
    LASTING,
    ROOT,
    WITH_VALUE,
    WITHOUT_VALUE,
    Block,
    blocks,
    pages,
)
from tests.docs.session import Session
from tests.running import MARK, leaving_nothing, power_off

PAGES = {str(page.relative_to(ROOT)): tuple(blocks(page)) for page in pages()}
RUN = [name for name, found in PAGES.items() if any(block.is_run for block in found)]
SLOW = [name for name in RUN if any("slow" in block.notes for block in PAGES[name])]


@pytest.mark.parametrize("place", PAGES)
def test_every_block_is_run_or_says_why_not(place: str) -> None:
    for block in PAGES[place]:
        assert block.notes.keys() <= WITH_VALUE | WITHOUT_VALUE, block.place
        assert all(bool(block.notes[name]) == (name in WITH_VALUE) for name in block.notes), (
            f"{block.place}: a note has no value, or one too much"
        )
        assert block.language in LANGUAGES or not block.is_run, (
            f"{block.place}: a block in {block.language or 'no language'} cannot be run: say so"
        )


def try_blocks(found: tuple[Block, ...], scratch: Path) -> None:
    """Try these blocks, one after the other."""
    with leaving_nothing() as mark:
        scenes = vars(behind_the_scenes) | vars(in_the_cloud)
        session = Session(scratch, found, mark, scenes)
        try:
            for block in found:
                session.take(block)
        finally:
            power_off(f"{MARK}={mark[MARK]}")
            session.end()


@pytest.mark.parametrize("name", RUN)
def test_a_page_shows_what_happens(name: str, tmp_path: Path) -> None:
    quick = tuple(block for block in PAGES[name] if "slow" not in block.notes)
    if any("$ jq " in block.text for block in quick) and not shutil.which("jq"):
        pytest.skip("the page uses jq")
    try_blocks(quick, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_slow_blocks_of_a_page_show_what_happens(name: str, tmp_path: Path) -> None:
    try_blocks(tuple(map(slow_part, PAGES[name])), tmp_path)


_MADE = re.compile(r"^\s*\$ .* > \S+$", re.M)


def slow_part(block: Block) -> Block:
    """Return a block as it is if it is slow, or is or makes a file, else only what goes on to hold
    after it."""
    if "slow" in block.notes or block.file or _MADE.search(block.text):
        return block
    kept = {note: text for note, text in block.notes.items() if note in LASTING}
    return replace(block, notes={"not run": "it is quick", **kept})


_INLINE = re.compile(r"`+(supervise [a-z][^`]*)`+")
_AFTER_PROMPT = re.compile(rf"^ *\$ .*?\b(supervise (?:{'|'.join(VERBS)}) .*)$", re.M)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the words of each command of ours that a page names, also those that are not run."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if "_build" in page.parts:
            continue
        text = page.read_text(encoding="utf-8")
        for line in (*_INLINE.findall(text), *_AFTER_PROMPT.findall(text)):
            yield str(page.relative_to(ROOT)), re.split(r" [|&>]|;", line)[0].split()


def test_every_command_of_ours_has_its_verb_and_options() -> None:
    parser = parser_of_all_verbs()
    (verbs,) = (each for each in parser._actions if isinstance(each, _SubParsersAction))
    unknown = []
    for place, (_, verb, *words) in commands():
        known = verbs.choices[verb]._option_string_actions if verb in verbs.choices else {}
        own = words[: words.index("--")] if "--" in words else words  # then another program's
        options = {word.partition("=")[0] for word in own if word.startswith("--")}
        if verb not in {*verbs.choices, "--version"} or options - known.keys():
            unknown.append((place, verb, *words))
    assert not unknown


_NAMED = {
    "events": (r"\bevents? `([a-z-]+)`", set(kinds())),
    "rules": (
        r"\brules? [`']([a-z-]+)[`']|supervise rules ([a-z][a-z-]*)",
        {r.name for r in RULES},
    ),
}
_OTHER_RULES = {"hang", "shard-locked"}
"""The one of the core, and one of a config that a page shows."""


@pytest.mark.parametrize("what", _NAMED)
def test_every_event_and_rule_that_a_page_names_is_one(what: str) -> None:
    pattern, known = _NAMED[what]
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        found = {one for each in re.finditer(pattern, text) for one in each.groups() if one}
        assert found <= known | _OTHER_RULES, name
