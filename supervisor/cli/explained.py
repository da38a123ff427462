"""The output of `supervise classify --explain`: why the verdict is what it is.

The rules of a config are read here, too; `supervise rules` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from supervisor.config.load import load_job
from supervisor.diagnosis.explanation import Candidate, Explanation, Match
from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.rules import Rule
from supervisor.prepare import config_rules, places_of_rules

_MAX_SHOWN = 10
_AT_RULES = ("trainer:", "  init:", "    autorestart:", "      rules:")


@dataclass(frozen=True, slots=True)
class OwnRules:
    """The rules of a config, and the place of each: file, line and key."""

    rules: tuple[Rule, ...] = ()
    places: tuple[str, ...] = ()

    def place(self, rule: Rule) -> str | None:
        """Returns the rule's place in the config; None: it is one of ours."""
        pairs = zip(self.rules, self.places, strict=True)
        return next((place for own, place in pairs if own is rule), None)


def own_rules_of(config: Path | None) -> OwnRules:
    """Read the rules of the first phase of `config`; there are none if `config` is None.

    Raises:
        ConfigError: the config is not valid.
    """
    if config is None:
        return OwnRules()
    job = load_job(config)
    return OwnRules(config_rules(job.phases[0]), places_of_rules(job, 0))


def explanation_lines(
    explanation: Explanation, logs: Sequence[str], own: OwnRules
) -> Iterator[str]:
    """Yields the explanation as lines for people."""
    yield ""
    yield from error_lines(explanation, logs, own)
    yield ""
    yield from change_lines(explanation, own, "`--config trainer.yaml` tries it")


def error_lines(explanation: Explanation, logs: Sequence[str], own: OwnRules) -> Iterator[str]:
    """Yields the lines about the errors that were found, each with the rules that match it."""
    yield "errors found, the root cause first:"
    for number, error in enumerate(explanation.errors[:_MAX_SHOWN], 1):
        yield from _error_lines(number, error, logs, own)
    yield from _more(len(explanation.errors) + explanation.more, "errors")
    for each in explanation.discarded[:_MAX_SHOWN]:
        yield f"not counted: {_rank_prefix(each.rank, logs)}{each.line}"
        yield f"     because {each.why}"
    yield from _more(len(explanation.discarded), "lines that do not count")


def _error_lines(
    number: int, error: Candidate, logs: Sequence[str], own: OwnRules
) -> Iterator[str]:
    yield f"{number:>3}. {_rank_prefix(error.rank, logs)}{error.line}"
    known = [
        f"at {error.where}" if error.where else "",
        f"raised by {error.speaker}" if error.speaker else "",
        error.origin,
        f"logged at {error.time}" if error.time else "",
    ]
    yield f"     {'; '.join(filter(None, known))}"
    yield f"     {'THE ROOT CAUSE' if number == 1 else 'not the root cause'}: {error.why}"
    yield "     rules that match, in their order; the first decides about this error:"
    width = max(len(match.rule.name) for match in error.matches)
    for place, match in enumerate(error.matches):
        mark = "->" if place == 0 else "  "
        on = ", ".join(match.on) or "matches anything"
        other = f", in {match.line!r}" if match.line != error.line else ""
        where = f" (yours: {found})" if (found := own.place(match.rule)) else ""
        kind = verdict_of(match.rule)
        yield f"     {mark} {match.rule.name.ljust(width)}  {kind.ljust(14)}  {on}{other}{where}"


def _rank_prefix(rank: int, logs: Sequence[str]) -> str:
    return f"rank {rank} ({logs[rank]}): " if len(logs) > 1 else ""


def _more(count: int, what: str) -> Iterator[str]:
    if count > _MAX_SHOWN:
        yield f"     ... and {count - _MAX_SHOWN} more {what} (--json has the first hundred)"


def verdict_of(rule: Rule) -> str:
    """Returns the verdict of a rule; for a FATAL, also whether it is certain."""
    if rule.verdict is not Verdict.FATAL:
        return str(rule.verdict)
    return "FATAL, certain" if rule.certain else "FATAL, a guess"


def change_lines(explanation: Explanation, own: OwnRules, tries: str) -> Iterator[str]:
    """Yields the lines about what would change the verdict; `tries` says how it can be tried."""
    place = own.place(explanation.errors[0].matches[0].rule)
    if place is not None:
        yield f"you do not agree? Your own rule decided; change it: {place}"
    elif not explanation.changes:
        yield (
            "you do not agree? A rule of your own can match the exit code or the signal "
            "(--exit-code, --signal), but only if no rule matches an error of a rank; so match the "
            "errors listed above instead"
        )
    else:
        first, *others = explanation.changes
        yield (
            f"you do not agree? This in your config makes it {_verdict_text(first)} (your rules "
            f"come before ours; {tries}):"
        )
        yield from _AT_RULES
        yield f"      - {as_yaml(first)}"
        for other in others:
            yield f"      # or, in place of that, {_verdict_text(other)}:"
            yield f"      # - {as_yaml(other)}"


def _verdict_text(change: dict[str, Any]) -> str:
    """Returns the verdict that the rule `change` gives, in words."""
    if "certain" not in change:
        return str(change["verdict"])
    if change["certain"]:
        return "FATAL for certain, which ends the job at once"
    return "FATAL as a guess, which gets one more attempt"


def as_yaml(rule: dict[str, Any]) -> str:
    """Returns the rule in one line of YAML, as a config may have it."""
    text: str = yaml.safe_dump(
        rule, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000
    )
    return text.strip()


def comparison(failure: Failure) -> str:
    """Returns what it means if the same signature comes again."""
    if failure.is_certain:
        return "not compared: it ends the job"
    if failure.compared:
        return "compared: the same again ends the job (70), see docs/explanation/root-cause.md"
    return "not compared: it may come again and still pass"


def explanation_body(explanation: Explanation, own: OwnRules) -> dict[str, Any]:
    """Returns the explanation as JSON, for programs."""
    return {
        "errors": [_error_body(error, own) for error in explanation.errors],
        "more_errors": explanation.more,
        "not_counted": [
            {"rank": each.rank, "line": each.line, "why": each.why}
            for each in explanation.discarded
        ],
        "decided_by": own.place(explanation.errors[0].matches[0].rule),
        "changes": list(explanation.changes),
    }


def _error_body(error: Candidate, own: OwnRules) -> dict[str, Any]:
    return {
        "rank": error.rank,
        "line": error.line,
        "where": error.where,
        "speaker": error.speaker,
        "origin": error.origin,
        "time": error.time,
        "why": error.why,
        "rules": [_match_body(match, own) for match in error.matches],
    }


def _match_body(match: Match, own: OwnRules) -> dict[str, Any]:
    rule = match.rule
    return {
        "name": rule.name,
        "verdict": str(rule.verdict),
        "certain": rule.verdict is Verdict.FATAL and rule.certain,
        "on": list(match.on),
        "line": match.line,
        "config": own.place(rule),
    }
