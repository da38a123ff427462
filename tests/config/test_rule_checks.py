"""Rules of a config that can never decide are refused, with the key, the value and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.judgement import Verdict
from supervisor.config.own_rules import RuleConfig
from supervisor.config.rule_checks import rule_conflicts, vacuous_patterns
from supervisor.diagnosis.rules import Rule, names_match
from supervisor.diagnosis.rules.rule import any_pattern_matches
from supervisor.preflight import start_warnings
from supervisor.prepare import config_rules, prepare
from tests.config.files import load, problems, with_restart

AT = "c.yaml:{}: trainer.init.autorestart.rules[{}]{}: "


def with_rules(*rules: str) -> str:
    return with_restart("\n".join(["max_num_restarts: 3", "rules:", *(f"- {r}" for r in rules)]))


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        (
            ["{exit_code: 9, signal: SIGKILL, verdict: RESTART}"],
            AT.format(7, 0, ".signal") + 'is given beside exit_code (value ["SIGKILL"]), but a '
            "process ends by only one of them: write two rules",
        ),
        (
            ["{name: a, regex: x, verdict: RESTART}", "{name: a, regex: y, verdict: FATAL}"],
            AT.format(8, 1, ".name")
            + 'is also the name of rules[0] (value "a"); give each its own',
        ),
        (
            ["{name: own-2, regex: x, verdict: RESTART}", "{regex: y, verdict: FATAL}"],
            'rules[1].name: is also the name of rules[0] (value "own-2"); give each its own',
        ),
        (
            ["{regex: x, verdict: RESTART}", "{regex: x, verdict: FATAL}"],
            AT.format(8, 1, "") + "can never decide: rules[0] (own-1) has the same conditions and "
            "comes first; remove one of the two",
        ),
        (
            [
                "{name: any, type: '*Error', verdict: RESTART}",
                "{regex: y, verdict: RESTART}",
                "{type: [jax.JaxRuntimeError, ValueError], regex: x, verdict: FATAL}",
            ],
            AT.format(9, 2, "") + "can never decide: rules[0] (any) comes first and matches all "
            "that this one does; put this one before it, or remove it",
        ),
        (
            ["{signal: SIGABRT, verdict: RESTART}", "{signal: SIGIOT, verdict: FATAL}"],
            "rules[1]: can never decide: rules[0] (own-1) has the same conditions",
        ),
    ],
)
def test_a_rule_that_can_never_decide_is_refused(rules: list[str], told: str) -> None:
    (problem,) = problems(with_rules(*rules))
    assert told in problem


@pytest.mark.parametrize(
    "rules",
    [
        ["{type: ValueError, regex: x, verdict: FATAL}", "{type: ValueError, verdict: RESTART}"],
        ["{type: a.ValueError, verdict: FATAL}", "{type: ValueError, verdict: RESTART}"],
        ["{exit_code: 3, verdict: FATAL}", "{exit_code: [3, 4], verdict: RESTART}"],
        ["{exit_code: 3, stage: SAVING, verdict: FATAL}", "{exit_code: 3, verdict: RESTART}"],
        ["{signal: SIGKILL, verdict: FATAL}", "{regex: x, verdict: RESTART}"],
    ],
)
def test_one_that_can_decide_is_not(rules: list[str]) -> None:
    assert problems(with_rules(*rules)) == []


WORDS = st.sampled_from(["a", "b", "a.b", "b.a", "*a", "a*", "a.*", "*.a", "*", "ab", "b.ab"])


@given(st.lists(WORDS, min_size=1, max_size=2), st.lists(WORDS, min_size=1, max_size=2), WORDS)
def test_what_a_rule_is_said_to_hide_it_hides(
    wide: list[str], narrow: list[str], name: str
) -> None:
    """Whatever type an error has: if the later rule is about it, so is the earlier one."""
    rules = [RuleConfig(type=kinds, verdict=Verdict.FATAL) for kinds in (wide, narrow)]
    parts = name.replace("*", "c").split(".")
    names = frozenset({"BaseException", *(".".join(parts[at:]) for at in range(len(parts)))})
    config = with_rules(*(f"{{type: {kinds}, verdict: FATAL}}" for kinds in (wide, narrow)))
    if any(where == (1,) for where, _ in rule_conflicts(rules)):
        assert problems(config)
        earlier, later = (_rule(kinds) for kinds in (wide, narrow))
        assert names_match(earlier, names) or not names_match(later, names)
    else:
        assert len(config_rules(load(config).phases[0])) == 2


def _rule(kinds: list[str]) -> Rule:
    config = load(with_rules(f"{{type: {kinds}, verdict: FATAL}}"))
    return config_rules(config.phases[0])[0]


@pytest.mark.parametrize(
    ("regex", "told"),
    [
        (".*", "matches any text"),
        ("lost|", "matches any text"),
        ("(?s).", "matches any text"),
        ("^$", "matches only an empty text"),
        (r"\Aq*\Z", "matches only an empty text"),
        ("lost", None),
        (r"^\w*Error", None),
        (r"\d", None),
    ],
)
def test_a_pattern_that_says_nothing_is_a_warning(regex: str, told: str | None) -> None:
    found = [*vacuous_patterns([RuleConfig(regex=regex, verdict=Verdict.RESTART)])]
    assert [where for where, _ in found] == ([] if told is None else [(0, "regex")])
    assert told is None or told in found[0][1]
    if told is not None:
        rule = Rule("x", _rule(["a"]).verdict, "", "", "", patterns=(regex,), from_config=True)
        assert any_pattern_matches(rule, "OSError: the store is lost") is (
            told == "matches any text"
        )


def test_the_warning_says_where_the_pattern_stands(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    config = tmp_path / "c.yaml"
    config.write_text(
        with_rules("{regex: '.*', verdict: RESTART}").replace(
            "command: [python, train.py]", f"command: [python, {tmp_path}/train.py]"
        )
    )
    told = [line for line in start_warnings(prepare(config, [])) if "regex" in line]
    assert told == [
        f'{config}:7: trainer.init.autorestart.rules[0].regex: matches any text (value ".*"): '
        "every error gets its verdict; write what the message says, or leave it out"
    ]
