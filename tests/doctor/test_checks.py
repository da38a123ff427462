"""Each check of `supervise doctor` sees what is broken, and says what to do."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.core.clock_jump import ClockReading
from supervisor.doctor import disk_check, limit_checks, machine_checks
from supervisor.doctor.bucket_check import place_in_bucket
from supervisor.doctor.examination import Check, Finding, Level, NoAnswer, findings_of, ok
from supervisor.doctor.job_check import standby
from supervisor.host.identity import Identity
from supervisor.protocol.environment import STANDBY
from supervisor.protocol.location import Uri
from tests.emulators import Emulator
from tests.foreign import fingerprint

ROOT = Path(__file__).resolve().parents[2]
HERE = Identity.of_this_process()


def wrongs(found: Iterator[Finding]) -> list[str]:
    """The texts of what is wrong; each must be followed by what to do, or say it."""
    bad = [each for each in found if each.level is Level.WRONG]
    assert all(each.remedy for each in bad)
    return [each.text for each in bad]


def plain(text: str) -> str:
    """No secrets."""
    return text


# --- time limits --------------------------------------------------------------------------------


def test_a_check_that_hangs_is_told_and_the_next_one_is_made() -> None:
    end = threading.Event()

    def hangs() -> Iterator[Finding]:
        end.wait()
        yield ok("a", "never told")

    def sound() -> Iterator[Finding]:
        yield ok("b", "told")

    try:
        first, second = findings_of([Check("a", hangs, 0.05), Check("b", sound)])
    finally:
        end.set()
    assert isinstance(first, NoAnswer)
    assert (first.check, first.level) == ("a", Level.WRONG)
    assert "no answer within 0.05 s" in first.text
    assert second == ok("b", "told")


def test_an_error_of_one_check_is_what_it_finds() -> None:
    def fails() -> Iterator[Finding]:
        yield ok("a", "not told: what is known is not known for sure")
        raise OSError(errno.EIO, "Input/output error")

    (only,) = findings_of([Check("a", fails)])
    assert only.level is Level.WRONG
    assert "Input/output error" in only.text


# --- limits and signals -------------------------------------------------------------------------


@contextmanager
def limit(which: int, soft: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


@pytest.mark.parametrize(
    ("which", "soft", "told", "level"),
    [
        (resource.RLIMIT_NOFILE, 200, "open files: 200", Level.WRONG),
        (resource.RLIMIT_NOFILE, 512, "open files: 512", Level.NOTE),
        (resource.RLIMIT_FSIZE, 10 << 20, "size of a file: 10 MiB", Level.WRONG),
        (resource.RLIMIT_FSIZE, 10 << 30, "size of a file: 10 GiB", Level.NOTE),
    ],
)
def test_a_low_limit_is_told(which: int, soft: int, told: str, level: Level) -> None:
    with limit(which, soft):
        found = list(limit_checks.limits())
    (one,) = (each for each in found if each.text.startswith(told))
    assert one.level is level
    assert "ulimit -" in one.remedy


def test_a_signal_that_is_blocked_or_ignored_is_told() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        found = list(limit_checks.signals())
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        signal.signal(signal.SIGHUP, before)
    assert [each.level for each in found] == [Level.WRONG, Level.OK]
    assert "SIGTERM is blocked" in found[0].text
    assert "nohup" in found[1].text


# --- clock and permissions ----------------------------------------------------------------------


def test_a_clock_before_the_installation_is_wrong() -> None:
    assert "before supervise was installed" in wrongs(machine_checks.clock(wall=lambda: 1e9))[0]


def test_a_machine_that_slept_is_told() -> None:
    found = list(machine_checks.clock(clocks=lambda: ClockReading(100.0, 400.0, 0.0)))
    assert [each.level for each in found] == [Level.OK, Level.NOTE]
    assert "slept for 300 s" in found[1].text


def test_a_file_in_the_place_of_dev_null_is_told(tmp_path: Path) -> None:
    null = tmp_path / "null"
    assert "No such file" in wrongs(machine_checks.permissions(plain, null))[0]
    null.write_text("what was thrown away")
    assert (
        "a regular file, not the null device" in wrongs(machine_checks.permissions(plain, null))[0]
    )


def test_a_tmpdir_that_is_not_used_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (found,) = (one for one in machine_checks.permissions(plain) if "TMPDIR" in one.text)
    assert found.level is Level.NOTE


# --- model_dir on a disk ------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model_dir with something in it."""
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    return tmp_path / "run"


