"""`python -P -m trainer PARAMS.yaml`: trains what a resolved config says, and reports to the
supervisor.

As a standby it first prepares, and then waits until it becomes the worker of an attempt. Whatever
error ends it, it writes a failure record and then exits at once: the normal exit of a process with
a broken backend, or of one among several, can hang.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from supervisor.protocol.environment import WorkerIdentity
from supervisor.protocol.failure_record import write_failure_record
from supervisor.protocol.fault_injection import FaultInjector
from supervisor.protocol.messages import Stage
from supervisor.protocol.reporter import Reporter
from supervisor.protocol.stacks import enable_stack_dumps
from supervisor.protocol.standby import Standby, StandbyOrders

if TYPE_CHECKING:
    from trainer.warm_up import WarmUp

USAGE = "usage: python -P -m trainer PARAMS.yaml"


def main() -> NoReturn:
    """Run, and exit with 0, or with 1 and a failure record."""
    arguments, ready = sys.argv[1:], None
    if (standby := Standby.from_environment()) is not None:
        arguments, ready = _stand_by(standby, arguments)
    faults = FaultInjector.from_environment()
    reporter = Reporter.connect(on_stage=faults.on_entering)
    code = 0
    try:
        enable_stack_dumps(reporter)
        faults.on_entering(Stage.STARTING)  # no report says so: every worker begins in this stage
        _run(arguments, reporter, faults, ready)
    except BaseException as error:
        code = 1
        reporter.catch_up()
        stage, step = reporter.current
        with suppress(OSError):
            write_failure_record(error, stage=stage, step=step)
        traceback.print_exception(error)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _stand_by(standby: Standby, arguments: list[str]) -> tuple[list[str], WarmUp | None]:
    """Prepare what does not depend on the attempt, and wait for one. Returns the arguments of its
    worker, and the warm-up if the worker can use it."""
    ready = None
    try:
        _import()
        from trainer.distributed import is_one_of_several
        from trainer.visible_devices import use_visible_devices
        from trainer.warm_up import WarmUp

        if standby.mode == "ready" and not is_one_of_several():
            ready = WarmUp.of(Path(arguments[0]))
    except BaseException as error:
        traceback.print_exception(error)
        standby.unusable(f"{type(error).__name__}: {error}")

    def problem(orders: StandbyOrders) -> str | None:
        why_not = ready.problem(orders) if ready is not None else None
        return why_not or use_visible_devices()

    orders = standby.wait(problem)
    if ready is not None and not ready.has_its_devices():
        ready = None
    return list(orders.argv[-1:]), ready


def _run(
    arguments: list[str], reporter: Reporter, faults: FaultInjector, ready: WarmUp | None
) -> None:
    # Imported here, so that a failing import leaves a record too; jax only after the config is
    # known to be valid.
    import yaml

    from supervisor.config.training.resolved import parse
    from trainer.termination import ignore_interrupts_of_supervised

    if len(arguments) != 1:
        raise SystemExit(USAGE)
    ignore_interrupts_of_supervised()
    if ready is None:
        config = parse(yaml.safe_load(Path(arguments[0]).read_text(encoding="utf-8")))
    else:
        config = ready.config
    train = _import()
    identity = WorkerIdentity.from_environment()
    num_devices = identity.num_devices if identity is not None else None
    train(config, reporter, faults, num_devices, ready.setup if ready is not None else None)


def _import() -> Callable[..., None]:
    """Import and return `train`. The garbage collector is off meanwhile: the imports leave no
    garbage that is worth collecting, and so the start is quicker."""
    gc.disable()
    from trainer.train import train

    gc.freeze()
    gc.enable()
    return train


if __name__ == "__main__":
    main()
