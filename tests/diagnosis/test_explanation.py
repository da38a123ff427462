"""An explanation names the error and the rule that the judgement took, and a change that works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.cli.explained import OwnRules
from supervisor.cli.explained import explanation_lines as lines_of
from supervisor.diagnosis.chain import Origin
from supervisor.diagnosis.explanation import Explanation, explain
from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.redaction import Redactor
from supervisor.diagnosis.rules import RULES, Rule
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.prepare import config_rules
from supervisor.protocol.failure_record import ExceptionInfo, FailureRecord
from tests.config.files import COMMAND, load
from tests.corpus.cases import COMPOSED, CORPUS, PROVOKED, Case, digest, read_cases

CASES = [case for path in (CORPUS, PROVOKED, COMPOSED) for case in read_cases(path)]
NEVER = Success(step=10**9)
AT_RULES = 3


def evidence(*cases: Case) -> Evidence:
    """The end of a group whose ranks ended as the cases say."""
    return Evidence(
        tuple(
            RankEvidence(
                replace(case.ended, rank=rank), output=digest(case.output), stage=case.stage
            )
            for rank, case in enumerate(cases)
        )
    )


def explained(known: Evidence, rules: tuple[Rule, ...] = RULES) -> Explanation:
    found = explain(known, NEVER, rules)
    assert found is not None
    return found


def printed(*lines: str, place: str = "/app/train.py") -> str:
    body = "".join(f"{line}\n" for line in lines)
    return f'Traceback (most recent call last):\n  File "{place}", line 7, in <module>\n{body}'


LOST = printed("RuntimeError: UNAVAILABLE: Socket closed")
BUG = printed("ValueError: x")


def ended(*outputs: str, code: int | None = 1, signal: str | None = None) -> Evidence:
    return Evidence(
        tuple(
            RankEvidence(WorkerExit(rank, code, signal), output=text)
            for rank, text in enumerate(outputs)
        )
    )


@pytest.mark.parametrize("path", [CORPUS, PROVOKED, COMPOSED], ids=lambda path: path.stem)
def test_the_explained_winner_is_the_judged_one(path: Path) -> None:
    for case in read_cases(path):
        agrees(evidence(case))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(CASES), min_size=2, max_size=3))
def test_so_it_is_of_several_ranks(cases: list[Case]) -> None:
    agrees(evidence(*cases))


def agrees(known: Evidence) -> None:
    """Explanation and judgement name the same error and rule."""
    found, failure = explained(known), judge(known, NEVER)
    assert failure is not None
    root = found.errors[0]
    assert found.failure == failure
    assert (root.matches[0].rule.name, root.rank) == (failure.rule, failure.rank)
    assert (root.line, root.where) == (failure.root_cause, failure.where)
    for error in found.errors:
        asked = [RULES.index(match.rule) for match in error.matches]
        assert asked == sorted(asked)
        assert error.why


def pasted(known: Evidence, redact: Redactor) -> Iterator[Failure]:
    """What becomes of the failure with each rule that is printed, in a config as it is printed."""
    found = explain(known, NEVER, RULES, redact.text)
    assert found is not None
    said = redact.text("\n".join(lines_of(found, ["log"] * len(known.ranks), OwnRules())))
    _, _, block = said.partition("trainer:\n")
    if not found.changes:
        assert found.errors[0].origin == "how the process ended"
        assert not block
        return
    *head, first = block.splitlines()[: 1 + AT_RULES]
    others = [line.replace("# - ", "- ") for line in block.splitlines()[len(head) + 2 :: 2]]
    assert len(others) + 1 == len(found.changes)
    for rule in (first, *others):
        rules = yaml.safe_load("\n".join(["trainer:", *head, rule]))["trainer"]["init"]
        config = yaml.safe_load(COMMAND)
        config["trainer"]["init"]["autorestart"] |= rules["autorestart"]
        (own,) = config_rules(load(yaml.safe_dump(config)).phases[0])
        changed = judge(known, NEVER, (own, *RULES))
        assert changed is not None
        assert changed.rule == "own-1"
        yield changed


def kind(failure: Failure) -> tuple[str, bool]:
    return str(failure.verdict), failure.is_certain


def does_what_it_says(known: Evidence, redact: Redactor) -> None:
    before = judge(known, NEVER)
    assert before is not None
    changed = {kind(failure) for failure in pasted(known, redact)}
    if before.verdict is not Verdict.FATAL:
        assert changed <= {("FATAL", True)}
    else:
        assert changed in (set(), {("RESTART", False), ("FATAL", not before.is_certain)})


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(CASES), min_size=1, max_size=2))
def test_the_changes_that_it_proposes_do_what_they_say(cases: list[Case]) -> None:
    does_what_it_says(evidence(*cases), Redactor({}))


AWKWARD = (
    *("password: hunter22hunter", "token=abcdefghij", "Authorization: Bearer abcdefghijklmno"),
    *("{a: 1}", "it's", '"q"', "# no", "- x", "null", "%d", "&a *b", "!tag", "key:", "\\d+", "7"),
    *("hf_" + "a" * 30, "x" * 90, "\u2028", "@", "`", "yes", "?", "|", "~", "\U0001f600", "\t"),
)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["ValueError", "TypeError", "mylib.FooError", "ExceptionGroup", "OSError"]),
    st.lists(st.sampled_from(AWKWARD), min_size=0, max_size=4).map(" ".join),
)
def test_so_they_do_whatever_the_message_holds(name: str, message: str) -> None:
    does_what_it_says(ended(printed(f"{name}: {message}")), Redactor({"MY_TOKEN": "s3cr3t-s3cr3t"}))


@pytest.mark.parametrize("origin", [Origin.THREAD, Origin.LOGGED])
def test_how_an_error_was_printed_is_told_in_the_same_words_everywhere(origin: Origin) -> None:
    head = "Exception in thread T:\n" if origin is Origin.THREAD else ""
    found = explained(ended(f"{head}{LOST.replace('<module>', 'f')}\n{BUG}"))
    error = next(error for error in found.errors if error.line.endswith("Socket closed"))
    assert error.origin == origin.told
    assert origin.told in error.why
    assert found.errors[0].origin == Origin.MAIN.told


def test_every_rule_that_matches_is_named_with_what_it_matches() -> None:
    (error, *_) = explained(
        ended(printed("OSError: [Errno 28] No space left on device: '/x'"))
    ).errors
    on = {match.rule.name: match.on for match in error.matches}
    assert next(iter(on.items())) == ("disk-full", ("words '[Errno 28]'",))
    assert on["exception"] == ("type OSError",)
    assert on["unknown"] == ()
    assert error.speaker == "your own code"


def test_an_error_of_our_trainer_is_not_called_the_users_own() -> None:
    file = Path(__file__).parents[2] / "trainer" / "data.py"
    text = printed("trainer.data.DataError: no record").replace("/app/train.py", str(file))
    assert str(file) in text
    (error, *_) = explained(ended(text)).errors
    assert error.speaker == "supervise's own trainer"


@pytest.mark.parametrize(
    ("kind", "file", "speaker"),
    [
        (
            "supervisor.config.training.data_files.DataError",
            "supervisor/config/training/data_files.py",
            "supervise's check of the data: the data is at fault, not the code",
        ),
        ("ValueError", "supervisor/config/training/data_files.py", "supervise itself"),
    ],
)
def test_neither_is_an_error_of_the_supervisors_package(kind: str, file: str, speaker: str) -> None:
    path = Path(__file__).parents[2] / file
    text = printed(f"{kind}: a.jsonl:7: no text").replace("/app/train.py", str(path))
    (error, *_) = explained(ended(text)).errors
    assert error.speaker == speaker
    assert "your own code" not in str([match.on for match in error.matches])


def test_a_rule_that_asks_for_absent_words_names_none() -> None:
    (error, *_) = explained(ended(printed("TypeError: f() missing an argument"))).errors
    assert error.matches[0].on == ("type TypeError", "raised by your own code")


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (ended(LOST, BUG), "when another rank fails"),
        (ended(BUG, BUG), "a later rank"),
        (ended(f"{BUG}\n{BUG}"), "printed later"),
        (
            ended(
                f"I1121 08:55:31.9 1 a.py:1] x\n{BUG}",
                f"I1121 08:55:30.9 1 a.py:1] x\n{BUG}",
            ),
            "came later",
        ),
        (ended(BUG), "it is the only error that was found"),
        (ended("step 7"), "no error was found that says more"),
        (ended(""), "there is no output"),
    ],
)  # fmt: skip
def test_it_says_why_another_error_is_not_the_root_cause(known: Evidence, reason: str) -> None:
    found = explained(known)
    assert any(reason in error.why for error in found.errors)


def test_it_says_what_does_not_count() -> None:
    broken = printed("BrokenPipeError: [Errno 32] Broken pipe")
    (discarded, *_) = explained(ended(broken, code=None, signal="SIGTERM")).discarded
    assert "SIGTERM, which also ends the peers" in discarded.why


def test_an_error_printed_before_the_recorded_one_is_shown_as_one_that_does_not_count() -> None:
    recorded = ExceptionInfo("builtins.RuntimeError", (), "a worker failed", "raised")
    of_a_child = f"Process SpawnProcess-1:\n{BUG}\n"
    output = of_a_child + printed("RuntimeError: a worker failed")
    record = FailureRecord(0, 0.0, None, None, (recorded,), "")
    found = explained(Evidence((RankEvidence(WorkerExit(0, code=1), record, output),)))
    assert found.errors[0].why == "it is the only error that counts"
    assert [each.line for each in found.discarded] == [BUG.splitlines()[-1]]


def test_what_it_shows_is_bounded_and_without_secrets() -> None:
    secret = "hf_" + "a" * 40
    rule = Rule("x", Verdict.RESTART, "x", "x", "x", patterns=(r"token \S+.*",), from_config=True)

    def redact(text: str) -> str:
        return text.replace(secret, "[redacted]")

    found = explain(
        ended(printed(f"ValueError: token {secret} {'b' * 5000}")), NEVER, (rule, *RULES), redact
    )
    assert found is not None
    shown = [
        part
        for error in found.errors
        for match in error.matches
        for part in (match.line, *match.on)
    ]
    assert "words 'token [redacted] bbb" in "".join(shown)
    assert all(len(text) <= 410 and "hf_" not in text for text in shown)
    assert found.changes
    assert "hf_" not in str(found.changes)


def test_of_thousands_of_errors_the_most_likely_are_explained() -> None:
    noise = "".join(f"{printed(f'ValueError: {chr(97 + n % 26) * n}')}\n" for n in range(150))
    found = explained(ended(noise))
    assert (len(found.errors), found.more) == (100, 151 - 100)
    assert found.errors[0].line == found.failure.root_cause
