"""Notifications: never a wait, no flood, and nothing lost of what matters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from supervisor.adapters.telling.messenger import Body, Messenger, Receiver
from supervisor.core.events import Noticed
from supervisor.core.state import JobState, Status
from supervisor.host.notice import Notice
from supervisor.host.retry import PassesError
from supervisor.narrative.event_line import attempt_event, job_event
from supervisor.narrative.rendered import RenderedTransition
from tests.running import PATIENCE, eventually

ALL = frozenset({"failure", "restart", "shrink", "finish", "person"})
STATE = replace(JobState(), job="job1", directory="20260101_000000_restartable")


def failure(number: int, why: str = "it broke") -> RenderedTransition:
    keys = dict.fromkeys(("rank", "step", "code", "verdict", "cause", "root_cause", "place"))
    line = attempt_event("attempt-failed", number, f"failed: {why}", "error", **keys)
    return told(line)


def finish() -> RenderedTransition:
    return told(job_event("job-ended", "SUCCEEDED", status=Status.SUCCEEDED, code=0))


def told(line: Any) -> RenderedTransition:
    event = Noticed(0.0, Notice("x", "x"))
    return RenderedTransition(event, STATE, STATE, (), datetime(2026, 1, 1, tzinfo=UTC), (line,))


class Channel:
    """What a receiver has got; it may block or fail first."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.got: list[Body] = []
        self.tries = 0
        self._before = before

    def __call__(self, body: Body) -> None:
        self.tries += 1
        self._before()
        self.got.append(body)


def waiting_for(event: threading.Event) -> Callable[[], None]:
    def wait() -> None:
        event.wait(PATIENCE)

    return wait


def messenger(
    channel: Channel,
    warned: list[str] | None = None,
    kinds: frozenset[str] = ALL,
    problem: str = "",
) -> Messenger:
    receiver = Receiver("the webhook of init.notify[0]", kinds, channel, problem)
    redact: Callable[[str], str] = lambda text: text.replace("hunter2", "[redacted]")  # noqa: E731
    return Messenger(
        [receiver], "/runs/mine", "host1", redact, (warned if warned is not None else []).append
    )


def test_a_message_says_of_which_job_and_where_the_log_is_without_secrets() -> None:
    channel = Channel()
    one = messenger(channel)
    one.observe(failure(3, "password hunter2"))
    assert one.close(PATIENCE) is None
    (body,) = channel.got
    log = "/runs/mine/20260101_000000_restartable/run.log"
    assert (body["job"], body["host"], body["model_dir"]) == ("job1", "host1", "/runs/mine")
    assert (body["on"], body["attempt"], body["log"]) == (["failure"], 3, log)
    assert body["title"] == "attempt 3: failed: password [redacted]"
    assert body["text"] == f"job1 on host1: {body['title']}\nlog: {log}"


def test_what_a_receiver_did_not_ask_for_it_does_not_get() -> None:
    channel = Channel()
    one = messenger(channel, kinds=frozenset({"finish"}))
    one.observe(failure(1))
    one.observe(finish())
    one.close(PATIENCE)
    assert [body["on"] for body in channel.got] == [["finish"]]


def test_a_thousand_failures_while_the_receiver_hangs_become_one_message() -> None:
    go_on = threading.Event()
    channel = Channel(waiting_for(go_on))
    one = messenger(channel)
    one.observe(failure(1))
    assert eventually(lambda: channel.tries == 1)
    for number in range(2, 1002):
        one.observe(failure(number))
    one.observe(finish())
    go_on.set()
    assert one.close(PATIENCE) is None
    first, digest = channel.got
    assert first["attempt"] == 1
    assert (digest["number"], digest["counts"]) == (1001, {"failure": 1000, "finish": 1})
    assert digest["title"] == "1001 messages (1000 failure, 1 finish); the last: SUCCEEDED"
    assert digest["details"] == [
        f"before: attempt {number}: failed: it broke" for number in range(998, 1002)
    ]


def test_a_flood_becomes_a_few_messages_and_the_last_one_comes() -> None:
    channel = Channel()
    one = messenger(channel)
    for number in range(1, 101):
        one.observe(failure(number))
        assert eventually(lambda: channel.tries >= min(number, 6))  # noqa: B023 (asked at once)
    one.observe(finish())
    one.close(PATIENCE)
    assert sum(body.get("number", 1) for body in channel.got) == 101
    assert len(channel.got) <= 12
    assert "finish" in channel.got[-1]["on"]


def test_what_may_pass_is_tried_again_and_told_only_if_it_does_not() -> None:
    failures = iter([PassesError(OSError("it answers 503"))] * 2)

    def fail_twice() -> None:
        if (error := next(failures, None)) is not None:
            raise error

    warned: list[str] = []
    channel = Channel(fail_twice)
    one = messenger(channel, warned)
    one.observe(finish())
    assert one.close(PATIENCE) is None
    assert (channel.tries, len(channel.got), warned) == (3, 1, [])


@pytest.mark.parametrize(
    "error", [PassesError(OSError("it answers 500")), OSError("it answers 404")]
)
def test_a_receiver_that_fails_for_ever_is_told_once(error: Exception) -> None:
    def fail() -> None:
        raise error

    warned: list[str] = []
    channel = Channel(fail)
    one = messenger(channel, warned)
    one.observe(failure(1))
    one.observe(failure(2))
    assert one.close(PATIENCE) == "the last message did not reach the webhook of init.notify[0]"
    assert warned == [
        f"a message does not reach the webhook of init.notify[0]: {error}; the job goes on"
    ]
    assert channel.tries <= 8


def test_the_end_waits_for_no_receiver_that_hangs() -> None:
    go_on = threading.Event()
    channel = Channel(waiting_for(go_on))
    one = messenger(channel)
    one.observe(finish())
    assert one.close(0.1) == "the last message did not reach the webhook of init.notify[0]"
    go_on.set()


def test_a_receiver_without_its_url_is_told_at_the_start_and_never_asked() -> None:
    warned: list[str] = []
    channel = Channel()
    one = messenger(channel, warned, problem="the variable HOOK is not set")
    assert "the variable HOOK is not set" in warned[0]
    one.observe(finish())
    assert one.close(PATIENCE) is not None
    assert (channel.tries, len(warned)) == (0, 1)
