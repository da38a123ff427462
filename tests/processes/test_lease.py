"""One supervisor per model_dir among many hosts."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.adapters.stores.lease import (
    Lease,
    LeaseExpiredError,
    LeaseHeldError,
    LeaseTakenError,
    LeaseTimes,
    OwnersOnRecord,
    is_shared,
)
from supervisor.adapters.stores.lease_places import LEASE, LeaseFile
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.host.identity import Identity
from tests.processes.test_pid_one import CONTAINER
from tests.running import Running, Start, command_config, eventually

TIMES = LeaseTimes(duration=1.0, renew=0.2, settle=0.05)
LEASED = str(Path(__file__).with_name("leased.py"))
NO_NAMESPACES = (
    subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode != 0
)


@dataclass(frozen=True)
class OnRecord:
    """Implements `OwnersOnRecord`: a job that is not over, and the highest epoch of its owners."""

    highest: int | None = 0
    in_use: bool = True

    def highest_epoch(self) -> int | None:
        return self.highest

    def is_in_use(self) -> bool:
        return self.in_use


class Owner:
    """A lease, and what it told."""

    def __init__(
        self, folder: Path, times: LeaseTimes = TIMES, record: OwnersOnRecord | None = None
    ) -> None:
        self.said: list[str] = []
        self.renewals: list[float] = []
        self.lost = threading.Event()
        self.lease = Lease(
            LeaseFile(LocalStorage(folder, writer=f".{id(self)}"), times.settle),
            times,
            uuid.uuid4().hex,
            on_renewed=self.renewals.append,
            on_lost=lambda error: self.lost.set(),
            say=self.said.append,
            record=record,
        )


def written(folder: Path) -> dict[str, Any]:
    """What the lease file says."""
    return dict(json.loads((folder / LEASE).read_text()))


def foreign(folder: Path, token: str = "theirs", **more: object) -> None:
    """Leave the lease of an owner on another host."""
    owner = replace(Identity.of_this_process(), host="elsewhere", boot="another")
    body = {"token": token, "count": 1, "owner": owner.to_json(), **more}
    (folder / LEASE).write_text(json.dumps(body))


PATIENT = replace(TIMES, duration=60.0)
"""Nothing runs out while a test looks."""


def test_an_owner_takes_a_deleted_lease_back_before_a_newcomer_may(tmp_path: Path) -> None:
    first = Owner(tmp_path, PATIENT)
    first.lease.acquire()
    (tmp_path / LEASE).unlink()
    second = Owner(tmp_path, PATIENT, OnRecord())
    with pytest.raises(LeaseHeldError):
        second.lease.acquire()
    first.lease.check()
    assert written(tmp_path)["epoch"] == 1
    first.lease.release()


def test_a_lease_that_is_set_back_to_the_one_before_is_written_again(tmp_path: Path) -> None:
    foreign(tmp_path, epoch=4)
    before = (tmp_path / LEASE).read_bytes()
    owner = Owner(tmp_path)
    owner.lease.acquire()
    (tmp_path / LEASE).write_bytes(before)
    assert eventually(lambda: written(tmp_path)["epoch"] == 5)
    owner.lease.check()
    owner.lease.release()


def test_an_owner_gives_up_at_once_if_the_lease_was_deleted_and_taken(tmp_path: Path) -> None:
    """Another job may have begun in its place, which counts epochs anew."""
    foreign(tmp_path, epoch=4)
    owner = Owner(tmp_path)
    owner.lease.acquire()
    owner.lease.release()
    again = Owner(tmp_path, PATIENT)
    again.lease.acquire()
    foreign(tmp_path, "newcomer", epoch=1)
    assert again.lost.wait(10)
    with pytest.raises(LeaseTakenError, match="taken over by supervisor"):
        again.lease.check()


@pytest.mark.parametrize(
    ("lease", "highest"),
    [(None, 0), (None, 7), (None, None), (6, 7), (6, None)],
    ids=["none", "none, owners on record", "none, no journal", "older", "released, no journal"],
)
def test_who_finds_no_lease_of_the_last_owner_waits_for_its_time(
    tmp_path: Path, lease: int | None, highest: int | None
) -> None:
    if lease is not None:
        (tmp_path / LEASE).write_text(json.dumps({"token": None, "epoch": lease}))
    began = time.monotonic()
    owner = Owner(tmp_path, record=OnRecord(highest))
    owner.lease.acquire()
    assert time.monotonic() - began >= TIMES.duration
    why = "it has no lease" if lease is None else "its lease is an old copy"
    assert f"has a job that another supervisor may run, and {why}: waiting" in owner.said[0]
    assert owner.lease.quiet == TIMES.duration - TIMES.kill
    known = highest or lease
    if known is None:
        assert owner.lease.epoch > 1000, "above that of the owner that nobody knows"
    else:
        assert owner.lease.epoch == known + 1
    owner.lease.release()


def test_a_released_lease_from_a_backup_is_not_taken_while_its_owner_lives(tmp_path: Path) -> None:
    for _ in range(2):
        before = Owner(tmp_path, PATIENT)
        before.lease.acquire()
        before.lease.release()
    backup = (tmp_path / LEASE).read_bytes()
    owner = Owner(tmp_path, PATIENT)
    owner.lease.acquire()
    (tmp_path / LEASE).write_bytes(backup)
    newcomer = Owner(tmp_path, PATIENT, OnRecord(3))
    with pytest.raises(LeaseHeldError):
        newcomer.lease.acquire()
    owner.lease.check()
    assert written(tmp_path)["epoch"] == 3
    owner.lease.release()


def test_a_lease_of_an_owner_before_the_last_is_waited_for_although_that_owner_is_dead(
    tmp_path: Path,
) -> None:
    alive = Identity.of_this_process()
    dead = replace(alive, started=alive.started - 1)
    body = {"token": "theirs", "epoch": 4, "count": 1, "owner": dead.to_json()}
    (tmp_path / LEASE).write_text(json.dumps(body))
    owner = Owner(tmp_path, record=OnRecord(5))
    owner.lease.acquire()
    assert (len(owner.said), owner.lease.epoch) == (1, 6)
    owner.lease.release()


@pytest.mark.parametrize("content", ["", '{"token": null, "epoch": 2}', '{"token'])
def test_an_epoch_is_above_those_on_record(tmp_path: Path, content: str) -> None:
    (tmp_path / LEASE).write_text(content)
    owner = Owner(tmp_path, record=OnRecord(7, in_use=False))
    owner.lease.acquire()
    assert owner.lease.epoch == 8
    owner.lease.release()


@pytest.mark.parametrize("damaged", [-1, 10**7 + 1, 2**63])
def test_an_epoch_on_record_that_no_supervisor_can_have_written_is_not_believed(
    tmp_path: Path, damaged: int
) -> None:
    (tmp_path / LEASE).write_text(json.dumps({"token": None, "epoch": 6}))
    owner = Owner(tmp_path, record=OnRecord(damaged))
    owner.lease.acquire()
    assert f"the epoch {damaged}, which no supervisor can have written" in owner.said[0]
    assert "its lease is an old copy: waiting" in owner.said[1], "nobody knows the last owner"
    assert (len(owner.said), owner.lease.epoch) == (2, 7)
    owner.lease.release()


def test_after_the_highest_epoch_that_is_believed_there_are_others(tmp_path: Path) -> None:
    for epoch in (10**7 + 1, 10**7 + 2):
        owner = Owner(tmp_path, record=OnRecord(10**7, in_use=False))
        owner.lease.acquire()
        assert owner.lease.epoch == epoch
        owner.lease.release()


def test_a_living_owner_is_found_out_by_its_renewals(tmp_path: Path) -> None:
    first = Owner(tmp_path)
    first.lease.acquire()
    second = Owner(tmp_path)
    with pytest.raises(LeaseHeldError, match=r"owned by supervisor \d+ on .*; stop it there first"):
        second.lease.acquire()
    assert "waiting up to 1 s" in second.said[0]
    first.lease.check()
    first.lease.release()
    assert all(0 < left <= TIMES.kill for left in first.renewals)


class Unreachable(LeaseFile):
    """A place for a lease that can be away for a while."""

    away = False

    def write(self, data: bytes, expected: str) -> str:
        if self.away:
            raise OSError(errno.EIO, "it does not answer")
        return super().write(data, expected)


def test_a_place_that_is_away_is_told_of_long_before_the_lease_is_lost(tmp_path: Path) -> None:
    times = replace(TIMES, duration=600.0)
    place = Unreachable(LocalStorage(tmp_path), times.settle)
    told: list[float | None] = []
    lease = Lease(
        place,
        times,
        "a" * 32,
        on_renewed=lambda seconds: None,
        on_lost=print,
        say=print,
        on_overdue=told.append,
    )
    lease.acquire()

    def tells(*, is_overdue: bool) -> bool:
        lease.check()
        return told[-1:] != [] and (told[-1] is not None) == is_overdue

    place.away = True
    assert eventually(lambda: tells(is_overdue=True))
    assert told[-1] is not None
    assert told[-1] > times.renew
    place.away = False
    assert eventually(lambda: tells(is_overdue=False))
    lease.release()


def test_a_released_lease_is_free_at_once(tmp_path: Path) -> None:
    for epoch in (1, 2):
        owner = Owner(tmp_path)
        owner.lease.acquire()
        assert owner.lease.epoch == epoch
        owner.lease.release()
        assert owner.said == []
        assert written(tmp_path) == {"token": None, "epoch": epoch}


def test_an_owner_that_is_seen_to_be_dead_is_not_waited_for(tmp_path: Path) -> None:
    alive = Identity.of_this_process()
    dead = replace(alive, started=alive.started - 1)  # an earlier process with our pid
    assert dead.is_dead
    assert not alive.is_dead
    assert not replace(dead, boot="another").is_dead, "another host's processes are not seen"
    assert not replace(dead, namespace="another").is_dead, "nor another container's"
    body = {"token": "theirs", "count": 1, "owner": dead.to_json()}
    (tmp_path / LEASE).write_text(json.dumps(body))
    owner = Owner(tmp_path)
    owner.lease.acquire()
    assert owner.said == []
    owner.lease.release()


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"token": "x", "owner": 3}'])
def test_silence_for_the_whole_duration_is_taken_for_death(
    tmp_path: Path, content: bytes | None
) -> None:
    foreign(tmp_path)
    if content is not None:
        (tmp_path / LEASE).write_bytes(content)
    owner = Owner(tmp_path)
    began = time.monotonic()
    owner.lease.acquire()
    if content != b"":
        assert time.monotonic() - began >= TIMES.duration
    assert written(tmp_path)["owner"] == Identity.of_this_process().to_json()
    owner.lease.release()


def test_an_owner_that_finds_anothers_token_gives_up(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.lease.acquire()
    foreign(tmp_path)
    assert owner.lost.wait(10)
    with pytest.raises(LeaseTakenError, match=r"taken over by supervisor \d+ on elsewhere"):
        owner.lease.check()
    owner.lease.release()
    assert written(tmp_path)["token"] == "theirs", "it is not ours to release"


def test_of_two_at_once_one_is_the_owner(tmp_path: Path) -> None:
    owners = [Owner(tmp_path, replace(TIMES, settle=0.2)) for _ in range(4)]
    refused: list[str] = []
    winners: list[Owner] = []

    def take(owner: Owner) -> None:
        try:
            owner.lease.acquire()
        except LeaseHeldError as error:
            refused.append(str(error))
        else:
            winners.append(owner)

    threads = [threading.Thread(target=take, args=(owner,)) for owner in owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(winners), len(refused)) == (1, 3)
    winners[0].lease.release()


def test_without_storage_the_lease_expires_and_comes_not_back(tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    owner = Owner(folder)
    owner.lease.acquire()
    folder.rename(tmp_path / "gone")
    owner.lease.check()
    assert owner.lost.wait(10)
    (tmp_path / "gone").rename(folder)
    with pytest.raises(LeaseExpiredError, match="could not be renewed for"):
        owner.lease.check()
    assert written(folder)["token"], "left to run out"


def test_a_short_outage_is_survived(tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    owner = Owner(folder, replace(TIMES, duration=20.0))
    owner.lease.acquire()
    folder.rename(tmp_path / "gone")
    (tmp_path / "gone").rename(folder)
    count = len(owner.renewals)
    assert eventually(lambda: len(owner.renewals) > count + 2)
    owner.lease.check()
    owner.lease.release()


class AskedPlace(LeaseFile):
    """A lease in a file; once `hang` is set, it answers only after `answer`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalStorage(folder), TIMES.settle)
        self.hang, self.asked, self.answer = (threading.Event() for _ in range(3))

    def write(self, data: bytes, expected: str) -> str:
        if self.hang.is_set():
            self.asked.set()
            self.answer.wait()
        return super().write(data, expected)


