"""Logs of public threads: what came of them was read before the rules were asked."""

from __future__ import annotations

from supervisor.diagnosis.outcome import Verdict
from tests.corpus.cases import THREADS, Ends, judged, read_cases

FOUND = judged(read_cases(THREADS))
NOT_STOPPED = {
    "thread-dask-no-route": "EHOSTUNREACH: words of a network that may come back",
    "thread-nccl-wrong-interface": "the same; which interface is right, the log does not tell",
    "thread-tpu-driver-deadline": "DEADLINE_EXCEEDED: who serves it no more is not told",
    "thread-tpu-worker-addresses": "what a TPU VM says while its metadata server is away, too",
}
"""Permanent failures told in words of what passes: they end when the budget is spent."""


def test_nothing_that_passes_is_ended_at_once() -> None:
    ended = [i.case.id for i in FOUND if i.case.verdict != "permanent" and i.ends is Ends.AT_ONCE]
    assert ended == []


def test_what_passes_is_seldom_taken_for_fatal() -> None:
    """A KeyError of a library that reads an answer looks like one of the program."""
    taken = [i.case.id for i in FOUND if i.case.verdict == "transient" and not i.right]
    assert taken == ["thread-tpu-health-key"]


def test_what_stays_is_stopped_at_the_second_but_where_its_words_say_that_it_passes() -> None:
    endless = [i.case.id for i in FOUND if i.case.verdict == "permanent" and i.ends is Ends.NEVER]
    assert set(endless) == set(NOT_STOPPED)


def test_most_verdicts_are_those_that_a_person_would_give() -> None:
    wanted = {"permanent": (Verdict.FATAL,), "policy": (Verdict.POLICY,)}
    passing = (Verdict.RESTART, Verdict.POLICY)
    right = sum(i.failure.verdict in wanted.get(i.case.verdict, passing) for i in FOUND)
    assert right >= 30, f"{right} of {len(FOUND)}"
