"""`supervise status --watch`: in place in a terminal, else whenever something changes, until the
end of the job."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pyte

from supervisor.core.events import Event, WorkersGone, WorkersObserved
from tests.adapters.test_journal import EXITS, KILLED, STORY, tell
from tests.running import PATIENCE

FATAL = replace(KILLED, verdict=KILLED.verdict.FATAL, certain=True)
ENDED = (*STORY[:3], WorkersObserved(4.1, 1, (7,), EXITS), WorkersGone(4.2, 1, FATAL, None, 6, 5))


def journalled(place: Path, *events: Event) -> None:
    """Replace the journal of `place` by one with these events."""
    (other := place.with_name("other")).mkdir()
    tell(other, *events)
    (other / "journal.jsonl").replace(place / "journal.jsonl")
    other.rmdir()


def watch(place: Path, output: int, *options: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "supervisor", "status", "--watch", *options, str(place)]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE)


def test_elsewhere_each_change_is_printed_once(model_dir: Path) -> None:
    model_dir.mkdir()
    journalled(model_dir, *STORY[:3])
    watching = watch(model_dir, subprocess.PIPE, "--exit-code")
    assert watching.stdout is not None
    first = watching.stdout.readline()
    journalled(model_dir, *ENDED)
    out, err = watching.communicate(timeout=PATIENCE)
    assert (watching.returncode, err) == (70, b"")
    assert out.count(first) == 1, "the second picture begins like the first one, and no third comes"
    assert b" with supervise's exit code 70 (another attempt would fail in the same way)" in out
    assert b"\x1b" not in out


def test_programs_read_a_line_for_each_change(model_dir: Path) -> None:
    model_dir.mkdir()
    journalled(model_dir, *STORY[:3])
    watching = watch(model_dir, subprocess.PIPE, "--json")
    assert watching.stdout is not None
    assert watching.stdout.readline().startswith(b'{"v": 1,')
    journalled(model_dir, *ENDED)
    out, _ = watching.communicate(timeout=PATIENCE)
    assert watching.returncode == 0
    (line,) = out.splitlines()
    assert b'"exit_code": 70' in line


def test_ctrl_c_ends_it_quietly(model_dir: Path) -> None:
    model_dir.mkdir()
    journalled(model_dir, *STORY[:3])
    watching = watch(model_dir, subprocess.PIPE, "--exit-code")
    assert watching.stdout is not None
    watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=PATIENCE)
    assert (watching.returncode, err) == (3, b"")


def test_in_a_terminal_it_is_drawn_in_place(model_dir: Path) -> None:
    model_dir.mkdir()
    journalled(model_dir, *STORY[:3])
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (24, 60))
    screen = pyte.Screen(60, 24)
    stream = pyte.ByteStream(screen)

    def show_until(text: str) -> list[str]:
        while text not in "\n".join(screen.display):
            ready, _, _ = select.select([master], [], [], PATIENCE)
            assert ready, "\n".join(screen.display)
            stream.feed(os.read(master, 65536))
        return [line.rstrip() for line in screen.display]

    watching = watch(model_dir, slave)
    os.close(slave)
    show_until("restarts and")
    screen.resize(40, 50)
    termios.tcsetwinsize(master, (40, 50))
    journalled(model_dir, *ENDED)
    show_until("exit code 70")
    lines = show_until("goodput")  # the last line of the picture
    assert watching.wait(PATIENCE) == 0
    assert sum(line.startswith("FAILED: killed") for line in lines) == 1
    assert sum(line.startswith("job job in") for line in lines) == 1
    assert "RUNNING" not in "\n".join(lines), "nothing of the first picture is left"
    os.close(master)
