"""The mutants of the rules, which are data: does any failure that we know tell them apart?

A mutant is the table of rules with one change: a rule left out, or one element of a list that rules
match left out (in all rules that share this list in the source), or one of the alternatives of a
pattern left out, or one flag of a rule turned. The last element of a list is never left out: an
empty condition is no condition, and the rule would be another one. All mutants match less than the
rules do, or the same. So only failures about which a changed rule decides are judged again, and
only by the rules that match anything in them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from supervisor.diagnosis.chain import Chain, PrintedError
from supervisor.diagnosis.failure import Evidence, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Charge, Verdict
from supervisor.diagnosis.rules import (
    RULES,
    Rule,
    any_occurs,
    any_pattern_matches,
    codes_match,
    names_match,
)
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.diagnosis.weighing import as_read, ranked_judgements
from tests.corpus.cases import CORPUS, DEVELOPMENT, Case, digest, read_cases
from tests.corpus.elements import elements
from tests.diagnosis.test_rules_reached import EXAMPLES, NOT_ALONE, OF_CULPRITS, OF_VICTIMS

_OF_ERRORS = ("patterns", "types", "frames", "codes")
"""The lists of conditions about an error; the other lists are about the end of the rank."""
_LISTS = (*_OF_ERRORS, "signals", "exit_codes", "stages")
_FLAGS = ("victim", "culprit", "hardware", "per_rung", "without_context", "matches_suppositions")
_INLINE = re.compile(r"(?:\(\?[a-z]+\))?")
_TOKENS = re.compile(r"\\.|.", re.DOTALL)
_TEXTS = ("phrases.txt", "io.txt", "advice.txt")
_RAISED = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 141, in <module>\n    main()\n'
    '  File "/app/train.py", line 12, in main\n    work()\n'
)
_EXIT = WorkerExit(0, code=1)

Known = tuple[Evidence, Success]
"""A failure that is known, and what would have been success."""
RuleDecision = tuple[object, ...]
"""What rules decide about a failure."""


@dataclass(frozen=True, slots=True)
class RuleMutant:
    """A change to the rules."""

    what: str
    changed: Mapping[str, Rule | None]
    """The changed rules by name; None: the rule is left out."""

    @property
    def name(self) -> str:
        """The names of the rules that are changed."""
        return ", ".join(self.changed)

    def of(self, rules: Iterable[Rule]) -> tuple[Rule, ...]:
        """Return the table `rules` with this change."""
        changed = (self.changed.get(rule.name, rule) for rule in rules)
        return tuple(rule for rule in changed if rule is not None)


def mutants(rules: Sequence[Rule] = RULES) -> Iterator[RuleMutant]:
    """Yield all mutants of the table."""
    for rule in rules:
        yield RuleMutant("left out", {rule.name: None})
        yield from _flag_mutants(rule)
    for name in _LISTS:
        sharing: dict[int, list[Rule]] = defaultdict(list)
        for rule in rules:
            sharing[id(getattr(rule, name))].append(rule)
        for group in sharing.values():
            yield from _shortened(group, name)


def _shortened(group: list[Rule], name: str) -> Iterator[RuleMutant]:
    """Yield mutants without one element of the list that these rules share."""
    found: tuple[object, ...] = getattr(group[0], name)
    for element in found if len(found) > 1 else ():
        rest = tuple(other for other in found if other is not element)
        yield _with_all(group, name, rest, f"{name} without {element!r}")
    for at, element in enumerate(found if name == "patterns" else ()):
        for word, shorter in _without_one(str(element)):
            rest = (*found[:at], shorter, *found[at + 1 :])
            yield _with_all(group, name, rest, f"words without {word!r}")


def _with_all(group: list[Rule], name: str, value: tuple[object, ...], what: str) -> RuleMutant:
    return RuleMutant(what, {rule.name: _with(rule, name, value) for rule in group})


def _without_one(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield each alternative of a pattern, and the pattern without it."""
    flags = _INLINE.match(pattern)
    assert flags is not None
    parts = _alternatives(pattern[flags.end() :])
    for at, part in enumerate(parts) if len(parts) > 1 else ():
        yield part, flags[0] + "|".join(parts[:at] + parts[at + 1 :])


def _alternatives(pattern: str) -> list[str]:
    """Return the alternatives of a pattern that are outside of brackets."""
    parts, depth, in_set = [""], 0, False
    for token in _TOKENS.findall(pattern):
        in_set = token == "[" or (in_set and token != "]")
        depth += 0 if in_set else (token == "(") - (token == ")")
        if token == "|" and not depth and not in_set:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _flag_mutants(rule: Rule) -> Iterator[RuleMutant]:
    """Yield mutants with one flag turned, without the rule's charge, or without its remedy."""
    fatal = rule.verdict is Verdict.FATAL
    flags = [name for name in _FLAGS if getattr(rule, name)]
    flags += ["certain"] if fatal else ["transient"] if _compares_otherwise(rule) else []
    for name in flags:
        yield _change(rule, name, not getattr(rule, name))
    if rule.charge is not Charge.RESTARTS:
        yield _change(rule, "charge", Charge.RESTARTS)
    if rule.remedy is not None:
        yield _change(rule, "remedy", None)


def _change(rule: Rule, field: str, value: object) -> RuleMutant:
    return RuleMutant(f"{field}={value}", {rule.name: _with(rule, field, value)})


