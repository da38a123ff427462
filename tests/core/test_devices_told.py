"""Which devices are lost is told by name, and where they are lacking, what to do about that."""

from __future__ import annotations

from supervisor.core.policy import RestartPolicy
from supervisor.narrative.device_text import missing_units
from tests.core.test_capacity_check import EIGHT, HARDWARE, Devices


class Told(Devices):
    """A job on devices, and what is told of it."""

    def __init__(self) -> None:
        super().__init__(
            RestartPolicy(phases=(EIGHT,), wait_for_capacity=0.0, regrow_at_checkpoint=True)
        )
        self.starts()

    @property
    def lost_now(self) -> dict[str, str]:
        return dict(missing_units(self.turns, self.state, EIGHT))

    @property
    def advice(self) -> list[str]:
        lines = [line.text for turn in self.turns for line in turn.lines]
        return [line for line in lines if line.startswith("what to do: ")]


def test_lost_devices_are_named_until_a_look_finds_them() -> None:
    job = Told()
    job.lost = frozenset("36")
    job.fails(HARDWARE)
    job.looks()
    assert job.lost_now == {"3": "not found", "6": "not found"}
    job.lost = frozenset("3")
    job.fails(HARDWARE)
    job.looks()
    assert job.lost_now == {"3": "not found"}
    job.lost = frozenset()
    job.fails(HARDWARE)
    job.looks()
    assert job.lost_now == {}


def test_what_is_in_quarantine_is_told_as_that_and_not_as_lost() -> None:
    job = Told()
    job.wrong = frozenset("2")
    job.fails(HARDWARE)
    job.looks()
    assert job.lost_now == {}


def test_where_capacity_is_lacking_the_advice_is_about_capacity() -> None:
    job = Told()
    job.lost, job.wrong = frozenset("01234"), frozenset("56")
    job.fails(HARDWARE)
    job.looks()
    assert job.finish is not None
    assert job.advice[-1] == (
        "what to do: capacity is lacking: have device 0, 1, 2, 3, 4 checked, repaired or replaced; "
        "clear device 5, 6, if healthy again, by `supervise quarantine clear`; then run the same "
        "command again. To go on with less, lower trainer.init.autorestart.min_num_devices"
    )
    assert sum("capacity is lacking" in line for line in job.advice) == 1
