"""A host without a GPU is told so in words; JAX itself ends with a bare AssertionError."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.diagnosis.failure import Evidence, RankEvidence, Verdict, WorkerExit
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.protocol.this_machine import missing_gpu
from tests.config.files import with_command, with_init

TRUE = with_command("argv: ['true']")


def test_any_of_the_files_that_jax_looks_for_is_a_gpu(tmp_path: Path) -> None:
    why = missing_gpu(tmp_path)
    assert why is not None
    assert "install the driver" in why
    (tmp_path / "nvidiactl").touch()
    assert missing_gpu(tmp_path) is None


@pytest.mark.skipif(missing_gpu() is None, reason="there is a GPU")
def test_a_missing_gpu_is_told_by_validate(tmp_path: Path) -> None:
    config = tmp_path / "trainer.yaml"
    config.write_text(with_init("devices: {platform: gpu, count: 1}", TRUE))
    command = [sys.executable, "-m", "supervisor", "validate", str(config)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "no NVIDIA GPU is visible on this host (none of /dev/nvidia0" in done.stdout


def test_the_assertion_of_a_missing_gpu_is_only_a_guess_that_gets_another_attempt() -> None:
    output = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 2, in <module>
    print(jax.devices())
  File "/venv/lib/python3.11/site-packages/jax/_src/xla_bridge.py", line 857, in backends
    assert _default_backend is not None
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
AssertionError
"""
    ended = RankEvidence(WorkerExit(0, code=1), output=output)
    failure = judge(Evidence((ended,)), Success(), RULES)
    assert failure is not None
    assert (failure.verdict, failure.rule) == (Verdict.FATAL, "backend-unseen")
    assert not failure.certain
    assert "nvidia-smi" in failure.advice
