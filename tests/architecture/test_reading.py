"""Whatever somebody else may have written is read by `protocol.reading`, and by nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

KERNEL = "a file of the kernel"
OURS = "a part of this package"
OWN = "an answer of our own process, or what its parent told it"
NAMED = "what its parent, which made it, has named"
DATA = "training data, which a person names: its size is theirs to choose"
PERSON = "named by a person, who may give a pipe or a link: bounded, and read before anything runs"
ALLOWED = {
    "supervisor/adapters/platforms/accelerators.py": KERNEL,
    "supervisor/adapters/processes/ahead_of_time.py": OWN,
    "supervisor/adapters/kernel/oom_counter.py": KERNEL,
    "supervisor/adapters/processes/leftovers.py": KERNEL,
    "supervisor/adapters/stores/lock.py": KERNEL,
    "supervisor/adapters/stores/log_input.py": PERSON,
    "supervisor/adapters/kernel/capacity.py": KERNEL,
    "supervisor/adapters/platforms/preemption.py": "a pipe of its own",
    "supervisor/adapters/kernel/process_facts.py": KERNEL,
    "supervisor/adapters/platforms/tpu_lock.py": KERNEL,
    "supervisor/adapters/telling/deliveries.py": "the answer of a webhook: its status",
    "supervisor/bootstrap/target.py": "the program itself, to be run",
    "supervisor/bootstrap/sigterm.py": KERNEL,
    "supervisor/bootstrap/start.py": KERNEL,
    "supervisor/cli/completion.py": OURS,
    "supervisor/cli/rule_examples.py": OURS,
    "supervisor/cli/schema.py": OURS,
    "supervisor/gang/launcher.py": KERNEL,
    "supervisor/history/writer.py": OURS,
    "supervisor/config/yaml_source.py": PERSON,
    "supervisor/config/training/data_files.py": DATA,
    "supervisor/diagnosis/log_lines.py": "lines of an output, of which a bounded part is kept",
    "supervisor/engines/fleet/helper_messages.py": OWN,
    "supervisor/engines/fleet/ray_helper.py": OWN,
    "supervisor/engines/fleet/ray_relay.py": KERNEL,
    "supervisor/engines/preemption_sources.py": KERNEL,
    "supervisor/protocol/adjustments.py": OWN,
    "supervisor/protocol/committed.py": "an object of a bucket, whose size was asked for first",
    "supervisor/protocol/failure_history.py": OWN,
    "supervisor/protocol/fault_injection.py": OWN,
    "supervisor/protocol/messages.py": "lines of 4 KiB at the most",
    "supervisor/protocol/this_machine.py": KERNEL,
    "supervisor/protocol/worker_path/supervise_worker.py": KERNEL,
    "supervisor/protocol/reading.py": "the reader",
    "supervisor/protocol/passage.py": KERNEL,
    "supervisor/protocol/simulated.py": OWN,
    "supervisor/protocol/standby.py": OWN,
    "supervisor/provision/boot.py": OURS,
    "supervisor/provision/package.py": OURS,
    "supervisor/report/loss_curves.py": "lines of 64 KiB at the most",
    "supervisor/report/page.py": OURS,
    "supervisor/web/routes.py": OURS,
    "trainer/__main__.py": NAMED,
    "trainer/aot.py": OWN,
    "trainer/export.py": "params.yaml, which the supervisor wrote: bounded",
    "trainer/executables.py": "what only this user can have written (`trainer.private_files`)",
    "trainer/step_files.py": "an object of a bucket, hashed piece by piece",
    "trainer/host_memory.py": KERNEL,
    "trainer/prefetch.py": NAMED,
    "trainer/probe.py": OWN,
    "trainer/token_files.py": DATA,
    "trainer/replay.py": NAMED,
    "trainer/warm_up.py": NAMED,
    "trainer/environment_fingerprint.py": "a file of the kernel, and a part of this package",
}
"""Who reads in another way, and what that is."""

_PARSERS = {("json", "load"), ("json", "loads"), ("yaml", "safe_load"), ("pickle", "loads")}
_WRAPPERS = {("os", "fdopen"), ("io", "FileIO"), ("io", "open")}
"""What makes a file of a descriptor."""


def reads(source: str) -> Iterator[str]:
    """The calls in `source` that read or parse a file, by what they are called."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Attribute):
            owner = called.value.id if isinstance(called.value, ast.Name) else ""
            if called.attr in ("read_bytes", "read_text") or (owner, called.attr) in _PARSERS:
                yield f"{owner}.{called.attr}"
            elif called.attr == "open" and owner not in ("os", "writing") and _is_for_reading(node):
                yield f"{owner}.open"
            elif (owner, called.attr) in _WRAPPERS and _is_for_reading(node):
                yield f"{owner}.{called.attr}"
        elif isinstance(called, ast.Name) and called.id == "open" and _is_for_reading(node):
            yield "open"


def _is_for_reading(call: ast.Call) -> bool:
    words = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
    modes = [word for word in words if isinstance(word, str) and set(word) <= set("rwxabt+")]
    return not any(set(mode) & set("wxa") for mode in modes)


FILES = sorted(path for part in ("supervisor", "trainer") for path in (ROOT / part).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_of_others_are_read_by_the_one_reader(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    found = list(reads(path.read_text(encoding="utf-8")))
    if name not in ALLOWED and not name.startswith("supervisor/host/"):  # which may import nothing
        assert found == [], "use supervisor.protocol.reading, or say here what it reads"


def test_the_list_is_no_longer_than_it_must_be() -> None:
    unused = [
        name for name in ALLOWED if not list(reads((ROOT / name).read_text(encoding="utf-8")))
    ]
    assert unused == []


@pytest.mark.parametrize(
    "line",
    [
        "path.read_bytes()",
        "open(path)",
        "path.open('rb')",
        "json.loads(data)",
        "os.fdopen(descriptor, 'rb')",
        "(a / b).read_text()",
    ],
)
def test_what_is_forbidden_is_seen(line: str) -> None:
    assert len(list(reads(line))) == 1


@pytest.mark.parametrize(
    "line", ["reading.read(path)", "path.open('wb')", "os.fdopen(descriptor, 'wb')"]
)
def test_what_is_allowed_passes(line: str) -> None:
    assert list(reads(line)) == []
