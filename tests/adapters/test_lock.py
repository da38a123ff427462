"""A model_dir is owned by one supervisor of a host, and only who may write it can hold its lock."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.stores.lock import LOCK, OWNER, DirectoryLock, LockHeldError, living_owner
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.host.identity import Identity
from supervisor.host.notice import Notice
from supervisor.model_dir_ownership import own_checkpoints

ROOT = Path(__file__).parents[2]
NOW = datetime(2025, 3, 4, tzinfo=UTC)
NOBODY = 65534
NO_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: needs root for another user")

HOLDER = """
import sys
from datetime import datetime, UTC
from pathlib import Path
from supervisor.adapters.stores.lock import DirectoryLock
from supervisor.adapters.stores.storage import LocalStorage
files = LocalStorage(Path(sys.argv[1]))
lock = DirectoryLock(Path(sys.argv[1]))
lock.claim(files, datetime(2025, 3, 4, tzinfo=UTC), "a" * 32)
print("held", flush=True)
sys.stdin.readline()
lock.release(files)
print("released", flush=True)
sys.stdin.readline()
"""
DIRECTORY_HOLDER = """
import fcntl, json, os, sys
from pathlib import Path
from supervisor.host.identity import Identity
directory, user, record, child = sys.argv[1:]
if record:
    told = {**Identity.of_this_process().to_json(), "since": "2025-03-04T00:00:00+00:00"}
    (Path(directory) / record).write_text(json.dumps(told))
os.setuid(int(user))
descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
fcntl.flock(descriptor, fcntl.LOCK_EX)
if child and os.fork():
    os._exit(0)
print("held", flush=True)
sys.stdin.readline()
"""
"""What older supervisors hold; or only a reader of the directory, as `user` and without `record`.
With `child`, who took the lock is dead, and a child of it has the descriptor."""


def python(program: str, *arguments: str, errors: int | None = None) -> subprocess.Popen[str]:
    """A child that runs `program`."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


@contextmanager
def holding(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A child that holds a lock, until the end of its input."""
    with python(program, *arguments) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        yield child
        child.kill()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another supervisor that owns the directory."""
    with holding(HOLDER, str(tmp_path)) as child:
        yield child


def taken(directory: Path, token: str | None = "b" * 32) -> DirectoryLock:
    lock = DirectoryLock(directory, patience=0.2)
    lock.claim(LocalStorage(directory), NOW, token)
    return lock


def taken_and_released(directory: Path) -> None:
    taken(directory).release(LocalStorage(directory))


def told(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / OWNER).read_text()))


# --- among supervisors of today -------------------------------------------------------------------


