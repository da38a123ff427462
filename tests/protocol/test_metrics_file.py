"""metrics.jsonl: each step once, whatever a kill, a full disk or a stranger has left."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from supervisor.protocol import metrics_file
from supervisor.protocol.reading import UnreadableError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / metrics_file.NAME


def line(step: int, phase: str = "phase1", **measured: float) -> bytes:
    return metrics_file.encoded(1.5, phase, 1, step, measured)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in file.read_bytes().splitlines()]


def cut_after(file: Path, step: int) -> None:
    metrics_file.cut(file, lambda line: line["step"] > step)


def test_a_line_has_our_keys_first_and_no_number_that_json_lacks() -> None:
    told = line(3, loss=2.5, time=9.0, norm=float("nan"))
    assert told == (
        b'{"time": 1.5, "phase": "phase1", "attempt": 1, "step": 3, "loss": 2.5, "norm": null}\n'
    )


@pytest.mark.parametrize("number", [1, 3, 2000])
def test_what_is_superseded_is_cut_off_however_much_it_is(file: Path, number: int) -> None:
    metrics_file.append(file, b"".join(map(line, range(1, number + 1))))
    cut_after(file, 1)
    assert [each["step"] for each in lines(file)] == [1]


def test_all_of_it_may_be_superseded(file: Path) -> None:
    metrics_file.append(file, b"".join(map(line, range(1, 2001))))
    cut_after(file, 0)
    assert file.read_bytes() == b""


@pytest.mark.parametrize("torn", [b'{"time": 1.5, "st', b"\0" * 100_000, b"no line\n", b"[1]\n"])
def test_what_is_no_line_is_cut_off_the_end(file: Path, torn: bytes) -> None:
    metrics_file.append(file, line(1) + line(2))
    metrics_file.append(file, torn)
    cut_after(file, 2)
    metrics_file.append(file, line(3))
    assert [each["step"] for each in lines(file)] == [1, 2, 3]


def test_a_file_that_stays_as_it_is_stays_the_same_file(file: Path) -> None:
    metrics_file.append(file, line(1) + line(2))
    before = file.stat()
    cut_after(file, 2)
    assert os.path.samestat(before, file.stat())
    cut_after(file, 1)
    assert not os.path.samestat(before, file.stat())


def test_without_a_file_there_is_nothing_to_cut(file: Path) -> None:
    cut_after(file, 0)
    assert not file.exists()


def test_a_link_or_a_fifo_in_its_place_is_neither_written_nor_cut(file: Path) -> None:
    target = file.with_name("other")
    target.write_bytes(line(5))
    file.symlink_to(target)
    with pytest.raises(UnreadableError, match="link"):
        metrics_file.append(file, line(6))
    with pytest.raises(UnreadableError, match="link"):
        cut_after(file, 0)
    assert target.read_bytes() == line(5)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UnreadableError):
        metrics_file.append(file, line(6))


def test_half_of_the_lines_go_when_it_is_thinned_out(file: Path) -> None:
    metrics_file.append(file, b"".join(map(line, range(1, 11))))
    metrics_file.thin_out(file)
    assert [each["step"] for each in lines(file)] == [2, 4, 6, 8, 10]


def test_a_line_that_is_too_long_goes_and_ours_stay(file: Path) -> None:
    long = b"x" * 200_000 + b"\n"
    metrics_file.append(file, line(1) + long + line(2) + line(3) + long)
    cut_after(file, 3)
    assert file.read_bytes() == line(1) + long + line(2) + line(3)
    metrics_file.thin_out(file)
    assert [each["step"] for each in lines(file)] == [2]
    metrics_file.append(file, long)
    cut_after(file, 1)
    assert file.read_bytes() == b""


def test_a_file_of_any_size_takes_little_memory(file: Path) -> None:
    metrics_file.append(file, line(1))
    os.truncate(file, 300 << 20)
    tracemalloc.start()
    try:
        metrics_file.thin_out(file)
        assert file.read_bytes() == b""
        metrics_file.append(file, line(1))
        os.truncate(file, 300 << 20)
        cut_after(file, 1)
        assert file.read_bytes() == line(1)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_is_none_of_ours_is_not_thinned_out(file: Path) -> None:
    metrics_file.append(file, line(1))
    os.truncate(file, (1 << 30) + 1)
    with pytest.raises(UnreadableError, match="has 1073741825 bytes, more than 1073741824"):
        metrics_file.thin_out(file)
