"""What the real libtpu answers where there is no chip, held against our tables: `make test-aot`.

It proves nothing about chips.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.config.generations import GENERATIONS
from supervisor.config.topology import SliceShape
from supervisor.engines.worker_environment import visibility_variables
from tests.config.files import with_init
from tests.config.test_plan import plans
from tests.end_to_end.test_training import config
from tests.processes.test_ahead_of_time import validate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="needs libtpu: make test-aot"
    ),
]
LOCK = Path("/tmp/libtpu_lockfile")  # libtpu's own
NO_CHIP = "NOT_FOUND: TPU initialization failed: No "
IN_USE = "ABORTED: Internal error when accessing libtpu multi-process lockfile"

DESCRIBE = """
import json, sys, jax
from trainer import aot
for wanted in json.load(sys.stdin):
    devices = aot.devices(wanted)
    print(json.dumps([[device.coords, device.process_index] for device in devices]))
"""


def python(program: str, given: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """A Python program; it sees no topology that the tests inherited."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("TPU_")}
    return subprocess.run(
        [sys.executable, "-c", program],
        input=given,
        env={**clean, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def initialisation(**env: str) -> str:
    """The last words of a program that asks for the devices of a TPU."""
    done = python("import jax; print(jax.devices())", **env)
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


def test_every_slice_in_our_tables_has_as_many_devices_as_libtpu_describes() -> None:
    every = [
        SliceShape(name, chips)
        for name, known in GENERATIONS.items()
        for chips in sorted({*known.slices, *known.parts})
    ]
    wanted: list[dict[str, Any]] = [one.described() for one in every]
    env = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    done = python(DESCRIBE, json.dumps(wanted), **env)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for one, devices in zip(every, found, strict=True):
        assert len({tuple(coords) for coords, _ in devices}) == one.chips
        hosts = len({host for _, host in devices})
        assert hosts == (1 if one.host_bounds else one.chips // 4), one


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_trainer_is_compiled_for_every_slice_of_one_host(
    generation: str, tmp_path: Path, model_dir: Path
) -> None:
    job = config(model_dir, 1)
    job["trainer"]["init"]["autorestart"]["min_num_devices"] = 1
    whole = GENERATIONS[generation].parts
    done = validate(tmp_path, job, "--aot", f"{generation}:{whole[max(whole)]}")
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout.partition("without running it:")[2].splitlines()[2:]
    assert [line.split()[1:3] for line in table] == [
        [str(n), whole[n]] for n in sorted(whole)[::-1]
    ]
    assert all("GiB on each device, compiled in " in line for line in table), table


@pytest.mark.parametrize("platforms", ["tpu", "tpu,cpu"])
def test_a_missing_chip_is_an_error_and_never_the_cpu(platforms: str) -> None:
    assert NO_CHIP in initialisation(JAX_PLATFORMS=platforms, ALLOW_MULTIPLE_LIBTPU_LOAD="1")


@pytest.fixture
def locked() -> Iterator[None]:
    """libtpu's lock file, held by us as by a process that has the chips."""
    if LOCK.exists():
        pytest.skip(f"{LOCK} is there: somebody uses libtpu")
    with LOCK.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            LOCK.unlink(missing_ok=True)


def test_a_part_of_a_host_is_used_while_another_process_has_the_rest(locked: None) -> None:
    """By its lock libtpu refuses a process whose bounds are 2,2,1: four of eight chips."""
    (plan,) = plans(with_init("devices: {platform: tpu, type: v5e-8}"))
    four = visibility_variables(plan, tuple("4567"), {})
    alone = {name: text for name, text in four.items() if name != "ALLOW_MULTIPLE_LIBTPU_LOAD"}
    assert IN_USE in initialisation(JAX_PLATFORMS="tpu", **alone)
    assert NO_CHIP in initialisation(JAX_PLATFORMS="tpu", **four)
