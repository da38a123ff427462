"""Nothing that the job started survives, whatever it does to its environment; nothing else dies."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.adapters.processes.leftovers import (
    UntrustedRecordError,
    kill_leftovers,
    possible_leftovers,
    processes_naming_job,
    read_record,
)
from supervisor.host import cgroups, tree
from supervisor.host.identity import Identity
from supervisor.host.process_record import NAME, Recorded, RecordOrigin, folder
from tests.running import Result, Running, Start, command_config, eventually, lives, may_mount

Supervise = Callable[..., Result]
HOSTILE = str(Path(__file__).with_name("hostile.py"))
OTHER_USER = str(Path(__file__).with_name("other_user.py"))
UMOUNT = "awk '/ - cgroup2 /{print $5}' /proc/self/mountinfo | xargs -r -n1 umount -l; exec \"$@\""
PREFIXES = {
    "cgroup": (),
    "no cgroup": ("unshare", "-m", "sh", "-c", UMOUNT, "sh"),
    "ordinary user": (
        *("setpriv", "--reuid", "65534", "--clear-groups"),
        *("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"),
    ),
}
"""Before `supervise run`. The user may read what is root's, as the interpreter may be, not more."""
WHERE = [pytest.param("same", marks=pytest.mark.slow), "new"]
"""Whether the trainer hides in the session that it was given, which dies more easily."""
ONE_WITHOUT_CGROUP = pytest.mark.parametrize(
    "prefix",
    ["cgroup", "no cgroup", pytest.param("ordinary user", marks=pytest.mark.slow)],
    indirect=True,
)
"""Where root without cgroups shows the same as an ordinary user."""
HOST_HAS_CGROUPS = any(os.access(place, os.W_OK) for place in cgroups.own())


@pytest.fixture(params=PREFIXES)
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """What stands before the command, to have what each kind of host has."""
    kind = str(request.param)
    if kind == "cgroup" and not HOST_HAS_CGROUPS:
        pytest.skip("NOT TESTED: no cgroup can be made here")
    if kind == "no cgroup" and not may_mount():
        pytest.skip("NOT TESTED: needs a mount namespace")
    if kind == "ordinary user":
        tried = subprocess.run([*PREFIXES[kind], "true"], capture_output=True, check=False)
        if tried.returncode != 0:
            pytest.skip("NOT TESTED: needs root, to become somebody else")
        tmp_path.chmod(0o777)
    return PREFIXES[kind]


def hostile(model_dir: Path, how: str, where: str) -> dict[str, Any]:
    """A job whose trainer hides."""
    config = command_config(model_dir)
    argv = [sys.executable, "-S", HOSTILE, str(model_dir), how, where]
    config["trainer"]["command"]["argv"] = argv
    return config


def hidden(running: Running) -> int:
    """The pid of the process that hides."""
    found = re.findall(r"^(\d+) hides$", running.wait_for(" hides\n"), re.MULTILINE)
    return int(found[-1])


def guard_of(running: Running) -> psutil.Process:
    children = psutil.Process(running.process.pid).children()
    (guard,) = [child for child in children if child.cmdline()[-1:] == [GUARD]]
    return guard


def kill_unseen(running: Running, *helpers: int) -> None:
    """Kill a supervisor after its helpers, so that neither sees the other's end.

    It is the supervisor that has to stand still: a guard that does is continued by the kernel when
    the supervisor ends, because its process group is orphaned then, and kills all.
    """
    running.signal(signal.SIGSTOP)
    supervisor = psutil.Process(running.process.pid)
    assert eventually(lambda: supervisor.status() == psutil.STATUS_STOPPED)
    for pid in helpers:
        os.kill(pid, signal.SIGKILL)
    running.signal(signal.SIGKILL)


GUARD = str(Path(cgroups.__file__).with_name("guard.py"))


def dead_within(seconds: float, *pids: int) -> bool:
    return eventually(lambda: not any(map(lives, pids)), seconds)


