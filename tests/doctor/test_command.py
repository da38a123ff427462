"""`supervise doctor` as people and programs use it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from supervisor.cli.main import main
from supervisor.core.events import CheckpointsFound, SupervisorStarted
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.doctor.examination import Level
from supervisor.doctor.interpreter import recorded_programs
from supervisor.doctor.version_check import versions
from tests.adapters.test_journal import STORY, tell
from tests.foreign import fingerprint
from tests.running import may_mount

CONFIG = """\
trainer:
  init: {model_dir: run, devices: {platform: cpu}, autorestart: {max_num_restarts: 0}}
  command: [%s, train.py]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a config and its program."""
    (tmp_path / "train.py").write_text("import jax\n")
    (tmp_path / "trainer.yaml").write_text(CONFIG % sys.executable)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and what was found."""
    code = main(["doctor", "--json", *words])
    told = json.loads(capsys.readouterr().out)
    assert told["v"] == 1
    bad = any(each["level"] == "WRONG" for each in told["findings"])
    assert code == (1 if bad else 0)
    return code, told["findings"]


def texts(told: list[dict[str, Any]], check: str, level: str) -> list[str]:
    return [each["text"] for each in told if (each["check"], each["level"]) == (check, level)]


def test_everything_about_a_job_is_looked_at_and_nothing_is_changed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = fingerprint(folder)
    _, told = found(capsys, "trainer.yaml")
    assert [*dict.fromkeys(each["check"] for each in told)] == [
        "limits", "signals", "cgroup", "clock", "permissions", "config", "disk", "job",
        "versions", "devices",
    ]  # fmt: skip
    assert texts(told, "devices", "ok")[0].endswith("and each computes")
    assert texts(told, "config", "ok")
    assert fingerprint(folder) == before


def test_jax_is_never_imported_here() -> None:
    program = (
        "import sys; from supervisor.cli.main import main; main(['doctor']);"
        "print([name for name in ('jax', 'jaxlib', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[-1] == "[]"
    assert lines[-2].split(";")[0].endswith("wrong")


def test_what_is_wrong_with_a_job_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = folder / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    (folder / "trainer.yaml").write_text(CONFIG % bare)
    code, told = found(capsys, "trainer.yaml")
    assert code == 1
    (text,) = texts(told, "config", "WRONG")
    assert "train.py imports jax, but its interpreter finds no jax" in text
    assert texts(told, "config", "ok") == []
    (folder / "train.py").unlink()
    _, told = found(capsys, "trainer.yaml")
    assert "no such file: train.py" in texts(told, "config", "WRONG")[0]


def test_a_config_that_is_wrong_hides_nothing_else(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "trainer.yaml").write_text((CONFIG % "python").replace("model_dir", "modeldir"))
    _, told = found(capsys, "trainer.yaml")
    assert any("modeldir" in each for each in texts(told, "config", "WRONG"))
    assert [each for each in told if each["check"] == "devices"]


def test_a_job_is_looked_at_by_its_directory(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "run").mkdir()
    tell(folder / "run", *STORY[:4])
    _, told = found(capsys, "run")
    assert texts(told, "job", "ok")
    assert "run the same command again" in next(
        each["remedy"] for each in told if (each["check"], each["level"]) == ("job", "note")
    )
    (folder / "run" / "journal.jsonl").write_text('{"v": 1}\n{"x": 2}\n')
    code, told = found(capsys, "run")
    assert (code, len(texts(told, "job", "WRONG"))) == (1, 1)


@pytest.mark.skipif(not may_mount(), reason="only root can mount a file system")
def test_the_disk_of_checkpoints_that_were_found_is_looked_at(folder: Path) -> None:
    small = folder / "small"
    for place in (small, folder / "run"):
        place.mkdir()
    searching = RestartPolicy((PhasePolicy("one", 3, finds_checkpoints=True),))
    story = (
        SupervisorStarted(0.0, "job", searching, None),
        *STORY[1:3],
        CheckpointsFound(2.0, 0, str(small)),
    )
    tell(folder / "run", *story, policy=searching)
    words = (sys.executable, "-m", "supervisor", "doctor", "--json", "run")
    script = 'mount -t tmpfs -o size=1m none small && exec "$@"'
    mounted = ("unshare", "-m", "sh", "-c", script, "sh", *words)
    asked = [
        subprocess.run(each, capture_output=True, cwd=folder, check=False)
        for each in (words, mounted)
    ]
    beside, apart = (json.loads(each.stdout)["findings"] for each in asked)
    assert not any(str(small) in each["text"] for each in beside)
    (text,) = texts(apart, "disk", "WRONG")
    assert text == f"{small}, where the checkpoints are: 1 MiB free: the disk is full", apart


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_model_dir_of_another_user_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with TemporaryDirectory() as name:  # others may not enter tmp_path
        Path(name).chmod(0o755)
        os.seteuid(65534)
        try:
            code, told = found(capsys, name)
        finally:
            os.seteuid(0)
    assert code == 1
    (text,) = texts(told, "permissions", "WRONG")
    assert "Permission denied: it belongs to uid 0" in text
    (note,) = (each for each in told if (each["check"], each["level"]) == ("permissions", "note"))
    assert note["remedy"].startswith("run a job as one user always")


def test_a_file_system_that_hangs_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "run").mkdir()
    real = Path.stat

    end = threading.Event()

    def hangs(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.name == "run":
            end.wait()
        return real(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", hangs)
    try:
        code, told = found(capsys, "run")
    finally:
        end.set()
    assert code == 1
    (text,) = texts(told, "disk", "WRONG")
    assert text.startswith("run: no answer within 5 s: does its file system hang")
    assert texts(told, "devices", "ok"), "the other checks are made"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gone"], "gone: No such file or directory"),
        (["gone.yaml"], "gone.yaml: No such file or directory"),
        (["ftp://x/y"], "is on no object store that is supported"),
        (["--set", "a=b"], "--set is for a config"),
    ],
)
def test_what_cannot_be_looked_at_is_a_wrong_command_line(
    words: list[str], told: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words]) == 64
    assert told in capfd.readouterr().err


def lowers(soft: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))


def test_few_open_files_are_told_by_a_command_that_has_no_more(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "doctor"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lowers(64),
    )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    wrong, remedy = (line for line in lines if "WRONG" in line or "-n 10" in line)
    assert wrong.startswith("WRONG limits       open files: 64, and a job needs 256")
    assert remedy.lstrip().startswith("what to do: ulimit -n 1024")
    assert done.stdout.splitlines()[-1].startswith("1 thing is wrong")


def test_a_recorded_program_is_looked_for_where_it_may_be(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = recorded_programs(
        [{"trainer": {"name": "a", "init": {}, "command": {"argv": ["bin/python3", "x.py"]}}}]
    )
    (told,) = versions(program)
    assert told.level is Level.NOTE
    assert "go to the working directory of the job" in told.remedy
