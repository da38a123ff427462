"""The image: what goes into it, who runs in it, and when it is healthy. Nothing is built here."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
import tomllib
from pathlib import Path

import pytest

from tests.deploy.test_deploy import LOCKS, ROOT
from tests.running import Start, command_config, eventually

DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
BUILD, IMAGE = re.split(r"^FROM \$\{BASE\}$", DOCKERFILE, flags=re.MULTILINE)
IGNORED = [
    line
    for line in (ROOT / ".dockerignore").read_text().splitlines()
    if line and not line.startswith("#")
]
NOT_IN_AN_IMAGE = [
    ".git/config",
    ".venv/bin/python",
    "runs/demo/journal.jsonl",
    "trainer.yaml",
    "token.env",
    ".env",
    "supervisor/.env",
    "supervisor/provision/id.key",
    "trainer/service-account.pem",
    "supervisor/core/__pycache__/machine.cpython-311.pyc",
    "deploy/requirements-tpu.lock",
    "tests/running.py",
]


def instruction(name: str) -> str:
    """The argument of the only instruction of the image with this name."""
    (argument,) = re.findall(rf"^{name} ((?:.*\\\n)*.*)$", IMAGE, re.MULTILINE)
    return str(argument).replace("\\\n", "")


def copied() -> set[str]:
    """What a build needs of the checkout."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    return {source for line in lines for source in line.split()}


def is_sent(path: str) -> bool:
    """Whether a builder gets this file: the last pattern of .dockerignore that matches decides."""
    sent = True
    for line in IGNORED:
        pattern = re.escape(line.removeprefix("!")).replace(r"\*\*/", "(.*/)?")
        if re.fullmatch(rf"{pattern}(/.*)?".replace(r"\*", "[^/]*"), path):
            sent = line.startswith("!")
    return sent


def test_a_build_is_sent_what_it_copies_and_nothing_else() -> None:
    for source in copied():
        assert (ROOT / source).exists(), source
        assert not (ROOT / source).is_symlink(), f"{source}: no link is followed"
        assert is_sent(source), source
    assert not [path for path in NOT_IN_AN_IMAGE if is_sent(path)]
    names = {path.name for path in ROOT.iterdir()} - copied()
    assert not [name for name in names if is_sent(name)]
    assert {line[1:] for line in IGNORED if line.startswith("!")} <= copied()


@pytest.mark.parametrize("package", ["supervisor", "trainer"])
def test_the_packages_are_sent_as_a_whole(package: str) -> None:
    files = [path for path in (ROOT / package).rglob("*") if path.is_file()]
    ours = [str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts]
    assert len(ours) > 20
    assert not [path for path in ours if not is_sent(path)]


def test_what_the_package_is_built_from_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {"pyproject.toml", project["readme"], *project["license-files"]}
    assert [each for each in needed if not {each, each.partition("/")[0]} & copied()] == []


def test_each_variant_is_a_lock_with_hashes() -> None:
    locks = {Path(source).name for source in copied() if source.endswith(".lock")}
    assert locks == {f"requirements-{name}.lock" for name in ("cpu", "cuda", "tpu")}
    (default,) = re.findall(r"^ARG VARIANT=(\w+)$", BUILD, re.MULTILINE)
    assert f"requirements-{default}.lock" in locks
    assert "--require-hashes -r requirements-${VARIANT}.lock" in BUILD
    assert locks <= {Path(lock).name for lock in LOCKS}, (
        "the same versions as those that are tested"
    )


def test_the_base_is_an_argument() -> None:
    """So that everybody can name a digest: we know none."""
    assert re.findall(r"^FROM (.+)$", DOCKERFILE, re.MULTILINE) == ["${BASE} AS build", "${BASE}"]
    assert DOCKERFILE.index("ARG BASE=") < DOCKERFILE.index("FROM ")


def test_no_secret_of_the_build_stays() -> None:
    assert set(re.findall(r"^(?:ENV|ARG) (\w+)", DOCKERFILE, re.MULTILINE)) == {
        "BASE",
        "VARIANT",
        "PATH",
    }
    assert re.findall(r"--mount=(\S+)", DOCKERFILE) == [
        "type=secret,id=pip.conf,target=/etc/pip.conf"
    ]


def test_it_runs_as_a_user_of_its_own_who_installs_nothing() -> None:
    user, group = map(int, instruction("USER").split(":"))
    assert user == group != 0
    assert f"useradd --uid {user} " in IMAGE
    assert IMAGE.index("USER ") > IMAGE.rindex("RUN ")
    assert IMAGE.rindex("COPY ") < IMAGE.index("USER "), "what is installed belongs to root"


def test_a_stop_is_a_sigterm() -> None:
    assert instruction("STOPSIGNAL") == "SIGTERM"


def health_check(path: Path) -> str:
    """The image's own check, of another file than the image's."""
    options, _, command = instruction("HEALTHCHECK").partition(" CMD ")
    assert "--start-period=" in options
    entrypoint = instruction("ENTRYPOINT")
    (file,) = re.findall(r'"--alive-file", "(\S+)"', entrypoint)
    assert file in command
    return command.replace(file, shlex.quote(str(path)))


def is_healthy(path: Path) -> bool:
    """What the image's check says of the file."""
    done = subprocess.run(
        ["sh", "-c", health_check(path)], stderr=subprocess.DEVNULL, check=False, timeout=10
    )
    assert done.returncode in (0, 1), "other codes are reserved"
    return done.returncode == 0


def made_old(path: Path) -> None:
    """As if the loop had not turned for a little more than a minute."""
    a_minute_ago = time.time() - 61.0
    os.utime(path, (a_minute_ago, a_minute_ago))


def test_a_job_that_waits_is_healthy_and_a_supervisor_that_hangs_is_not(
    start: Start, model_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "alive"
    assert not is_healthy(path)
    restart = {"max_num_restarts": 5, "backoff": {"first": 3000, "max": 3000}}
    config = command_config(model_dir, "SIGKILL", "--at", "0", restart=restart)
    running = start(config, "--alive-file", str(path))
    running.wait_for_event("backoff")
    assert is_healthy(path)
    running.signal(signal.SIGSTOP)
    made_old(path)
    assert not is_healthy(path)
    running.signal(signal.SIGCONT)
    assert eventually(lambda: is_healthy(path))
    running.signal(signal.SIGTERM)
    assert running.result().code == 75


def test_a_file_that_cannot_be_touched_ends_nothing(
    start: Start, model_dir: Path, tmp_path: Path
) -> None:
    running = start(
        command_config(model_dir, "none"), "--alive-file", str(tmp_path / "no" / "file")
    )
    result = running.result()
    assert result.code == 0
    assert result.event("file-unwritable")["reason"] == "No such file or directory"
