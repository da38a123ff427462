"""A job in a bucket outlives the slice that it runs on: real supervisors, real loop and client.

The cloud is a server on this host that behaves like the Cloud TPU API, the bucket an emulator, and
a slice is a supervisor in a home of its own: killed, with all that it left, when the slice is lost.
"""

from __future__ import annotations

import json
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.stores.bucket import bucket
from supervisor.provision.decide import End
from tests.cloud_tpu import CloudTpu
from tests.emulators import Emulator
from tests.provision.test_loop import Bench
from tests.provision.test_plan import config
from tests.running import PATIENCE, Start, eventually


def test_a_job_goes_on_on_the_next_slice(
    start: Start, gcs: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in gcs.env.items():
        monkeypatch.setenv(name, value)
    place = gcs.root / "provisioned"
    finish, cloud = tmp_path / "finish", CloudTpu()
    job: dict[str, Any] = config(model_dir=str(place))
    job["trainer"]["command"] = ["bash", "-c", f"until [ -e {finish} ]; do sleep 0.05; done"]

    def runs(attempt: int) -> bool:
        loop.turn()
        return any(f"the job says: RUNNING, attempt {attempt}" in line for line in bench.said)

    with cloud.serving() as base:
        bench = Bench(base, cloud)
        bench.bucket = bucket(place)  # type: ignore[assignment]
        loop = bench.loop()
        bench.turn(loop)
        for number in (1, 2):
            home = tmp_path / f"slice{number}"
            cloud.become(f"job-{number}", "ACTIVE")
            running = start(job, env={"XDG_STATE_HOME": str(home)})
            running.wait_for_event("workers-started")  # the loop's turns would only make it slower
            assert eventually(partial(runs, number), PATIENCE)
            if number == 1:
                running.signal(signal.SIGKILL)
                running.result()
                shutil.rmtree(home)
                cloud.become("job-1", "SUSPENDED")
                bench.turn(loop)
                cloud.step()
                bench.turn(loop)
        finish.touch()
        assert running.result().code == 0
        bench.turn(loop)
        bench.wait(60)
        bench.turn(loop)
        cloud.step()
        assert bench.turn(loop) == End(0, "the job ended with exit code 0")
    assert json.loads(bench.bucket.read("status.json").data)["attempt"] == 2
