"""Standard output where it is no terminal: JSON is one object a line, also after a full disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.telling.console import JsonConsole, PlainConsole
from supervisor.adapters.telling.runlog import as_json
from supervisor.host import outlet
from tests.running import PATIENCE, eventually, may_mount

_ON_A_SMALL_DISK = """
import os, sys
from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.telling.console import JsonConsole, PlainConsole
from supervisor.adapters.telling.runlog import as_json
from tests.running import eventually

folder, form = sys.argv[1:]
told = []
log = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
if form == "json":
    console = JsonConsole(log, told.append, SystemClock(), as_json)
else:
    console = PlainConsole(log, told.append)
ballast = os.open(f"{folder}/ballast", os.O_WRONLY | os.O_CREAT)
os.posix_fallocate(ballast, 0, 40_000)
number = 0
while not told:
    number += 1
    console.mirror(1, b"line %0200d\\n" % number)
    eventually(lambda: console._outlet._size == 0)
console.mirror(1, b"lost\\n" * 100)
assert eventually(lambda: console._outlet._size == 0)
os.ftruncate(ballast, 0)
for _ in range(20):
    console.mirror(1, b"there is room again\\n")
console.close()
sys.stderr.write(f"{number}")
sys.stdout.write(open(f"{folder}/log").read())
"""


def on_a_small_disk(folder: Path, form: str) -> tuple[int, list[str]]:
    """The line that the disk did not take, and what is in the log at the end."""
    mounted = f'mount -t tmpfs -o size=64k small {folder} && exec "$@"'
    unshared = ["unshare", "-m", "sh", "-c", mounted, "sh"]
    done = subprocess.run(
        [*unshared, sys.executable, "-c", _ON_A_SMALL_DISK, str(folder), form],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return int(done.stderr), done.stdout.splitlines()


@pytest.mark.skipif(not may_mount(), reason="needs a file system of its own")
def test_json_is_one_object_a_line_after_a_full_disk(tmp_path: Path) -> None:
    refused, lines = on_a_small_disk(tmp_path, "json")
    events = [json.loads(line) for line in lines]
    texts = [event["text"] for event in events if event["event"] == "output"]
    assert texts[:refused] == [f"line {n:0200}" for n in range(1, refused + 1)], (
        "begun, so finished"
    )
    assert texts[refused:] == ["there is room again"] * 20
    (dropped,) = (event for event in events if event["event"] == "output-unshown")
    assert dropped["bytes"] > 100 * len("lost")
    assert events.index(dropped) == refused, "where it is missing"


@pytest.mark.skipif(not may_mount(), reason="needs a file system of its own")
def test_text_says_what_a_full_disk_did_not_take(tmp_path: Path) -> None:
    refused, lines = on_a_small_disk(tmp_path, "text")
    assert lines[refused - 1 : refused + 2] == [
        f"line {refused:0200}",
        "[supervise: 500 bytes were not shown: standard output did not take them]",
        "there is room again",
    ]


def test_the_last_words_of_an_attempt_come_at_its_end(tmp_path: Path) -> None:
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    console = JsonConsole(log, print, SystemClock(), as_json)
    console.mirror(1, b"first\nthe last words")
    console.mirror(1, b"")
    assert eventually(lambda: (tmp_path / "log").read_text().count("\n") == 2)
    console.mirror(2, b"the next attempt begins")
    console.mirror(1, b"")
    console.mirror(2, b" and ends\n")
    console.close()
    os.close(log)
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(event["attempt"], event["text"]) for event in events] == [
        (1, "first"),
        (1, "the last words"),
        (2, "the next attempt begins and ends"),
    ]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def test_a_line_that_a_program_writes_word_by_word_stays_whole(
    log: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet, "_REST_OF_LINE", PATIENCE)
    console = PlainConsole(log, print)
    for word in (b"step", b" ", b"12"):
        console.mirror(1, word)
    assert eventually(lambda: os.pread(log, 99, 0) == b"step 12")
    console.line("ours")
    console.line("ours too")
    console.mirror(1, b" loss")
    console.mirror(1, b" 0.5\nstep")
    console.mirror(1, b" 13")
    assert eventually(lambda: os.pread(log, 99, 0).endswith(b"step 13"))
    console.close()
    assert os.pread(log, 99, 0) == b"step 12 loss 0.5\nours\nours too\nstep 13"


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_line_waits_only_a_moment_for_the_end_of_another(log: int, goes_on: bool) -> None:
    console = PlainConsole(log, print)
    console.mirror(1, b"50%\r")
    console.line("ours")

    def is_shown() -> bool:
        if goes_on:
            console.mirror(1, b"51%\r")
        return b"\r\nours\n" in os.pread(log, 1 << 20, 0)

    assert eventually(is_shown)
    console.close()
