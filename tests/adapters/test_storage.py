"""Files of a model_dir: replaced whole or not at all, appended to, and owned by one supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from supervisor.adapters.lock import OWNER, DirectoryLock, LockHeldError
from supervisor.adapters.storage import LocalStorage

ROOT = Path(__file__).parents[2]
NOW = datetime(2025, 3, 4, 5, 6, 7, tzinfo=UTC)


def python(program: str, *arguments: str) -> subprocess.Popen[str]:
    """A child that runs `program`."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# --- storage --------------------------------------------------------------------------------------


def test_replaced_and_read_back(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.replace("a.json", b"one")
    storage.replace("a.json", b"two")
    assert storage.read("a.json") == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert storage.local("a.json") == tmp_path / "a.json"


def test_a_reader_never_sees_half_of_it(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    contents = {bytes([letter]) * 200_000 for letter in b"ab"}
    storage.replace("a", min(contents))
    seen: set[bytes] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(storage.read("a"))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20):
        for content in contents:
            storage.replace("a", content)
    done.set()
    reader.join()
    assert seen <= contents


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.replace("a", b"before")
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from supervisor.adapters.storage import LocalStorage\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: LocalStorage(Path(sys.argv[1])).replace('a', b'x' * 5000)\n"
        "except OSError as error: print(error.strerror)\n"
    )
    said, _ = python(program, str(tmp_path)).communicate(timeout=30)
    assert said == "File too large\n"
    assert storage.read("a") == b"before"


@pytest.mark.parametrize("durable", [True, False])
def test_appended_in_order(durable: bool, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.append("a", b"one\n", durable=durable)
    storage.append("a", b"", durable=durable)
    storage.append("a", b"two\n" * 1000, durable=durable)
    assert storage.read("a") == b"one\n" + b"two\n" * 1000


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalStorage(tmp_path).read("nothing")
    with pytest.raises(FileNotFoundError):
        LocalStorage(tmp_path).append("nowhere/a", b"x")


def test_a_directory_is_made_once(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    assert storage.make_directory("a/b/c") is True
    assert storage.make_directory("a/b/c") is False
    assert storage.make_directory("a/b") is False
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="exists"):
        storage.make_directory("file")


# --- lock -----------------------------------------------------------------------------------------

HOLDER = """
import sys
from datetime import datetime, UTC
from pathlib import Path
from supervisor.adapters.lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]), datetime(2025, 3, 4, tzinfo=UTC))
print("held", flush=True)
sys.stdin.readline()
lock.release()
print("released", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another supervisor that owns the directory."""
    child = python(HOLDER, str(tmp_path))
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    with child:
        yield child
        child.kill()


def test_a_second_supervisor_is_told_who_owns_it(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    for _ in range(2):  # to be refused changes nothing
        with pytest.raises(LockHeldError) as caught:
            DirectoryLock(tmp_path, NOW)
        told = str(caught.value)
        assert str(tmp_path) in told
        assert f"supervisor {holder.pid} on {os.uname().nodename}" in told
        assert "since 2025-03-04T00:00:00+00:00" in told
        assert f"kill -TERM {holder.pid}" in told


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 3}', "\udcff"])
def test_it_is_refused_also_where_the_owner_is_not_known(
    content: str, holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    (tmp_path / OWNER).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(LockHeldError, match="is owned by another supervisor; stop it first"):
        DirectoryLock(tmp_path, NOW)


def test_it_is_free_once_its_owner_is_dead(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / OWNER).exists()  # what it left does not matter
    lock = DirectoryLock(tmp_path, NOW)
    assert f'"pid": {os.getpid()}' in (tmp_path / OWNER).read_text()
    lock.release()
    assert not (tmp_path / OWNER).exists()


def test_it_is_free_once_released(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    assert holder.stdin is not None
    assert holder.stdout is not None
    print("go on", file=holder.stdin, flush=True)
    assert holder.stdout.readline() == "released\n"
    DirectoryLock(tmp_path, NOW).release()


def test_a_worker_does_not_inherit_it(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path, NOW)
    with python("import sys; print('up', flush=True); sys.stdin.readline()") as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "up\n"
        lock.release()
        DirectoryLock(tmp_path, NOW).release()
        worker.kill()


def test_it_holds_although_the_disk_is_full(tmp_path: Path) -> None:
    program = (
        "import resource\n"
        "from supervisor.adapters.lock import DirectoryLock\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n" + HOLDER
    )
    with python(program, str(tmp_path)) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(LockHeldError, match="owned by another supervisor"):
            DirectoryLock(tmp_path, NOW)
        child.kill()
