"""Steps that are recognised in the output: handed on for people, and told once with an example."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from supervisor.config.plan import PhasePlan
from supervisor.diagnosis.step_recogniser import EVEN
from supervisor.engines.step_recognition import StepListener, StepRecognition
from supervisor.host.notice import Notice
from supervisor.protocol.messages import Message, StepMessage, StepsDroppedMessage

SECRET = "hf_abcdefgh"


def plan(pattern: str | None = None, *, is_command: bool = True, name: str = "only") -> PhasePlan:
    made = SimpleNamespace(name=name, progress_pattern=pattern, is_command=is_command)
    return cast(PhasePlan, made)


def redact(text: str) -> str:
    return text.replace(SECRET, "***")


@dataclass
class Heard:
    """What one job was told of the steps in its output."""

    told: list[Notice] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    reported: bool = False
    now: float = 0.0

    def __post_init__(self) -> None:
        self.recognition = StepRecognition(self.told.append, redact)

    def attempt(self, of: PhasePlan | None = None) -> StepListener:
        listener = self.recognition.listener(
            of or plan(), self.messages.append, lambda: self.reported
        )
        assert listener is not None
        return listener

    def says(self, listener: StepListener, *lines: str, every: float = 1.0) -> None:
        for line in lines:
            self.now += every
            listener.hear([line.encode()], self.now)


def lines(first: int, last: int, after: str = "loss 0.5") -> list[str]:
    return [f"step {step} {after}" for step in range(first, last + 1)]


def recognised(
    step: int, first: int | None = None, every: int | None = 1, **metrics: float
) -> StepMessage:
    return StepMessage(step, metrics, first, in_output=True, recognised=True, every=every)


def test_steps_are_handed_on_and_told_once_with_an_example_without_secrets() -> None:
    heard = Heard()
    attempt = heard.attempt()
    heard.says(attempt, *lines(1, 2 + EVEN, f"loss 0.5 token {SECRET}"))
    assert heard.messages == [recognised(1 + EVEN, 1, loss=0.5), recognised(2 + EVEN, loss=0.5)]
    (notice,) = heard.told
    assert notice.event == "steps-recognised"
    assert notice.keys == {"phase": "only", "detail": f"step {1 + EVEN} loss 0.5 token ***"}
    assert "command.progress.pattern" in notice


def test_the_next_attempt_begins_at_its_first_step_which_is_lower() -> None:
    heard = Heard()
    heard.says(heard.attempt(), *lines(1, 30))
    heard.messages.clear()
    heard.says(heard.attempt(), *lines(21, 22))
    assert heard.messages == [recognised(21, 21, loss=0.5), recognised(22, loss=0.5)]
    assert [notice.event for notice in heard.told] == ["steps-recognised"]


def test_the_next_attempt_knows_by_how_much_the_steps_rise() -> None:
    heard = Heard()
    heard.says(heard.attempt(), *(f"step {step} loss 0.5" for step in range(5, 50, 5)))
    heard.messages.clear()
    heard.says(heard.attempt(), "step 45 loss 0.5")
    assert heard.messages == [recognised(45, 45, every=5, loss=0.5)]


def test_another_phase_has_its_own_lines() -> None:
    heard = Heard()
    heard.says(heard.attempt(), *lines(1, 30))
    heard.messages.clear()
    heard.says(heard.attempt(plan(name="second")), *lines(1, 2))
    assert heard.messages == []


def test_a_wrong_form_is_dropped_told_and_forgotten() -> None:
    heard = Heard()
    heard.says(heard.attempt(), *lines(1, 9), *lines(1, 9))
    assert heard.messages[-1] == StepsDroppedMessage()
    assert [notice.event for notice in heard.told] == ["steps-recognised", "steps-dropped"]
    heard.messages.clear()
    heard.says(heard.attempt(), "step 5 loss 0.5")
    assert heard.messages == []


def test_a_report_ends_it_for_the_phase() -> None:
    heard = Heard()
    attempt = heard.attempt()
    heard.says(attempt, *lines(1, 9))
    heard.messages.clear()
    heard.reported = True
    heard.says(attempt, *lines(10, 19))
    attempt.end(heard.now)
    assert heard.messages == []
    assert heard.recognition.listener(plan(), heard.messages.append, lambda: False) is None


def test_nothing_is_recognised_where_the_config_tells_the_steps() -> None:
    recognition = StepRecognition(print, str)
    for known in (plan(r"step (\d+)"), plan(is_command=False)):
        assert recognition.listener(known, print, lambda: False) is None


def test_fast_steps_are_handed_on_now_and_then_and_the_last_one_at_the_end() -> None:
    heard = Heard()
    attempt = heard.attempt()
    heard.says(attempt, *lines(1, 2000), every=0.01)
    attempt.end(heard.now)
    assert len(heard.messages) < 100
    assert heard.messages[-1] == recognised(2000, loss=0.5)


def test_of_a_flood_a_few_lines_are_looked_at() -> None:
    heard = Heard()
    attempt = heard.attempt()
    flood = [f"{chr(97 + n % 26)}{chr(97 + n // 26)} step {n}".encode() for n in range(10_000)]
    attempt.hear(flood, 1.0)
    assert len(attempt._now.candidates) == 16, "each line has a form of its own"


def test_a_mistake_of_ours_ends_it_and_not_the_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = Heard()
    shown: list[object] = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: shown.append(error[0]))

    def breaks(message: Message) -> None:
        raise LookupError(message)

    listener = heard.recognition.listener(plan(), breaks, lambda: False)
    assert listener is not None
    heard.says(listener, *lines(1, 30))
    listener.end(heard.now)
    assert shown == [LookupError]
    assert [notice.event for notice in heard.told] == ["steps-recognised", "observer-failed"]


def test_lumps_of_a_buffer_are_recognised() -> None:
    heard = Heard()
    attempt = heard.attempt()
    for lump in range(2):
        heard.now += 60.0
        attempt.hear([line.encode() for line in lines(100 * lump, 100 * lump + 99)], heard.now)
    assert heard.messages == [recognised(199, 0, loss=0.5)]
