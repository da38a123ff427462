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


SETUP = {"CHDIR": 200, "EXEC": 203, "GROUP": 216, "USER": 217, "NAMESPACE": 226, "SECCOMP": 228}
"""What systemd itself says where the unit does not fit the machine: another try changes nothing."""


def section(name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # `PrivateTmp`, not `privatetmp`
    parser.read(UNIT)
    return parser[name]


def service() -> configparser.SectionProxy:
    return section("Service")


def test_systemd_restarts_by_the_exit_codes() -> None:
    prevented = {int(code) for code in service()["RestartPreventExitStatus"].split()}
    ours = {code for code in ExitCode if not code.run_again and code != 0}
    assert prevented == ours | set(SETUP.values())
    assert not set(ExitCode) & set(SETUP.values())
    assert service()["Restart"] == "on-failure"
    succeeded = {int(code) for code in service()["SuccessExitStatus"].split()}
    forced = service()["RestartForceExitStatus"].split()
    assert succeeded == {ExitCode.DRAINED, ExitCode.STOPPED}
    codes = [str(code) for code in succeeded if ExitCode(code).run_again]
    assert forced == [*codes, "SIGTERM", "SIGHUP"], "before the supervisor has handlers for them"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_gives_these_codes_these_names() -> None:
    argv = ["systemd-analyze", "exit-status", *map(str, SETUP.values())]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    _, *lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [[name, str(c)] for name, c in SETUP.items()]


def test_systemd_gives_up_on_what_ends_at_once_for_an_hour_and_on_nothing_else() -> None:
    assert section("Unit")["StartLimitIntervalSec"] == "2h"
    starts, pause = int(section("Unit")["StartLimitBurst"]), int(service()["RestartSec"])
    assert starts * pause == 3600, "of a command that ends at once"
    assert starts * (pause + 10) == 2 * 3600, "one that lives for 10 s never gets there"


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


NEEDED = {
    "DynamicUser": "after a reboot the files of a job belong to the same user",
    "MemoryDenyWriteExecute": "compilers write machine code",
    "PrivateDevices": "accelerators are devices",
    "DeviceAllow": "it takes all other devices away",
    "ProtectClock": "so does this one, in older versions",
    "PrivateTmp": "libtpu's lock and the announcement of a preemption are in /tmp",
    "ProtectControlGroups": "each attempt has a cgroup of its own",
    "ProtectProc": "whether another supervisor lives is seen in /proc",
    "ProcSubset": "so is the memory of the machine",
    "PrivateUsers": "whose a file is would be hidden",
    "ProtectHome": "programs and caches of a drop-in's `User=` are there",
    "RemoveIPC": "a drop-in's `User=` has shared memory outside of the job",
}


def test_the_unit_takes_nothing_away_that_jobs_need() -> None:
    assert not NEEDED.keys() & service().keys()
    assert service()["ProtectSystem"] == "full", "model_dir may be anywhere but in the system"
    families = service()["RestrictAddressFamilies"].split()
    assert {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"} == set(families)
    calls = service()["SystemCallFilter"]
    assert calls.startswith("~"), "a call that this systemd does not know yet is allowed"
    assert not {"@debug", "@resources"} & set(calls.split()), "py-spy, perf; NUMA, priorities"
    assert service()["SystemCallErrorNumber"] == "EPERM", "what is denied is told, not killed"


def exposed(unit: str, folder: Path, threshold: str) -> int:
    """What systemd-analyze ends with: 1 if the exposure of the unit is above that, times ten."""
    path = folder / "supervise@demo.service"
    path.write_text(unit)
    argv = ["systemd-analyze", "security", "--offline=yes", f"--threshold={threshold}", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("NOT TESTED: this systemd cannot judge a file")
    assert "Overall exposure level" in done.stdout, done.stderr
    return done.returncode


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_exposure_of_the_unit_is_below_4(tmp_path: Path) -> None:
    unit = UNIT.read_text()
    assert exposed(unit, tmp_path, "39") == 0
    bare = unit[: unit.index("NoNewPrivileges")] + unit[unit.index("[Install]") :]
    assert exposed(bare, tmp_path, "39") == 1


LOCKS = [
    "requirements.lock",
    "deploy/requirements-cpu.lock",
    "deploy/requirements-tpu.lock",
    "deploy/requirements-cuda.lock",
]
RUN_LOCK = "requirements-run.lock"


@pytest.mark.parametrize("lock", [RUN_LOCK, *LOCKS, "docs/requirements.lock"])
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
    plugins = re.findall(r"^jax-cuda12-plugin==(\S+)", (ROOT / LOCKS[-1]).read_text(), re.MULTILINE)
    assert {f"jax=={version}" for version in plugins} == {
        v for v in tested if v.startswith("jax==")
    }


@pytest.mark.parametrize("lock", LOCKS)
def test_what_is_in_the_lock_of_a_run_has_the_same_version_everywhere(lock: str) -> None:
    run, other = (
        set(re.findall(r"^([a-z0-9][\w.-]*==.*?) *\\$", (ROOT / each).read_text(), re.MULTILINE))
        for each in (RUN_LOCK, lock)
    )
    assert run - other == set()


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
