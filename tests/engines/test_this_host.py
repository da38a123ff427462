"""What this host tells of files, also where nobody can look."""

from __future__ import annotations

from pathlib import Path

from supervisor.engines.this_host import _Files


def test_a_file_that_nobody_can_look_for_is_not_there(tmp_path: Path) -> None:
    """The supervisor asks for failure records in its main loop: an error would end it."""
    (tmp_path / "there").touch()
    files = _Files()
    assert files.exists(tmp_path / "there", tmp_path)
    assert not files.exists(tmp_path / "missing", tmp_path)
    assert not files.exists(tmp_path / ("x" * 300), tmp_path)  # the file system says ENAMETOOLONG