@pytest.mark.parametrize(("how", "where"), [("overwrite", "same"), ("clear", "new")])
def test_kill_9_of_the_supervisor_leaves_nothing(
    start: Start, model_dir: Path, prefix: tuple[str, ...], how: str, where: str
) -> None:
    running = start(hostile(model_dir, how, where), prefix=prefix)
    pid = hidden(running)
    guard = guard_of(running)
    helpers = [guard.pid, *(child.pid for child in guard.children())]
    running.signal(signal.SIGKILL)
    assert dead_within(1.0, pid, *helpers)


@ONE_WITHOUT_CGROUP
@pytest.mark.parametrize("where", WHERE)
def test_kill_9_of_the_guard_leaves_nothing(
    start: Start, model_dir: Path, prefix: tuple[str, ...], where: str
) -> None:
    running = start(hostile(model_dir, "clear", where), prefix=prefix)
    pid = hidden(running)
    guard_of(running).kill()
    assert dead_within(1.0, pid)
    running.wait_for_event("attempt-started", attempt=2)
    running.signal(signal.SIGINT)
    assert running.result().code == 79


@pytest.mark.skipif(not HOST_HAS_CGROUPS, reason="NOT TESTED: no cgroup can be made here")
@pytest.mark.parametrize("where", WHERE)
def test_kill_9_of_both_leaves_nothing_where_there_is_a_cgroup(
    start: Start, model_dir: Path, where: str
) -> None:
    running = start(hostile(model_dir, "overwrite", where))
    pid = hidden(running)
    guard = guard_of(running)
    (watcher,) = [child for child in guard.children() if child.cmdline()[-1:] == [GUARD]]
    kill_unseen(running, guard.pid)
    assert dead_within(1.0, pid, watcher.pid)


@pytest.fixture
def with_another_users(start: Start, model_dir: Path, tmp_path: Path) -> Running:
    """A job that is not root's, below which a process of another user's lives."""
    capabilities = "+dac_read_search,+setuid"
    prefix = [*PREFIXES["ordinary user"][:4], "--inh-caps", capabilities]
    prefix += ["--ambient-caps", capabilities]
    tried = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip("NOT TESTED: needs root, to become somebody else")
    tmp_path.chmod(0o777)
    config = command_config(model_dir, restart={"max_num_restarts": 0})
    config["trainer"]["command"]["argv"] = [sys.executable, "-S", OTHER_USER, "65533"]
    return start(config, prefix=prefix)


def changed(running: Running) -> int:
    """The pid of the process that is another user's."""
    (found, *_) = re.findall(r"^(\d+) changed$", running.wait_for(" changed\n"), re.MULTILINE)
    return int(found)


def test_what_cannot_be_killed_keeps_nothing_else_alive(with_another_users: Running) -> None:
    """The guard ended by an error of its own at the first process that it may not kill."""
    running = with_another_users
    other, hider = changed(running), hidden(running)
    guard = guard_of(running)
    try:
        assert dead_within(1.0, hider)
        assert lives(other)
        assert lives(guard.pid)
    finally:
        os.kill(other, signal.SIGKILL)
    assert running.result().code == 76


@pytest.mark.slow
def test_what_cannot_be_killed_is_named(with_another_users: Running) -> None:
    running = with_another_users
    other = changed(running)
    try:
        told = running.wait_for_event("process-unkillable", pids=[other])["text"]
        assert f"pid {other} (python" in told
        assert "of user 65533) does not end although it is killed" in told
    finally:
        os.kill(other, signal.SIGKILL)
    assert running.result().code == 76