def test_nothing_goes_on_before_the_lease_has_answered(tmp_path: Path) -> None:
    place, times = AskedPlace(tmp_path), replace(TIMES, duration=60.0, renew=30.0)
    lost: list[Exception] = []
    lease = Lease(place, times, "a" * 32, on_renewed=lambda _: None, on_lost=lost.append, say=print)
    lease.acquire()
    lease.check()
    place.hang.set()
    found: list[bool] = []
    asking = threading.Thread(target=lambda: found.append(lease.is_ours("the machine slept")))
    asking.start()
    assert place.asked.wait(10)
    checking = threading.Thread(target=lease.check)
    checking.start()
    checking.join(0.1)
    assert checking.is_alive()
    place.answer.set()
    for thread in (asking, checking):
        thread.join(10)
    assert (found, lost) == ([True], [])
    lease.release()


def test_only_what_is_known_to_be_local_is_not_shared(tmp_path: Path) -> None:
    assert not is_shared(tmp_path)
    assert not is_shared(tmp_path / "not" / "there" / "yet")
    assert is_shared(Path("/proc/self"))


# --- whole programs ----------------------------------------------------------------------------


def leased(times: LeaseTimes, host: str | None = None) -> tuple[str, ...]:
    """What to put in front of `supervise`: the lease alone, on this host or on another."""
    numbers = [str(number) for number in (times.duration, times.renew, times.settle)]
    # `python -m supervisor ...` is what follows: its arguments are taken from the third on.
    command = f'shift 3; {sys.executable} {LEASED} {" ".join(numbers)} "$@"; exit $?'
    if host is None:
        return ("sh", "-c", command, "sh")
    return (*CONTAINER, "--uts", "sh", "-c", f"hostname {host}; {command}", "sh")


