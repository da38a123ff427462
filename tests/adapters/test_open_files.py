"""Which files a process has open for writing."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.adapters.kernel.open_files import written_by


def test_files_that_are_written_are_found_and_those_that_are_read_are_not(tmp_path: Path) -> None:
    written, read, gone = (tmp_path / name for name in ("written", "read", "gone"))
    read.touch()
    with written.open("w"), read.open(), gone.open("w"):
        gone.unlink()
        found = written_by([os.getpid()], lambda path: True)
        unwanted = written_by([os.getpid()], lambda path: path != str(written))
    assert str(written) in found - unwanted
    assert str(read) not in found
    assert not any(path.startswith(str(gone)) for path in found)
    assert not any(path.startswith("/dev/") for path in found)


def test_a_process_that_is_gone_has_none() -> None:
    assert written_by([2**22 + 1], lambda path: True) == set()
