"""The bounded record of a worker's output: how it began and how it ended are always there."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.adapters.processes.output import OutputFile, read_evidence

LIMIT = 3000
PART = LIMIT // 3
RESERVE = PART // 8
"""Bytes of a part that only the end of a begun line may take."""


def parts(directory: Path) -> list[bytes]:
    """The parts in order, our own lines left out."""
    names = ("rank0.first.log", "rank0.previous.log", "rank0.log")
    found = [(directory / name).read_bytes() for name in names if (directory / name).exists()]
    return [part.partition(b"\n")[2] if part.startswith(b"[supervise") else part for part in found]


@given(st.lists(st.integers(0, 400), max_size=60), st.integers(1, 80))
def test_begin_and_end_are_kept_within_the_bound(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], line: int
) -> None:
    directory = tmp_path_factory.mktemp("output")
    said: list[str] = []
    file = OutputFile(directory / "rank0.log", said.append, limit=LIMIT)
    everything = b"".join(b"%0*d\n" % (line, n) for n in range(1 + sum(sizes) // (line + 1)))
    written = 0
    for size in sizes:
        file.write(everything[written : written + size])
        written += size
    file.close()
    written = min(written, len(everything))
    kept = parts(directory)
    assert sum(path.stat().st_size for path in directory.iterdir()) <= LIMIT
    assert everything.startswith(kept[0] if kept else b"")
    assert everything[:written].endswith(b"".join(kept[1:]))
    assert all(part.endswith(b"\n") for part in kept[:-1]), "cut between lines"
    if written <= PART - RESERVE:
        assert kept in ([], [everything[:written]])
    elif len(kept) > 1:
        least = PART - RESERVE - (line + 1)
        assert all(len(part) > least - 100 for part in kept[:-1])
    assert said == []


def test_a_line_without_an_end_is_bounded_too(tmp_path: Path) -> None:
    file = OutputFile(tmp_path / "rank0.log", pytest.fail, limit=LIMIT)
    for _ in range(50):
        file.write(b"x" * 700)
    file.write(b"the end")
    file.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= LIMIT
    assert read_evidence(tmp_path / "rank0.log").endswith("the end")


def test_the_evidence_goes_on_into_the_older_part(tmp_path: Path) -> None:
    """A traceback that straddles two parts is seen whole."""
    file = OutputFile(tmp_path / "rank0.log", pytest.fail, limit=LIMIT)
    for number in range(100):
        file.write(b"line %03d\n" % number)
    file.write(b"y" * 900 + b"\n")
    file.write(b"last\n")
    file.close()
    assert len(parts(tmp_path)) > 1
    tail = read_evidence(tmp_path / "rank0.log")
    assert "line 099" in tail
    assert tail.endswith("last\n")


def test_what_could_not_be_written_is_counted_and_told_once(tmp_path: Path) -> None:
    directory = tmp_path / "attempt"
    said: list[str] = []
    file = OutputFile(directory / "rank0.log", said.append)
    file.write(b"12345")
    file.write(b"678")
    assert said == ["rank0.log cannot be written: No such file or directory"]
    assert file.evidence() == "12345678"
    directory.mkdir()
    file.write(b"there again\n")
    file.close()
    text = (directory / "rank0.log").read_text()
    assert text == "\n[supervise: 8 bytes could not be written here]\nthere again\n"
    assert [path.name for path in directory.iterdir()] == ["rank0.log"]


def test_the_file_is_there_before_the_first_output(tmp_path: Path) -> None:
    file = OutputFile(tmp_path / "rank0.log", pytest.fail)
    file.write(b"")
    assert (tmp_path / "rank0.log").read_bytes() == b""
    file.write(b"step 1\n")
    file.close()
    assert (tmp_path / "rank0.log").read_bytes() == b"step 1\n"
