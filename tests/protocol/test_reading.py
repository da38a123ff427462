"""The reader of what others wrote: what is hostile is one kind of error, at once."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from supervisor.protocol.reading import (
    MAX_DEPTH,
    UnreadableError,
    parse_json,
    parse_object,
    read,
    read_end,
    read_json,
    read_object,
    read_text,
)
from tests.running import descriptors


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read(file, 5) == b"12345"
    assert read_text(file) == "12345"
    assert read_json(file) == 12345


@pytest.mark.parametrize("below", [True, False])
def test_what_is_not_there_is_told_apart(tmp_path: Path, below: bool) -> None:
    trusted = tmp_path if below else None
    with pytest.raises(FileNotFoundError, match="none"):
        read(tmp_path / "none", below=trusted)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        read(tmp_path / "file" / "none", below=trusted)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "no folder" / "none", below=trusted)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link(path: Path) -> None:
    path.with_name("real").write_text("{}")
    path.symlink_to("real")


def directory(path: Path) -> None:
    path.mkdir()


def listening(path: Path) -> None:
    socket.socket(socket.AF_UNIX).bind(str(path))


def terabyte(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root can make a device")


@pytest.mark.parametrize("plant", [fifo, zeros, link, directory, listening, terabyte, device])
def test_anything_but_a_file_of_bounded_size_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: object
) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    path = Path("odd")
    assert callable(plant)
    plant(path)
    with pytest.raises(UnreadableError, match=r"^odd (is|has) .*: move it away"):
        read(path)
    with pytest.raises(UnreadableError):
        read_text(path)


@pytest.mark.parametrize("plant", [fifo, zeros, link, directory])
def test_the_end_of_what_is_no_file_is_not_read_either(tmp_path: Path, plant: object) -> None:
    assert callable(plant)
    plant(tmp_path / "odd")
    with pytest.raises(UnreadableError):
        read_end(tmp_path / "odd", 10)


def test_the_end_of_a_file_of_any_size(tmp_path: Path) -> None:
    terabyte(tmp_path / "large")
    with (tmp_path / "large").open("ab") as file:
        file.write(b"the end")
    assert read_end(tmp_path / "large", 8) == b"\0the end"
    (tmp_path / "small").write_bytes(b"all")
    assert read_end(tmp_path / "small", 8) == b"all"


def test_a_file_that_grows_while_it_is_read_is_bounded() -> None:
    """A file of /proc says that it has no bytes."""
    assert Path("/proc/self/maps").stat().st_size == 0
    with pytest.raises(UnreadableError, match="has 11 bytes, more than 10"):
        read("/proc/self/maps", 10)


def test_links_below_a_trusted_folder_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("secret")
    trusted = tmp_path / "linked"
    trusted.symlink_to("real")  # who trusts it may have linked it
    assert read(trusted / "file", below=trusted) == b"secret"
    (tmp_path / "real" / "attempts").symlink_to(tmp_path)
    assert read(tmp_path / "real" / "attempts" / "real" / "file") == b"secret"
    with pytest.raises(NotADirectoryError):
        read(tmp_path / "real" / "attempts" / "real" / "file", below=tmp_path / "real")


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    fifo(tmp_path / "fifo")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    before = descriptors()
    for name in ("fifo", "a/file", "a/none", "none/none"):
        for below in (tmp_path, None):
            with contextlib.suppress(OSError):
                read(tmp_path / name, below=below)
    assert descriptors() <= before


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"[" * 200_000, "nested"),
        (b'{"a":' * 200_000, "nested"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested"),
        (b"9" * 5000, "5000 digits"),
        (b'{"a": -' + b"9" * 400 + b"}", "400|401"),
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b"", "not JSON"),
        (b"\0\0\0", "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"a": 1', "not JSON"),
        ("{}".encode("utf-16"), "not UTF-8"),
    ],
)
def test_whatever_a_parser_says_is_one_kind_of_error(tmp_path: Path, data: bytes, why: str) -> None:
    file = tmp_path / "file.json"
    file.write_bytes(data)
    with pytest.raises(UnreadableError, match=f"^{file} is .*({why})") as caught:
        read_object(file)
    assert "remove it" in str(caught.value)


def test_it_works_in_a_thread_too() -> None:
    """A thread has a smaller stack."""
    caught: list[Exception] = []

    def parse() -> None:
        try:
            parse_json(b"[" * 5_000_000, "x")
        except UnreadableError as error:
            caught.append(error)

    thread = threading.Thread(target=parse)
    thread.start()
    thread.join()
    assert len(caught) == 1


def test_what_is_parsed_can_be_written_again() -> None:
    value = parse_json(rb'{"a": "\ud800", "b": "\ud83d\ude00", "c": NaN}', "x")
    assert (
        json.dumps(value, ensure_ascii=False).encode() == '{"a": "?", "b": "😀", "c": NaN}'.encode()
    )
    deep = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert json.dumps(parse_json(deep, "x")).encode() == deep
    assert parse_json(b"[" + b"[]," * 1000 + b"[]]", "x") == [[]] * 1001
    assert parse_json(b'"%s"' % (b"9" * 5000), "x") == "9" * 5000


def test_something_else_than_an_object_is_refused() -> None:
    with pytest.raises(UnreadableError, match=r"^lease\.json is not a JSON object"):
        parse_object(b"[]", "lease.json")


def test_a_name_cannot_forge_a_line() -> None:
    error = UnreadableError("a\nb\udc80", "is a FIFO")
    assert str(error) == "a\\nb\\udc80 is a FIFO: move it away"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"a": "b', "is not JSON: Unterminated string starting at character 6"),
        (b'{"a": "\x01"}', "is not JSON: Invalid control character at character 7"),
        (b'{"a": }', "is not JSON: Expecting value at character 6"),
    ],
)
def test_it_is_said_where_the_json_is_damaged(data: bytes, said: str) -> None:
    with pytest.raises(UnreadableError, match=f"x {said}: "):
        parse_json(data, "x")
