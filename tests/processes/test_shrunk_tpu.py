"""A TPU job shrinks from eight chips to four and grows back while it trains, on a fake TPU host.

The supervisor, its probe and JAX are real; in JAX's place for libtpu is a plugin that asks
`fake_libtpu` for the chips and computes on the CPU.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import fake_libtpu
from tests.running import Start, eventually

PLUGIN = """
from tests.processes import fake_libtpu

def initialize():
    from jax._src import xla_bridge
    from jax._src.lib import xla_client

    def client():
        chips = fake_libtpu.found(fake_libtpu.take("probe"))
        return xla_client.make_cpu_client(num_devices=len(chips))

    xla_bridge.register_backend_factory("tpu", client, priority=300, fail_quietly=False)
"""
TRAINER = """
import os, signal, sys, time
from pathlib import Path
from tests.processes import fake_libtpu

chips, stop = fake_libtpu.take("trainer"), []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
folder = Path(sys.argv[1], "checkpoints")
step = max((int(each.name) for each in folder.glob("*[0-9]")), default=0)
while not stop:
    time.sleep(0.2)
    fake_libtpu.fail_if_halted(chips)
    step += 1
    new = folder / f"{step}.orbax-checkpoint-tmp"
    new.mkdir(parents=True)
    (new / "commit_success.txt").touch()
    new.rename(folder / str(step))
    os.write(1, b"committed on %d chips\\n" % len(chips))
"""
SLOW = 200.0
"""Seconds for a look at all parts of the host beside a loaded machine."""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The folder of the fake host, all of whose chips are well."""
    folder = tmp_path / "host"
    (folder / "jax_plugins").mkdir(parents=True)
    (folder / "jax_plugins" / "fake_tpu.py").write_text(PLUGIN)
    (folder / "endless.py").write_text(TRAINER)
    (folder / "lost").touch()
    return folder


def asked(host: Path) -> list[dict[str, Any]]:
    """Who asked for which chips, and what was in its environment."""
    return [json.loads(line) for line in (host / "asked.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_from_eight_chips_to_four_and_back_at_a_checkpoint_while_it_trains(
    start: Start, model_dir: Path, host: Path
) -> None:
    init = {
        "model_dir": str(model_dir),
        "devices": {"platform": "tpu", "type": "v5e-8"},
        "autorestart": {"max_num_restarts": 0, "regrow": "at_checkpoint", "regrow_after": 0},
    }
    argv = [sys.executable, str(host / "endless.py"), str(model_dir)]
    config = {"trainer": {"init": init, "command": {"argv": argv, "elastic": True}}}
    path = f"{host}:{Path(__file__).parents[2]}"
    running = start(config, env={"PYTHONPATH": path, fake_libtpu.HOST: str(host)})
    running.wait_for("committed on 8 chips")
    (host / "lost").write_text("4 5 6 7")
    running.wait_for_event("rung-changed", SLOW, before=8, num_devices=4)
    running.wait_for("committed on 4 chips")
    (host / "lost").write_text("")
    running.wait_for_event("rung-changed", SLOW, before=4, num_devices=8)
    assert eventually(lambda: [one["who"] for one in asked(host)].count("trainer") == 3)
    running.wait_for("committed on 8 chips")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert (result.code, result.summary["restarts_used"]) == (75, 0), result.log

    first, shrunk, grown = (one for one in asked(host) if one["who"] == "trainer")
    for whole in (first, grown):  # libtpu takes its defaults
        assert (whole["chips"], whole["told"]) == (list(fake_libtpu.ALL), {})
    assert shrunk["chips"] == list("0123")
    assert shrunk["told"] == {
        "TPU_VISIBLE_CHIPS": "0,1,2,3",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    while_shrunk = asked(host)[asked(host).index(shrunk) + 1 : asked(host).index(grown, 1)]
    spare = [one for one in while_shrunk if one["chips"] == list("4567")]
    assert spare, while_shrunk
    assert all(one["who"] == "probe" for one in spare)
    assert all(one["told"] == {**shrunk["told"], "TPU_VISIBLE_CHIPS": "4,5,6,7"} for one in spare)
