"""`python -P -m trainer.prefetch PARAMS.yaml`: compiles a config for another number of devices.

The supervisor runs it while a worker trains, in the environment of a worker that has the devices of
this process. It writes the compiled steps to where that worker will look for them, and changes
nothing else.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import yaml

from supervisor.config.training.resolved import parse
from supervisor.protocol.adjustments import Adjustments
from supervisor.protocol.environment import WorkerIdentity
from supervisor.protocol.failure_record import write_failure_record
from supervisor.protocol.messages import Stage
from trainer.corruption_check import compiled_check
from trainer.evaluation import compiled_program
from trainer.log import WorkerLog
from trainer.training_setup import set_up

USAGE = "usage: python -P -m trainer.prefetch PARAMS.yaml"


def prefetch(params: Path) -> None:
    """Compile all steps of the config in the file `params`, and keep the executables."""
    config = parse(yaml.safe_load(params.read_text(encoding="utf-8")))
    identity = WorkerIdentity.from_environment()
    num_devices = identity.num_devices if identity is not None else None
    setup = set_up(config, num_devices, Adjustments.from_environment(), WorkerLog())
    steps = [setup.train_step, *([setup.sample] if setup.sample is not None else [])]
    if config.fit.validation is not None:
        spec, sharder, executables = setup.spec, setup.sharder, setup.executables
        mesh = setup.rollout_mesh
        steps.append(compiled_program(config.fit.validation, spec, sharder, mesh, executables))
    if config.init.sdc is not None:
        steps.append(compiled_check(setup))
    for step in steps:
        step.result()
    setup.executables.close()


def main() -> NoReturn:
    """Compile, and exit with 0, or with 1 and a failure record."""
    code = 0
    try:
        if len(sys.argv) != 2:
            raise SystemExit(USAGE)
        prefetch(Path(sys.argv[1]))
    except BaseException as error:
        code = 1
        with suppress(OSError):
            write_failure_record(error, stage=Stage.COMPILING, step=None)
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
