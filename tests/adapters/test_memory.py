"""How much memory is left, with and without the limit of a container."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
import pytest

from supervisor.adapters.kernel.capacity import available_memory, resident_memory

STAT = "anon 100\ninactive_file 30\nactive_file 20\n"


@pytest.mark.parametrize(
    ("limit", "current", "expected"), [("1000", "150", 900), ("1000", "1200", 0)]
)
def test_a_container_has_its_limit_less_what_it_cannot_give_up(
    tmp_path: Path, limit: str, current: str, expected: int
) -> None:
    for name, text in (("max", limit), ("current", current), ("stat", STAT)):
        (tmp_path / f"memory.{name}").write_text(text)
    assert available_memory(tmp_path) == expected


@pytest.mark.parametrize("files", [{}, {"max": "max", "current": "5", "stat": STAT}])
def test_without_a_limit_it_is_the_hosts(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert 0 < available_memory(tmp_path) <= psutil.virtual_memory().total


def test_what_a_process_holds() -> None:
    assert resident_memory(os.getpid()) > 1 << 20
    assert resident_memory(2**22 + 1) == 0


def test_a_process_that_ends_during_the_count_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = psutil.Process.memory_info

    def memory_info(process: psutil.Process) -> object:
        if process.pid == child.pid:
            raise psutil.NoSuchProcess(process.pid)
        return measured(process)

    with subprocess.Popen(["sleep", "60"]) as child:
        monkeypatch.setattr(psutil.Process, "memory_info", memory_info)
        assert resident_memory(os.getpid()) > 1 << 20
        assert resident_memory(child.pid) == 0
        child.kill()