@ONE_WITHOUT_CGROUP
@pytest.mark.parametrize("where", WHERE)
def test_the_next_start_kills_what_is_on_record(
    start: Start, model_dir: Path, prefix: tuple[str, ...], where: str
) -> None:
    """Supervisor, guard and watcher are killed, and two trainers never live at once."""
    running = start(hostile(model_dir, "clear", where), prefix=prefix)
    pid = hidden(running)
    if where == "new" and not recorded_session(model_dir, pid, prefix):
        pytest.fail("it is not on record")
    guard = guard_of(running)
    watchers = [one for one in tree.children(guard.pid) if in_session_of(guard, one)]
    assert len(watchers) == (not prefix), "one where there is a cgroup"
    kill_unseen(running, guard.pid, *watchers)
    running.process.wait()  # model_dir is locked until then
    assert where == "same" or lives(pid)
    again = start(hostile(model_dir, "clear", where), prefix=prefix)
    second = hidden(again)
    assert not lives(pid)
    assert lives(second)
    assert "OVERLAP" not in (model_dir.parent / "diary").read_text()
    if where == "new":  # the worker may be there yet, too
        assert pid in again.wait_for_event("leftovers-killed")["pids"]


def test_only_who_may_be_of_this_model_dir_is_named(tmp_path: Path) -> None:
    """The trainers of the original live on, and this is a copy of its model_dir."""
    original, copy, moved = tmp_path / "original", tmp_path / "copy", tmp_path / "moved"
    original.mkdir()
    copy.mkdir()
    job = os.urandom(6).hex()
    owners = {
        "original": f"{original}/.supervisor.json",
        "copy": f"{tmp_path}/../{tmp_path.name}/copy/.supervisor.json",
        "moved": f"{moved}/.supervisor.json",
        "bucket": "gs://bucket/job/lease.json",
        "older": None,
    }
    with ExitStack() as stack:
        pids = {}
        for name, owner in owners.items():
            environ = {"SUPERVISE_LINEAGE": f"{job}@{'0' * 32}"}
            if owner is not None:
                environ["SUPERVISE_OWNER_FILE"] = owner
            process = stack.enter_context(subprocess.Popen(["sleep", "600"], env=environ))
            stack.callback(process.kill)
            pids[name] = process.pid
        assert eventually(lambda: len(processes_naming_job(job, copy)) == 4)
        assert set(pids.values()) - set(processes_naming_job(job, copy)) == {pids["original"]}
        assert set(pids.values()) - set(processes_naming_job(job, original)) == {pids["copy"]}


def recorded_session(model_dir: Path, pid: int, prefix: tuple[str, ...]) -> bool:
    """Whether it becomes known that a process is the job's."""
    if not prefix:
        return True

    def known() -> bool:
        return pid in Recorded.from_bytes((model_dir / NAME).read_bytes()).processes

    return eventually(known, 20.0)


def test_somebody_elses_files_under_our_names_are_kept(
    supervise: Supervise, model_dir: Path
) -> None:
    assert supervise(command_config(model_dir)).code == 0
    for name in (NAME, ".supervisor.json"):
        (model_dir / name).write_text("mine\n")
    for _ in range(2):
        result = supervise(command_config(model_dir, success={"step": 6}))
        assert result.code == 0
    for name in (NAME, ".supervisor.json"):
        assert (model_dir / f"{name}.foreign-1").read_text() == "mine\n"
        assert not (model_dir / f"{name}.foreign-2").exists()
        assert (model_dir / f"{name}.foreign-1").exists()


@pytest.mark.parametrize("name", [NAME, ".supervisor.json"])
@pytest.mark.parametrize("text", ["mine\n", '{"epoch": 3, "loss": 1.5}\n'])
def test_a_folder_with_somebody_elses_files_is_no_new_model_dir(
    supervise: Supervise, model_dir: Path, name: str, text: str
) -> None:
    model_dir.mkdir()
    (model_dir / name).write_text(text)
    result = supervise(command_config(model_dir))
    assert result.code == 78
    assert f"holds {name}, which is not of supervise" in result.err
    assert "move the file away, or choose another model_dir" in result.err
    assert {each.name: each.read_text() for each in model_dir.iterdir()} == {name: text}
    (model_dir / name).unlink()
    assert supervise(command_config(model_dir)).code == 0


