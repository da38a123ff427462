"""`supervise --version`: what a report of a fault needs, without importing any of it."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata

from supervisor.history.writer import writer


def version(*flags: str) -> list[str]:
    program = (
        "import sys; from supervisor.cli.main import main\n"
        "try:\n    main(['--version'])\n"
        "finally:\n    print([name for name in ('jax', 'orbax', 'numpy') if name in sys.modules])"
    )
    argv = [sys.executable, *flags, "-c", program]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_versions_that_matter_are_told_and_none_is_imported() -> None:
    first, second, third, imported = version()
    assert first == f"supervise {writer()}"
    assert second == f"python {platform.python_version()} ({sys.executable})"
    for name in ("jax", "jaxlib", "orbax-checkpoint"):
        assert f"{name} {metadata.version(name)}" in third
    assert imported == "[]"
