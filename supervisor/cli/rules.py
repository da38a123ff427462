"""`supervise rules`: prints the table of all rules, or all about some of them."""

from __future__ import annotations

import difflib
import json
import textwrap
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from supervisor.cli.arguments import Commands, add_explaining
from supervisor.cli.complaints import complain
from supervisor.cli.effects import ENDS_AT_ONCE
from supervisor.cli.explained import OwnRules, own_rules_of, verdict_of
from supervisor.cli.recipes import OWN_CODES, Recipe, notes, recipe_of_own, recipe_of_rule
from supervisor.cli.rule_examples import ExampleRank
from supervisor.core.exit_codes import ExitCode
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.rules import RULES, Rule
from supervisor.diagnosis.rules.sources import SOURCES

_OURS = "supervise"
_WIDTH = 100
"""Columns of a paragraph."""


class UnknownRuleError(Exception):
    """No rule has the name that a person gave."""


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "rules", help="list all rules, in the order in which they are tried"
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="print all about these rules only: what each means, an example, what supervise does, "
        "what you do",
    )
    add_explaining(parser)


def run(options: Namespace) -> int:
    """Print the rules; returns the exit code."""
    try:
        list_rules(options.names, own_rules_of(options.config), as_json=options.json)
    except UnknownRuleError as error:
        return complain(ExitCode.USAGE, str(error))
    return 0


def list_rules(names: Sequence[str], own: OwnRules, *, as_json: bool) -> None:
    """Print every rule in the order in which they are tried, or all about those with these names.

    Raises:
        UnknownRuleError: no rule has one of the names.
    """
    rules = (*own.rules, *RULES)
    known = [*(rule.name for rule in rules), *OWN_CODES]
    if unknown := next((name for name in names if name not in known), None):
        raise UnknownRuleError(_unknown(unknown, known))
    numbered = [(n, r) for n, r in enumerate(rules, 1) if not names or r.name in names]
    others = [code for code in OWN_CODES if code in names]
    if as_json:
        bodies = [_body(number, rule, own) for number, rule in numbered]
        bodies += [_own_body(code) for code in others]
        print(json.dumps(bodies, indent=2, ensure_ascii=False), flush=True)
        return
    if not names:
        print("\n".join(_table(numbered, own)), flush=True)
        return
    recipes = [recipe(number, rule, own) for number, rule in numbered]
    recipes += [recipe_of_own(code) for code in others]
    print("\n\n".join("\n".join(recipe_lines(each)) for each in recipes), flush=True)


def _unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"no rule is called {name!r}; did you mean {near[0]!r}?"
    return (
        f"no rule is called {name!r}: `supervise rules` lists all (a config is given by --config)"
    )


def compared(rule: Rule) -> str:
    """Returns, in words, whether the same failure again ends the job before the budget does.

    See "The same failure again" in docs/explanation/root-cause.md.
    """
    ends = rule.verdict is Verdict.FATAL and rule.certain
    return ENDS_AT_ONCE if ends else str(rule.compared)


