"""The probe tells which devices are well: by computing on real (simulated) ones, and by hanging."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import psutil
import pytest

from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.config.command import SuccessConfig
from supervisor.config.plan import PhasePlan
from supervisor.config.topology import parse_slice
from supervisor.core.events import BadUnit, Noticed
from supervisor.engines.probing.device_probe import DeviceProbe, ProbeLimits
from supervisor.engines.probing.units import ProbeAnswer, UnitLayout
from supervisor.engines.this_host import ThisHost
from supervisor.host.guard_socket import Started
from supervisor.host.notice import Notice
from supervisor.ports import ProcessStarter
from supervisor.protocol import simulated
from tests.running import eventually, lives, shared_guard

PLAN = PhasePlan(
    name="p",
    argv=("x",),
    env={"JAX_PLATFORMS": "cpu"},
    model_dir=Path("/m"),
    checkpoint_dir=Path("/c"),
    params={},
    success=SuccessConfig(),
    success_is_default=True,
    is_command=False,
    progress_pattern=None,
    bootstrap=False,
    num_devices=4,
    global_batch=None,
    max_steps=None,
    faults=(),
    platform="cpu",
    units=("0", "1", "2", "3"),
)
USUAL = ProbeLimits()
HANGS_ON_DEVICE_1 = """
import os, signal, sys
if "trainer.probe" in sys.orig_argv:
    import jax
    put = jax.device_put
    def device_put(value, device=None, **options):
        if any(one.id == 1 for one in device.device_set):
            os.kill(os.getpid(), signal.SIGSTOP)
        return put(value, device, **options)
    jax.device_put = device_put
"""
FIRST_TWO_GET = """
import os, signal, sys
if "trainer.probe" in sys.orig_argv:
    with open(__file__ + ".started", "ab", buffering=0) as started:
        started.write(b"x")
    if os.path.getsize(__file__ + ".started") <= 2:
        os.kill(os.getpid(), signal.{signal})
"""
HANGS_THIRD = """
import os, signal, sys
if "trainer.probe" in sys.orig_argv:
    with open({starts!r}, "a") as file:
        file.write("x")
    if os.path.getsize({starts!r}) == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
"""
NO_JAX = """
import sys
sys.modules["jax"] = None
"""


class Advancing(SystemClock):
    """A clock that a test puts forward."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


class Looking:
    """A probe with a reactor that runs until it has answered."""

    def __init__(
        self,
        directory: Path,
        limits: ProbeLimits,
        sitecustomize: str = "",
        starter: ProcessStarter | None = None,
    ) -> None:
        self.clock = Advancing()
        self.reactor = Reactor(self.clock)
        self.file = directory / simulated.FILE
        site = directory / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(sitecustomize)
        root = str(Path(__file__).parents[2])
        environ = os.environ | {"PYTHONPATH": f"{site}:{root}"}
        self.probe = DeviceProbe(
            self.reactor,
            self.clock,
            ThisHost(cast(GuardClient, starter or shared_guard()), self.file),
            environ,
            limits,
        )

    def look(self, plan: PhasePlan = PLAN, units: tuple[str, ...] | None = None) -> ProbeAnswer:
        answers: list[ProbeAnswer] = []

        def answered(answer: ProbeAnswer) -> None:
            answers.append(answer)
            self.reactor.post(Noticed(0.0, Notice("observer-failed", "answered")))

        self.probe.start_look(plan, units, answered)
        end = time.monotonic() + 100
        while not answers and time.monotonic() < end:
            self.reactor.wait(self.clock.now() + 1)
        (answer,) = answers
        return answer


MakeLooking = Callable[..., Looking]


@pytest.fixture
def looking(tmp_path: Path) -> MakeLooking:
    return lambda limits=USUAL, sitecustomize="": Looking(tmp_path, limits, sitecustomize)


