"""Tiny configs, real trainer processes, and a way to compare what they leave."""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml

from supervisor.config.training.layout import Rung
from supervisor.config.training.resolved import InitConfig, TrainerConfig, parse
from supervisor.config.training.sections import DataloaderConfig
from supervisor.protocol.environment import without_supervisor_variables
from supervisor.protocol.failure_record import FailureRecord, parse_failure_record
from supervisor.protocol.location import Uri
from tests.forked import Forked, forked, start_forked
from tests.running import PATIENCE
from tests.training.configs import Mapping as Mapping
from tests.training.configs import tiny as tiny
from trainer.bucket_paths import path_of
from trainer.checkpoint import restore
from trainer.data import read_examples, shuffled_batches
from trainer.first_state import first_state
from trainer.mesh import make_mesh
from trainer.objective import Objective
from trainer.objective_choice import objective_of
from trainer.slots import HEADER, Slots
from trainer.train_state import TrainState, TrainStateSpec

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)


def spec(
    init: InitConfig, num_devices: int = 1, fsdp: int = 1, objective: Objective | None = None
) -> TrainStateSpec:
    rung = Rung(num_devices, num_devices // fsdp, fsdp, per_device_batch=1, accumulation=1)
    return TrainStateSpec.of(init, make_mesh(rung), objective)


def spec_of(config: TrainerConfig) -> TrainStateSpec:
    """The spec on one device of training what `config` says."""
    return spec(config.init, objective=objective_of(config.init, config.fit.decisive))


def final_state(job: Mapping, model_dir: Path | Uri, step: int = 17) -> TrainState:
    """What a supervised job committed as its last `step`."""
    place = model_dir / "checkpoints"
    init = dict(job["trainer"]["init"])
    init["checkpoint"] = {**init["checkpoint"], "directory": str(place)}
    plan = spec_of(parse({"trainer": {**job["trainer"], "init": init}}))
    return restore(path_of(place), step, plan.abstract, lambda: start(plan).frozen)[0]


def batches_of(loader: DataloaderConfig, batch_size: int, shuffle_seed: int) -> Any:
    """An endless iterator of global batches of examples, as training gets them."""
    return shuffled_batches(read_examples(loader), batch_size, shuffle_seed)


def start(plan: TrainStateSpec) -> TrainState:
    """The state of step 0."""
    return first_state(None, plan, lambda *_: None)


def assert_same_bits(one: Any, other: Any) -> None:
    """Every array of the two trees holds the same bits."""
    pairs = zip(jax.tree.leaves_with_path(one), jax.tree.leaves_with_path(other), strict=True)
    for (path, left), (same_path, right) in pairs:
        assert path == same_path
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes(), jax.tree_util.keystr(path)


@dataclass
class Trainer:
    """Runs `python -P -m trainer` on one config in a folder of its own."""

    folder: Path
    cache: dict[str, str]
    num_devices: int
    mapping: Mapping
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def checkpoints(self) -> Path:
        return Path(self.mapping["trainer"]["init"]["checkpoint"]["directory"])

    def run(self, *faults: Mapping, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run to the end, with these drills. `options` are for subprocess.run; without any, the
        process needs no imports of its own."""
        if options:
            ours = self._options(faults)
            return subprocess.run(self._command(), **ours, timeout=PATIENCE, check=False, **options)
        params = self._command()[-1]
        return forked(params, program="trainer", env=self.environment(*faults), joined=True)

    def start(self, *faults: Mapping, **options: Any) -> subprocess.Popen[str]:
        """The same, without waiting for its end."""
        return subprocess.Popen(self._command(), **self._options(faults), **options)

    def start_forked(self, *faults: Mapping) -> Forked:
        """The same, in a process that needs no imports of its own."""
        params = self._command()[-1]
        return start_forked(params, program="trainer", env=self.environment(*faults), joined=True)

    @property
    def params(self) -> Path:
        """The file with the config; `write_params` writes it."""
        return self.folder / "params.yaml"

    def write_params(self) -> None:
        self.params.write_text(yaml.safe_dump(self.mapping))

    def _command(self) -> list[str]:
        self.write_params()
        return [sys.executable, "-P", "-m", "trainer", str(self.params)]

    def environment(self, *faults: Mapping) -> dict[str, str]:
        """The variables of the process, with these drills."""
        drills = [{"id": f"fault-{index}"} | fault for index, fault in enumerate(faults)]
        environ = without_supervisor_variables(os.environ) | {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(self.num_devices),
            "SUPERVISE_FAILURE_FILE": str(self.folder / "failure.json"),
            "SUPERVISE_FAULTS": json.dumps(
                {"faults": drills, "records": str(self.folder / "drills")}
            ),
        }
        return environ | self.cache | self.extra

    def _options(self, faults: tuple[Mapping, ...]) -> dict[str, Any]:
        return {
            "env": self.environment(*faults),
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
        }

    def finish(self, **options: Any) -> str:
        """Run to the end, which must be a good one; what it printed."""
        done = self.run(**options)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def state(self, step: int) -> TrainState:
        """The state saved at `step`."""
        plan = spec_of(parse(self.mapping))
        return restore(self.checkpoints, step, plan.abstract, lambda: start(plan).frozen)[0]

    def failure(self) -> FailureRecord:
        return parse_failure_record((self.folder / "failure.json").read_bytes())


def newest_snapshot(memory: int) -> int | None:
    """The step of the newest whole snapshot in `memory`, seen by a bystander."""
    size = os.fstat(memory).st_size
    found = Slots(memory, [size // 2 - HEADER]).newest() if size else None
    return found.number if found is not None else None


MakeTrainer = Callable[..., Trainer]
"""Makes a `Trainer` from a name, a number of devices, and keywords for its `loop` section."""
