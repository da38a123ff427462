"""Under `jax.distributed`, which takes SIGTERM for itself, a trainer still saves and dies of it."""

from __future__ import annotations

import re
import signal
import socket
from threading import Thread

import pytest

from trainer.checkpoint import newest_step
from trainer.distributed import wait_for

from .harness import MakeTrainer, Trainer

ENDLESS = 100_000


@pytest.fixture
def trainer(make_trainer: MakeTrainer) -> Trainer:
    """A trainer that is one of one processes."""
    trainer = make_trainer(max_steps=5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    trainer.extra = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": "1",
        "JAX_PROCESS_ID": "0",
    }
    return trainer


def go_on_without_end(trainer: Trainer) -> None:
    init = trainer.mapping["trainer"]["init"]
    init["loop"]["max_steps"] = ENDLESS
    init["checkpoint"]["every"] = 50
    trainer.mapping["trainer"]["fit"]["validation"]["every"] = 100


def last_step(output: str) -> int:
    return max(int(step) for step in re.findall(r"step (\d+)  loss", output))


def test_nobody_joins_before_the_first_process_listens() -> None:
    """gRPC would put it off for a second, and all others with it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    waiting = Thread(target=wait_for, args=(f"127.0.0.1:{port}",))
    waiting.start()
    assert waiting.is_alive()
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(30)
        server.accept()
    waiting.join(30)
    assert not waiting.is_alive()


def test_it_leaves_in_good_order(trainer: Trainer) -> None:
    assert "step 5  checkpoint committed" in trainer.finish()


def test_sigterm_saves_at_the_boundary_and_kills(trainer: Trainer) -> None:
    go_on_without_end(trainer)
    stopped = trainer.run({"step": 7, "signal": "SIGTERM"}, {"step": 9, "signal": "SIGTERM"})
    assert stopped.returncode == -signal.SIGTERM, stopped.stdout
    assert "SIGTERM caught" in stopped.stdout, "jax.distributed did not take the signal"
    saved = newest_step(trainer.checkpoints)
    assert saved == last_step(stopped.stdout)
    trainer.mapping["trainer"]["init"]["loop"]["max_steps"] = saved + 1
    assert f"restored step {saved}" in trainer.finish()


def test_sigterm_before_the_first_step_of_a_resumed_run_is_not_lost(trainer: Trainer) -> None:
    trainer.finish()
    go_on_without_end(trainer)
    with trainer.start() as process:
        assert process.stdout is not None
        output = ""
        while "restored step 5" not in output:
            line = process.stdout.readline()
            assert line, output
            output += line
        process.send_signal(signal.SIGTERM)
        output += process.communicate(timeout=60)[0]
    assert process.returncode == -signal.SIGTERM, output
    assert newest_step(trainer.checkpoints) == max(5, last_step("step 5  loss" + output))
