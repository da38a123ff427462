"""`python -P -m trainer PARAMS.yaml`: trains what a resolved config says, and says how it goes.

Whatever it dies of, it leaves a failure record first, and then the process is gone at once: the
normal exit of a process with a broken backend, or of one among several, can hang.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from supervisor.protocol.drills import Drills
from supervisor.protocol.environment import WorkerIdentity
from supervisor.protocol.failure import write_failure_record
from supervisor.protocol.messages import Stage
from supervisor.protocol.reporter import Reporter
from supervisor.protocol.stacks import enable_stack_dumps

USAGE = "usage: python -P -m trainer PARAMS.yaml"


def main() -> NoReturn:
    """Run, and leave with 0, or with 1 and a failure record."""
    drills = Drills.from_environment()
    reporter = Reporter.connect(on_stage=drills.on_entering)
    code = 0
    try:
        enable_stack_dumps(reporter)
        drills.on_entering(Stage.STARTING)  # where a worker is from the first, without a word
        _run(sys.argv[1:], reporter, drills)
    except BaseException as error:
        code = 1
        stage, step = reporter.current
        with suppress(OSError):
            write_failure_record(error, stage=stage, step=step)
        traceback.print_exception(error)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _run(arguments: list[str], reporter: Reporter, drills: Drills) -> None:
    # Imported here, so that a failing import leaves a record too; jax only after the config is
    # known to be good. While importing, there is no garbage worth collecting: a quicker start.
    import yaml

    from trainer.config import parse
    from trainer.termination import ignore_interrupts_of_supervised

    if len(arguments) != 1:
        raise SystemExit(USAGE)
    ignore_interrupts_of_supervised()
    config = parse(yaml.safe_load(Path(arguments[0]).read_text(encoding="utf-8")))
    gc.disable()
    from trainer.run import train

    gc.freeze()
    gc.enable()
    identity = WorkerIdentity.from_environment()
    train(config, reporter, drills, identity.num_devices if identity else None)


if __name__ == "__main__":
    main()
