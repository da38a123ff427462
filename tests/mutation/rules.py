"""The mutants of the rules, which are data: does any failure that we know tell them apart?

A mutant is the table with one rule left out, with one element of what a rule matches left out, or
with a rule's `certain` or `transient` turned. The last element is never left out: an empty
condition is none, and the rule would be another one. All of them match less than the rule does, or
the same: so only the failures that the rule decides about are judged again, by the rules that match
anything in them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from supervisor.core.failure import Evidence, RankEvidence, WorkerExit
from supervisor.core.outcome import Verdict
from supervisor.core.policy import Success
from supervisor.core.rules import RULES, Rule
from supervisor.core.verdicts import judge
from supervisor.core.weighing import weighed
from tests.core.test_rules_reached import EXAMPLES
from tests.corpus.cases import CORPUS, DEVELOPMENT, Case, digest, read_cases

_LISTS = ("patterns", "types", "frames", "codes")
_TEXTS = ("phrases.txt", "io.txt", "advice.txt")
_RAISED = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 141, in <module>\n    main()\n'
    '  File "/app/train.py", line 12, in main\n    work()\n'
)
_EXIT = WorkerExit(0, code=1)

Known = tuple[Evidence, Success]
"""A failure that is known, and what would have been success."""
Told = tuple[object, ...]
"""What is made of a failure, as far as a rule decides it."""


@dataclass(frozen=True, slots=True)
class RuleMutant:
    """A rule as it would be after one change; None: left out."""

    name: str
    what: str
    rule: Rule | None

    def of(self, rules: Iterable[Rule]) -> tuple[Rule, ...]:
        """The table with that change."""
        changed = (self.rule if rule.name == self.name else rule for rule in rules)
        return tuple(rule for rule in changed if rule is not None)


def mutants(rules: Iterable[Rule] = RULES) -> Iterator[RuleMutant]:
    """All mutants of the table."""
    for rule in rules:
        yield RuleMutant(rule.name, "left out", None)
        for name in _LISTS:
            elements: tuple[str, ...] = getattr(rule, name)
            for element in elements if len(elements) > 1 else ():
                rest = tuple(other for other in elements if other is not element)
                yield _with(rule, name, rest, f"{name} without {element!r}")
        if rule.verdict is Verdict.FATAL:
            yield _with(rule, "certain", not rule.certain, f"certain={not rule.certain}")
        elif _compares_otherwise(rule):
            yield _with(rule, "transient", not rule.transient, f"transient={not rule.transient}")


def _with(rule: Rule, field: str, value: object, what: str) -> RuleMutant:
    changes: dict[str, Any] = {field: value}
    return RuleMutant(rule.name, what, replace(rule, **changes))


def _compares_otherwise(rule: Rule) -> bool:
    """Whether the rule compares otherwise when `transient` is turned."""
    return rule.compared is not replace(rule, transient=not rule.transient).compared


def known() -> list[Known]:
    """The failures of the development sets, each line of the texts, and each rule's example."""
    cases = [case for path in DEVELOPMENT for case in read_cases(path)]
    incidents: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        incidents[case.incident or case.id].append(case)
    never = Success(step=10**9)
    staged = [(Evidence(tuple(map(_rank, group))), never) for group in incidents.values()]
    texts = [(_raised(line, stage), never) for line, stage in _lines()]
    return [*staged, *texts, *((example, Success(step=10)) for example in EXAMPLES.values())]


def _rank(case: Case) -> RankEvidence:
    return RankEvidence(case.ended, output=digest(case.output), stage=case.stage)


def _lines() -> Iterator[tuple[str, str | None]]:
    """Each line of the texts, and the stage in which it is raised."""
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


def survivors(
    found: Iterable[RuleMutant], failures: Sequence[Known], rules: tuple[Rule, ...] = RULES
) -> Iterator[RuleMutant]:
    """The mutants that decide each of the failures as the table does."""
    by_rule: dict[str, list[tuple[Known, tuple[Rule, ...], Told]]] = defaultdict(list)
    for failure in failures:
        judgements, _ = weighed(*failure, rules)
        matching = {rule.name for each in judgements for rule, _ in each.matches()}
        few = tuple(rule for rule in rules if rule.name in matching)
        before = _told(failure, few)
        assert before == _told(failure, rules)
        for name in {judgement.rule.name for judgement in judgements}:
            by_rule[name].append((failure, few, before))
    for mutant in found:
        decided = by_rule[mutant.name]
        if all(_told(failure, mutant.of(few)) == before for failure, few, before in decided):
            yield mutant


def _told(known: Known, rules: tuple[Rule, ...]) -> Told:
    try:
        failure = judge(*known, rules)
    except (StopIteration, RuntimeError):  # no rule is left that matches: the last ones always do
        return ()
    assert failure is not None
    return failure.verdict, failure.rule, failure.certain, failure.compared
