"""Finds rules of a config that are valid one by one, but can never decide.

Such a rule is a mistake that shows at 2 a.m., when a failure gets the verdict of another rule. If
the mistake is certain, the config is refused before the launch. A pattern that matches any text or
none is only a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from supervisor.config.own_rules import RuleConfig
from supervisor.config.patterns import Pattern, SlowPatternError
from supervisor.config.problems import Location, shown

_ANY_TYPE = ("BaseException", "*")
_UNLIKE = ("a", "7", "-", "\N{LATIN SMALL LETTER E WITH ACUTE}", "Zz: x\n(y)", " ")
"""Texts that have nothing in common: a pattern that matches all of them matches any text."""


def name_of(rule: RuleConfig, number: int) -> str:
    """Returns the name of the rule, or else one made from its `number` (the first is 1)."""
    return rule.name or f"own-{number}"


def rule_conflicts(rules: Sequence[RuleConfig]) -> Iterator[tuple[Location, str]]:
    """Yields the rules that can never decide or have the name of an earlier rule: the key to
    change, and the message."""
    for index, rule in enumerate(rules):
        if rule.exit_code and rule.signal:
            yield (
                (index, "signal"),
                f"is given beside exit_code (value {shown(rule.signal)}), but a process ends by "
                "only one of them: write two rules",
            )
        yield from _same_name(rules, index)
        earlier = next((at for at, each in enumerate(rules[:index]) if _covers(each, rule)), None)
        if earlier is not None:
            yield (index,), _never_decides(rules, earlier, index)


def _same_name(rules: Sequence[RuleConfig], index: int) -> Iterator[tuple[Location, str]]:
    name = name_of(rules[index], index + 1)
    other = next(
        (at for at, each in enumerate(rules[:index]) if name_of(each, at + 1) == name), None
    )
    if other is not None:
        yield (
            (index, "name"),
            f"is also the name of rules[{other}] (value {shown(name)}); give each its own",
        )


def _never_decides(rules: Sequence[RuleConfig], earlier: int, index: int) -> str:
    first = name_of(rules[earlier], earlier + 1)
    if _covers(rules[index], rules[earlier]):
        return (
            f"can never decide: rules[{earlier}] ({first}) has the same conditions and comes "
            "first; remove one of the two"
        )
    return (
        f"can never decide: rules[{earlier}] ({first}) comes first and matches all that this one "
        "does; put this one before it, or remove it"
    )


def _covers(wide: RuleConfig, narrow: RuleConfig) -> bool:
    """True if `wide` certainly matches everything that `narrow` matches.

    Patterns are compared as texts, so the answer may be False although it does.
    """
    return (
        (not wide.type or _covers_types(wide.type, narrow.type))
        and (wide.regex is None or wide.regex == narrow.regex)
        and _covers_values(wide.exit_code, narrow.exit_code)
        and _covers_values(wide.signal, narrow.signal)
        and _covers_values(wide.stage, narrow.stage)
    )


def _covers_values(wide: Sequence[object], narrow: Sequence[object]) -> bool:
    return not wide or (bool(narrow) and set(narrow) <= set(wide))


def _covers_types(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    return bool(narrow) and all(any(_covers_type(each, name) for each in wide) for name in narrow)


def _covers_type(wide: str, narrow: str) -> bool:
    """True if the type name `wide` matches every type that `narrow` matches.

    A name also matches without the beginning of its module path. A `*` in `narrow` is only matched
    by a `*` in `wide`.
    """
    if wide in _ANY_TYPE:
        return True
    form = re.compile(".*".join(map(re.escape, wide.split("*"))))
    parts = narrow.split(".")
    names = (".".join(parts[at:]) for at in range(len(parts)))
    return any(form.fullmatch(name) for name in names if name != "*")


def vacuous_patterns(rules: Sequence[RuleConfig]) -> Iterator[tuple[Location, str]]:
    """Yields the patterns that match any text, or an empty text only: the key and a warning."""
    for index, rule in enumerate(rules):
        if rule.regex is None:
            continue
        told = f"(value {shown(rule.regex)})"
        found = _finds(rule.regex)
        if found == set(_UNLIKE):
            alone = not (rule.type or rule.exit_code or rule.signal or rule.stage)
            then = "every error gets its verdict" if alone else "it adds nothing to the others"
            yield (
                (index, "regex"),
                f"matches any text {told}: {then}; write what the message says, or leave it out",
            )
        elif not found and _finds_empty(rule.regex):
            yield (
                (index, "regex"),
                f"matches only an empty text {told}, which no error has; write what the message "
                "says, or leave it out",
            )


def _finds(source: str) -> set[str]:
    return {text for text in _UNLIKE if _found(source, text)}


def _finds_empty(source: str) -> bool:
    return _found(source, "")


def _found(source: str, text: str) -> bool:
    try:
        return Pattern(source).search(text) is not None
    except SlowPatternError:
        return False  # the search that needs the pattern reports this
