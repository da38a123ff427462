"""What a message states, apart from advice and suppositions, on which no verdict may hang."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.diagnosis.chain import PrintedError
from supervisor.diagnosis.outcome import Confidence, Verdict
from supervisor.diagnosis.rootcause import chains_of_text
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.rules.rule import any_pattern_matches
from supervisor.diagnosis.statements import stated
from tests.corpus.cases import COMPOSED, CORPUS, PROVOKED, Case, digest, judge_together, read_cases
from tests.diagnosis.test_certain import LIBRARY, failure, raised

_FILE = Path(__file__).parents[1] / "corpus" / "advice.txt"
ADVICE = [line for line in _FILE.read_text().splitlines() if line and not line.startswith("#")]
CASES = [case for path in (CORPUS, PROVOKED, COMPOSED) for case in read_cases(path)]
ROOTED = [case for case in CASES if case.root_line and case.root_line in case.output]

_JOINTS = re.compile(r"(?:[.:]*\s+)+")
"""Where advice is joined to a text."""

STATEMENTS = [
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "RuntimeError: Set changed size during iteration",
    "urllib3.exceptions.ReadTimeoutError: Read timed out. (read timeout=10)",
    "Check failed: x == y (1 vs. 2) Use of a closed socket",
    "ValueError: the batch must be divisible by 8, got 12",
    "jax.errors.JaxRuntimeError: INTERNAL: Core halted unexpectedly: core halted",
    "OSError: [Errno 28] No space left on device: '/run/7'",
    "RuntimeError: the save failed. The failure is caused by a full disk",
    "RuntimeError: Update failed: added 3 of 7 rows; Export aborted",
    "TypeError: If() takes 2 positional arguments but 3 were given",
]
"""Messages that state all that they say."""


@pytest.mark.parametrize("text", STATEMENTS)
def test_a_statement_is_left_as_it_is(text: str) -> None:
    assert stated(text) == text


@pytest.mark.parametrize("advice", ADVICE)
def test_nothing_that_a_rule_could_match_is_left_of_advice(advice: str) -> None:
    left = stated(f"RuntimeError: it broke\n{advice}\nNext line")
    assert left.startswith("RuntimeError: it broke\n")
    assert left.endswith("\nNext line") or "causes" in advice
    assert len(left) - len("RuntimeError: it broke\n\nNext line") <= 25


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("It halted, perhaps by a check. Node 0 stopped", "It halted, . Node 0 stopped"),
        ("failed (run with NCCL_DEBUG=INFO for details). Last entry", "failed (). Last entry"),
        ("A call (e.g. socket, malloc) failed", "A call () failed"),
        ("it (see [1], and the docs (2)) failed: no", "it (see [1], and the docs (2)) failed: no"),
        ("See full TensorStore details: NOT_FOUND: x", ": NOT_FOUND: x"),
        ("Please see the log: OSError: [Errno 5] x", ": OSError: [Errno 5] x"),
        ("Try:\n  export X=1\nDone", ":\n\nDone"),
        ("It failed.\nPossible causes:\n- memory\n- a bug\n\nEIO", "It failed.\n:\n\n\n\nEIO"),
        ("If x is not set,\nit fails with EIO. It failed", ". It failed"),
    ],
)  # fmt: skip
def test_only_the_advice_of_a_sentence_is_left_out(text: str, left: str) -> None:
    assert stated(text) == left


@given(st.text(max_size=400))
def test_any_text_can_be_read(text: str) -> None:
    left = stated(text)
    assert len(left) <= len(text)
    remaining = iter(text)
    assert all(character in remaining for character in left)


@pytest.mark.parametrize("words", ["(please) ", "(", "It may be. ", "a: is ", "(see the [", "\n"])
def test_a_long_text_is_read_in_bounded_time(words: str) -> None:
    stated(words * 4000)


def advised(case: Case, advice: str) -> Case:
    """The case, whose root cause is printed with some advice: in its line, and below it."""
    line = case.root_line.rstrip(".") + (". " if ": " in case.root_line else ": ")
    output = case.output.replace(case.root_line, f"{line}{advice}\n{advice}")
    return replace(case, output=output)


def decisive(case: Case) -> list[tuple[object, ...]]:
    """All of its log that a verdict may hang on: the errors without advice, and what is read with
    it, the codes and the words of the rules about what somebody supposes."""
    return [
        (chain.origin, chain.when, chain.frames, *map(_decisive, filter(_says_more, chain.members)))
        for chain in chains_of_text(digest(case.output))
    ]


def _says_more(member: PrintedError) -> bool:
    return member.stated.strip(" .:\n") != ""


def _decisive(member: PrintedError) -> tuple[object, ...]:
    supposed = [
        rule.name
        for rule in RULES
        if rule.matches_suppositions and any_pattern_matches(rule, member.text)
    ]
    speaks = (member.type, member.at, member.raised_in, member.hints)
    return (*speaks, _JOINTS.sub(" ", f"{member.stated}\n"), member.codes, supposed)


@pytest.mark.parametrize("case", ROOTED, ids=lambda case: case.id)
def test_advice_changes_no_verdict(case: Case) -> None:
    """Each case with some of the texts, so that each text meets many cases."""
    before = judge_together([case])
    decisive_before = decisive(case)
    start = CASES.index(case) * 7
    for advice in islice(cycle(ADVICE), start, start + 7):
        with_advice = advised(case, advice)
        if decisive(with_advice) == decisive_before:
            continue
        after = judge_together([with_advice])
        assert (after.verdict, after.rule, after.certain) == (
            before.verdict,
            before.rule,
            before.certain,
        ), advice


@given(case=st.sampled_from(ROOTED), advice=st.sampled_from(ADVICE))
@settings(max_examples=50, deadline=None)
def test_no_advice_changes_the_verdict_of_any_case(case: Case, advice: str) -> None:
    before, after = judge_together([case]), judge_together([advised(case, advice)])
    assert (after.verdict, after.rule) == (before.verdict, before.rule)


def test_an_uncorrectable_error_stays_a_fault_of_the_hardware_whatever_pytorch_advises() -> None:
    line = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    found = failure(raised(line + "\n".join(ADVICE[:3]), LIBRARY))
    assert (found.verdict, found.rule) == (Verdict.RESTART, "hardware")


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: Please check your internet connection",
        "huggingface_hub.errors.HubError: it failed.\nPlease retry download and pass `force=True`.",
        "RuntimeError: it did not work out, please try again later",
    ],
)
def test_where_advice_is_all_there_is_it_is_a_guess_that_another_try_succeeds(line: str) -> None:
    found = failure(raised(line, LIBRARY))
    assert (found.verdict, found.confidence) == (Verdict.RESTART, Confidence.LOW)


@pytest.mark.parametrize("advice", ADVICE)
def test_advice_alone_never_ends_a_job(advice: str) -> None:
    found = failure(raised(f"RuntimeError: {advice}", LIBRARY))
    assert found.verdict is Verdict.RESTART
