"""Any JAX program finds what it compiled before, also when half of it was lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.stores.compile_cache import is_whole
from tests.running import Result
from tests.training.harness import assert_same_bits, final_state
from trainer.train_state import TrainState

from .test_training import config

Supervise = Callable[..., Result]

PROGRAM = """\
import os, signal, sys
import jax
hits = []
def count(name, **_):
    hits.extend([name] * name.endswith("cache_hits"))
jax.monitoring.register_event_listener(count)
jax.jit(lambda x: x * 2 + 1)(1.0)
print("hits:", len(hits), flush=True)
if os.environ["SUPERVISE_ATTEMPT"] == "1":
    torn = os.path.join(os.environ["JAX_COMPILATION_CACHE_DIR"], "jit_torn-4567-cache")
    open(torn, "wb").write(b"half of it")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def job(model_dir: Path, tmp_path: Path) -> dict[str, Any]:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    restart = {"max_num_restarts": 1, "backoff": {"first": 0.05}}
    return {
        "trainer": {
            "init": {
                "model_dir": str(model_dir),
                "devices": {"platform": "cpu", "count": 2},
                "autorestart": restart,
            },
            "command": {"argv": [sys.executable, str(script)]},
        }
    }


def test_a_killed_program_compiles_nothing_twice(supervise: Supervise, job: dict[str, Any]) -> None:
    result = supervise(job)
    assert result.code == 0, result.log
    assert b"hits: 0" in result.rank_log(1)
    assert b"hits: 1" in result.rank_log(2)
    (left_out,) = result.events("compilation-not-kept", program="jit_torn")
    assert left_out["reason"].startswith("is incomplete")
    cached = list((result.model_dir / "compile_cache").glob("*-cache"))
    assert [path.name.split("-")[0] for path in cached] == ["jit__lambda"]
    with cached[0].open("rb") as file:
        assert is_whole(file)


@pytest.mark.slow
def test_our_trainer_loads_its_steps_and_ends_with_the_same_bits(
    supervise: Supervise, model_dir: Path, undisturbed: TrainState
) -> None:
    struck = config(model_dir, faults=[{"step": 12, "signal": "SIGKILL"}])
    struck["trainer"]["init"]["autorestart"]["standby"] = "off"  # it would have them already
    result = supervise(struck)
    assert result.code == 0, result.log
    for program in ("train step", "evaluation step"):
        assert result.has_event("program-compiled", attempt=1, program=program)
        assert result.has_event(
            "program-loaded", attempt=2, program=program, place="its executable"
        )
    assert_same_bits(final_state(struck, model_dir), undisturbed)


def test_a_cache_of_the_users_own_is_used(
    supervise: Supervise, job: dict[str, Any], tmp_path: Path
) -> None:
    own = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "own"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    job["trainer"]["command"]["env"] = own
    result = supervise(job, env=os.environ | {"JAX_COMPILATION_CACHE_DIR": "/nowhere"})
    assert result.code == 0, result.log
    assert b"hits: 1" in result.rank_log(2)
    assert list((tmp_path / "own").glob("jit__lambda-*"))
    assert not (result.model_dir / "compile_cache").exists()
