"""What there is much of does not keep the supervisor from its signals: each costs a turn of its
main loop little."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.adapters.processes.progress import ProgressPipe
from supervisor.core.events import Noticed, StopRequested
from supervisor.host.notice import Notice
from supervisor.protocol.messages import MAX_LINE, Message, SavedMessage, encode
from tests.running import Start, command_config

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

BEGIN = """
import json, os, signal, sys, time

def ready():
    os.write(1, b"it is many\\n")

def fork(child):
    if (pid := os.fork()) == 0:
        child()
        os._exit(0)
    return pid
"""
PROGRESS_FLOOD = """
pipe = int(os.environ["SUPERVISE_PROGRESS_FD"])
os.set_blocking(pipe, True)
notice = {"v": 1, "kind": "notice", "text": "not again"}
for number in range(1 << 62):
    step = {"v": 1, "kind": "step", "step": number}
    os.write(pipe, b"".join(json.dumps(each).encode() + b"\\n" for each in (step, notice)))
    if number == 10_000:
        ready()
"""
OUTPUT_FLOOD = """
for number in range(1 << 62):
    os.write(1, b"completed step: %d\\n" % number)
    if number == 10_000:
        ready()
"""
ENDS_OF_CHILDREN = """
def orphan():
    os.setsid()
    fork(lambda: None)

for number in range(1 << 62):
    for pid in [fork(orphan) for _ in range(20)]:
        os.waitpid(pid, 0)
    if number == 20:
        ready()
"""
STOPPED_CHILD = """
child = fork(signal.pause)
os.kill(child, signal.SIGSTOP)
os.waitpid(child, os.WUNTRACED)
ready()
signal.pause()
"""
PROCESSES = """
for _ in range(2_000):
    fork(signal.pause)
ready()
signal.pause()
"""


def test_a_signal_waits_for_no_more_than_a_share_of_a_full_pipe() -> None:
    """What has been read before it is told comes first, so that must not be all there is."""
    clock = SystemClock()
    reactor = Reactor(clock)
    handlers = {number: signal.getsignal(number) for number in STOPS}

    def heard(message: Message) -> None:
        reactor.post(Noticed(clock.now(), Notice("observer-failed", "a message")))
        if not reactor.is_stop_requested:
            os.kill(os.getpid(), signal.SIGTERM)

    def read() -> None:
        pipe.read()

    pipe = ProgressPipe(heard, pytest.fail)
    line = encode(SavedMessage(7))
    os.set_blocking(pipe.write_end, False)
    with suppress(BlockingIOError):
        while os.write(pipe.write_end, line) == len(line):
            pass
    reactor.stop_on_signals()
    try:
        reactor.watch(pipe.read_end, read)
        events = reactor.wait(until=None)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        pipe.abandon()
    assert sum(isinstance(event, StopRequested) for event in events) == 1
    assert len(events) <= 4 * MAX_LINE // len(line) + 1, "of a pipe that holds many more"


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(PROGRESS_FLOOD, id="progress"),
        pytest.param(OUTPUT_FLOOD, id="output"),
        pytest.param(ENDS_OF_CHILDREN, id="ends of children"),
        pytest.param(STOPPED_CHILD, id="stopped child"),
        pytest.param(PROCESSES, id="processes", marks=pytest.mark.slow),
    ],
)
def test_signals_are_heard_beside_it(start: Start, model_dir: Path, program: str) -> None:
    """And nothing of it is left, as `start` sees to."""
    config = command_config(model_dir, progress={"pattern": r"completed step: (\d+)"})
    config["trainer"]["command"]["argv"] = [sys.executable, "-S", "-c", BEGIN + program]
    running = start(config)
    running.wait_for("it is many")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75
    # By run.log: our lines may be left out of a standard output that is flooded.
    assert "asked to stop by SIGTERM" in result.log
    assert "does not end although it is killed" not in result.log
