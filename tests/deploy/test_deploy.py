"""What is deployed agrees with the exit codes, and is valid as far as it can be checked here."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.config.load import EXIT_CODE_PRESETS
from supervisor.core.exit_codes import ExitCode

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "supervise@.service"


def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(UNIT)
    return parser["Service"]


def test_systemd_restarts_by_the_exit_codes() -> None:
    prevented = {int(code) for code in service()["RestartPreventExitStatus"].split()}
    assert prevented == {code for code in ExitCode if not code.run_again and code != 0}
    assert service()["Restart"] == "on-failure"
    succeeded = {int(code) for code in service()["SuccessExitStatus"].split()}
    forced = service()["RestartForceExitStatus"].split()
    assert succeeded == {ExitCode.DRAINED, ExitCode.STOPPED}
    codes = [str(code) for code in succeeded if ExitCode(code).run_again]
    assert forced == [*codes, "SIGTERM", "SIGHUP"], "before the supervisor has handlers for them"


def test_the_unit_leaves_the_trainer_its_grace_and_the_supervisor_its_life() -> None:
    assert service()["KillMode"] == "mixed"
    assert float(service()["TimeoutStopSec"]) > 25.0 + 10.0
    assert service()["OOMPolicy"] == "continue"


def test_jobs_run_as_a_user_of_their_own() -> None:
    assert (service()["User"], service()["Group"]) == ("supervise", "supervise")
    assert service()["Delegate"] == "yes", "so that each attempt can have a cgroup"
    assert service()["LimitMEMLOCK"] == "infinity"
    users = (ROOT / "deploy" / "sysusers" / "supervise.conf").read_text()
    assert re.search(r"^u supervise - .* /var/lib/supervise$", users, re.MULTILINE)
    assert service()["StateDirectory"] == "supervise"
    rules = (ROOT / "deploy" / "udev" / "70-supervise.rules").read_text()
    assert rules.count('GROUP="supervise", MODE="0660"') == 2
    image = (ROOT / "deploy" / "Dockerfile").read_text()
    (user,) = re.findall(r"^USER (\d+):\1$", image, re.MULTILINE)
    assert int(user) != 0
    assert image.index("USER ") > image.rindex("RUN "), "nothing is installed as that user"


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd is not installed")
def test_systemd_makes_the_user(tmp_path: Path) -> None:
    users = ROOT / "deploy" / "sysusers" / "supervise.conf"
    done = subprocess.run(
        ["systemd-sysusers", "--dry-run", f"--root={tmp_path}", str(users)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "supervise" in done.stdout + done.stderr


def test_systemd_replaces_a_supervisor_that_hangs() -> None:
    assert service()["Type"] == "notify"
    assert service()["NotifyAccess"] == "main"
    assert float(service()["WatchdogSec"]) >= 4 * 5.0, "it is petted every 5 s"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "supervise@demo.service"
    unit.write_text(UNIT.read_text().replace("/opt/supervise/bin/supervise", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_image_starts_the_supervisor_from_locked_packages() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    assert "COPY supervisor/provision/requirements-tpu.lock ./\n" in text, "no link is followed"
    assert 'ENTRYPOINT ["supervise", "run", "--once"]' in text
    assert "--require-hashes -r requirements-tpu.lock" in text
    for source in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        for name in source.split():
            assert (ROOT / name).exists(), name


LOCKS = ["requirements.lock", "deploy/requirements-tpu.lock", "deploy/requirements-cuda.lock"]


@pytest.mark.parametrize("lock", [*LOCKS, "docs/requirements.lock"])
def test_locks_hold_hashes_and_no_addresses(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    pins = re.findall(r"^[a-z0-9][\w.-]*==", text, re.MULTILINE)
    assert len(pins) > 30
    assert text.count("--hash=sha256:") >= len(pins)


def test_locks_of_accelerators_have_the_versions_that_are_tested() -> None:
    tested, *others = (
        set(re.findall(r"^((?:jax|jaxlib|flax|optax|orbax-checkpoint|pydantic)==\S+)", text, re.M))
        for text in ((ROOT / lock).read_text() for lock in LOCKS)
    )
    for versions in others:
        assert versions == tested
    plugins = re.findall(r"^jax-cuda12-plugin==(\S+)", (ROOT / LOCKS[2]).read_text(), re.MULTILINE)
    assert {f"jax=={version}" for version in plugins} == {
        v for v in tested if v.startswith("jax==")
    }


@pytest.mark.parametrize("name", ["gpu.yaml", "tpu.yaml"])
def test_the_config_for_an_accelerator_is_valid_where_there_is_none(
    tmp_path: Path, name: str
) -> None:
    visible = ("CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "validate", str(ROOT / "examples" / name)],
        cwd=tmp_path,
        env={name: text for name, text in os.environ.items() if name not in visible},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^#  +1  (1x1  +)?data 1 x fsdp 1", done.stdout, re.M), "it can shrink"


def test_xpk_restarts_what_is_worth_it_and_nothing_else() -> None:
    preset = EXIT_CODE_PRESETS["xpk"]
    for code in ExitCode:
        mapped = preset.get(int(code), int(code))
        restarts = mapped == 42 or mapped >= 127
        assert restarts == code.run_again
