"""What a job's past keeps of phases that it has left."""

from __future__ import annotations

from functools import reduce

from supervisor.cli.config_change import changed_key_lines
from supervisor.core.events import LossSpiked
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.history.past import ConfigChange, Past
from supervisor.protocol.loss_spikes import LossSpike
from tests.core.history import History, policy


def past_of(phases: RestartPolicy, *spikes_by_run: tuple[int, ...]) -> list[tuple[int, int]]:
    """Returns phase and step of each spike in the past of a job that runs its phases one after
    another, each time with spikes at these steps, and again from the first on when all are done."""
    history = History(phases)
    for steps in spikes_by_run:
        if history.state.directory is None or history.state.status.terminal:
            history.starts(once=False)
        history.runs()
        for step in steps:
            spike = LossSpike(step, 9.0, 2.0, 2.5)
            history.happens(LossSpiked(history.now, history.state.attempt, spike))
        history.ends(WorkerExit(0, code=0))
        history.gone(None)
        if history.state.directory is None:
            history.begins()
    past = reduce(Past.after, history.turns, Past())
    return [(each.phase, each.spike.step) for each in past.loss_spikes]


def phases(names: str) -> RestartPolicy:
    """Phases whose exit code alone says that they are complete."""
    return policy(*(PhasePolicy(name, 1, 1, Success()) for name in names))


def test_it_keeps_the_last_change_of_the_config() -> None:
    first = Past().config_replaced([], ("a: 1 -> 2",), 1)
    assert first.config_change == ConfigChange(1, ("a: 1 -> 2",))
    assert first.config_replaced([], (), 3) == first, "nothing that is told has changed"
    both = first.config_replaced([], ("b: 3 -> 4",), 1)
    assert both.config_change == ConfigChange(1, ("a: 1 -> 2", "b: 3 -> 4")), "no attempt between"
    later = both.config_replaced([], ("c: 5 -> 6",), 2)
    assert later.config_change == ConfigChange(2, ("c: 5 -> 6",))
    assert Past().config_replaced([], ("a: 1 -> 2",), 0) == Past(), "nothing has run before it"


def test_of_many_changed_keys_it_keeps_the_first_ones_and_how_many_there_are() -> None:
    keys = tuple(map(str, range(30)))
    many = Past().config_replaced([], keys, 1).config_replaced([], ("again",), 1).config_change
    assert many == ConfigChange(1, keys[:20], others=11)
    told = list(changed_key_lines(many))
    assert told[0] == "the config changed after attempt 1: 0"
    assert told[3] == "and 28 other keys with it: run.log names all (config-changed)"
    few = list(changed_key_lines(ConfigChange(1, keys[:3])))
    assert few == [*told[:3], *told[4:]], "there are no others"


def test_it_keeps_the_newest_20_spikes_of_phases_that_the_job_has_left() -> None:
    steps = tuple(range(8))
    first, second, third = ([(phase, step) for step in steps] for phase in range(3))
    assert past_of(phases("abcd"), steps) == first
    assert past_of(phases("abcd"), steps, (), steps) == [*first, *[(2, step) for step in steps]]
    assert past_of(phases("abcd"), steps, steps, steps) == [*first[4:], *second, *third]


def test_of_a_phase_that_was_run_again_it_keeps_the_last_run_that_had_spikes() -> None:
    assert past_of(phases("ab"), (1,), (2,), ()) == [(0, 1), (1, 2)]
    assert past_of(phases("ab"), (1,), (2,), (3,)) == [(1, 2), (0, 3)]
