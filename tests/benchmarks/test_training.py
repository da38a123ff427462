"""The contestants train the same thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.training import PEERS, Contestant, training

BASH = next(peer for peer in PEERS if peer.name == "bash")


@pytest.mark.parametrize("contestant", [BASH, Contestant("supervise")], ids=lambda one: one.name)
def test_all_have_the_same_devices(contestant: Contestant, tmp_path: Path) -> None:
    with training(contestant, tmp_path, every=1000, max_steps=1000) as run:
        run.wait_for("devices", lambda: run.said("cpu devices: ") > 0)
        assert run.said("4 cpu devices: data 4 x fsdp 1, 4 sequences a device") == 1