@pytest.mark.parametrize("mode", [None, 0o644])
def test_an_interpreter_that_cannot_be_started_is_told(model_dir: Path, mode: int | None) -> None:
    python = model_dir.with_name("python")
    if mode is not None:
        python.touch(mode)
    config = model_dir.with_name("config.yaml")
    config.write_text(json.dumps(command_config(model_dir)))
    program = "import sys; from supervisor.cli.main import main; sys.executable = sys.argv[1]; "
    program += "sys.exit(main(['run', sys.argv[2]]))"
    arguments = [sys.executable, "-c", program, str(python), str(config)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert done.returncode == 78, done.stderr
    assert f"{python} cannot be started: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_id_that_is_none_kills_nobody(
    start: Start, supervise: Supervise, model_dir: Path
) -> None:
    """A journal that was edited named the job `PROBE_VICTIM=`, and whatever had such a variable was
    killed."""
    assert supervise(command_config(model_dir, success={"step": 6})).code == 0
    journal = model_dir / "journal.jsonl"
    job = json.loads(journal.read_text().splitlines()[1])["event"]["job"]
    journal.write_text(journal.read_text().replace(job, "PROBE_VICTIM="))
    with subprocess.Popen(["sleep", "60"], env={"PROBE_VICTIM": "1"}) as victim:
        result = supervise(command_config(model_dir, success={"step": 6}))
        assert result.code == 78, result.err
        assert "journal.jsonl names the job 'PROBE_VICTIM='" in result.err
        assert "Traceback" not in result.err
        assert victim.poll() is None
        victim.kill()


def test_a_journal_that_names_a_folder_elsewhere_is_refused(
    supervise: Supervise, model_dir: Path
) -> None:
    """The folders of attempts were made there, and what they hold was written."""
    assert supervise(command_config(model_dir, success={"step": 6})).code == 0
    journal = model_dir / "journal.jsonl"
    phase = json.loads(journal.read_text().splitlines()[2])["event"]["directory"]
    journal.write_text(journal.read_text().replace(phase, "../victim"))
    result = supervise(command_config(model_dir, success={"step": 12}))
    assert result.code == 78, result.err
    assert f"{model_dir}: journal.jsonl line 3 names the folder ../victim" in result.err
    assert "Traceback" not in result.err
    assert not (model_dir.parent / "victim").exists()


def test_what_only_its_environment_speaks_for_is_left_alone_and_told(
    start: Start, supervise: Supervise, model_dir: Path
) -> None:
    config = command_config(model_dir, success={"step": 6})
    assert supervise(config).code == 0
    job = (model_dir / "journal.jsonl").read_text().partition('"job":"')[2].partition('"')[0]
    environ = {"SUPERVISE_JOB": job, "SUPERVISE_LINEAGE": f"{job}@{'0' * 32}"}
    with subprocess.Popen(["sleep", "60"], env=environ) as other:
        result = supervise(config)
        assert result.code == 0
        told = result.event("leftovers-left", reason="environment")
        assert told["pids"] == [other.pid]
        assert other.poll() is None
        other.kill()


@contextmanager
def session(**options: Any) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process with a session of its own, and its start time."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True, **options) as process:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        yield process, int(fields[19])
        process.kill()


def record(model_dir: Path, sessions: dict[int, int], **changes: Any) -> None:
    """A record as an earlier supervisor of this model_dir may have left it."""
    told = {
        "job": "0123456789ab",
        "instance": "0" * 32,
        "supervisor": Identity.of_this_process(),
        "folder": folder(model_dir),
        **changes,
    }
    lines = [json.dumps({"session": one, "started": other}) for one, other in sessions.items()]
    text = RecordOrigin(**told).to_bytes().decode() + "\n".join(lines)
    (model_dir / NAME).write_text(text + "\n")
    (model_dir / NAME).chmod(0o600)


