"""A standby for any Python program: imports ahead what the program imported in earlier attempts.

It imports installed modules only: the program's own modules may do anything when imported, and
people change them. If a program changes its environment itself for what it then imports (such as
`XLA_FLAGS`), the standby does so for its imports too, and its worker checks that the program does.
A module that cannot be imported ahead is left out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from importlib import import_module

from ..protocol.environment import LEFT_OUT, MODULES_FILE, NUM_CPU_DEVICES, PRELOAD
from ..protocol.standby import Standby, StandbyOrders, start_cold
from .environment_watch import ExpectedChanges, is_of_a_package
from .learning import Learned, Replay


def stand_by(start: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Wait as a standby; return with the worker's command line and environment.

    `start` is the file that stands before the program on the command line.
    """
    left_out = [name for name in environ.pop(LEFT_OUT, "").split(",") if name]
    standby = Standby.from_environment()
    assert standby is not None
    try:
        learned = _what_to_import(environ, left_out)
    except OSError as error:
        standby.unusable(f"what the program imports is not known: {error}")
    replay = Replay(learned, environ)
    replay.run(import_module)
    if replay.failed:
        _leave_out(standby, learned, replay.failed, began_again=bool(left_out))
    _tell_what_is_missing(standby, replay)
    if _backend_is_up():
        standby.unusable("importing what the program imports initialises JAX's backend")
    for name, values in replay.made.items():
        if environ.get(name) != values[-1]:
            standby.unusable(
                f"the program and what it imports both set {name}: set it in command.env instead"
            )
    modules = replay.prepared.modules

    def problem(orders: StandbyOrders) -> str | None:
        return _shadowed(modules, _directory_of_program(orders.argv, start))

    number = environ.get(NUM_CPU_DEVICES)
    orders = standby.wait(problem, made_for_imports=replay.made)
    if (told := orders.env.get(NUM_CPU_DEVICES)) != number:
        _tell_jax(int(told or -1))
    place = list(orders.argv).index(start)
    sys.argv[1:] = orders.argv[place + 1 :]
    sys.orig_argv[:] = orders.argv
    package = sys.modules["_supervise"]
    package.command_line = orders.argv  # type: ignore[attr-defined]
    package.prepared = replay.prepared  # type: ignore[attr-defined]
    package.expected = ExpectedChanges(  # type: ignore[attr-defined]
        replay.made, lambda why: start_cold(orders, why)
    )


def _what_to_import(environ: Mapping[str, str], left_out: Sequence[str]) -> Learned:
    """Returns the modules to import, and how the program changes its environment meanwhile."""
    if PRELOAD in environ:
        return Learned([name for name in environ[PRELOAD].split(",") if name], (), left_out)
    learned = Learned.read(environ[MODULES_FILE])
    return Learned(learned.modules, learned.changes, [*learned.left_out, *left_out])


def _leave_out(
    standby: Standby, learned: Learned, failed: Mapping[str, BaseException], *, began_again: bool
) -> None:
    """Begin again without the modules whose import failed, which may have left a half of their
    work."""
    name, error = next(iter(failed.items()))
    left_out = {*learned.left_out, *failed}
    if began_again or left_out.issuperset(learned.modules):
        standby.unusable(f"{type(error).__name__} when {name} was imported ahead: {error}")
    others = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    why = f"{type(error).__name__}: {error}"
    standby.note(f"{name}{others} cannot be imported ahead and is left out ({why})")
    standby.begin_again({LEFT_OUT: ",".join(sorted(left_out))})


def _tell_what_is_missing(standby: Standby, replay: Replay) -> None:
    if (name := replay.ended_by) is None:
        return
    why = (
        f"the program itself sets {name}, perhaps for what it then imports: set it in command.env "
        "instead"
    )
    imported = (sys.modules.get(one) for one in replay.prepared.modules)
    if not any(is_of_a_package(getattr(one, "__file__", None) or "") for one in imported):
        standby.unusable(why)
    standby.note(f"only what it imports before that is imported ahead: {why}")


def _backend_is_up() -> bool:
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bool(bridge.backends_are_initialized())


def _tell_jax(num_cpu_devices: int) -> None:
    """Set the number of CPU devices again: jax read the standby's number when it was imported."""
    jax = sys.modules.get("jax")
    if hasattr(getattr(jax, "config", None), "jax_num_cpu_devices"):
        jax.config.update("jax_num_cpu_devices", num_cpu_devices)  # type: ignore[union-attr]


def _directory_of_program(argv: Sequence[str], start: str) -> str | None:
    """Returns the directory that will be first on the program's path; None: none of its own."""
    if sys.flags.safe_path:
        return None
    program = argv[list(argv).index(start) + 1]
    if program.startswith(("-c", "-m")):
        return os.getcwd()
    path = os.path.realpath(program)
    return path if os.path.isdir(path) else os.path.dirname(path)


def _shadowed(modules: Sequence[str], directory: str | None) -> str | None:
    """Returns a complaint if the program's directory has a file that would shadow one of `modules`;
    None: it has none."""
    if directory is None:
        return None
    names = {name.partition(".")[0] for name in modules}
    for entry in os.listdir(directory):
        name = entry.partition(".")[0]
        if name in names and (entry == name or entry.endswith(".py")):
            return f"{entry} beside the program has the name of an installed module"
    return None