def _table(numbered: Sequence[tuple[int, Rule]], own: OwnRules) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("", "rule", "verdict", "compared", "source", "cause")]
    rows += [
        (str(n), r.name, verdict_of(r), compared(r), own.place(r) or _OURS, r.cause)
        for n, r in numbered
    ]
    if not own.rules:  # all rules have the same source
        rows = [(*row[:4], row[5]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, *cells in rows:
        line = [number.rjust(widths[0])]
        line += [text.ljust(width) for text, width in zip(cells, widths[1:], strict=True)]
        yield "  ".join(line).rstrip()
    yield ""
    yield f"The supervisor itself also gives these codes: {', '.join(OWN_CODES)}"
    yield "The first rule that matches decides. All about one: supervise rules NAME"


def recipe(number: int, rule: Rule, own: OwnRules) -> Recipe:
    """Returns all about a rule, with this number in the order."""
    return recipe_of_rule(number, rule, tuple(_matches(rule, own)))


def _matches(rule: Rule, own: OwnRules) -> Iterator[tuple[str, str]]:
    """Yields what the rule looks for, and where that is written."""
    yield "source", own.place(rule) or _OURS
    if not own.place(rule):
        yield "words from", SOURCES[rule.name]
    yield "compared", compared(rule)
    for condition, values in _conditions(rule).items():
        yield condition, "  or  ".join(map(str, values))


def recipe_lines(recipe: Recipe) -> Iterator[str]:
    """Yields all about a code as lines for a terminal."""
    number = f"{recipe.number}. " if recipe.number is not None else ""
    yield f"{number}{recipe.code}: {recipe.verdict}: {recipe.cause}"
    yield from _block("what it means", recipe.meaning)
    if recipe.example is not None:
        yield f"   an example ({recipe.example.source}):"
        for rank in recipe.example.ranks:
            yield f"      {rank_words(rank, of=len(recipe.example.ranks))}"
            yield from (f"      | {line}" for line in rank.lines)
        yield from (f"      also known: {each}" for each in recipe.known)
    yield from _block("what supervise does", recipe.does)
    yield from _block("what you do", recipe.advice)
    yield "   what it looks for:"
    width = max(len(name) for name, _ in recipe.matches) + 1
    for name, text in recipe.matches:
        yield f"      {f'{name}:'.ljust(width)} {text}"
    if recipe.related:
        yield "   related:"
        yield from (f"      {code}: {why}" for code, why in recipe.related)


def rank_words(rank: ExampleRank, *, of: int) -> str:
    """Returns how a rank of an example ended; the example has `of` ranks."""
    who = f"rank {rank.rank} ended" if of > 1 else "the program ended"
    where = f", in stage {rank.stage}" if rank.stage is not None else ""
    silent = "" if rank.lines else "; it printed nothing about it"
    return f"{who}: {rank.ended}{where}{silent}"


def _block(title: str, paragraphs: Sequence[str]) -> Iterator[str]:
    yield f"   {title}:"
    for text in paragraphs:
        yield textwrap.fill(
            text,
            _WIDTH,
            initial_indent="      ",
            subsequent_indent="        ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def _conditions(rule: Rule) -> dict[str, tuple[object, ...]]:
    """Returns the rule's conditions, by the names that a config uses."""
    conditions: dict[str, tuple[object, ...]] = {
        "type": rule.types,
        "code": rule.codes,
        "regex": rule.patterns,
        "frame": rule.frames,
        "speaker": tuple(map(str, rule.speakers)),
        "signal": rule.signals,
        "exit_code": rule.exit_codes,
        "stage": rule.stages,
        "fact": rule.facts,
    }
    return {name: values for name, values in conditions.items() if values}


def _body(number: int, rule: Rule, own: OwnRules) -> dict[str, object]:
    return {
        "number": number,
        "name": rule.name,
        "verdict": str(rule.verdict),
        "certain": rule.verdict is Verdict.FATAL and rule.certain,
        "compared": compared(rule),
        "source": own.place(rule) or _OURS,
        "words_from": None if own.place(rule) else SOURCES.get(rule.name),
        "cause": rule.cause,
        **_conditions(rule),
        "reason": rule.reason,
        "advice": rule.advice,
        "transient": rule.transient,
        "remedy": rule.remedy,
        "notes": list(notes(rule)),
        **_told(recipe(number, rule, own)),
    }


def _told(recipe: Recipe) -> dict[str, object]:
    """Returns what the recipe adds to the fields of a rule."""
    return {
        "does": list(recipe.does),
        "example": None if recipe.example is None else asdict(recipe.example),
        "related": dict(recipe.related),
    }


def _own_body(code: str) -> dict[str, object]:
    """Returns one of the supervisor's own codes as JSON, with each failure that has it."""
    return {
        "number": None,
        "name": code,
        "source": _OURS,
        "failures": [
            {
                "verdict": str(failure.verdict),
                "certain": failure.is_certain,
                "cause": failure.cause,
                "reason": failure.reason,
                "advice": failure.advice,
                "charge": str(failure.charge),
                "remedy": failure.remedy,
            }
            for failure in OWN_CODES[code]
        ],
        **_told(recipe_of_own(code)),
    }
