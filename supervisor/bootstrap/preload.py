"""A standby for any Python program: imports ahead what the program imported in earlier attempts.

It imports installed modules only: the program's own modules may do anything when imported, and
people change them. If a program changes its environment itself for what it then imports (such as
`XLA_FLAGS`), nothing can be imported in advance, and there is no standby.
"""

from __future__ import annotations

import json
import os
import sys
from _thread import get_ident
from collections.abc import Mapping, Sequence
from importlib import import_module

from ..protocol.environment import MODULES_FILE, NUM_CPU_DEVICES, PRELOAD
from ..protocol.reading import UnreadableError, read_object
from ..protocol.standby import Standby, StandbyOrders, changed_variables

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + "/"
_INSTALLED = ("/site-packages/", "/dist-packages/")


def stand_by(start: str, environ: Mapping[str, str] = os.environ) -> None:
    """Wait as a standby; return with the worker's command line and environment.

    `start` is the file that stands before the program on the command line.
    """
    standby = Standby.from_environment()
    assert standby is not None
    try:
        modules, theirs = _what_to_import(environ)
    except OSError as error:
        standby.unusable(f"what the program imports is not known: {error}")
    try:
        for name in modules:
            import_module(name)
    except BaseException as error:
        standby.unusable(f"{type(error).__name__} when {name} was imported ahead: {error}")
    ours = fingerprints(standby.changed_environment())
    for name, value in theirs.items():
        if ours.get(name) != value:
            standby.unusable(
                f"the program itself sets {name}, perhaps for what it imports: set it in "
                "command.env instead"
            )
    if _backend_is_up():
        standby.unusable("importing what the program imports initialises JAX's backend")

    def problem(orders: StandbyOrders) -> str | None:
        return _shadowed(modules, _directory_of_program(orders.argv, start))

    number = environ.get(NUM_CPU_DEVICES)
    orders = standby.wait(problem)
    if (told := orders.env.get(NUM_CPU_DEVICES)) != number:
        _tell_jax(int(told or -1))
    place = list(orders.argv).index(start)
    sys.argv[1:] = orders.argv[place + 1 :]
    sys.orig_argv[:] = orders.argv
    sys.modules["_supervise"].command_line = orders.argv  # type: ignore[attr-defined]


def fingerprints(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Returns a hash of the value for each changed variable, by name. They are written to a file,
    where a value may be a secret."""
    from hashlib import sha256

    return {name: sha256(repr(value).encode()).hexdigest()[:16] for name, value in changes.items()}


class Learner:
    """Writes the list of modules that the program has imported, whenever it has grown."""

    def __init__(self, file: str, environ: Mapping[str, str]) -> None:
        """Write to `file`; `environ` is the environment that the program was started with."""
        self._file = file
        self._known = 0
        self._environ = environ

    def update(self) -> None:
        """Update the file; cheap if nothing has been imported since the last call."""
        if len(sys.modules) == self._known:
            return
        self._known = len(sys.modules)
        modules = [
            name for name, module in list(sys.modules.items()) if _is_installed(name, module)
        ]
        environment = fingerprints(changed_variables(self._environ, os.environ))
        partial = f"{self._file}.{get_ident()}.tmp"
        with open(partial, "w", encoding="utf-8") as file:
            json.dump({"modules": modules, "environment": environment}, file)
        os.replace(partial, self._file)


def _what_to_import(environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Returns the modules to import, and the fingerprints of the variables that the program changed
    in its environment."""
    if PRELOAD in environ:
        return [name for name in environ[PRELOAD].split(",") if name], {}
    learned = read_object(environ[MODULES_FILE])
    modules, theirs = learned.get("modules"), learned.get("environment")
    if not isinstance(modules, list) or not isinstance(theirs, dict):
        raise UnreadableError(environ[MODULES_FILE], "does not name modules", "remove it")
    return modules, theirs


def _is_installed(name: str, module: object) -> bool:
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None)
    if getattr(spec, "name", None) != name or not isinstance(origin, str):
        return False
    return any(part in origin for part in _INSTALLED) or origin.startswith(_STANDARD_LIBRARY)


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
