"""Who holds an accelerator, seen from /proc."""

from __future__ import annotations

from pathlib import Path

from supervisor.adapters.accelerators import holders


def test_every_holder_is_named_once(tmp_path: Path) -> None:
    opened = {
        7: ["/dev/null", "/dev/vfio/vfio"],
        10: ["socket:[5]", "/dev/vfio/3", "/dev/vfio/4"],
        9: ["/dev/nvidia0"],
        11: ["/dev/accel/accel1", "/home/dev/accel0"],
    }
    for pid, targets in opened.items():
        folder = tmp_path / str(pid) / "fd"
        folder.mkdir(parents=True)
        (tmp_path / str(pid) / "comm").write_text(f"train-{pid}\n")
        for number, target in enumerate(targets):
            (folder / str(number)).symlink_to(target)
    (tmp_path / "12").mkdir()
    (tmp_path / "self").mkdir()
    assert [str(holder) for holder in holders(tmp_path)] == [
        "pid 9 (train-9) holds /dev/nvidia0",
        "pid 10 (train-10) holds /dev/vfio/3",
        "pid 11 (train-11) holds /dev/accel/accel1",
    ]


def test_here_it_can_be_asked() -> None:
    assert isinstance(list(holders()), list)
