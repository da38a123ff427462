"""What is appended to is our file, and never what somebody put in its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.files.writing import opened
from supervisor.protocol.reading import UnreadableError


def test_a_file_is_made_appended_to_and_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for new, content in ((False, b"one"), (False, b"oneone"), (True, b"one")):
        with opened(file, new=new) as opening:
            opening.write(b"one")
        assert file.read_bytes() == content
    with pytest.raises(FileNotFoundError):
        opened(tmp_path / "none", create=False)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("theirs")
    (tmp_path / "file").symlink_to("foreign")
    (tmp_path / "dangling").symlink_to("made")
    for name in ("file", "dangling"):
        for new in (True, False):
            with pytest.raises(UnreadableError, match="is a link, which is not followed"):
                opened(tmp_path / name, new=new)
    assert (tmp_path / "foreign").read_text() == "theirs"
    assert not (tmp_path / "made").exists()


def test_what_has_a_second_name_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("theirs")
    (tmp_path / "file").hardlink_to(tmp_path / "foreign")
    with pytest.raises(UnreadableError, match="has a second name"):
        opened(tmp_path / "file", new=True)
    assert (tmp_path / "foreign").read_text() == "theirs"


def test_no_folder_is_entered_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(NotADirectoryError):
        opened(tmp_path / "run" / "link" / "file", below=tmp_path / "run")
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_fifo_that_nobody_reads_or_somebody_does(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UnreadableError, match="a FIFO: move it away"):
        opened(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(UnreadableError, match="is not a regular file"):
        opened(tmp_path / "fifo")
    os.close(reader)