def test_a_sound_disk_stays_as_it_was(folder: Path) -> None:
    before = fingerprint(folder.parent)
    found = [*disk_check.disk(folder), *disk_check.disk(folder / "to" / "come")]
    assert wrongs(iter(found)) == []
    assert sum("written, synced and renamed" in each.text for each in found) == 2
    assert fingerprint(folder.parent) == before


@pytest.mark.parametrize(
    ("free", "inodes", "told"),
    [(0, 10**6, "0 B free"), (10 << 30, 3, "3 inodes free"), (10 << 30, 10**6, None)],
)
def test_a_disk_without_room_is_told(
    free: int, inodes: int, told: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(folder)
    fields = [*real]
    fields[1], fields[4], fields[5], fields[7] = 1, free, 10**6, inodes
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))
    found = wrongs(disk_check.disk(folder))
    assert [each.startswith(told or "") for each in found] == [True] * (told is not None)


@pytest.mark.parametrize(
    ("number", "told"),
    [(errno.EROFS, "Read-only file system"), (errno.EIO, "Input/output error")],
)
def test_a_disk_that_refuses_to_write_is_told(
    number: int, told: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "touch", refuse)
    assert [told in each for each in wrongs(disk_check.disk(folder))] == [True]


def test_a_disk_without_fsync_is_told_and_the_probe_is_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    before = fingerprint(folder)
    monkeypatch.setattr(os, "fsync", refuse)
    assert "cannot be written, synced and renamed" in wrongs(disk_check.disk(folder))[0]
    assert fingerprint(folder) == before


def test_the_time_of_a_file_server_that_differs_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: folder.stat().st_mtime - 3600.0)
    assert "clock is 3600 s ahead" in wrongs(disk_check.disk(folder))[0]


# --- model_dir in a bucket ----------------------------------------------------------------------


@pytest.fixture(params=["gcs", "s3"])
def emulator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    found: Emulator = request.getfixturevalue(request.param)
    for name, text in found.env.items():
        monkeypatch.setenv(name, text)
    return found


def test_a_bucket_that_works_stays_as_it_was(emulator: Emulator) -> None:
    from supervisor.adapters.stores.bucket import bucket

    place = emulator.root / "doctor"
    found = list(place_in_bucket(place))
    assert [each.level for each in found] == [Level.OK, Level.OK]
    assert bucket(place).list("").objects == {}


def test_a_bucket_that_is_not_there_is_told(emulator: Emulator) -> None:
    (text,) = (each.text for each in place_in_bucket(Uri(emulator.scheme, "no-such-bucket", "x")))
    assert "cannot be used" in text


def test_a_store_that_does_not_answer_is_told_with_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setattr("supervisor.doctor.bucket_check.PATIENCE", 0.5)
    (found,) = place_in_bucket(Uri("gs", "b", "run"))
    assert (found.level, "cannot be reached" in found.text) == (Level.WRONG, True)
    assert "STORAGE_EMULATOR_HOST (now http://127.0.0.1:9)" in found.remedy


# --- the standby --------------------------------------------------------------------------------


def test_a_standby_is_told_but_not_one_that_is_a_worker_by_now() -> None:
    env = {**os.environ, STANDBY: "9:imports"}
    with subprocess.Popen(["sleep", "600"], env=env) as process:
        try:
            (found,) = standby(HERE, (), plain)
            (none,) = standby(HERE, (process.pid,), plain)
        finally:
            process.kill()
    assert found.level is Level.OK
    assert f"pid {process.pid} (sleep 600) is a standby of kind 'imports'" in found.text
    assert (none.level, "no standby is seen" in none.text) == (Level.NOTE, True)