def supervisor_of(running: Running) -> psutil.Process:
    below = psutil.Process(running.process.pid).children(recursive=True)
    (found,) = [p for p in below if "leased.py" in " ".join(p.cmdline()) and "sh" not in p.name()]
    return found


@pytest.mark.skipif(NO_NAMESPACES, reason="NOT TESTED: no pid namespace is allowed here")
def test_a_frozen_owner_is_taken_over_and_gives_up_when_it_wakes(
    start: Start, model_dir: Path, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    times = LeaseTimes(duration=3.0, renew=0.8, settle=0.1)
    toy = ("wait", "--once", "--steps", "20", "--seconds", "0.2", "--diary", str(diary))
    config = command_config(model_dir, *toy, success={"step": 20})
    first = start(config, prefix=leased(times, "alpha"))
    first.wait_for("waiting")
    frozen, lease_file = supervisor_of(first), model_dir / "lease.json"
    before = lease_file.stat().st_mtime_ns
    assert eventually(lambda: lease_file.stat().st_mtime_ns != before)  # so none is under way
    frozen.suspend()
    second = start(config, prefix=leased(times, "beta"))
    second.wait_for("starts after step")
    frozen.resume()
    result = first.result()
    assert result.code == 73, result.err
    assert "taken over by supervisor" in result.err
    assert "on beta" in result.err
    final = second.result()
    assert final.code == 0, final.out
    assert "waiting up to 3 s" in final.err
    assert "has a lease of supervisor" in final.err
    assert "on alpha" in final.err
    assert final.attempts == 2, "the first wrote nothing into a journal that was not its own"
    assert "OVERLAP" not in diary.read_text()
    assert diary.read_text().count("start") == 2


COMMITS = """
import sys, time
from pathlib import Path
from trainer.fence import Fence, FencedError
fence = Fence.from_environment()
print("commits", flush=True)
while True:
    try:
        fence.check("the commit")
        word = "commits"
    except FencedError:
        word = "is refused"
    with Path(sys.argv[1]).open("a") as file:
        print(fence.token, word, file=file)
    time.sleep(0.01)
"""


@pytest.mark.skipif(NO_NAMESPACES, reason="NOT TESTED: no pid namespace is allowed here")
def test_a_trainer_that_outlives_its_lease_commits_nothing(
    start: Start, model_dir: Path, tmp_path: Path
) -> None:
    """Supervisor and guard are frozen, and nobody is left to kill it."""
    book = tmp_path / "book"
    config = command_config(model_dir)
    config["trainer"]["command"]["argv"] = [sys.executable, "-c", COMMITS, str(book)]
    times = LeaseTimes(duration=2.0, renew=0.4, settle=0.1)
    first = start(config, prefix=leased(times, "alpha"))
    first.wait_for("commits\n")
    supervisor = supervisor_of(first)
    (old,) = [token(process) for process in supervisor.children(True) if token(process)]
    (guard,) = [one for one in supervisor.children() if "guard.py" in " ".join(one.cmdline())]
    for frozen in (supervisor, guard):
        frozen.suspend()
    second = start(config, prefix=leased(times, "beta"))
    second.wait_for("commits\n")
    (new,) = {token(one) for one in supervisor_of(second).children(True)} - {None}
    seen = len(book.read_text())
    assert eventually(lambda: f"{old} is refused\n" in book.read_text()[seen:]), "it lives"
    for frozen in (guard, supervisor):
        frozen.resume()
    assert first.result().code == 73
    supervisor_of(second).send_signal(signal.SIGINT)
    assert second.result().code == 79
    before, by_new, after = book.read_text().partition(f"{new} commits\n")
    assert by_new
    assert f"{old} commits\n" in before
    assert f"{old} commits\n" not in after


def token(process: psutil.Process) -> str | None:
    """The token that the worker `process` was started with."""
    return process.environ().get("SUPERVISE_OWNER")


def test_unreachable_storage_ends_the_group(start: Start, model_dir: Path, tmp_path: Path) -> None:
    config = command_config(model_dir, "wait")
    running = start(config, prefix=leased(LeaseTimes(duration=1.0, renew=0.2, settle=0.05)))
    running.wait_for("waiting")
    model_dir.rename(tmp_path / "unreachable")
    result = running.result()
    assert result.code == 74
    was_seen_by = "could not be renewed", "journal.jsonl cannot be written"
    assert any(words in result.err for words in was_seen_by), result.err
    assert "Traceback" not in result.err


def test_the_workers_are_told_the_lease_as_what_names_their_owner(
    start: Start, model_dir: Path
) -> None:
    script = "grep -c $SUPERVISE_OWNER $SUPERVISE_OWNER_FILE; echo $SUPERVISE_OWNER_FILE"
    config = command_config(model_dir)
    config["trainer"]["command"] = ["sh", "-c", script]
    result = start(config, prefix=leased(LeaseTimes(settle=0.1))).result()
    assert result.code == 0, result.err
    assert result.rank_log(1).decode().splitlines() == ["1", str(model_dir / LEASE)]


def test_a_killed_supervisor_of_this_host_is_not_waited_for(start: Start, model_dir: Path) -> None:
    config = command_config(model_dir, "wait", "--once", success={"step": 6})
    prefix = leased(LeaseTimes(settle=0.1))
    running = start(config, prefix=prefix)
    running.wait_for("waiting")
    supervisor = supervisor_of(running)
    supervisor.kill()
    assert running.result().code == 128 + signal.SIGKILL
    again = start(config, prefix=prefix).result()
    assert again.code == 0
    assert "waiting up to" not in again.err
    assert written(model_dir) == {"token": None, "epoch": 2}


def test_a_second_supervisor_is_refused_by_the_lease_alone(start: Start, model_dir: Path) -> None:
    config = command_config(model_dir, "wait")
    prefix = leased(LeaseTimes(duration=20.0, renew=0.2, settle=0.1))
    running = start(config, prefix=prefix)
    running.wait_for("waiting")
    second = start(config, prefix=prefix).result()
    assert second.code == 73
    assert "model_dir is owned by supervisor" in second.err
    supervisor_of(running).send_signal(signal.SIGINT)
    assert running.result().code == 79


BRIEF = LeaseTimes(duration=20.0, renew=0.5, settle=0.1)
"""A living owner renews soon; none is taken for dead while a test looks."""


@pytest.fixture
def owned(start: Start, model_dir: Path) -> Iterator[tuple[Running, bytes]]:
    """A job whose third supervisor runs, and the lease as the second has released it."""
    config = command_config(model_dir, "wait")
    for _ in range(2):
        running = start(config, prefix=leased(BRIEF))
        running.wait_for("waiting")
        supervisor_of(running).send_signal(signal.SIGINT)
        assert running.result().code == 79
    released = (model_dir / LEASE).read_bytes()
    running = start(config, prefix=leased(BRIEF))
    running.wait_for("waiting")
    yield running, released
    supervisor_of(running).send_signal(signal.SIGINT)
    assert running.result().code == 79
    assert written(model_dir) == {"token": None, "epoch": 3}


def tampered(model_dir: Path, lease: bytes | None) -> None:
    """Delete the lease, or put an old copy in its place."""
    (model_dir / LEASE).unlink()
    if lease is not None:
        (model_dir / LEASE).write_bytes(lease)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_job_whose_lease_was_tampered_with_is_not_taken_from_its_owner(
    start: Start, model_dir: Path, owned: tuple[Running, bytes], *, deleted: bool
) -> None:
    owner, released = owned
    tampered(model_dir, None if deleted else released)
    newcomer = start(command_config(model_dir, "wait"), prefix=leased(BRIEF)).result()
    assert newcomer.code == 73, newcomer.out
    assert not newcomer.has_event("attempt-started")
    assert "model_dir is owned by supervisor" in newcomer.err
    assert supervisor_of(owner).is_running()


def test_nothing_is_repaired_under_an_owner_whose_lease_was_deleted(
    model_dir: Path, owned: tuple[Running, bytes]
) -> None:
    owner, _ = owned
    tampered(model_dir, None)
    numbers = [str(number) for number in (BRIEF.duration, BRIEF.renew, BRIEF.settle)]
    command = [sys.executable, LEASED, *numbers, "repair", str(model_dir)]
    repair = subprocess.run(command, capture_output=True, text=True, check=False)
    assert repair.returncode == 73, repair.stdout
    assert "model_dir is owned by supervisor" in repair.stderr
    assert "Traceback" not in repair.stderr
    assert supervisor_of(owner).is_running()