def _with(rule: Rule, field: str, value: object) -> Rule:
    changes: dict[str, Any] = {field: value}
    return replace(rule, **changes)


def _compares_otherwise(rule: Rule) -> bool:
    """Whether the rule's `compared` changes when `transient` is turned."""
    return rule.compared is not replace(rule, transient=not rule.transient).compared


def known() -> list[Known]:
    """Return the failures of the development sets, each line of the texts, and the examples of each
    rule and of its elements."""
    cases = [case for path in DEVELOPMENT for case in read_cases(path)]
    incidents: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        incidents[case.incident or case.id].append(case)
    never = Success(step=10**9)
    staged = [(Evidence(tuple(map(_rank, group))), never) for group in incidents.values()]
    texts = [(_raised(line, stage), never) for line, stage in _lines()]
    of_elements = [(element.evidence, never) for element in elements()]
    named = (EXAMPLES, OF_VICTIMS, OF_CULPRITS, NOT_ALONE)
    of_rules = [(example, Success(step=10)) for each in named for example in each.values()]
    return [*staged, *texts, *of_elements, *of_rules]


def _rank(case: Case) -> RankEvidence:
    return RankEvidence(case.ended, output=digest(case.output), stage=case.stage)


def _lines() -> Iterator[tuple[str, str | None]]:
    """Yield each line of the texts, and the stage in which it is raised."""
    for name in _TEXTS:
        section = ""
        for line in CORPUS.with_name(name).read_text(encoding="utf-8").splitlines():
            if line.startswith("== "):
                section = line.removeprefix("== ")
            elif line and not line.startswith("# "):
                text = line.replace("\\n", "\n").replace("\\t", "\t")
                yield text, "RESTORING" if section == "RESTORING" else None


def _raised(line: str, stage: str | None) -> Evidence:
    return Evidence((RankEvidence(_EXIT, output=f"{_RAISED}{line}\n", stage=stage),))


@dataclass(frozen=True, slots=True)
class _Decided:
    """A failure, the rules that match anything in it, and what they decide."""

    failure: Known
    rules: tuple[Rule, ...]
    decision: RuleDecision
    errors: tuple[tuple[Chain, PrintedError], ...]

    def decides_otherwise(self, mutant: RuleMutant) -> bool:
        """Whether the mutant decides something else about it."""
        return (
            self._is_touched(mutant)
            and _decide(self.failure, mutant.of(self.rules)) != self.decision
        )

    def _is_touched(self, mutant: RuleMutant) -> bool:
        """Whether the mutant can: a shorter list may still match all that the full list matched."""
        mine = [rule for rule in self.rules if rule.name in mutant.changed]
        pairs = [(rule, mutant.changed[rule.name]) for rule in mine]
        return any(
            other is None
            or not _differ_in_words(rule, other)
            or any(_matches(rule, *error) != _matches(other, *error) for error in self.errors)
            for rule, other in pairs
        )


def _differ_in_words(rule: Rule, other: Rule) -> bool:
    changes: dict[str, Any] = {name: getattr(rule, name) for name in _OF_ERRORS}
    return replace(other, **changes) == rule


def _matches(rule: Rule, chain: Chain, raised: PrintedError) -> bool:
    return (
        names_match(rule, raised.names)
        and codes_match(rule, raised.codes)
        and any_occurs(rule.frames, chain.path)
        and any_pattern_matches(rule, as_read(rule, raised))
    )


def survivors(
    found: Iterable[RuleMutant], failures: Sequence[Known], rules: tuple[Rule, ...] = RULES
) -> Iterator[RuleMutant]:
    """Yield the mutants that decide about each of the failures as the table does."""
    by_rule: dict[str, list[_Decided]] = defaultdict(list)
    for failure in failures:
        decided, names = _decided(failure, rules)
        for name in names:
            by_rule[name].append(decided)
    for mutant in found:
        decisions = (each for name in mutant.changed for each in by_rule[name])
        if not any(each.decides_otherwise(mutant) for each in decisions):
            yield mutant


def _decided(failure: Known, rules: tuple[Rule, ...]) -> tuple[_Decided, set[str]]:
    """Return what the table decides about a failure, and the rules that decide about one of its
    errors. These include the rules that need an error to be alone, even where it is not."""
    judgements, _ = ranked_judgements(*failure, rules)
    not_alone = tuple(replace(rule, without_context=False) for rule in rules)
    of_any, _ = ranked_judgements(*failure, not_alone)
    matching = {rule.name for each in (*judgements, *of_any) for rule, _ in each.matches()}
    few = tuple(rule for rule in rules if rule.name in matching)
    errors = tuple(
        (each.chain, raised)
        for each in judgements
        if each.chain is not None
        for raised in each.chain.members
    )
    decided = _Decided(failure, few, _decide(failure, few), errors)
    return decided, {judgement.rule.name for judgement in (*judgements, *of_any)}


def _decide(known: Known, rules: tuple[Rule, ...]) -> RuleDecision:
    try:
        failure = judge(*known, rules)
    except (StopIteration, RuntimeError):  # the last rules always match; without them none may
        return ()
    assert failure is not None
    done = failure.charge, failure.remedy, failure.hardware, failure.per_rung, failure.rank
    return failure.verdict, failure.rule, failure.certain, failure.compared, *done
