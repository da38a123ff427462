"""`supervise validate --aot`: compiling for TPUs that are not there."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.end_to_end.test_training import config

HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None


def validate(
    tmp_path: Path, job: dict[str, Any], *options: str
) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "trainer.yaml"
    path.write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "supervisor", "validate", *options, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.skipif(not HAS_LIBTPU, reason="libtpu is not installed (the extra `aot`)")
def test_each_rung_is_compiled_and_what_does_not_fit_is_told(
    tmp_path: Path, model_dir: Path
) -> None:
    job = config(model_dir, 1)
    job["trainer"]["init"]["autorestart"]["min_num_devices"] = 1
    done = validate(tmp_path, job, "--aot", "tpu7x:2x2x1")
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout.partition("compiled for tpu7x-8 without running it:")[2].splitlines()[1:]
    assert [line.split()[1] for line in table[1:]] == ["4", "2", "1"]
    assert all("GiB on each device, compiled in " in line for line in table[1:])

    job["trainer"]["init"]["model"] |= {"hidden_size": 16384, "mlp_size": 65536}
    done = validate(tmp_path, job, "--aot", "v5e:1x1")
    assert done.returncode == 78
    assert "FAILED: " in done.stdout
    assert "hbm" in done.stdout.lower()


@pytest.mark.skipif(HAS_LIBTPU, reason="libtpu is installed")
def test_without_libtpu_it_is_said_what_to_install(tmp_path: Path, model_dir: Path) -> None:
    done = validate(tmp_path, config(model_dir, 1), "--aot", "v5e:2x4")
    assert done.returncode == 64
    assert "pip install '.[aot]'" in done.stderr


def test_a_topology_that_there_is_not_is_wrong_usage(tmp_path: Path, model_dir: Path) -> None:
    done = validate(tmp_path, config(model_dir, 1), "--aot", "v5p:2x2x3")
    assert done.returncode == 64
    assert "v5p does not come as '2x2x3'; there is 1x1x1, 1x2x1, 2x2x1, 2x2x2" in done.stderr
