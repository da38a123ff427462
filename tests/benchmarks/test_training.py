"""The contestants train the same thing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks.orbax_recovery import config
from benchmarks.overhead import _ours
from benchmarks.peers import Peer
from benchmarks.training import DEFAULTS, PEERS, Contestant, training
from supervisor.prepare import prepare


def said(folder: Path) -> bytes:
    """What was written to standard output so far."""
    return (folder / "output").read_bytes()


BASH = next(peer for peer in PEERS if peer.name == "bash")


@pytest.mark.parametrize("contestant", [BASH, Contestant("supervise")], ids=lambda one: one.name)
def test_all_have_the_same_devices(contestant: Contestant, tmp_path: Path) -> None:
    with training(contestant, tmp_path, every=1000, max_steps=1000) as run:
        run.wait_for("devices", lambda: b"cpu devices: " in said(tmp_path))
        told = b"4 cpu devices: data 4 x fsdp 1, 4 sequences a device"
        run.wait_for("all of it", lambda: told in said(tmp_path))


CACHES = ("JAX_COMPILATION_CACHE_DIR", "SUPERVISE_EXECUTABLES")
TELLS = Peer("tells", (), lambda bin_, argv, folder: ["sh", "-c", "env; echo all; sleep 60"])


@pytest.mark.parametrize("is_default", [False, True])
def test_a_peer_has_our_caches_unless_it_runs_as_it_comes(tmp_path: Path, is_default: bool) -> None:
    contestant = Contestant("tells", TELLS, is_default=is_default)
    with training(contestant, tmp_path, every=1000, max_steps=1000) as run:
        run.wait_for("its environment", lambda: b"all\n" in said(tmp_path))
        given = [f"{name}={tmp_path}/".encode() in said(tmp_path) for name in CACHES]
        assert given == [not is_default] * 2


def test_defaults_are_what_a_user_gets_who_sets_nothing(tmp_path: Path) -> None:
    with training(DEFAULTS, tmp_path, every=1000, max_steps=1000):
        init = yaml.safe_load((tmp_path / "trainer.yaml").read_text())["trainer"]["init"]
    assert init["autorestart"] == {"max_num_restarts": 1000}
    assert DEFAULTS.has_standby


def test_an_unmodified_script_is_told_of_in_as_few_words_as_possible(tmp_path: Path) -> None:
    trainer = config("defaults", ["python", "train.py"], tmp_path)
    assert trainer == {
        "init": {
            "model_dir": str(tmp_path / "run"),
            "autorestart": {"max_num_restarts": 1000},
        },
        "command": {"argv": ["python", "train.py"]},
    }
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump({"trainer": trainer}))
    assert prepare(file, ()).plans[0].is_command


def test_all_that_is_not_the_trainer_counts_as_ours(tmp_path: Path) -> None:
    """What waits and what prepares, too; here a shell with two children, of which one trains."""
    script = 'sleep 60 & sleep 60 & echo "1.0 $! 1" >> "$BENCHMARK_WITNESS"; wait'
    peer = Peer("shell", (), lambda bin_, argv, folder: ["sh", "-c", script])
    with training(Contestant("shell", peer), tmp_path, every=1000, max_steps=1000) as run:
        trainer = run.wait_for_step(1).pid
        pids = {process.pid for process in _ours(run)}
        assert {run.pid} < pids
        assert trainer not in pids
        assert len(pids) == 2