def children() -> set[int]:
    """The processes below this one that live; a process that is dead and not yet reaped is none."""
    return {
        child.pid
        for child in psutil.Process().children(recursive=True)
        if child.is_running() and child.status() != psutil.STATUS_ZOMBIE
    }


def test_what_is_lost_is_not_found_and_what_is_wrong_computes_so(looking: MakeLooking) -> None:
    one, before = looking(), children()
    simulated.mark_lost(one.file, "0")
    simulated.mark_wrong(one.file, "2")
    one.probe.prepare(PLAN)
    (waiting,) = one.probe.pids
    answer = one.look()
    wrong = "simulated: a wrong result of a matrix product (int32)"
    bad = (BadUnit("0", "simulated: not found", found=False), BadUnit("2", wrong))
    assert answer == ProbeAnswer(healthy=("1", "3"), bad=bad)
    assert not lives(waiting), "it is gone before it is answered"

    assert one.look(units=("2", "3")) == ProbeAnswer(("3",), (BadUnit("2", wrong),))
    simulated.mark_healthy(one.file, "2")
    simulated.mark_lost(one.file, "3")
    assert one.look(units=("3",)) == ProbeAnswer(
        bad=(BadUnit("3", "simulated: not found", found=False),)
    )
    assert children() <= before


def test_a_device_that_hangs_is_told_and_the_others_are_tried(looking: MakeLooking) -> None:
    one, before = looking(ProbeLimits(device=4.0), HANGS_ON_DEVICE_1), children()
    answer = one.look(replace(PLAN, num_devices=3, units=("0", "1", "2")))
    assert answer == ProbeAnswer(("0", "2"), (BadUnit("1", "no answer within 4 s"),))
    assert children() <= before


def test_of_a_host_that_cannot_be_initialised_parts_are_tried(looking: MakeLooking) -> None:
    """Simulated: no process comes up that was given device 1."""
    one, before = looking(), children()
    simulated.mark_stuck(one.file, "1")
    answer = one.look(replace(PLAN, num_devices=2, units=("0", "1")))
    assert answer.healthy == ("0",)
    (stuck,) = answer.bad
    assert (stuck.unit, stuck.found) == ("1", False)
    assert (
        "before it could use a device: RuntimeError: Unable to initialize backend" in stuck.reason
    )
    assert children() <= before


@pytest.mark.slow  # eight processes that start JAX, one after the other
def test_of_a_host_that_cannot_be_initialised_each_broken_device_is_found_alone(
    looking: MakeLooking,
) -> None:
    """Simulated: no process comes up that was given device 2, and device 1 computes wrongly."""
    one, before = looking(), children()
    simulated.mark_stuck(one.file, "2")
    simulated.mark_wrong(one.file, "1")
    answer = one.look()
    assert answer.healthy == ("0", "3")
    wrong, stuck = answer.bad
    assert wrong == BadUnit("1", "simulated: a wrong result of a matrix product (int32)")
    assert (stuck.unit, stuck.found) == ("2", False), "it may come back any time: no quarantine"
    assert (
        "before it could use a device: RuntimeError: Unable to initialize backend" in stuck.reason
    )

    nothing = one.look(units=("2",))
    assert nothing.problem is not None
    assert "TPU initialization failed" in nothing.problem
    assert children() <= before


@pytest.mark.parametrize(
    ("units", "stuck", "reasons"),
    [
        ("0123", "2", ["not probed alone: no time was left"] * 2),
        ("23", "3", ["not done within 420 s"]),
    ],
)
def test_when_the_time_is_over_what_came_up_is_kept(
    looking: MakeLooking, tmp_path: Path, units: str, stuck: str, reasons: list[str]
) -> None:
    """The third process hangs: the whole did not come up, and its first half did."""
    starts = tmp_path / "starts"
    one = looking(sitecustomize=HANGS_THIRD.format(starts=str(starts)))
    simulated.mark_stuck(one.file, stuck)

    def advance() -> None:
        if starts.exists() and starts.stat().st_size >= 3:
            one.clock.ahead = 1000.0
        else:
            one.reactor.call_later(0.1, advance)

    advance()
    answer = one.look(units=tuple(units))
    half = len(units) // 2
    assert answer.healthy == tuple(units[:half])
    assert [each.unit for each in answer.bad] == list(units[half:])
    assert all(why in each.reason for each, why in zip(answer.bad, reasons, strict=True))
    assert not any(each.found for each in answer.bad)


