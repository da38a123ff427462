"""The example of each rule: a part of a log of our corpus, which this rule decides about.

`tests/corpus/rule_examples.py` writes the file, and a test holds it against the corpus.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

_FILE = "rule_examples.json"


@dataclass(frozen=True, slots=True)
class ExampleRank:
    """One rank of an example."""

    rank: int
    ended: str
    """How it ended: `exit code 1`."""
    stage: str | None
    """The stage in which it failed; None: not known."""
    lines: tuple[str, ...]
    """What it printed, shortened; empty: nothing that says why."""


@dataclass(frozen=True, slots=True)
class RuleExample:
    """An example of a rule."""

    source: str
    """The file of this repository that has the example, and its name there."""
    ranks: tuple[ExampleRank, ...]
    also: tuple[str, ...]
    """The later rules that match the example too, in their order."""


def example_of(rule: str) -> RuleExample | None:
    """Returns the example of one of our rules; None: there is none of that name."""
    body = _bodies().get(rule)
    if body is None:
        return None
    ranks = (
        ExampleRank(each["rank"], each["ended"], each.get("stage"), tuple(each["lines"]))
        for each in body["ranks"]
    )
    return RuleExample(body["source"], tuple(ranks), tuple(body["also"]))


@cache
def _bodies() -> dict[str, dict[str, Any]]:
    text = files("supervisor.cli").joinpath(_FILE).read_text(encoding="utf-8")
    bodies: dict[str, dict[str, Any]] = json.loads(text)
    return bodies
