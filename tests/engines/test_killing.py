"""One chain of tries, however often it is asked for, and a loop that turns between two of them."""

from __future__ import annotations

from pathlib import Path

from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.engines.clearing import Clearing
from supervisor.engines.this_host import ThisHost
from tests.running import shared_guard


class Deathless:
    """What dies once it was killed so many times."""

    def __init__(self, lives: int) -> None:
        self.lives = lives
        self.kills = 0

    def kill(self) -> bool:
        self.kills += 1
        return self.kills < self.lives


def turn(reactor: Reactor) -> None:
    reactor.wait(until=0.0)


def test_it_is_tried_once_a_turn() -> None:
    reactor, left, answers = Reactor(SystemClock()), Deathless(4), list[str]()
    killing = Clearing(reactor, ThisHost(shared_guard(), Path()))
    killing.kill_until_gone(left.kill, lambda: answers.append("gone"))
    for kills in (1, 3, 4):  # the wait ends after two looks, each a turn
        assert left.kills == kills
        assert answers == (["gone"] if kills == 4 else [])
        turn(reactor)
    turn(reactor)
    assert (left.kills, answers) == (4, ["gone"])


def test_who_asks_again_takes_the_chain_over() -> None:
    reactor, left, answers = Reactor(SystemClock()), Deathless(6), list[str]()
    killing = Clearing(reactor, ThisHost(shared_guard(), Path()))
    for name in ("first", "second", "third"):
        killing.kill_until_gone(left.kill, lambda name=name: answers.append(name))  # type: ignore[misc]
    assert left.kills == 1
    turn(reactor)
    assert left.kills == 3
    while not answers:
        turn(reactor)
    turn(reactor)
    assert (left.kills, answers) == (6, ["third"])


def test_after_one_chain_there_can_be_another() -> None:
    reactor, answers = Reactor(SystemClock()), list[str]()
    killing = Clearing(reactor, ThisHost(shared_guard(), Path()))
    for name in ("first", "second"):
        killing.kill_until_gone(lambda: False, lambda name=name: answers.append(name))  # type: ignore[misc]
    assert answers == ["first", "second"]
