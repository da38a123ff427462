"""`supervise doctor` asks an interpreter what it has, and jax what it sees."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from supervisor.adapters.platforms.accelerators import Holder
from supervisor.doctor import device_check
from supervisor.doctor.examination import Level
from supervisor.doctor.interpreter import Program, QuestionError, ask, own_interpreter
from supervisor.doctor.version_check import Installed, misfitting, versions, versions_in_lock
from supervisor.host.identity import Identity
from tests.running import eventually, runs

from .test_checks import plain, wrongs

ROOT = Path(__file__).resolve().parents[2]
HERE = Identity.of_this_process()


# --- versions -----------------------------------------------------------------------------------


def installed(needs: list[str], **versions: str) -> Installed:
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    return Installed("3.12.1", "/bin/python", named, {next(iter(named)): needs})


@pytest.mark.parametrize(
    ("needs", "jaxlib", "fits"),
    [
        (["jaxlib<=0.10.2,>=0.10.1"], "0.10.2", True),
        (["jaxlib<=0.10.2,>=0.10.1"], "0.10.3", False),
        (["jaxlib<=0.10.2,>=0.10.1"], "0.9", False),
        (["jaxlib (==0.10.*)"], "0.10.7", True),
        (["jaxlib==0.10.*"], "0.11", False),
        (["jaxlib~=0.10.2"], "0.10.9", True),
        (["jaxlib~=0.10.2"], "0.11.0", False),
        (["jaxlib!=0.10.2"], "0.10.2", False),
        (["jaxlib>=0.10.1"], "0.10.1.dev3", True),
        (["jaxlib>=1; python_version < '3.9'"], "0.10.2", True),
        (["jaxlib==0.10.1; extra == 'minimum-jaxlib'"], "0.10.2", True),
        (["libtpu==0.0.42.*; extra == 'tpu'"], "0.10.2", False),
        (["numpy>=99"], "0.10.2", True),
    ],
)
def test_what_a_package_needs_is_compared(needs: list[str], jaxlib: str, fits: bool) -> None:
    found = installed(needs, jax="0.10.2", jaxlib=jaxlib, libtpu="0.0.40")
    assert (list(misfitting(found)) == []) is fits


@pytest.mark.parametrize(("is_ours", "level"), [(False, Level.NOTE), (True, Level.WRONG)])
def test_versions_that_are_too_old_or_do_not_fit_are_told(
    is_ours: bool, level: Level, tmp_path: Path
) -> None:
    for name, version, need in (("jax", "0.4.0", "jaxlib>=0.4.0"), ("jaxlib", "0.3.9", "")):
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        needs = f"Requires-Dist: {need}\n" if need else ""
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(head + needs)
    words = (sys.executable, "-S")
    misfit, old = versions(Program((), words, {"PYTHONPATH": str(tmp_path)}, is_ours=is_ours))
    assert misfit.text == "jax 0.4.0 needs jaxlib >=0.4.0, and 0.3.9 is installed"
    assert misfit.level is Level.WRONG
    assert old.text.endswith("is made for jax >=0.10, and 0.4.0 is installed")
    assert old.level is level


def test_the_tested_versions_are_those_of_the_lock() -> None:
    lock = (ROOT / "requirements-run.lock").read_text()
    for python in ("3.11.9", "3.13.0"):
        found = versions_in_lock(python)
        assert {"jax", "jaxlib", "orbax-checkpoint", "libtpu"} == set(found)
        assert f"jax=={found['jax']} " in lock
    assert versions_in_lock("3.11.9")["jax"] != versions_in_lock("3.12.0")["jax"]


def test_an_interpreter_without_jax_is_told(tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    (found,) = versions(Program(("one",), (str(bare),)))
    assert (found.level, "no jax" in found.text) == (Level.OK, True)
    (asked,) = device_check.devices(Program(("one",), (str(bare),)), None, plain)
    assert asked.text == f"jax is not asked: {bare} has none"


@pytest.mark.parametrize("words", [("/no/such/python",), (sys.executable, "-X", "no_such", "-Q")])
def test_an_interpreter_that_does_not_start_is_told(words: tuple[str, ...]) -> None:
    assert "does not say what it has" in wrongs(versions(Program((), words)))[0]


def test_a_program_without_python_is_told() -> None:
    (found,) = versions(Program(("one",), ()))
    assert list(device_check.devices(Program(("one",), (), platform="cpu"), None, plain)) == []
    assert (found.level, "not started by python" in found.text) == (Level.NOTE, True)


# --- devices ------------------------------------------------------------------------------------


def test_jax_is_asked_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "3")
    program = Program((), (sys.executable,), {"JAX_PLATFORMS": "cpu"}, platform="cpu")
    (found,) = device_check.devices(program, HERE, plain)
    assert found.level is Level.OK
    assert "sees 3 cpu devices (cpu), and each computes" in found.text


def test_a_device_of_another_process_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        device_check, "holders", lambda *_: iter([Holder(os.getpid(), 7, ("/dev/accel0",))])
    )
    nothing = Program((), ("/no/such/python",))  # if it were asked, something would be wrong
    for owner, level in ((None, Level.NOTE), (HERE, Level.OK)):
        (found,) = device_check.devices(nothing, owner, plain)
        assert found.level is level
        assert f"pid {os.getpid()}" in found.text
        assert "of uid 7 has /dev/accel0 open" in found.text


def test_chips_of_a_job_that_runs_are_not_opened_even_if_nobody_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_check, "chips", lambda: ["/dev/accel0"])
    (found,) = device_check.devices(Program((), ("/no/such/python",)), HERE, plain)
    assert "because the job runs" in found.text


def test_a_platform_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    program = Program(("one",), (sys.executable,), platform="tpu", num_devices=4)
    (found,) = device_check.devices(program, None, plain)
    assert (found.level, "asks for a TPU" in found.text) == (Level.WRONG, True)
    assert "jax[tpu]" in found.remedy


def test_who_does_not_answer_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    slow, told = tmp_path / "python3", tmp_path / "pid"
    slow.write_text(f"#!/bin/sh\nsleep 600 & echo $! > {told}\nwait\n")
    slow.chmod(0o755)
    with pytest.raises(QuestionError, match="not answered within 2 s"):
        ask(Program((), (str(slow),)), "", 2.0, {})
    assert eventually(lambda: not runs(int(told.read_text())))  # it may be a zombie of this process


def test_a_question_leaves_no_compiled_modules(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 7\n")
    program = Program((), (sys.executable,), folder=str(tmp_path))
    code = "import json, mine; print(json.dumps({'x': mine.x}))"
    assert ask(program, code, 30.0, {}) == {"x": 7}
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_our_own_interpreter_is_what_it_is() -> None:
    (found,) = versions(own_interpreter())
    assert found.level is Level.OK
    assert sys.executable in found.text
