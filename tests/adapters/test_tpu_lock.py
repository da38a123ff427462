"""libtpu's lock file of another user: named with its owner, and what to do, by real files and
locks. No TPU is involved."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.adapters.platforms.tpu_lock import UnusableLock, unusable_lock
from supervisor.engines.holders import in_the_way, lock_in_the_way
from supervisor.preflight import start_warnings
from supervisor.prepare import prepare

ANOTHER, THIRD = 54321, 54322
only_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="NOT TESTED: only root makes others' files"
)
HELD = """
import fcntl, os, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
os.write(1, b"locked\\n")
sys.stdin.read()
"""


@pytest.fixture
def lock() -> Iterator[Path]:
    """A lock file of another user, in a folder like /tmp."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        file = Path(folder) / "libtpu_lockfile"
        file.touch(mode=0o600)
        os.chown(file, ANOTHER, ANOTHER)
        yield file


def as_third(lock: Path) -> str:
    """What a user is told of it who is neither root nor its owner."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.setresuid(THIRD, THIRD, THIRD)
            os.write(write, "\n".join(lock_in_the_way(str, lock)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        text = said.read()
    os.waitpid(pid, 0)
    return text


def test_without_a_file_and_with_our_own_there_is_nothing_to_say(tmp_path: Path) -> None:
    file = tmp_path / "libtpu_lockfile"
    assert unusable_lock(file, protected=True) is None
    file.touch(mode=0o600)
    assert unusable_lock(file, protected=True) is None
    assert not list(lock_in_the_way(str, file))


def test_what_is_no_file_is_told_as_what_it_is_with_a_remedy_that_works(tmp_path: Path) -> None:
    place, target = tmp_path / "libtpu_lockfile", tmp_path / "target"
    ways: list[tuple[Callable[[], object], str]] = [
        (lambda: (place / "more").mkdir(parents=True), "directory"),
        (lambda: os.mkfifo(place), "special file"),
        (lambda: place.symlink_to(target), f"symbolic link to {str(target)!r}"),
    ]
    for make, what in ways:
        make()
        (told,) = lock_in_the_way(str, place)
        assert told.startswith(f"{place} is a {what} of uid {os.geteuid()}, where libtpu needs a")
        remedy = told.rpartition("(")[2].rstrip(")").split()
        subprocess.run(remedy, check=True)
        assert not list(lock_in_the_way(str, place))
        subprocess.run(["rm", "-rf", f"{place}.moved"], check=True)
    target.touch()
    place.symlink_to(target)
    assert not list(lock_in_the_way(str, place)), "it leads to a file of our own"


@only_root
def test_what_is_no_file_and_another_users_takes_root_to_move(lock: Path) -> None:
    lock.unlink()
    lock.mkdir()
    os.chown(lock, ANOTHER, ANOTHER)
    told = as_third(lock)
    assert f"is a directory of uid {ANOTHER}" in told
    assert told.endswith(f"move it away (sudo mv {lock} {lock}.moved)")
    lock.rmdir()
    lock.symlink_to("/nowhere")
    os.chown(lock, ANOTHER, ANOTHER, follow_symlinks=False)
    told = as_third(lock)
    assert f"is a symbolic link to '/nowhere' of uid {ANOTHER}" in told
    assert told.endswith(f"remove the link (sudo rm {lock})")


@only_root
def test_root_is_kept_out_where_the_kernel_protects_such_files(lock: Path) -> None:
    assert unusable_lock(lock, protected=False) is None
    assert unusable_lock(lock, protected=True) == UnusableLock(lock, ANOTHER, 0o600, ())
    lock.parent.chmod(0o755)
    assert unusable_lock(lock, protected=True) is None, "it is no folder of everyone's"


@only_root
def test_one_that_was_left_behind_is_told_with_its_owner_and_the_remedy(lock: Path) -> None:
    told = as_third(lock)
    assert told.startswith(f"{lock} belongs to uid {ANOTHER} (mode 600): libtpu cannot open it")
    assert "one that was killed has left it" in told
    assert told.endswith(f"remove it (sudo rm {lock})")
    lock.chmod(0o666)
    assert as_third(lock) == "" or _kernel_protects()


@only_root
def test_one_that_is_locked_is_told_with_the_process_that_has_it_locked(lock: Path) -> None:
    argv = [sys.executable, "-c", HELD, str(lock)]
    os.chown(lock, 0, 0)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        os.chown(lock, ANOTHER, ANOTHER)
        told = as_third(lock)
        assert f"pid {holder.pid} (" in told
        assert told.endswith("has it locked: wait for its end, or stop it")
        assert "remove it" not in told
        holder.kill()
    os.chown(lock, ANOTHER, ANOTHER)
    assert "remove it" in as_third(lock), "SIGKILL has ended the lock, and left the file"


@only_root
@pytest.mark.parametrize("platform", ["tpu", "cpu"])
def test_a_job_on_tpu_is_warned_before_it_starts(lock: Path, tmp_path: Path, platform: str) -> None:
    if not _kernel_protects():
        pytest.skip("NOT TESTED: root may open any file here")
    config = tmp_path / "c.yaml"
    devices = {"tpu": "{platform: tpu, type: v5e-8}", "cpu": "{platform: cpu, count: 8}"}
    config.write_text(
        f"trainer:\n  init:\n    model_dir: {tmp_path}/run\n    devices: {devices[platform]}\n"
        "    autorestart: {max_num_restarts: 1}\n  command: [python, train.py]\n"
    )
    told = [line for line in start_warnings(prepare(config, []), lock) if str(lock) in line]
    assert len(told) == (platform == "tpu")
    assert any(str(lock) in line for line in in_the_way(str, lock))


def _kernel_protects() -> bool:
    try:
        return Path("/proc/sys/fs/protected_regular").read_text().strip() != "0"
    except OSError:
        return False
