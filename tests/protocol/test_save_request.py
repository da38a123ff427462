"""How a program learns that a person wants a checkpoint."""

from __future__ import annotations

from pathlib import Path

from supervisor.protocol import environment, save_request
from supervisor.protocol.save_request import INTERVAL, SaveRequests


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def ask(folder: Path) -> None:
    new = folder / "new"
    new.write_bytes(save_request.content("ann on h1"))
    new.replace(folder / save_request.NAME)


def looking(folder: Path, clock: Clock) -> SaveRequests:
    return SaveRequests({environment.SAVE_REQUEST: str(folder / save_request.NAME)}, clock)


def test_each_request_is_asked_until_it_is_answered(tmp_path: Path) -> None:
    requests = looking(tmp_path, Clock())
    assert not requests.is_asked()
    for _ in range(3):
        ask(tmp_path)
        assert requests.is_asked()
        assert requests.is_asked()
        requests.answered()
        assert not requests.is_asked()


def test_what_was_asked_while_the_program_started_counts(tmp_path: Path) -> None:
    ask(tmp_path)
    assert looking(tmp_path, Clock()).is_asked()


def test_now_and_then_there_is_one_look_in_an_interval(tmp_path: Path) -> None:
    clock = Clock()
    requests = looking(tmp_path, clock)
    assert not requests.is_asked_now_and_then()
    ask(tmp_path)
    clock.now += INTERVAL / 2
    assert not requests.is_asked_now_and_then()
    clock.now += INTERVAL
    assert requests.is_asked_now_and_then()


def test_without_a_supervisor_nobody_asks() -> None:
    requests = SaveRequests({})
    assert not requests.can_come
    assert not requests.is_asked()
    assert not requests.is_asked_now_and_then()