def swept(model_dir: Path) -> list[int]:
    found = read_record(model_dir)
    return kill_leftovers(found) if found is not None else []


def test_a_session_is_swept_only_if_the_start_times_agree(tmp_path: Path) -> None:
    with session() as (left, began), session() as (other, later):
        record(tmp_path, {left.pid: began, other.pid: later - 1})
        assert swept(tmp_path) == [left.pid]
        assert left.wait(10) == -signal.SIGKILL
        assert other.poll() is None
        assert swept(tmp_path) == []


def test_the_number_of_a_session_alone_kills_nobody(tmp_path: Path) -> None:
    """Its leader is gone, and so may be the session: the number may be another's by now."""
    left, number, began = without_leader({})
    record(tmp_path, {number: began})
    assert swept(tmp_path) == []
    found = read_record(tmp_path)
    assert found is not None
    assert possible_leftovers(found) == [left]
    line = {"session": number, "started": began, "pid": left}
    with (tmp_path / NAME).open("a") as file:
        file.write(json.dumps({**line, "started": began - 1}) + "\n")
    assert swept(tmp_path) == []
    with (tmp_path / NAME).open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert swept(tmp_path) == [left]


def test_a_session_without_a_leader_is_known_by_the_run_that_it_names(tmp_path: Path) -> None:
    left, number, began = without_leader({"SUPERVISE_LINEAGE": f"0123456789ab@{'0' * 32}"})
    other, its_number, its_start = without_leader({"SUPERVISE_LINEAGE": f"0123456789ab@{'1' * 32}"})
    try:
        record(tmp_path, {number: began + 1, its_number: its_start})
        assert swept(tmp_path) == []
        record(tmp_path, {number: began, its_number: its_start})
        assert swept(tmp_path) == [left]
    finally:
        os.kill(other, signal.SIGKILL)


