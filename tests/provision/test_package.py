"""Our own wheel: made of what runs, the same bytes each time, and whole."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

import supervisor
from supervisor.provision.boot import default_lock
from supervisor.provision.package import own_wheel

ROOT = Path(__file__).parents[2]


def test_the_same_files_give_the_same_bytes() -> None:
    source = "from supervisor.provision.package import own_wheel; print(own_wheel().sha256)"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == own_wheel().sha256


def test_it_holds_what_runs_and_nothing_else() -> None:
    wheel = own_wheel()
    assert wheel.name == f"supervise_jax-{supervisor.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(io.BytesIO(wheel.data)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    (record,) = [name for name in files if name.endswith(".dist-info/RECORD")]
    rows = list(csv.reader(files[record].decode().splitlines()))
    assert [row[0] for row in rows] == [*sorted(files.keys() - {record}), record]
    for name, digest, size in rows[:-1]:
        found = urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={found}", len(files[name]))
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "supervisor", "trainer"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    if not tracked:
        pytest.skip("this is no checkout: nothing says which files are ours")
    ours = [name for name in files if ".dist-info/" not in name]
    assert ours == sorted(name for name in tracked if (ROOT / name).is_file())
    assert "supervisor/provision/supervise@.service" in ours


def test_pip_installs_it_where_nothing_of_ours_is(tmp_path: Path) -> None:
    """Into a folder of its own; from there, not from this checkout, it runs."""
    wheel = own_wheel()
    path = tmp_path / wheel.name
    path.write_bytes(wheel.data)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    target = tmp_path / "installed"
    subprocess.run([*pip, "--target", str(target), str(path)], check=True, timeout=120)
    source = (
        f"import sys; sys.path.insert(0, {str(target)!r}); import supervisor, supervisor.cli.run;"
        "from supervisor.provision.package import own_wheel;"
        "print(supervisor.__file__, own_wheel().sha256)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", source],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(target / "supervisor" / "__init__.py"), wheel.sha256]
    assert (target / "bin" / "supervise").exists()


def test_the_lock_has_hashes_alone() -> None:
    text = default_lock().data.decode()
    assert text == (ROOT / "deploy" / "requirements-tpu.lock").read_text()
    requirements = [line for line in text.splitlines() if re.match(r"[a-z]", line)]
    assert len(requirements) > 50
    assert all(re.match(r"[\w.-]+(\[[\w,-]+\])?==\S+ ", line) for line in requirements)
