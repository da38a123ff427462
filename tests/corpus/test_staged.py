"""Failures that were staged and labelled by somebody who did not know the rules."""

from __future__ import annotations

from tests.corpus.cases import STAGED, Ends, judged_file

WRONG = {
    "abort-faulthandler-native": "a check of native code; only the program's own code shows it",
    "gcs-412-generation": "a precondition: as a rule another writer's, which passes",
    "hf-gated": "403: who may not read it is told so, whoever asks",
    "j12-grain-worker-killed": "grain says that a worker left, not that it was killed",
    "orbax12-metadata-gone": "reads as another structure",
    "oserror-flock-busy": "errno 11 is a limit, too; both are restarted",
    "segv-faulthandler": "a crash; only the program's own code shows why",
}
"""The verdict is another than the label, and why."""


def test_the_verdicts_that_are_wrong_are_these() -> None:
    assert {item.case.id for item in judged_file(STAGED) if not item.right} == set(WRONG)


def test_nothing_that_another_try_may_bring_through_is_ended_at_once() -> None:
    dead = [
        i.case.id
        for i in judged_file(STAGED)
        if i.case.verdict != "FATAL" and i.ends is Ends.AT_ONCE
    ]
    assert dead == []


def test_what_always_fails_comes_twice_at_most() -> None:
    """But for gcs-412-generation, which is `WRONG` for this reason."""
    endless = [
        i.case.id for i in judged_file(STAGED) if i.case.verdict == "FATAL" and i.ends is Ends.NEVER
    ]
    assert endless == ["gcs-412-generation"]
