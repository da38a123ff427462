"""Guards the shape of the code: imports point downward only, the core stays pure, jax stays out."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.cli.main import VERBS

ROOT = Path(__file__).resolve().parents[2]

_BASE = {"protocol", "host", "bootstrap", "files"}
_CONFIG = _BASE | {"config"}
_DIAGNOSIS = _CONFIG | {"diagnosis"}
_CORE = _DIAGNOSIS | {"core"}
_PORTS = _CORE | {"ports"}
_ADAPTERS = _PORTS | {"narrative", "history", "goodput", "checkpoints"}
_ENGINES = _ADAPTERS | {"adapters"}
_TOP = _ENGINES | {
    "engines",
    "runtime",
    "prepare",
    "secret_variables",
    "guard_keeper",
    "disk_limits",
    "checkpoint_warning",
    "model_dir_ownership",
    "model_dir_check",
    "repair",
    "remote",
    "world",
    "later_data",
    "preflight",
    "observers",
    "start_notes",
    "supervision",
    "open_model_dir",
    "owners_on_record",
    "engine_choice",
    "on_ray",
    "job",
}

ALLOWED: dict[str, set[str]] = {
    "host": {"host"},
    "protocol": {"protocol"},
    "files": {"files", "protocol"},
    "checkpoints": {"checkpoints", "protocol"},
    "bootstrap": {"bootstrap", "protocol"},
    "config": _CONFIG,
    "diagnosis": _DIAGNOSIS,
    "core": _CORE,
    "ports": _CORE,
    "narrative": _CORE - {"config"} | {"ports", "narrative"},
    "history": _PORTS | {"history"},
    "goodput": _PORTS | {"history", "narrative", "goodput"},
    "web": _CORE | {"files", "history", "ports", "narrative", "goodput", "web"},
    "report": _PORTS | {"narrative", "goodput", "report"},
    "adapters": _ADAPTERS,  # and never one another: see `violations`
    "engines": _ENGINES | {"engines"},
    "runtime": _TOP,
    "prepare": _TOP,
    "secret_variables": _TOP,
    "guard_keeper": _TOP,
    "disk_limits": _TOP,
    "checkpoint_warning": _TOP,
    "model_dir_ownership": _TOP,
    "model_dir_check": _TOP - {"job", "world"},
    "remote": _TOP,
    "repair": _TOP,
    "world": _TOP - {"job"},
    "observers": _TOP - {"job"},
    "later_data": _TOP - {"job", "world"},
    "preflight": _TOP - {"job", "world"},
    "start_notes": _TOP - {"job", "world"},
    "supervision": _TOP - {"job", "world"},
    "open_model_dir": _TOP - {"job", "world"},
    "owners_on_record": _TOP - {"job", "world"},
    "engine_choice": _TOP - {"job", "world"},
    "on_ray": _TOP - {"job", "world"},
    "job": _TOP,
    "python_api": _TOP | {"cli"},
    "provision": _TOP | {"provision"},
    "manifests": _CORE | {"manifests"},
    "doctor": _TOP - {"job", "world"} | {"doctor"},
    "gang": _TOP - {"job"} | {"gang"},
    "cli": _TOP | {"provision", "manifests", "gang", "doctor", "report", "web", "cli"},
    "__main__": _TOP | {"cli"},
    "__init__": {"python_api"},
}
"""Each layer below `supervisor`, and the layers that it may import."""

OF_THE_TRAINER = (["protocol"], ["config", "training"], ["config", "problems"])
"""What the trainer may import: what a worker sees, the schema of its own sections (which is written
once, for both), and the form of a complaint about them."""

IMPURE = {
    "asyncio",
    "datetime",
    "io",
    "logging",
    "os",
    "pathlib",
    "random",
    "secrets",
    "shutil",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "uuid",
}
PURE = {
    "core",
    "diagnosis",
    "manifests",
    "supervisor/gang/which_host.py",
    *(
        f"supervisor/provision/{name}.py"
        for name in ("boot", "cloud_plan", "decide", "intent", "tell")
    ),
}
"""The packages and the other modules that are pure."""
WITH_RAY = [
    f"supervisor/engines/fleet/ray_{name}.py" for name in ("helper", "relay", "reservations")
]
"""What runs in the leader's Ray helper, and in an actor. No other process of ours imports Ray."""
HEAVY = {
    "flax",
    "fsspec",
    "gcsfs",
    "grain",
    "jax",
    "jaxlib",
    "numpy",
    "optax",
    "orbax",
    "ray",
    "s3fs",
    "tensorflow",
    "tensorstore",
    "torch",
    "trainer",
}


