"""What the trainer reports of its host's part of a step."""

from __future__ import annotations

import os

from supervisor.protocol.messages import HostTimeMessage, decode
from supervisor.protocol.reporter import Reporter
from trainer.host_time import HostTime


def test_the_host_s_part_is_averaged_without_what_is_no_step() -> None:
    now = 0.0
    read, write = os.pipe()
    host_time = HostTime(Reporter(write), lambda: now)

    def trains(steps: int, host: float, devices: float) -> None:
        nonlocal now
        for _ in range(steps):
            host_time.begin()
            now += host
            host_time.end()
            now += devices

    trains(3, host=0.25, devices=0.25)
    now += 60.0
    host_time.start_over()  # an evaluation
    trains(10, host=0.25, devices=0.25)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = [decode(line) for line in pipe]
    assert told == [HostTimeMessage(0.25, 0.45), HostTimeMessage(0.25, 0.5)]
