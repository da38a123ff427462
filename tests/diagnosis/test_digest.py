"""What is kept of a log of any size: its root causes wherever they are, and always its end."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.secret_names import REDACTED
from supervisor.diagnosis.digest import LogDigest
from supervisor.diagnosis.line_forms import GAP
from supervisor.diagnosis.log_lines import clean_lines
from supervisor.diagnosis.redaction import Redactor

LINE = b"I1121 08:55:30.93 1405 trainer.py:129] step 12 loss 5.9012\n"
ROOT = b'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nValueError: root\n'
BOUND = 1 << 20


def digest(*chunks: bytes) -> str:
    log = LogDigest()
    for chunk in chunks:
        log.feed(chunk)
    return log.text()


@given(st.lists(st.binary(max_size=300), max_size=40))
def test_a_short_log_is_kept_whole(chunks: list[bytes]) -> None:
    chunks = [b"log:", *(chunk.replace(b"\0", b"0") for chunk in chunks)]  # and is no UTF-16
    assert digest(*chunks) == b"".join(chunks).decode("utf-8", "replace")


@pytest.mark.parametrize("before", [0, 1, 1000, 40_000])
@pytest.mark.parametrize("size", [17, 4096, 1 << 20])
def test_a_root_cause_is_found_wherever_it_is(before: int, size: int) -> None:
    log = LINE * before + ROOT + LINE * 40_000
    text = digest(*(log[at : at + size] for at in range(0, len(log), size)))
    assert ROOT.decode() in text
    assert text.endswith(LINE.decode())
    assert len(text) < BOUND


def test_it_is_the_same_however_the_log_is_cut() -> None:
    log = LINE * 3000 + ROOT + LINE * 5000 + ROOT.replace(b"root", b"other") + LINE * 3000
    whole = digest(log)
    assert "ValueError: other" in whole
    for size in (1000, 4099, 70_001):
        assert digest(*(log[at : at + size] for at in range(0, len(log), size))) == whole


def test_a_flood_of_the_same_noise_does_not_drive_out_the_root_cause() -> None:
    noise = b"Traceback (most recent call last):\nRuntimeError: noise %d\n" + LINE * 60
    log = LINE * 5000 + ROOT + b"".join(noise % n for n in range(5000))
    text = digest(log)
    assert "ValueError: root" in text
    assert len(text) < BOUND


def test_memory_is_bounded_whatever_is_fed() -> None:
    log = LogDigest()
    for number in range(300):
        log.feed(b"Traceback (most recent call last):\n" + bytes([65 + number % 26]) * 70_000)
    assert len(log.text()) < BOUND


def test_a_line_without_an_end_is_no_trouble() -> None:
    text = digest(*(b"x" * 65_536 for _ in range(100)))
    assert len(text) < BOUND


@pytest.mark.parametrize("coding", ["utf-16-le", "utf-16-be", "utf-16"])
@pytest.mark.parametrize("size", [1, 4099, 1 << 20])
def test_a_root_cause_is_found_in_utf_16(coding: str, size: int) -> None:
    log = (LINE * (10 if size == 1 else 4000) + ROOT + LINE * 3000).decode().encode(coding)
    text = digest(*(log[at : at + size] for at in range(0, len(log), size)))
    assert ROOT.decode() in text
    assert text.endswith(LINE.decode())


@pytest.mark.parametrize("prefix", [b"[rank0]: ", b'{"log":"', b"[1,0]<stderr>:", b"t-1  | "])
def test_a_fatal_line_of_native_code_is_found_behind_a_prefix(prefix: bytes) -> None:
    fatal = b"F1121 08:55:30.9 7 client.h:80] the device is gone\n"
    log = b"".join(prefix + line for line in [LINE] * 4000 + [fatal] + [LINE] * 4000)
    assert "the device is gone" in digest(log)


def test_it_may_be_asked_for_before_the_log_ends() -> None:
    log = LogDigest()
    log.feed("\ufefffirst\n".encode("utf-16-le"))
    assert "first" in log.text()
    log.feed("second\n".encode("utf-16-le"))
    assert log.text().endswith("second\n")


SECRET = "hunter2/SuperSecret+Value-99887766=="
PARTS = [SECRET[at : at + 6] for at in range(len(SECRET) - 5)]


@given(
    st.sampled_from(["", "key=", "Bearer ", "'", '{"token":"', "\u2500"]),
    st.lists(st.integers(0, 2000), min_size=1, max_size=6),
    st.lists(st.integers(1, 400_000), max_size=4),
)
def test_no_cut_leaves_a_part_of_a_secret(
    before: str, fillers: list[int], places: list[int]
) -> None:
    """The secret stands all over the log, so that cuts go through it."""
    words = [f"{'w' * (length % 90)} {before}{SECRET}" for length in fillers]
    lines = "".join(f"{word}\n" if n % 2 else f"{word} " for n, word in enumerate(words)).encode()
    noise = lines * (500_000 // len(lines))
    log = bytearray(noise)
    for number, place in enumerate(places):
        at = log.find(b" ", place) + 1
        log[at:at] = b"\nTraceback (most recent call last):\nValueError: %c" % (65 + number)
    told = Redactor({"API_TOKEN": SECRET}).text(digest(bytes(log)))
    assert REDACTED in told
    assert [part for part in PARTS if part in told] == []


def test_a_message_that_is_cut_tells_no_part_of_a_secret() -> None:
    """Also where the word at the cut is all that there is of a line."""
    header = b"Traceback (most recent call last):\nValueError: bad token"
    for length in range(32_720, 32_800, 3):
        log = LINE * 2000 + header + b" " * (length - len(header)) + SECRET.encode() + b" no"
        told = Redactor({"API_TOKEN": SECRET}).text(digest(log + b"\n" + LINE * 3000))
        assert "ValueError: bad token" in told
        assert [part for part in PARTS if part in told] == []


def test_a_line_that_is_too_long_is_cut_between_words() -> None:
    for length in range(3950, 4000):
        (line,) = clean_lines("x " * (length // 2) + "y" * (length % 2) + f" {SECRET}\n")
        told = Redactor({"API_TOKEN": SECRET}).text(line)
        assert [part for part in PARTS if part in told] == []


@pytest.mark.parametrize("from_the_end", [100, 10_000, 40_000, 80_000])
def test_what_is_kept_around_an_error_and_of_the_end_is_one_piece(from_the_end: int) -> None:
    lines = [b"line %06d\n" % number for number in range(30_000)]
    lines.insert(
        len(lines) - from_the_end // len(lines[0]), b"Traceback (most recent call last):\n"
    )
    kept = digest(b"".join(lines))
    numbers = [int(number) for number in re.findall(r"^line (\d{6})$", kept, re.MULTILINE)]
    assert numbers == list(range(numbers[0], 30_000))
    assert kept.count(GAP) == 1
    assert kept.count("Traceback") == 1
