"""All about one rule, as `supervise rules NAME` prints it and the cookbook shows it.

A code of a verdict is the name of a rule of the table, or of one that the supervisor applies itself
(`OWN_CODES`): a hang, for example, is no error of the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from errno import EAGAIN, ENOENT, EPERM

from supervisor.cli.effects import effects, kind_of_failure, kind_of_rule
from supervisor.cli.rule_examples import RuleExample, example_of
from supervisor.diagnosis.failure import Failure, WorkerExit
from supervisor.diagnosis.outcome import Confidence, Verdict
from supervisor.diagnosis.rules import RULES, Rule
from supervisor.diagnosis.rules import rule as facts
from supervisor.diagnosis.verdicts import (
    hang_failure,
    host_lost_failure,
    immovable_checkpoint,
    launch_failure,
    no_hosts_failure,
    store_failure,
    unavailable_checkpoint,
    unjudged_failure,
)
from supervisor.protocol.messages import Stage

_ENDED = WorkerExit(0, code=1)
_SOME_PROGRAM = ("python",)
_UNJUDGED = unjudged_failure(RuntimeError(), (_ENDED,))
OWN_CODES: Mapping[str, tuple[Failure, ...]] = {
    "hang": (hang_failure(None, Stage.TRAINING, 300.0),),
    "launch": (
        launch_failure(FileNotFoundError(ENOENT, "No such file or directory"), _SOME_PROGRAM),
        launch_failure(BlockingIOError(EAGAIN, "Resource temporarily unavailable"), _SOME_PROGRAM),
        launch_failure(ValueError("4 workers cannot share 2 devices"), _SOME_PROGRAM),
        unavailable_checkpoint(7, "it is not there", "the folder of the checkpoints"),
        immovable_checkpoint(7, PermissionError(EPERM, "Operation not permitted")),
    ),
    "host-lost": (
        no_hosts_failure("3 of 4 hosts are ready"),
        host_lost_failure(_UNJUDGED, "host-3", "it does not answer"),
    ),
    "success-file": (store_failure(TimeoutError("the bucket does not answer"), _ENDED),),
    "unjudged": (_UNJUDGED,),
}
"""The codes of verdicts that no rule of the table gives, each with its failures."""
_FACTS: Mapping[str, str] = {
    facts.OOM_KILLED: "the kernel killed a process of the job for memory",
    facts.NO_OOM_KILL: "the kernel killed no process of the job for memory",
    facts.GUARD_LOST: "the guard process was killed",
    facts.TOLD_TO_STOP: "the rank got a SIGTERM that the supervisor did not send",
    facts.PEER_ENDED_FIRST: "another rank was killed or crashed before",
    facts.NO_SPACE: "the disk of model_dir is full",
    facts.NO_STEP_TOLD: (
        "success requires a step, but no step was reported and no checkpoint was seen"
    ),
    facts.STILL_RUNNING: "processes that the workers had started did not end",
}
_STEMS = ("-alone", "-text", "-reported", "-code", "-told", "-on-sigterm")
"""Endings of names; rules that differ in them alone are about the same trouble."""
_MOST_RELATED = 8


@dataclass(frozen=True, slots=True)
class Recipe:
    """All about one code."""

    code: str
    number: int | None
    """The place in the order of the rules; None: no rule of the table has this code."""
    verdict: str
    cause: str
    meaning: tuple[str, ...]
    example: RuleExample | None
    known: tuple[str, ...]
    """What else is known in the example, which its output does not show."""
    does: tuple[str, ...]
    advice: tuple[str, ...]
    matches: tuple[tuple[str, str], ...]
    """What the rule looks for: the name of a condition, and its values."""
    related: tuple[tuple[str, str], ...]
    """Other codes, each with what it has to do with this one."""


def recipe_of_rule(number: int, rule: Rule, matches: Sequence[tuple[str, str]]) -> Recipe:
    """Returns the recipe of the rule with this number; `matches` is what it looks for."""
    example = None if rule.from_config else example_of(rule.name)
    return Recipe(
        rule.name,
        number,
        verdict_words(rule.verdict, rule.certain),
        rule.cause,
        (_sentence(rule.cause), rule.reason, *map(_sentence, _when_it_decides(rule))),
        example,
        tuple(_FACTS[each] for each in rule.facts),
        tuple(effects(kind_of_rule(rule))),
        (rule.advice,),
        tuple(matches),
        tuple(_related(rule, example)),
    )


def recipe_of_own(code: str) -> Recipe:
    """Returns the recipe of one of `OWN_CODES`."""
    failures = OWN_CODES[code]
    verdicts = dict.fromkeys(verdict_words(each.verdict, each.certain) for each in failures)
    does = [tuple(effects(kind_of_failure(each))) for each in failures]
    return Recipe(
        code,
        None,
        " or ".join(verdicts),
        _OWN_CAUSES.get(code, failures[0].cause),
        tuple(f"{_sentence(each.cause)} {each.reason}" for each in failures),
        None,
        (),
        does[0] if len(failures) == 1 else _of_each(failures, map(" ".join, does)),
        _of_each(failures, (each.advice for each in failures)),
        (("seen by", "the supervisor itself: no rule of the table looks for it"),),
        (),
    )


def _of_each(failures: Sequence[Failure], texts: Iterable[str]) -> tuple[str, ...]:
    """Returns the text about each failure, with its cause in front if there are several."""
    if len(failures) == 1:
        return tuple(texts)
    pairs = zip(failures, texts, strict=True)
    return tuple(f"{_capital(failure.cause)}: {text}" for failure, text in pairs)


_OWN_CAUSES = {
    "hang": "a hang",
    "launch": "the workers cannot be started",
    "host-lost": "a host was lost",
}


def verdict_words(verdict: Verdict, certain: bool) -> str:
    """Returns a verdict; for a FATAL, also whether it is certain."""
    if verdict is not Verdict.FATAL:
        return str(verdict)
    return "FATAL, certain" if certain else "FATAL, a guess"


def notes(rule: Rule) -> Iterator[str]:
    """Yields what else a person should know about the rule."""
    yield from _when_it_decides(rule)
    if rule.hardware:
        yield "the devices are probed before the next attempt"
    if rule.per_rung:
        yield "on a smaller rung it disables that rung and does not end the job"


def _when_it_decides(rule: Rule) -> Iterator[str]:
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


def _related(rule: Rule, example: RuleExample | None) -> Iterator[tuple[str, str]]:
    """Yields the rules that a person may confuse with this one, the nearest first."""
    found: dict[str, str] = {}
    for other in RULES:
        if other.name != rule.name and _stem(other.name) == _stem(rule.name):
            found[other.name] = "the same trouble, told in another way"
    for other in RULES:
        if other.name != rule.name and other.cause == rule.cause:
            found.setdefault(other.name, "the same cause")
    by_name = {other.name: other for other in RULES}
    for name in example.also if example is not None else ():
        if by_name[name].confidence is not Confidence.LOW:
            found.setdefault(name, "it matches the example too, but comes later in the order")
    yield from list(found.items())[:_MOST_RELATED]


def _stem(name: str) -> str:
    return next((name.removesuffix(end) for end in _STEMS if name.endswith(end)), name)


def _sentence(text: str) -> str:
    return f"{_capital(text)}."


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