def without_leader(env: dict[str, str]) -> tuple[int, int, int]:
    """A process in a session whose leader is gone: its pid, its session and its start."""
    shell = subprocess.run(
        ["setsid", "sh", "-c", "sleep 60 >/dev/null & echo $!"],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env={"PATH": os.environ["PATH"], **env},
    )
    pid = int(shell.stdout)
    seen = tree.stat(pid)
    assert seen is not None
    return pid, seen.session, seen.started


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"job": "PROBE_VICTIM="}, "names no job and run of ours"),
        ({"instance": "../../.."}, "names no job and run of ours"),
        ({"folder": "1:2"}, "of which this is a copy"),
    ],
)
def test_a_record_that_is_not_to_be_believed_kills_nobody(
    tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    with session() as (other, began):
        record(tmp_path, {other.pid: began}, **changes)
        with pytest.raises(UntrustedRecordError, match=text):
            read_record(tmp_path)
        assert other.poll() is None


def test_a_record_that_others_may_write_kills_nobody(tmp_path: Path) -> None:
    with session() as (other, began):
        record(tmp_path, {other.pid: began})
        (tmp_path / NAME).chmod(0o666)
        with pytest.raises(UntrustedRecordError, match="may be written by others"):
            read_record(tmp_path)
        assert other.poll() is None


@pytest.mark.skipif(not HOST_HAS_CGROUPS, reason="NOT TESTED: no cgroup can be made here")
def test_only_the_cgroup_of_the_recorded_run_is_swept(tmp_path: Path) -> None:
    name = f"supervise-0123456789ab-{'0' * 32}"
    foreign = cgroups.made("foreign")
    ours = cgroups.made(name)
    assert foreign is not None
    assert ours is not None
    try:
        with session() as (left, _), session() as (other, _):
            (Path(ours) / "cgroup.procs").write_text(str(left.pid))
            (Path(foreign) / "cgroup.procs").write_text(str(other.pid))
            parent = str(Path(ours).parent)
            for path in (foreign, parent, f"{foreign}/../{name}", "/", str(tmp_path / name)):
                record(tmp_path, {}, cgroup=path)
                assert swept(tmp_path) == []
            record(tmp_path, {}, cgroup=ours)
            assert swept(tmp_path) == [left.pid]
            assert other.poll() is None
        assert not Path(ours).exists()
    finally:
        cgroups.remove(foreign)
        cgroups.remove(ours)


@ONE_WITHOUT_CGROUP
def test_a_daemon_that_was_there_before_us_is_never_touched(
    start: Start, model_dir: Path, prefix: tuple[str, ...]
) -> None:
    """Also not when the guard is killed, or what it orphans to us."""
    orphan = "sleep 3601 >/dev/null & echo orphan $!"
    daemon = f"setsid sh -c '{orphan}'; exec sleep 3600 >/dev/null"
    daemon = shlex.quote(daemon)
    script = f'setsid sh -c {daemon} </dev/null 2>/dev/null & echo daemon $!; exec "$@"'
    config = command_config(model_dir, "wait", "--once", success={"step": 6})
    running = start(config, prefix=(*prefix, "sh", "-c", script, "sh"))
    said = running.wait_for("waiting")
    running.wait_for("orphan ")
    said = running.wait_for("waiting")
    pids = [int(pid) for pid in re.findall(r"(?:daemon|orphan) (\d+)", said)]
    assert len(pids) == 2
    try:
        guard_of(running).kill()
        result = running.result()
        assert result.code == 0, result.log
        assert result.attempts == 2
        assert all(map(lives, pids))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


BOMB = """
import os, signal, sys, time
os.write(1, b"%d hides\\n" % os.getpid())
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        while True:  # it is never the same process for long
            if os.fork():
                os._exit(0)
signal.pause()
"""


def test_what_forks_all_the_time_is_killed(
    start: Start, model_dir: Path, prefix: tuple[str, ...], tmp_path: Path
) -> None:
    program = tmp_path / "bomb.py"
    program.write_text(BOMB)
    config = command_config(model_dir)
    config["trainer"]["command"]["argv"] = [sys.executable, "-S", str(program)]
    running = start(config, prefix=prefix)
    hidden(running)
    running.signal(signal.SIGKILL)
    mark = str(program).encode()

    def left() -> list[int]:
        found = []
        for pid in psutil.pids():
            try:
                if mark in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
            except OSError:
                continue
        return found

    assert eventually(lambda: not left(), 5.0)


def in_session_of(guard: psutil.Process, pid: int) -> bool:
    """Whether a process lives, in the guard's session."""
    try:
        return lives(pid) and os.getsid(pid) == os.getsid(guard.pid)
    except ProcessLookupError:
        return False


@pytest.mark.skipif(not HOST_HAS_CGROUPS, reason="NOT TESTED: no cgroup can be made here")
def test_a_killed_watcher_is_replaced(start: Start, model_dir: Path) -> None:
    running = start(hostile(model_dir, "overwrite", "new"))
    pid = hidden(running)
    guard = guard_of(running)

    def watchers() -> list[psutil.Process]:
        """By their sessions: theirs is the guard's, a worker has one of its own."""
        return [one for one in guard.children() if in_session_of(guard, one.pid)]

    (first,) = watchers()
    first.kill()
    assert eventually(lambda: [one for one in watchers() if one.pid != first.pid])
    kill_unseen(running, guard.pid)
    assert dead_within(1.0, pid)


def test_cgroups_are_removed(supervise: Supervise, model_dir: Path) -> None:
    if not HOST_HAS_CGROUPS:
        pytest.skip("NOT TESTED: no cgroup can be made here")
    result = supervise(command_config(model_dir, "exit9", "--once", success={"step": 6}))
    assert result.code == 0
    cgroup = json.loads((model_dir / NAME).read_text().splitlines()[0])["cgroup"]
    assert not Path(cgroup).exists()
