"""A disk that is full, read-only or gone: said in words, the right exit code, nothing orphaned.

The disks are real: small file systems of their own, mounted where nobody else sees them.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.running import Result, Start, command_config, may_mount

Supervise = Callable[..., Result]

_MOUNT = """
mount -t tmpfs -o size=6m none "$1" || exit 99
eval "$2"
shift 2
"$@"
code=$?
cp -a "$(dirname "$MODEL_DIR")/run" "$MODEL_DIR.after"
exit $code
"""


SETTLED = (
    "until grep -qs pids {model_dir}/*/summary.json"
    " && grep -qs RUNNING {model_dir}/status.json; do :; done"
)
"""Waits until the supervisor has written all that it writes while nothing happens."""


needs_mount = pytest.mark.skipif(not may_mount(), reason="only root can mount a file system")


def small_disk(model_dir: Path, before: str = ":") -> Sequence[str]:
    """Runs a command with 6 MB at model_dir, after `before`; leaves a copy in run.after."""
    model_dir.mkdir()
    script = f"MODEL_DIR={model_dir}\n{_MOUNT}"
    return ("unshare", "-m", "sh", "-c", script, "sh", str(model_dir), before)


def after(result: Result) -> Result:
    """The same result, read from the copy of its disk."""
    assert "Traceback" not in result.err + result.out
    result.model_dir = result.model_dir.with_name("run.after")
    return result


def test_checkpoints_that_cannot_be_read_end_the_run_in_words(
    supervise: Supervise, model_dir: Path
) -> None:
    model_dir.mkdir()
    (model_dir / "checkpoints").symlink_to("checkpoints")
    result = supervise(command_config(model_dir))
    assert result.code == 74
    assert "checkpoints cannot be read: Too many levels of symbolic links" in result.err
    assert "Traceback" not in result.err
    assert result.attempts == 0


def shell(model_dir: Path, script: str, restarts: int = 3) -> dict[str, Any]:
    """A config whose trainer is a shell script, which may fail in the same words each time."""
    restart = {"max_num_restarts": restarts, "repeated_failure_limit": 0}
    config = command_config(model_dir, restart=restart)
    config["trainer"]["command"] = ["sh", "-c", script]
    return config


def journal(model_dir: Path) -> list[dict[str, Any]]:
    data = (model_dir / "journal.jsonl").read_bytes()
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


@needs_mount
def test_outputs_of_earlier_attempts_make_room(supervise: Supervise, model_dir: Path) -> None:
    script = """
    case {attempt} in
    1|2) head -c 1500000 /dev/zero; exit 9 ;;
    3) head -c 90000000 /dev/zero > {model_dir}/filler; exit 9 ;;
    esac
    """
    result = after(supervise(shell(model_dir, script), prefix=small_disk(model_dir)))
    assert result.code == 0, result.out
    (phase,) = (path.name for path in result.model_dir.glob("*_restartable"))
    told = {"attempt": 1, "directory": phase, "bytes": 1500000}
    assert result.event("outputs-deleted", attempt=1).items() >= told.items()
    assert result.attempts == 4
    assert result.summary["attempts"][2]["failure"]["rule"] == "disk-full"
    assert list(result.model_dir.glob("*_restartable/attempts/0001/*")) == []
    assert result.summary["status"] == "SUCCEEDED"


def test_another_disk_that_is_full_takes_no_output_of_ours(
    supervise: Supervise, model_dir: Path
) -> None:
    if shutil.disk_usage(model_dir.parent).free < 2 << 30:
        pytest.skip("the disk of model_dir is short itself")
    script = "echo step {attempt}; head -c 100000 /dev/zero > /dev/full"
    result = supervise(shell(model_dir, script, restarts=2))
    assert result.code == 76, result.out
    assert result.summary["attempts"][-1]["failure"]["rule"] == "disk-full"
    assert not result.has_event("outputs-deleted")
    assert len(list(result.model_dir.glob("*_restartable/attempts/*/rank0.log"))) == 3


@needs_mount
def test_a_disk_that_stays_full_ends_the_run_and_the_next_goes_on(
    supervise: Supervise, model_dir: Path
) -> None:
    config = command_config(model_dir, "fill-disk", "--once", success={"step": 6})
    config["trainer"]["command"]["argv"][2] = "{model_dir}"
    result = after(supervise(config, prefix=small_disk(model_dir)))
    assert result.code == 74, result.out
    assert "journal.jsonl cannot be written: No space left on device" in result.err
    assert "run the same command again" in result.err
    assert journal(result.model_dir)[-1]["event"]["kind"] in ("WorkersStarted", "WorkersObserved")
    (result.model_dir / "filler").unlink()
    config["trainer"]["init"]["model_dir"] = str(result.model_dir)
    again = supervise(config)
    again.model_dir = result.model_dir
    assert again.code == 0, again.out
    assert again.attempts == 2
    assert again.has_event("attempt-started", attempt=2, step=2)


@needs_mount
@pytest.mark.parametrize(
    ("before", "said"),
    [
        ('head -c 9000000 /dev/zero > "$MODEL_DIR/filler" 2>/dev/null', "No space left on device"),
        ('mount -o remount,ro "$MODEL_DIR"', "Read-only file system"),
    ],
)
def test_a_disk_that_is_unusable_from_the_start(
    supervise: Supervise, model_dir: Path, before: str, said: str
) -> None:
    result = after(supervise(shell(model_dir, "exit 9"), prefix=small_disk(model_dir, before)))
    assert result.code == 74
    assert f"cannot be written: {said}" in result.err
    assert not result.has_event("attempt-started")


@needs_mount
def test_a_disk_that_becomes_read_only(supervise: Supervise, model_dir: Path) -> None:
    config = command_config(model_dir, "read-only")
    result = after(supervise(config, prefix=small_disk(model_dir)))
    assert result.code == 74
    assert "journal.jsonl cannot be written: Read-only file system" in result.err
    assert result.event("run-log-unwritable")["reason"] == "Read-only file system"
    assert result.has_event("attempt-started", attempt=1)


def test_a_model_dir_that_is_deleted(supervise: Supervise, model_dir: Path) -> None:
    """Noticed while nothing else happens, and not made again."""
    script = f"{SETTLED}; rm -r {{model_dir}}; exec sleep infinity"
    result = supervise(shell(model_dir, script))
    assert result.code == 74
    assert "was deleted or moved while the job ran" in result.err
    assert "would begin a new job now" in result.err
    assert "to resume" not in result.err
    assert result.has_event("supervisor-failed")
    assert "Traceback" not in result.err
    assert not model_dir.exists()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("rm {model_dir}/journal.jsonl", "No such file or directory"),
        ("echo '{{}}' >> {model_dir}/journal.jsonl", "bytes where it should have"),
        (": > {model_dir}/journal.jsonl", "it has 0 bytes"),
    ],
)
def test_a_journal_that_is_not_ours_any_more(
    supervise: Supervise, model_dir: Path, damage: str, said: str
) -> None:
    result = supervise(shell(model_dir, f"{damage}; exit 9"))
    assert result.code == 74
    assert "journal.jsonl cannot be written: " in result.err
    assert said in result.err
    assert result.event("supervisor-failed")["reason"] in result.err
    assert "Traceback" not in result.err
    assert len(result.events("attempt-started")) == 1


def test_a_deleted_owner_file_opens_nothing(
    start: Start, supervise: Supervise, model_dir: Path
) -> None:
    script = """
    rm $SUPERVISE_OWNER_FILE
    echo deleted
    until grep -q $SUPERVISE_OWNER $SUPERVISE_OWNER_FILE; do sleep 0.01; done 2>/dev/null
    echo "as it was"
    exec sleep infinity
    """
    running = start(shell(model_dir, script))
    running.wait_for("deleted\n")
    second = supervise(shell(model_dir, "exit 0"))
    assert second.code == 73
    assert "is owned by" in second.err
    running.wait_for("as it was\n")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75
    assert result.event("file-restored")["place"] == ".supervisor.json"


def test_an_owner_file_that_cannot_be_written_again_is_told_once(
    start: Start, model_dir: Path
) -> None:
    script = """
    rm $SUPERVISE_OWNER_FILE; mkdir $SUPERVISE_OWNER_FILE
    exec sleep infinity
    """
    running = start(shell(model_dir, script))
    told = running.wait_for_event("file-unwritable", place=".supervisor.json")
    assert told["reason"] == "Is a directory"
    (model_dir / ".supervisor.json").rmdir()
    running.wait_for_event("file-restored")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75
    assert len(result.events("file-unwritable")) == 1


def test_a_deleted_lock_file_ends_the_job(supervise: Supervise, model_dir: Path) -> None:
    """Another supervisor could lock a new one."""
    result = supervise(shell(model_dir, "rm {model_dir}/.supervisor.lock; exec sleep infinity"))
    assert result.code == 74
    assert "the lock file in it, was deleted or moved while the job ran" in result.err
    assert "Traceback" not in result.err


def test_a_deleted_record_is_begun_anew(supervise: Supervise, model_dir: Path) -> None:
    """run.log, params.yaml and summary.json are for people: the job goes on without them."""
    script = """
    [ {attempt} = 2 ] && exit 0
    SETTLED
    rm -r {model_dir}/*_restartable
    exit 9
    """
    result = supervise(shell(model_dir, script.replace("SETTLED", SETTLED)))
    assert result.code == 0, result.out
    assert result.event("run-log-unwritable")["reason"] == "No such file or directory"
    assert result.has_event("attempt-started", attempt=2)
    assert [record["attempt"] for record in result.summary["attempts"]] == [1, 2]


@pytest.mark.parametrize("mask", [0o077, 0o022])
def test_files_have_the_users_umask(supervise: Supervise, model_dir: Path, mask: int) -> None:
    config = command_config(model_dir, "runtime-error", "--once", success={"step": 6})
    prefix = ("sh", "-c", f'umask {mask:o}; exec "$@"', "sh")
    result = supervise(config, prefix=prefix)
    assert result.code == 0
    paths = [model_dir, *model_dir.rglob("*")]
    assert len(paths) > 10
    assert [path for path in paths if path.stat().st_mode & mask] == []
