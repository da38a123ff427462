"""The cookbook is what its module would write now, and has a page for each code of a verdict."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from supervisor.cli import cookbook_page
from supervisor.cli.explained import OwnRules
from supervisor.cli.recipes import OWN_CODES, Recipe, recipe_of_own
from supervisor.cli.rules import recipe, recipe_lines
from supervisor.diagnosis.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "cookbook"
RULE_NAMES = [rule.name for rule in RULES]
RECIPES = [
    *(recipe(number, rule, OwnRules()) for number, rule in enumerate(RULES, 1)),
    *map(recipe_of_own, OWN_CODES),
]


@cache
def pages() -> dict[str, str]:
    """Return the content of each page, by the name of its file."""
    return cookbook_page.pages()


def test_the_pages_are_what_the_module_writes() -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert found == pages(), "write them (make pages), and remove those that are no more"
    assert "$(BIN)/python -m supervisor.cli.cookbook_page docs/cookbook\n" in (
        ROOT / "Makefile"
    ).read_text(encoding="utf-8")


def test_the_index_names_each_code_once() -> None:
    index = pages()["index.md"]
    codes = re.findall(r"^\| \[([\w-]+)\]\(\1\.md\) \|", index, re.M)
    assert sorted(codes) == sorted([*RULE_NAMES, *OWN_CODES])
    assert len(RECIPES) == len(codes)


def codes_in_the_code() -> Iterator[str]:
    """Yield each code of a verdict that is written out where a `Failure` is made."""
    for path in sorted((ROOT / "supervisor").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    if keyword.arg == "rule" and isinstance(keyword.value, ast.Constant):
                        yield str(keyword.value.value)


def test_every_code_of_a_verdict_has_a_page() -> None:
    found = set(codes_in_the_code())
    assert found >= {"hang", "launch"}
    assert found <= {*RULE_NAMES, *OWN_CODES}


def plain(text: str) -> str:
    """Return a text without line ends, marks of Markdown, and the marks of quoted lines."""
    return " ".join(re.sub(r"[`*|]", "", text).split())


@pytest.mark.parametrize("each", RECIPES, ids=lambda each: each.code)
def test_the_terminal_and_the_page_say_the_same(each: Recipe) -> None:
    page, terminal = plain(pages()[f"{each.code}.md"]), plain("\n".join(recipe_lines(each)))
    said = [*each.meaning, *each.does, *each.advice, each.cause, each.verdict]
    said += [why for _, why in each.related] + [code for code, _ in each.related]
    said += [text for _, text in each.matches]
    if each.example is not None:
        said += [each.example.source]
        said += [line for rank in each.example.ranks for line in rank.lines]
    assert [text for text in said if plain(text) not in page] == []
    assert [text for text in said if plain(text) not in terminal] == []


def test_a_page_has_no_number_in_the_order_which_changes_with_each_new_rule() -> None:
    numbered = re.compile(r"(?i)\brule \d+ in the order\b")
    assert [name for name, text in pages().items() if numbered.search(text)] == []


def test_a_certain_failure_is_not_said_to_be_charged() -> None:
    certain = next(each for each in RECIPES if each.code == "own-error")
    assert [text.partition(":")[0] for text in certain.does] == ["Verdict"]


def test_the_page_of_a_rule_about_devices_tells_of_the_quarantine() -> None:
    told = {each.code: " ".join(each.does) for each in RECIPES}
    hardware = {rule.name for rule in RULES if rule.hardware} | {"hang"}
    assert {code for code, text in told.items() if "Devices: " in text} == hardware
    per_rung = {rule.name for rule in RULES if rule.per_rung} | {"launch"}
    assert {code for code, text in told.items() if "Rung: " in text} == per_rung
