"""Which processes have an accelerator open, seen from a /proc of files and from the real one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import psutil
import pytest

from supervisor.adapters.platforms.accelerators import NVIDIA, TPU, Holder, chips, holders
from supervisor.engines.holders import told


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Simulated: processes, and what they have open."""
    opened = {
        7: ["/dev/null", "/dev/vfio/vfio", "/dev/iommu", "/dev/nvidiactl"],
        10: ["socket:[5]", "/dev/vfio/4", "/dev/vfio/3", "/dev/vfio/4"],
        9: ["/dev/nvidia0"],
        11: ["/dev/accel/accel1", "/home/dev/accel0", "/dev/vfio/devices/none"],
        12: ["/dev/vfio/devices/vfio0", "/dev/iommu"],
        13: ["/dev/accel2"],
    }
    for pid, targets in opened.items():
        folder = tmp_path / str(pid) / "fd"
        folder.mkdir(parents=True)
        (tmp_path / str(pid) / "status").write_text(f"Name:\tx\nUid:\t{pid}00\t0\t0\t0\n")
        for number, target in enumerate(targets):
            (folder / str(number)).symlink_to(target)
    (tmp_path / "14").mkdir()
    (tmp_path / "self").mkdir()
    return tmp_path


def test_every_holder_is_named_once_with_its_user_and_all_its_devices(proc: Path) -> None:
    assert list(holders(proc=proc)) == [
        Holder(9, 900, ("/dev/nvidia0",)),
        Holder(10, 1000, ("/dev/vfio/3", "/dev/vfio/4")),
        Holder(11, 1100, ("/dev/accel/accel1",)),
        Holder(12, 1200, ("/dev/vfio/devices/vfio0",)),
        Holder(13, 1300, ("/dev/accel2",)),
    ]


def test_holders_of_one_kind_less_those_that_may_hold_them(proc: Path) -> None:
    found = holders(TPU, exclude=frozenset({10, 12}), proc=proc)
    assert [holder.pid for holder in found] == [11, 13]
    assert [holder.pid for holder in holders(NVIDIA, proc=proc)] == [9]


def test_a_real_holder_is_told_with_its_command_line_and_without_secrets(tmp_path: Path) -> None:
    chip = tmp_path / "vfio0"
    chip.touch()
    with chip.open():
        (holder,) = holders(re.compile(re.escape(str(chip))))
        assert holder == Holder(os.getpid(), os.getuid(), (str(chip),))
        commands: list[str] = []

        def redact(text: str) -> str:
            commands.append(text)
            return "python (secret)"

        who = f"pid {os.getpid()} (python (secret)) of uid {os.getuid()}"
        assert told(holder, redact) == f"{who} has {chip} open"
    assert commands == [" ".join(psutil.Process().cmdline())], "of this test, wherever it runs"
    assert not list(holders(re.compile(re.escape(str(chip)))))


def test_the_chips_of_a_host_are_its_device_files(tmp_path: Path) -> None:
    for name in (
        "accel0",
        "null",
        "vfio/0",
        "vfio/11",
        "vfio/vfio",
        "vfio/devices/vfio2",
        "accel/accel1",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    names = ["accel/accel1", "accel0", "vfio/0", "vfio/11", "vfio/devices/vfio2"]
    assert chips(tmp_path) == [str(tmp_path / name) for name in names]