def imports(source: str, package: tuple[str, ...] = ()) -> Iterator[str]:
    """The dotted names that `source`, a module of `package`, imports: at the top and inside."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and _imports_by_name(node.func):
            yield from (name for arg in node.args[:1] if isinstance(name := _constant(arg), str))


def _imports_by_name(function: ast.expr) -> bool:
    return (isinstance(function, ast.Attribute) and function.attr == "import_module") or (
        isinstance(function, ast.Name) and function.id in ("import_module", "__import__")
    )


def _constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def violations(source: str, path: str) -> list[str]:
    """What the module at `path` (below the root of the repository) imports and must not."""
    parts = Path(path).with_suffix("").parts
    found = []
    for name in imports(source, parts[:-1]):
        top, *rest = name.split(".")
        if parts[0] == "trainer":
            forbidden = top == "supervisor" and not any(
                rest[: len(room)] == room for room in OF_THE_TRAINER
            )
        else:
            layer = parts[1]
            heavy = top in HEAVY and not (top == "ray" and path in WITH_RAY)
            forbidden = heavy or (top in IMPURE and (layer in PURE or path in PURE))
            if top == "supervisor" and rest and rest != ["__version__"]:
                own = rest == [layer] if layer != "adapters" else name == ".".join(parts)
                forbidden = rest[0] not in ALLOWED[layer] and not own
        if forbidden:
            found.append(f"{path} imports {name}")
    return found


MODULES = sorted(
    str(path.relative_to(ROOT))
    for package in ("supervisor", "trainer")
    for path in (ROOT / package).rglob("*.py")
)


@pytest.mark.parametrize("path", MODULES)
def test_imports_point_downward(path: str) -> None:
    assert violations((ROOT / path).read_text(encoding="utf-8"), path) == []


def test_the_sources_are_found() -> None:
    assert "supervisor/core/machine.py" in MODULES
    assert "trainer/__init__.py" in MODULES


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("supervisor/protocol/x.py", "from supervisor.config import load"),
        ("supervisor/config/x.py", "from supervisor.core.state import JobState"),
        ("supervisor/diagnosis/x.py", "from supervisor.core import state"),
        ("supervisor/diagnosis/x.py", "import re, time"),
        ("supervisor/core/x.py", "from supervisor import ports"),
        ("supervisor/core/x.py", "from supervisor.adapters.kernel.clock import SystemClock"),
        ("supervisor/core/x.py", "import time"),
        ("supervisor/core/x.py", "from os import path"),
        ("supervisor/core/x.py", "def f():\n    import random"),
        ("supervisor/core/x.py", "from ..adapters import clock"),
        ("supervisor/ports.py", "from supervisor.narrative import x"),
        ("supervisor/narrative.py", "from supervisor.adapters import runlog"),
        ("supervisor/adapters/x.py", "from supervisor.adapters.stores.lock import DirectoryLock"),
        ("supervisor/adapters/x.py", "from . import lock"),
        ("supervisor/adapters/x.py", "from supervisor.engines import local"),
        ("supervisor/engines/x.py", "from supervisor.runtime import Runtime"),
        ("supervisor/job.py", "from supervisor.cli import run"),
        ("supervisor/provision/decide.py", "import time"),
        ("supervisor/job.py", "from supervisor.provision import decide"),
        ("supervisor/cli/x.py", "import jax"),
        ("supervisor/engines/fleet/ray_transport.py", "import ray"),
        ("supervisor/engines/fleet/ray_helper.py", "import jax"),
        ("supervisor/cli/x.py", "def f():\n    from orbax import checkpoint"),
        ("supervisor/cli/x.py", "importlib.import_module('trainer.step')"),
        ("trainer/x.py", "from supervisor.core import state"),
        ("trainer/x.py", "import supervisor.config.load"),
        ("trainer/x.py", "from supervisor import config"),
        ("trainer/x.py", "from supervisor.config.schema import Phase"),
    ],
)
def test_what_is_forbidden_is_seen(path: str, line: str) -> None:
    assert len(violations(line, path)) == 1


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("supervisor/core/x.py", "from supervisor.config.problems import shown"),
        ("supervisor/adapters/x.py", "import os\nfrom supervisor import narrative"),
        ("supervisor/job.py", "from supervisor.runtime import Runtime"),
        ("supervisor/engines/fleet/ray_helper.py", "import ray"),
        ("supervisor/cli/x.py", "from supervisor import __version__"),
        ("trainer/x.py", "import jax\nfrom supervisor.protocol import reporter"),
        ("trainer/x.py", "from supervisor.config.training.sections import LoopConfig"),
    ],
)
def test_what_is_allowed_passes(path: str, line: str) -> None:
    assert violations(line, path) == []


def _reached(starts: list[str]) -> set[str]:
    """The modules of ours that are imported, by way of others too, by those at `starts`."""
    todo, found = [*starts], set[str]()
    while todo:
        path = todo.pop()
        if path in found or path not in MODULES:
            continue
        found.add(path)
        for name in imports(
            (ROOT / path).read_text("utf-8"), Path(path).with_suffix("").parts[:-1]
        ):
            parts = name.split(".")
            todo += [f"{'/'.join(parts)}.py", f"{'/'.join(parts[:-1])}.py"]
    return found


def test_protocol_holds_what_runs_in_a_worker_and_no_more() -> None:
    workers = [path for path in MODULES if path.startswith(("trainer/", "supervisor/bootstrap/"))]
    protocol = {path for path in MODULES if path.startswith("supervisor/protocol/")}
    reached = _reached(workers)
    assert {path for path in protocol - reached if not path.endswith("__init__.py")} == set()


TINY = 25
ON_THEIR_OWN = {
    "supervisor/adapters/kernel/clock.py": "the one clock, where all others are told the time",
    "supervisor/bootstrap/buffering.py": "why the output comes line by line; nothing beside it is",
    "supervisor/bootstrap/reports.py": "all that a program below a shell gets of the bootstrap",
    "supervisor/cli/schema.py": "a verb, a file",
    "supervisor/core/allowance.py": "a value, of which three others are made",
    "supervisor/diagnosis/success.py": "a value, for config, diagnosis, core and engines alike",
    "supervisor/host/gang_config.py": "a digest, for the launcher, the leader and the agents alike",
    "supervisor/narrative/durations.py": "the one form of a duration, for all that people read",
}
"""Files of few lines, and why each is not a part of another one."""


def test_tiny_files_are_not_read_together_with_others() -> None:
    tiny = {
        path
        for path in MODULES
        if not path.endswith("__init__.py")
        and len((ROOT / path).read_text("utf-8").splitlines()) <= TINY
    }
    assert tiny == set(ON_THEIR_OWN)


def _meanings() -> dict[str, list[str]]:
    """Files by their names; a verb of the command line is called as it is typed."""
    found: dict[str, list[str]] = {}
    for path in MODULES:
        if Path(path).parts[:2] != ("supervisor", "cli"):
            found.setdefault(Path(path).stem, []).append(path)
    return {name: paths for name, paths in found.items() if not name.startswith("__")}


def test_no_two_files_have_one_name() -> None:
    assert {name: paths for name, paths in _meanings().items() if len(paths) > 1} == {}


def test_no_two_names_of_files_differ_by_an_s_alone() -> None:
    names = _meanings()
    assert {name for name in names if f"{name}s" in names} == set()


STORES = ("fsspec", "gcsfs", "s3fs", "aiohttp", "requests", "google", "botocore")
OF_OTHER_VERBS = [verb for verb in VERBS if verb != "run"]


@pytest.mark.parametrize(
    ("verb", "names"),
    [
        (
            None,
            (
                *HEAVY,
                *STORES,
                "rich",
                "http.server",
                "prometheus_client",
                "supervisor.adapters.telling.terminal",
            ),
        ),
        ("run", (*(f"supervisor.cli.{verb}" for verb in OF_OTHER_VERBS), "supervisor.provision")),
        ("serve", ("prometheus_client", "supervisor.job", "supervisor.engines", "yaml")),
        ("rules", ("supervisor.job", "supervisor.engines", "supervisor.provision")),
        ("status", ("supervisor.job", "supervisor.prepare", "supervisor.engines", "yaml")),
        ("report", ("supervisor.job", "supervisor.engines", "yaml", "supervisor.report.page")),
    ],
)
def test_a_verb_loads_nothing_that_it_does_not_need(verb: str | None, names: list[str]) -> None:
    """`None` stands for all of them together."""
    program = (
        f"import supervisor.cli.main, sys; supervisor.cli.main.load({[verb] if verb else []});"
        f"print([n for n in {names} if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def _engines_named(source: str, path: str) -> list[str]:
    """The modules of implementations of `engines.engine.Engine` that the module at `path`
    imports."""
    package = Path(path).with_suffix("").parts[:-1]
    return [
        name
        for name in imports(source, package)
        if any(f"{name}.".startswith(f"{engine}.") for engine in IMPLEMENTATIONS)
    ]


IMPLEMENTATIONS = ("supervisor.engines.local", "supervisor.engines.fleet.fleet_engine")
"""The modules of the engines."""


def test_one_place_alone_chooses_an_engine() -> None:
    """An agent has the local engine on each host of a fleet."""
    paths = [path for path in MODULES if path.startswith("supervisor/")]
    naming = [path for path in paths if _engines_named((ROOT / path).read_text("utf-8"), path)]
    assert naming == [
        "supervisor/engine_choice.py",
        "supervisor/engines/fleet/agent_ranks.py",
        "supervisor/on_ray.py",
    ]


def test_what_names_an_engine_is_seen() -> None:
    assert _engines_named("from supervisor.engines.local import LocalEngine", "supervisor/world.py")
    assert _engines_named("from supervisor.engines import local", "supervisor/world.py")
    assert not _engines_named("from supervisor.engines.engine import Engine", "supervisor/world.py")