def test_where_nothing_can_be_found_out_it_says_so(looking: MakeLooking) -> None:
    one, before = looking(sitecustomize=NO_JAX), children()
    problem = one.look().problem
    assert problem is not None
    assert problem.startswith("the device probe ended before it could use a device: ")
    assert "import of jax halted" in problem
    assert problem.endswith(f"install that for {sys.executable}")
    one.file.write_text("{")
    problem = one.look().problem
    assert problem is not None
    assert "simulated_devices.json is not of the form" in problem
    assert children() <= before


def test_one_that_is_killed_is_replaced_for_it_says_nothing_of_the_devices(
    looking: MakeLooking,
) -> None:
    one, before = looking(sitecustomize=FIRST_TWO_GET.format(signal="SIGKILL")), children()
    simulated.mark_lost(one.file, "3")
    answer = one.look()
    assert answer.healthy == ("0", "1", "2")
    assert answer.problem is None
    assert children() <= before


class DeadAtFirst:
    """Starts processes by the shared guard; the first is dead before its starter hears of it."""

    def __init__(self) -> None:
        self.started = 0
        self.exit_code = shared_guard().exit_code

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        output: int,
        errors: int,
        inherit: Sequence[int] = (),
    ) -> Started:
        process = shared_guard().start(argv, env, output, errors, inherit)
        self.started += 1
        if self.started == 1:
            os.kill(process.pid, signal.SIGKILL)
            assert eventually(lambda: not lives(process.pid))
        return process


def test_one_that_is_dead_before_it_is_asked_is_replaced(tmp_path: Path) -> None:
    starter = DeadAtFirst()
    assert Looking(tmp_path, USUAL, starter=starter).look().healthy == ("0", "1", "2", "3")
    assert starter.started == 2


def test_after_three_that_were_killed_and_two_that_hung_nothing_is_known(
    tmp_path: Path,
) -> None:
    for name, limits, told in (
        ("SIGKILL", USUAL, "(3 times in a row): killed by SIGKILL"),
        ("SIGSTOP", ProbeLimits(start=0.5), "(2 times in a row): no answer within 0.5 s"),
    ):
        (folder := tmp_path / name).mkdir()
        one = Looking(folder, limits, FIRST_TWO_GET.replace("<= 2", "> 0").format(signal=name))
        before = "the device probe ended before it could use a device "
        assert one.look() == ProbeAnswer(problem=before + told)


def test_one_that_is_stopped_does_not_answer(looking: MakeLooking) -> None:
    one, before = looking(), children()
    answers: list[ProbeAnswer] = []
    one.probe.start_look(PLAN, None, answers.append)
    assert children() - before
    one.probe.stop()
    while children() - before:
        one.reactor.wait(one.clock.now() + 0.01)
    assert answers == []