def test_a_second_supervisor_is_told_who_owns_it(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    for _ in range(2):  # to be refused changes nothing
        with pytest.raises(LockHeldError) as caught:
            DirectoryLock(tmp_path)
        text = str(caught.value)
        assert str(tmp_path) in text
        assert f"supervisor {holder.pid} on {os.uname().nodename}" in text
        assert "since 2025-03-04T00:00:00+00:00" in text
        assert f"kill -TERM {holder.pid}" in text
    assert str(living_owner(tmp_path)) in text


@pytest.mark.parametrize("other", ["boot", "namespace"])
def test_nobody_is_told_to_kill_a_pid_of_another_container_or_host(
    other: str, holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    (tmp_path / OWNER).write_text(json.dumps({**told(tmp_path), other: "another"}))
    with pytest.raises(
        LockHeldError, match=f"supervisor {holder.pid} on .*stop it there"
    ) as caught:
        DirectoryLock(tmp_path)
    assert "in another container or on another host" in str(caught.value)
    assert "kill -TERM" not in str(caught.value)


def test_nobody_is_told_to_kill_what_has_the_pid_of_a_dead_one(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    alive = Identity.of_this_process()
    (tmp_path / OWNER).write_text(json.dumps({**alive.to_json(), "started": alive.started - 1}))
    with pytest.raises(LockHeldError, match="owned by another supervisor; stop it first"):
        DirectoryLock(tmp_path, patience=0.0)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 3}', "\udcff", "[" * 200_000])
def test_it_is_refused_also_where_the_owner_is_not_known(
    content: str, holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    (tmp_path / OWNER).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(LockHeldError, match="is owned by another supervisor; stop it first"):
        DirectoryLock(tmp_path)


def test_it_is_free_once_its_owner_is_dead(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / OWNER).exists()  # what it left does not matter
    lock = taken(tmp_path)
    assert told(tmp_path)["pid"] == os.getpid()
    assert lock.ignored is None
    lock.release(LocalStorage(tmp_path))
    assert living_owner(tmp_path) is None


def test_it_is_free_once_released(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    assert holder.stdin is not None
    assert holder.stdout is not None
    print("go on", file=holder.stdin, flush=True)
    assert holder.stdout.readline() == "released\n"
    taken_and_released(tmp_path)


def test_a_worker_does_not_inherit_it(tmp_path: Path) -> None:
    lock = taken(tmp_path)
    with python("import sys; print('up', flush=True); sys.stdin.readline()") as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "up\n"
        lock.release(LocalStorage(tmp_path))
        taken_and_released(tmp_path)
        worker.kill()


def test_each_owner_has_a_token_and_a_higher_epoch(tmp_path: Path) -> None:
    for epoch, token in ((1, "a" * 32), (2, "b" * 32)):
        lock = taken(tmp_path, token)
        assert (told(tmp_path)["token"], told(tmp_path)["epoch"]) == (token, epoch)
        lock.release(LocalStorage(tmp_path))
        assert told(tmp_path) == {"token": None, "epoch": epoch}, "no worker is anybody's now"
    taken(tmp_path)
    assert told(tmp_path)["epoch"] == 3


def test_where_a_lease_has_the_token_the_owner_file_has_none(tmp_path: Path) -> None:
    taken(tmp_path, None)
    assert told(tmp_path)["token"] is None
    assert told(tmp_path)["pid"] == os.getpid()


@pytest.mark.parametrize("content", [None, "{}"])
def test_a_lost_owner_file_is_written_again(tmp_path: Path, content: str | None) -> None:
    lock, files = taken(tmp_path), LocalStorage(tmp_path)
    before = told(tmp_path)
    assert not lock.restore(files)
    (tmp_path / OWNER).unlink()
    if content is not None:
        (tmp_path / OWNER).write_text(content)
    assert lock.restore(files)
    assert not lock.restore(files)
    assert told(tmp_path) == before


@pytest.mark.parametrize("content", [b"{}", b"my notes", b'{"epoch": 3}', b"\xff"])
def test_somebody_elses_file_under_the_name_of_the_owners_is_kept(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / OWNER).write_bytes(content)
    lock, files = DirectoryLock(tmp_path), LocalStorage(tmp_path)
    kept = lock.claim(files, NOW, "a" * 32)
    assert kept == tmp_path / f"{OWNER}.foreign-1"
    assert kept.read_bytes() == content
    assert told(tmp_path)["token"] == "a" * 32
    lock.release(files)
    again = DirectoryLock(tmp_path)
    assert again.claim(files, NOW, "b" * 32) is None, "what is left is ours"
    assert told(tmp_path)["epoch"] == 2
    again.release(files)


class Losing(LocalStorage):
    """Files that somebody deletes as soon as they are there."""

    def replace(self, path: str, data: bytes) -> None:
        super().replace(path, data)
        self.local_path(path).unlink()


def test_an_owner_file_that_is_lost_at_once_is_written_again_too(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    lock.claim(Losing(tmp_path), NOW, "b" * 32)
    assert lock.restore(LocalStorage(tmp_path))
    assert told(tmp_path)["token"] == "b" * 32


def test_it_is_lost_with_the_directory_or_the_file(tmp_path: Path) -> None:
    directory, moved = tmp_path / "run", tmp_path / "moved"
    directory.mkdir()
    lock = taken(directory)
    assert lock.holds()
    directory.rename(moved)
    assert not lock.holds()
    directory.mkdir()
    assert not lock.holds(), "another directory"
    directory.rmdir()
    moved.rename(directory)
    assert lock.holds()
    (directory / LOCK).rename(directory / "other")
    assert not lock.holds()
    (directory / LOCK).touch()
    assert not lock.holds(), "another file"


# --- among all that may read the directory --------------------------------------------------------


def test_who_may_only_read_the_directory_cannot_open_the_lock(tmp_path: Path) -> None:
    taken_and_released(tmp_path)
    status = (tmp_path / LOCK).stat()
    assert (status.st_mode & 0o7777, status.st_uid) == (0o600, os.geteuid())


@NO_ROOT
@pytest.mark.parametrize("child", ["", "child"])
def test_a_reader_that_locks_the_directory_is_ignored_and_told(child: str, public: Path) -> None:
    with holding(DIRECTORY_HOLDER, str(public), str(NOBODY), "", child) as reader:
        if child:
            reader.wait(10)  # its child has the lock from here on
        lock = taken(public)
        assert lock.ignored is not None
        assert "is no supervisor: ignored" in lock.ignored
        if child:
            assert "by a process that cannot be seen from here" in lock.ignored
        else:
            assert f"pid {reader.pid} of uid {NOBODY}" in lock.ignored
        with pytest.raises(LockHeldError):
            DirectoryLock(public)
        lock.release(LocalStorage(public))


@NO_ROOT
def test_a_reader_is_ignored_also_beside_the_record_of_a_dead_supervisor(public: Path) -> None:
    alive = Identity.of_this_process()
    record = {**alive.to_json(), "started": alive.started - 1, "since": "2025"}
    (public / OWNER).write_text(json.dumps(record))
    with holding(DIRECTORY_HOLDER, str(public), str(NOBODY), "", ""):
        assert "is no supervisor" in str(taken(public).ignored)


def test_one_that_cannot_be_seen_only_delays_who_has_the_lock_file(public: Path) -> None:
    """A container that was killed and starts again is another pid namespace; the process that
    opened the directory has ended, and a child of it holds on."""
    elsewhere = {**Identity.of_this_process().to_json(), "namespace": "pid:[1]", "since": "2025"}
    with holding(DIRECTORY_HOLDER, str(public), str(os.geteuid()), "", "child") as opener:
        opener.wait(60)
        (public / OWNER).write_text(json.dumps(elsewhere))
        with pytest.raises(LockHeldError, match="since 2025"):
            DirectoryLock(public, 0.2)  # a supervisor of that time has no other lock
        (public / OWNER).write_text(json.dumps({"token": "a" * 32, "epoch": 3, **elsewhere}))
        lock = DirectoryLock(public, 0.2)
        assert "by a process that cannot be seen from here" in str(lock.ignored)
        lock.release(LocalStorage(public))


@pytest.mark.parametrize("user", [0, pytest.param(NOBODY, marks=NO_ROOT)])
def test_an_older_supervisor_that_holds_the_directory_is_respected(user: int, public: Path) -> None:
    user = user or os.geteuid()
    with holding(DIRECTORY_HOLDER, str(public), str(user), OWNER, "") as older:
        with pytest.raises(LockHeldError, match=f"supervisor {older.pid} on .* since 2025"):
            DirectoryLock(public)
        (public / OWNER).unlink()
        if user == os.geteuid():  # without its record it is told from readers by its user
            with pytest.raises(LockHeldError, match=rf"another supervisor \(pid {older.pid}\);"):
                DirectoryLock(public)


def test_an_older_supervisor_that_starts_later_is_kept_out(tmp_path: Path) -> None:
    taken(tmp_path)
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


def _link(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("make", "said"),
    [(os.mkfifo, "is not a regular file: remove it"), (_link, "is a link: remove it")],
)
def test_what_is_no_lock_file_is_refused_with_a_remedy(
    make: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    make(tmp_path / LOCK)
    with pytest.raises(OSError, match=said):
        DirectoryLock(tmp_path)


@NO_ROOT
def test_the_lock_file_of_another_user_is_told(public: Path) -> None:
    taken_and_released(public)
    program = HOLDER.replace("lock = ", f"import os; os.setuid({NOBODY})\nlock = ", 1)
    with python(program, str(public), errors=subprocess.PIPE) as other:
        _, errors = other.communicate()
    assert f"belongs to uid 0, and may not be opened by uid {NOBODY}" in errors


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that everybody may read."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("place", ["one/checkpoints", "shared/steps", "link/steps"])
def test_two_jobs_do_not_save_in_one_place(tmp_path: Path, place: str) -> None:
    """Not in a directory of its own, which may be reached by a link, nor in one of another job's
    model_dir."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "link").symlink_to("shared")
    clock, found = SystemClock(), [tmp_path / place]
    places, told = [*found, tmp_path / "shared" / "steps"], list[Notice]()
    with own_checkpoints(places, tmp_path / "one", clock, told.append):
        saved = f"{found[0].resolve()}, where checkpoints are saved,"
        owner = f"{saved} is owned by supervisor {os.getpid()} .* or "
        with (
            pytest.raises(LockHeldError, match=f"{owner}give another trainer.init.checkpoint.dir"),
            own_checkpoints(found, tmp_path / "other", clock, told.append),
        ):
            pytest.fail("the other job saves there")
    with own_checkpoints(found, tmp_path / "other", clock, told.append):
        pass
    assert not told


def test_a_place_of_checkpoints_behind_a_link_that_cannot_be_read_is_told(
    tmp_path: Path, unreadable_link: Path
) -> None:
    told = list[Notice]()
    with own_checkpoints([unreadable_link / "a"], tmp_path, SystemClock(), told.append):
        pass
    assert [notice.event for notice in told] == ["checkpoints-not-locked"]


def test_a_place_of_checkpoints_that_cannot_be_locked_is_told(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    told = list[Notice]()
    with own_checkpoints([tmp_path], tmp_path / "job", SystemClock(), told.append):
        pass
    (notice,) = told
    assert notice.event == "checkpoints-not-locked"
    assert str(tmp_path) in notice
