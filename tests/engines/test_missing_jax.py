"""A script that needs jax, and an interpreter without it: a warning names the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.engines.missing_jax import missing_jax
from supervisor.engines.script_imports import imported_packages, read_script, required_packages
from supervisor.prepare import prepare


def warned(tmp_path: Path, source: str, *argv: str) -> str | None:
    """The warning about the script `source`, which `argv` runs."""
    (tmp_path / "train.py").write_text(source)
    words = ", ".join(f"'{word}'" for word in argv)
    config = tmp_path / "trainer.yaml"
    config.write_text(
        f"trainer:\n  init: {{model_dir: run, autorestart: {{max_num_restarts: 0}}}}\n"
        f"  command: [{words}]\n"
    )
    return missing_jax(prepare(config, ()).plans[0], os.environ)


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """An interpreter without jax, as a virtual environment that has nothing."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    return str(tmp_path / "venv" / "bin" / "python")


def test_the_interpreter_is_named(tmp_path: Path, bare: str) -> None:
    script = str(tmp_path / "train.py")
    told = warned(tmp_path, "from jax import numpy", "nice", bare, "-u", script)
    assert told is not None
    assert told.startswith(f"{script} imports jax, but its interpreter finds no jax: {bare}; name")
    assert warned(tmp_path, "import orbax.checkpoint as ocp", bare, script) is not None
    assert warned(tmp_path, "import jax", sys.executable, script) is None


def test_a_jax_beside_the_script_is_found(tmp_path: Path, bare: str) -> None:
    (tmp_path / "jax.py").write_text("raise SystemExit('it is not imported')")
    assert warned(tmp_path, "import jax", bare, str(tmp_path / "train.py")) is None


@pytest.mark.parametrize(
    "source",
    [
        "import json",
        "import jaxtyping",
        "from . import jax",
        "try:\n    import jax\nexcept ImportError:\n    jax = None",
        "def later():\n    import jax",
        "this is no Python",
        "import jax\n\0",
    ],
)
def test_a_script_that_does_without_is_left_alone(tmp_path: Path, source: str) -> None:
    assert warned(tmp_path, source, "/no/python", str(tmp_path / "train.py")) is None


@pytest.mark.parametrize(
    "argv", [["/no/python", "train.py"], ["python", "{model_dir}/train.py"], ["./train.py"]]
)
def test_what_cannot_be_found_out_is_no_warning(
    tmp_path: Path, argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert warned(tmp_path, "import jax", *argv) is None


def test_the_imports_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import a.b, c\nfrom d.e import f\nwith x:\n    import g\ntry:\n    import h\n"
        "except OSError:\n    pass\ntry:\n    import i\nexcept (ValueError, ImportError):\n"
        "    pass\ntry:\n    import j\nexcept:\n    pass\n'\\d'\n"
    )
    tree = read_script(script)
    assert tree is not None
    assert required_packages(tree) == {"a", "c", "d", "g", "h"}
    assert set(imported_packages(tree)) == set("acdghij")


def test_a_script_that_cannot_be_read_has_no_tree(tmp_path: Path) -> None:
    (tmp_path / "big.py").write_bytes(b"#" * ((1 << 20) + 1))
    os.mkfifo(tmp_path / "fifo.py")
    (tmp_path / "deep.py").write_text("(" * 10000)
    for name in ("gone.py", "big.py", "fifo.py", "deep.py", "."):
        assert read_script(tmp_path / name) is None