@pytest.mark.parametrize(
    ("layout", "found", "bad", "healthy", "faults"),
    [
        (UnitLayout(("0", "1"), ("0", "1")), 2, {}, ("0", "1"), {}),
        (UnitLayout(("0", "1"), ("0", "1")), 1, {}, ("0",), {"1": "not found"}),
        (UnitLayout(("0", "1"), ("1",)), 1, {0: "x"}, (), {"0": "simulated: not found", "1": "x"}),
        (UnitLayout(), 3, {1: "x"}, ("0", "2"), {"1": "x"}),
        (
            UnitLayout(("host0", "host1"), ("host0", "host1"), 2),
            4,
            {3: "x"},
            ("host0",),
            {"host1": "x"},
        ),
        (
            UnitLayout(("host0", "host1"), ("host0", "host1"), 2),
            3,
            {},
            ("host0",),
            {"host1": "not found"},
        ),
        (
            UnitLayout(("0", "1"), ("0", "1")),
            4,
            {3: "x"},
            ("0", "1"),
            {},
        ),  # the job has 2 of 4 GPUs
        (
            UnitLayout(("0", "1"), ("0", "1"), shown_each=2),
            4,
            {3: "x"},
            ("0",),
            {"1": "x"},
        ),  # tpu7x
        (UnitLayout(("0", "1"), ("0", "1"), shown_each=2), 2, {}, ("0",), {"1": "not found"}),
        (UnitLayout(("0", "1"), ("0", "1"), shown_each=None), 4, {3: "x"}, ("0",), {"1": "x"}),
        (UnitLayout(("0", "1"), ("0", "1"), shown_each=None), 2, {1: "x"}, ("0",), {"1": "x"}),
    ],
)
def test_devices_are_counted_to_their_units(
    layout: UnitLayout,
    found: int,
    bad: dict[int, str],
    healthy: tuple[str, ...],
    faults: dict[str, str],
) -> None:
    answer = layout.answer(found, bad)
    assert answer.healthy == healthy
    assert {each.unit: each.reason for each in answer.bad} == faults
    assert all(each.found == (each.reason == "x") for each in answer.bad)


def test_half_a_chip_makes_none_of_its_part_well() -> None:
    plan = replace(PLAN, platform="tpu", tpu=parse_slice("tpu7x-8"))
    layout = UnitLayout.of(plan, None, frozenset())
    assert layout.answer(8, {}).healthy == PLAN.units
    assert [each.unit for each in layout.answer(6, {}).bad] == ["3"]
    half = layout.answer(7, {})
    assert half == ProbeAnswer(
        problem="JAX shows 7 devices, which is no multiple of the 2 devices of a chip"
    )


@pytest.mark.parametrize(
    ("platform", "units", "environment"),
    [
        ("cpu", None, {"JAX_NUM_CPU_DEVICES": "4"}),
        ("cpu", ("1", "2"), {"JAX_NUM_CPU_DEVICES": "2"}),
        ("gpu", None, {}),
        ("gpu", ("1", "3"), {"CUDA_VISIBLE_DEVICES": "1,3"}),
        (
            "tpu",
            ("2",),
            {
                "TPU_VISIBLE_CHIPS": "2",
                "TPU_PROCESS_BOUNDS": "1,1,1",
                "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
                "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            },
        ),
    ],
)
def test_the_process_sees_what_is_to_be_looked_at(
    platform: str, units: tuple[str, ...] | None, environment: dict[str, str]
) -> None:
    plan = replace(PLAN, platform=platform)
    assert UnitLayout.of(plan, units, frozenset()).environment(plan, {}) == environment


def test_the_process_sees_the_gpus_that_the_config_names() -> None:
    plan = replace(PLAN, platform="gpu", env={"CUDA_VISIBLE_DEVICES": "4,5,6,GPU-7f"})
    for units, shown in ((None, "4,5,6,GPU-7f"), (("1", "3"), "5,GPU-7f")):
        look = UnitLayout.of(plan, units, frozenset())
        assert look.environment(plan, {"CUDA_VISIBLE_DEVICES": "0"}) == {
            "CUDA_VISIBLE_DEVICES": shown
        }


def test_a_host_is_as_bad_as_its_worst_device() -> None:
    plan = replace(PLAN, workers=2, units=("host0", "host1"))
    assert UnitLayout.of(plan, None, frozenset({"3"})).present == ("host0",)
    assert UnitLayout.of(plan, None, frozenset({"host0"})).present == ("host1",)
    whole = UnitLayout.of(plan, None, frozenset())
    assert whole.num_devices == 4
    assert [whole.broken_places(frozenset({broken})) for broken in ("1", "host1")] == [(0,), (2,)]
