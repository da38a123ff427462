"""A standby prepares everything but the state, touches nothing of the job, and then trains as any
other worker would."""

# mypy: allow-untyped-calls
from __future__ import annotations

import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from supervisor.config.training.resolved import parse
from supervisor.protocol import environment
from supervisor.protocol.standby import OUTPUT, READY, UNUSABLE, StandbyOrders, send_orders
from trainer.train_state import TrainState
from trainer.warm_up import WarmUp, _file_facts

from .harness import MakeTrainer, Trainer, assert_same_bits, tiny


class Waiting:
    """A standby of `trainer`."""

    def __init__(self, trainer: Trainer, mode: str) -> None:
        self.command = trainer._command()
        self.env = trainer._options(())["env"]
        self.connection, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                self.command,
                env=self.env | {environment.STANDBY: f"{theirs.fileno()}:{mode}"},
                pass_fds=(theirs.fileno(),),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def become_worker(self, output: Path) -> str:
        """Make it the worker and wait for its end; what it wrote to `output`."""
        with output.open("wb") as file:
            send_orders(
                self.connection, StandbyOrders(self.command, self.env, [OUTPUT]), [file.fileno()]
            )
        assert self.process.wait(60) == 0, output.read_text()
        return output.read_text()


def test_a_ready_standby_trains_to_the_same_bits(
    make_trainer: MakeTrainer, undisturbed: TrainState
) -> None:
    cold = make_trainer("cold")
    assert cold.run({"step": 13, "signal": "SIGTERM"}).returncode == -15
    warm = make_trainer("warm")
    warm.checkpoints.parent.mkdir(exist_ok=True)
    cold.checkpoints.rename(warm.checkpoints)
    before = sorted(path.stat().st_mtime_ns for path in warm.checkpoints.rglob("*"))
    waiting = Waiting(warm, "ready")
    assert waiting.connection.recv(1) == READY
    assert sorted(path.stat().st_mtime_ns for path in warm.checkpoints.rglob("*")) == before
    output = waiting.become_worker(warm.folder / "output")
    assert re.search("restored step 1[345] ", output)
    assert "a cold start" not in output
    assert "compil" not in output.partition("step 16")[0]  # then comes the evaluation's

    assert_same_bits(warm.state(17), undisturbed)


@pytest.mark.slow
def test_one_for_other_simulated_devices_trains_to_the_same_bits(
    make_trainer: MakeTrainer,
) -> None:
    few = make_trainer("few", num_devices=2, max_steps=6)
    few.finish()
    for mode in ("imports", "ready"):
        more = make_trainer(mode, num_devices=4, max_steps=6)
        waiting = Waiting(more, mode)
        assert waiting.connection.recv(1) == READY
        waiting.env["JAX_NUM_CPU_DEVICES"] = "2"
        output = waiting.become_worker(more.folder / "output")
        assert "2 cpu devices" in output
        assert "a cold start" not in output
        assert_same_bits(more.state(6), few.state(6))


@pytest.mark.parametrize("mode", ["imports", "ready"])
def test_where_the_backend_must_wait_only_the_imports_are_done(
    make_trainer: MakeTrainer, mode: str
) -> None:
    trainer = make_trainer(max_steps=3)
    if mode == "ready":
        with socket.create_server(("127.0.0.1", 0)) as server:
            trainer.extra["JAX_COORDINATOR_ADDRESS"] = f"127.0.0.1:{server.getsockname()[1]}"
    waiting = Waiting(trainer, mode)
    assert waiting.connection.recv(1) == READY
    assert not trainer.checkpoints.exists()
    output = waiting.become_worker(trainer.folder / "output")
    assert waiting.process.stdout is not None
    assert "train step" not in waiting.process.stdout.read()
    assert "train step: " in output
    assert trainer.state(3) is not None


def test_one_that_cannot_prepare_says_why(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(num_devices=3)
    waiting = Waiting(trainer, "ready")
    said = waiting.connection.recv(1000)
    assert said.startswith(UNUSABLE + b"ConfigError: trainer.init.loop.global_batch_size: is 8")
    assert waiting.process.wait(10) == 0


@pytest.fixture
def ready(tmp_path: Path) -> WarmUp:
    data = tmp_path / "data.txt"
    data.write_text("hello")
    mapping = tiny(tmp_path / "checkpoints")
    mapping["trainer"]["fit"]["train_dataloader"]["paths"] = str(data)
    text = yaml.safe_dump(mapping)
    (tmp_path / "params.yaml").write_text(text)
    config = parse(mapping)
    return WarmUp(cast(Any, None), config, text, _file_facts(config), 4, "cpu", {}, 1)


@pytest.fixture
def orders(tmp_path: Path) -> StandbyOrders:
    env = {environment.JOB: "job", environment.NUM_DEVICES: "4"}
    return StandbyOrders([sys.executable, "-m", "trainer", str(tmp_path / "params.yaml")], env, [])


def test_what_was_prepared_fits_as_long_as_nothing_changes(
    ready: WarmUp, orders: StandbyOrders, tmp_path: Path
) -> None:
    assert ready.problem(orders) is None

    halves = {environment.ADJUST: '{"accumulation": 2, "inflight": 1, "skip_steps": []}'}
    assert ready.problem(replace(orders, env={**orders.env, **halves})) == "another accumulation"
    devices = {environment.NUM_DEVICES: "2"}
    fewer = replace(orders, env={**orders.env, **devices})
    assert ready.problem(fewer) is None, "the imports are of use on any number"
    assert not ready.has_its_devices(fewer.env)
    assert replace(ready, platform="gpu").problem(fewer) == "other devices"
    others = replace(orders, env={**orders.env, "CUDA_VISIBLE_DEVICES": "1"})
    assert replace(ready, platform="gpu").problem(others) == "other devices"

    (tmp_path / "data.txt").write_text("hello world")
    assert ready.problem(orders) == "the data were changed"
    params = tmp_path / "params.yaml"
    params.write_text(params.read_text().replace("hidden_size: 16", "hidden_size: 32"))
    assert ready.problem(orders) == "the config was changed"
    params.unlink()
    assert "No such file" in str(ready.problem(orders))
