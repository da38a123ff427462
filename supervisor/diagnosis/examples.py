"""Checks that the examples of the config's rules are judged as they should be; says why not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from supervisor.config.own_rules import Example
from supervisor.config.patterns import SlowPatternError
from supervisor.diagnosis.digest import LogDigest
from supervisor.diagnosis.explanation import explain
from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.rules import Rule
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.diagnosis.weighing import ranked_judgements


def failed(
    examples: Sequence[Sequence[Example]], rules: tuple[Rule, ...], success: Success
) -> Iterator[tuple[int, int, str]]:
    """Yields each example that fails: the index of its rule, its own index, and why it fails.

    `examples[n]` belong to `rules[n]`. A pattern that takes too long is searched once: the other
    examples of its rule are skipped, and those of other rules are judged without it.
    """
    own, slow = rules, set[str]()
    for number, of_rule in enumerate(examples):
        for index, example in enumerate(of_rule):
            if slow.intersection(own[number].patterns):
                break
            try:
                why = _why_failed(example, own[number], rules, success)
            except SlowPatternError as error:
                slow.add(error.source)
                rules = tuple(rule for rule in rules if error.source not in rule.patterns)
                why = f"{error}: make the pattern simpler"
            if why is not None:
                yield number, index, why


def _why_failed(
    example: Example, rule: Rule, rules: tuple[Rule, ...], success: Success
) -> str | None:
    """Returns why the example is not judged as it should be; None: it is."""
    evidence = _evidence(example)
    failure = judge(evidence, success, rules)
    decides = failure is not None and ranked_judgements(evidence, success, rules)[0][0].rule is rule
    if example.expect is not None and (failure is None or failure.verdict != example.expect):
        return f"should be {example.expect}, but {_judged(failure)}"
    wanted = example.decides if example.decides is not None else example.expect is None or decides
    if decides == wanted:
        return None
    if not wanted:
        return f"should be decided by another rule, but {_judged(failure)}"
    why = _why_not(rule, evidence, success, rules)
    return f"should be decided by this rule, but {_judged(failure)}: {why}"


def _evidence(example: Example) -> Evidence:
    """Returns the evidence of a worker that ended as the example says."""
    digest = LogDigest()
    digest.feed((example.text or "").encode())
    code = example.exit_code if example.exit_code is not None or example.signal else 1
    ended = WorkerExit(0, code=code, signal=example.signal)
    return Evidence((RankEvidence(ended, output=digest.text(), stage=example.stage),))


def _judged(failure: Failure | None) -> str:
    if failure is None:
        return "it ends with the exit code of success"
    return f"rule {failure.rule!r} decides ({failure.verdict}, on {failure.root_cause!r})"


def _why_not(rule: Rule, evidence: Evidence, success: Success, rules: tuple[Rule, ...]) -> str:
    """Returns why `rule` does not decide, although it comes before all built-in rules."""
    found = explain(evidence, success, rules)
    if found is None:
        return "a success has no rule"
    if any(match.rule is rule for match in found.errors[0].matches):
        return "that rule comes before this one"
    for error in found.errors:
        if any(match.rule is rule for match in error.matches):
            return f"this rule is about {error.line!r}, which is not the root cause: {error.why}"
    unmet = [each for each in _conditions(rule) if not _holds(each[1], evidence, success, rules)]
    if not unmet:
        return "no error meets all conditions of this rule together"
    judgements, _ = ranked_judgements(evidence, success, rules)
    has_type = any(member.type for judgement in judgements for member in judgement.matched_members)
    told = [_told_unmet(name, evidence.ranks[0], has_type) for name, _ in unmet]
    if evidence.ranks[0].exit.signal is not None:
        told += [f"{each.line!r} does not count: {each.why}" for each in found.discarded[:1]]
    return "; ".join(told)


def _conditions(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """Yields each condition of the rule that a config can give: its key, and the rule with this
    condition alone."""
    bare = replace(rule, types=(), patterns=(), signals=(), exit_codes=(), stages=())
    fields = {
        "type": replace(bare, types=rule.types) if rule.types else None,
        "regex": replace(bare, patterns=rule.patterns) if rule.patterns else None,
        "exit_code": replace(bare, exit_codes=rule.exit_codes) if rule.exit_codes else None,
        "signal": replace(bare, signals=rule.signals) if rule.signals else None,
        "stage": replace(bare, stages=rule.stages) if rule.stages else None,
    }
    return ((name, alone) for name, alone in fields.items() if alone is not None)


def _holds(alone: Rule, evidence: Evidence, success: Success, rules: tuple[Rule, ...]) -> bool:
    found = explain(evidence, success, (alone, *rules))
    return found is not None and any(
        match.rule is alone for error in found.errors for match in error.matches
    )


def _told_unmet(name: str, rank: RankEvidence, has_type: bool) -> str:
    if name == "stage":
        return f"its stage is {rank.stage or 'not given'}"
    if name in ("exit_code", "signal"):
        return f"it ends with {rank.exit}"
    if name == "type" and not has_type:
        return (
            "no error in it has that type (a type is read where a line begins with it, as in "
            "`ValueError: what it says`)"
        )
    return f"no error in it has that {'type' if name == 'type' else 'text (regex)'}"
