"""`supervise rules`: prints the table of all rules, or all about some of them."""

from __future__ import annotations

import difflib
import json
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence

from supervisor.cli.arguments import Commands, add_explaining
from supervisor.cli.complaints import complain
from supervisor.cli.explained import OwnRules, own_rules_of, verdict_of
from supervisor.core.exit_codes import ExitCode
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.rules import RULES, Rule
from supervisor.diagnosis.rules.sources import SOURCES

_OURS = "supervise"


class UnknownRuleError(Exception):
    """No rule has the name that a person gave."""


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "rules", help="list all rules, in the order in which they are tried"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="print all about these rules only")
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
    if unknown := next((name for name in names if name not in {r.name for r in rules}), None):
        raise UnknownRuleError(_unknown(unknown, rules))
    numbered = [(n, r) for n, r in enumerate(rules, 1) if not names or r.name in names]
    if as_json:
        bodies = [_body(number, rule, own) for number, rule in numbered]
        print(json.dumps(bodies, indent=2, ensure_ascii=False), flush=True)
    else:
        lines = _table(numbered, own) if not names else _all_about(numbered, own)
        print("\n".join(lines), flush=True)


def _unknown(name: str, rules: Iterable[Rule]) -> str:
    near = difflib.get_close_matches(name, [rule.name for rule in rules], n=1)
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
    return "no, ends at once" if ends else str(rule.compared)


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
    yield "The first rule that matches decides. All about one: supervise rules NAME"


def _all_about(numbered: Sequence[tuple[int, Rule]], own: OwnRules) -> Iterator[str]:
    for number, rule in numbered:
        remedy = f" ({rule.remedy})" if rule.remedy is not None else ""
        yield f"{number}. {rule.name}: {verdict_of(rule)}{remedy}: {rule.cause}"
        yield f"   source:     {own.place(rule) or _OURS}"
        if not own.place(rule):
            yield f"   words from: {SOURCES[rule.name]}"
        yield f"   compared:   {compared(rule)}"
        for condition, values in _conditions(rule).items():
            yield f"   {condition}:".ljust(15) + "  or  ".join(map(str, values))
        for note in notes(rule):
            yield f"   also:       {note}"
        yield f"   why:        {rule.reason}"
        yield f"   what to do: {rule.advice}"


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


def notes(rule: Rule) -> Iterator[str]:
    """Yields what else a person should know about the rule."""
    if rule.without_context:
        yield "only for an error without a cause or context"
    if rule.victim:
        yield (
            "other ranks get this error when one rank fails: it is never the root cause if there "
            "is another error"
        )
    if rule.culprit:
        yield (
            "such an exit is the root cause of the errors of other ranks, even without an error "
            "text"
        )
    if rule.hardware:
        yield "the devices are probed before the next attempt"
    if rule.per_rung:
        yield "on a smaller rung it disables that rung and does not end the job"


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
    }
