"""Whatever becomes of the terminal, of standard output and of standard error: the job goes on, is
stopped as it should be, and ends with the right exit code."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import termios
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.history.writer import writer
from tests.running import MARK, PATIENCE, command_config, eventually, gone

CTRL_C, CTRL_S, CTRL_Q = b"\x03", b"\x13", b"\x11"
COLUMNS = 200
GONE = "WARNING: standard output is not used any more: Input/output error"


class Terminal:
    """A `supervise run` in a terminal of its own."""

    def __init__(self, config: Path, *, controls: bool, mark: str) -> None:
        """`controls`: it is the controlling terminal, whose end the kernel tells by SIGHUP."""
        self._master, slave = os.openpty()
        termios.tcsetwinsize(slave, (40, COLUMNS))
        self.name = name = os.ttyname(slave)
        self.shown = b""
        # The size is the terminal's, not what the environment of the tests says.
        environ = {
            name: os.environ[name] for name in os.environ.keys() - {"COLUMNS", "LINES", "CI"}
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "run", str(config)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=(lambda: os.close(os.open(name, os.O_RDWR))) if controls else None,
            env={**environ, "TERM": "xterm-256color", MARK: mark},
        )
        os.close(slave)

    def wait_for(self, text: str) -> None:
        """Read until `text` is shown."""
        while text.encode() not in self.shown:
            ready, _, _ = select.select([self._master], [], [], PATIENCE)
            assert ready, self.shown.decode(errors="replace")
            self.shown += os.read(self._master, 65536)

    def all(self) -> str:
        """Everything that is shown until its end."""
        with suppress(OSError):  # EIO: nobody has it open any more
            while chunk := os.read(self._master, 65536):
                self.shown += chunk
        return self.shown.decode(errors="replace")

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._master, keys)

    def close(self) -> None:
        """Close the window, or lose the connection."""
        if self._master >= 0:
            os.close(self._master)
        self._master = -1


@contextmanager
def in_a_terminal(
    config: dict[str, Any], folder: Path, *, controls: bool = True
) -> Iterator[Terminal]:
    path = folder / "trainer.yaml"
    path.write_text(yaml.safe_dump(config))
    mark = uuid.uuid4().hex
    terminal = Terminal(path, controls=controls, mark=mark)
    try:
        yield terminal
    finally:
        if terminal.process.poll() is None:
            terminal.process.kill()
        terminal.process.wait()
        terminal.close()
    assert gone(f"{MARK}={mark}")


def log(model_dir: Path) -> str:
    return "".join(path.read_text() for path in sorted(model_dir.glob("*_restartable/run.log")))


def saves(model_dir: Path) -> dict[str, Any]:
    """A program that saves when it is told to stop."""
    return command_config(model_dir, "save-on-sigterm", success={"step": 500})


def shell(model_dir: Path, script: str) -> dict[str, Any]:
    config = command_config(model_dir)
    config["trainer"]["command"] = {"argv": ["sh", "-c", script]}
    return config


def test_a_closed_terminal_is_a_drain(model_dir: Path, tmp_path: Path) -> None:
    with in_a_terminal(saves(model_dir), tmp_path) as terminal:
        terminal.wait_for("ready to save")
        terminal.close()
        assert terminal.process.wait(PATIENCE) == 75
    assert re.search("checkpoint of step 300 (is|was) committed", log(model_dir))
    assert "DRAINED, exit code 75" in log(model_dir)


def test_a_job_goes_on_without_its_terminal(model_dir: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    config = shell(model_dir, f"echo waits; cat {go}; echo goes on; exit 0")
    with in_a_terminal(config, tmp_path, controls=False) as terminal:
        terminal.wait_for("waits")
        terminal.close()
        assert eventually(lambda: GONE in log(model_dir))
        go.write_text("go")
        assert terminal.process.wait(PATIENCE) == 0
    assert log(model_dir).count(GONE) == 1


@pytest.mark.parametrize("keys", [b"", CTRL_S], ids=["full", "paused"])
def test_a_terminal_that_nobody_reads_holds_nobody_up(
    model_dir: Path, tmp_path: Path, keys: bytes
) -> None:
    go, gone_by = tmp_path / "go", tmp_path / "gone_by"
    os.mkfifo(go)
    config = saves(model_dir)
    flood = f"cat {go}; yes 'much to tell' | head -n 10000; touch {gone_by}"
    toy = shlex.join(config["trainer"]["command"]["argv"])
    config["trainer"]["command"]["argv"] = ["sh", "-c", f"({flood}) & exec {toy}"]
    with in_a_terminal(config, tmp_path) as terminal:
        terminal.wait_for("ready to save")
        terminal.type(keys)
        go.write_text("go")  # a terminal takes some 20 kB that nobody reads
        assert eventually(gone_by.exists)
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(PATIENCE) == 75
        assert "DRAINED" not in terminal.all(), "there was no room for it"
    assert re.search("checkpoint of step 300 (is|was) committed", log(model_dir))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["told", "killed"])
def test_a_terminal_that_was_paused_to_the_end_shows_its_cursor_again(
    model_dir: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with in_a_terminal(saves(model_dir), tmp_path) as terminal:
        terminal.wait_for("ready to save")
        terminal.wait_for("supervise \u00b7 job ")  # the picture
        shell = os.open(terminal.name, os.O_RDWR | os.O_NOCTTY)  # which outlives the command
        terminal.type(CTRL_S)
        terminal.process.send_signal(number)
        terminal.process.wait(PATIENCE)
        terminal.type(CTRL_Q)
        os.close(shell)
        shown = terminal.all()
    assert shown.rfind("\x1b[?25l") <= shown.rfind("\x1b[?25h"), "the cursor stays hidden"


def test_a_failure_is_told_in_a_terminal_that_nobody_reads(model_dir: Path, tmp_path: Path) -> None:
    """What ends the run goes to standard error, which is the same terminal."""
    flood = "i=0; while [ $i -lt 20000 ]; do echo 'much to tell'; i=$((i+1)); done; exit 3"
    with in_a_terminal(shell(model_dir, flood), tmp_path) as terminal:
        assert terminal.process.wait(PATIENCE) == 70
    assert "FAILED, exit code 70" in log(model_dir)


def test_output_scrolls_above_the_view_without_what_could_do_harm(
    model_dir: Path, tmp_path: Path
) -> None:
    script = (
        r"printf 'one\n\033[31mred\033[0m\n\033]0;owned\007title\n\033[2Jclear\n\377\376\n'; "
        r"printf ' 1%%\r 50%%\r100%%\n\ttab\nwithout an end'"
    )
    with in_a_terminal(shell(model_dir, script), tmp_path) as terminal:
        shown = terminal.all()
        assert terminal.process.wait(PATIENCE) == 0
    lines = [line.rstrip() for line in re.split("[\r\n]", re.sub(r"\x1b\[[\d;?]*\w", "", shown))]
    for line in ("one", "red", "title", "clear", "\ufffd\ufffd", "100%", "        tab"):
        assert line in lines
    assert "without an end" in lines
    assert " 50%" not in shown
    for harm in ("\x1b[31mred", "owned", "\x1b[2J"):
        assert harm not in shown


def test_the_view_leaves_room_for_the_echo_of_ctrl_c(model_dir: Path, tmp_path: Path) -> None:
    """A terminal shows `^C` behind the view. In a full line it would move the view down."""
    with in_a_terminal(saves(model_dir), tmp_path) as terminal:
        terminal.wait_for("ready to save")
        terminal.wait_for("supervise \u00b7 job ")
        terminal.type(CTRL_C)
        shown = terminal.all()
        assert terminal.process.wait(PATIENCE) == 79
    borders = re.findall("\u256d[^\u256e]*\u256e", shown)
    assert borders
    assert {len(border) for border in borders} == {COLUMNS - 2 * len("^C")}


def test_a_run_that_starts_nothing_shows_no_state(model_dir: Path, tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    notice.write_text("maintenance")
    config = command_config(model_dir)
    config["trainer"]["init"]["autorestart"]["preemption"] = {"file": str(notice)}
    with in_a_terminal(config, tmp_path) as terminal:
        shown = terminal.all()
        assert terminal.process.wait(PATIENCE) == 75
    assert "nothing is started here" in shown
    assert "STARTING" not in shown
    assert "\u256d" not in shown


def test_a_traceback_is_shown_once_and_kept_in_run_log(model_dir: Path, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("def load():\n    raise ValueError('bad record 7')\n\n\nload()\n")
    config = command_config(
        model_dir, restart={"max_num_restarts": 0}, argv=[sys.executable, str(program)]
    )
    with in_a_terminal(config, tmp_path) as terminal:
        shown = terminal.all()
        assert terminal.process.wait(PATIENCE) == 70
    told = f'| File "{program}", line 2, in load'
    assert re.sub(r"\|\s+", "| ", log(model_dir)).count(told) == 1
    assert shown.count(f'File "{program}", line 2, in load') == 1
    assert f"ValueError: bad record 7, at {program}:2 in load" in shown


def a_job_that_fails(model_dir: Path, tmp_path: Path) -> Path:
    """The config of a job whose program, train.py beside it, raises at once."""
    program = tmp_path / "train.py"
    program.write_text("raise ValueError('bad record 7')\n")
    config = command_config(
        model_dir, restart={"max_num_restarts": 0}, argv=[sys.executable, str(program)]
    )
    path = tmp_path / "trainer.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_traceback_is_in_a_file_once_and_as_an_event_for_programs(
    model_dir: Path, tmp_path: Path
) -> None:
    path = a_job_that_fails(model_dir, tmp_path)
    done = in_a_shell(f"run {path}", "")
    assert done.returncode == 70
    assert done.stdout.count('train.py", line 1, in <module>') == 1
    assert log(model_dir).count('train.py", line 1, in <module>') == 1
    events = [
        json.loads(line)["event"]
        for line in in_a_shell(f"run {path} --log-format json", "").stdout.splitlines()
    ]
    assert "traceback" in events


def test_a_traceback_that_was_not_shown_is_told(model_dir: Path, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import os\nos.dup2(os.open('/dev/null', 1), 2)\nraise ValueError('bad')\n")
    config = command_config(
        model_dir, restart={"max_num_restarts": 0}, argv=[sys.executable, str(program)]
    )
    with in_a_terminal(config, tmp_path) as terminal:
        shown = terminal.all()
        assert terminal.process.wait(PATIENCE) == 70
    assert shown.count(f'File "{program}", line 3, in <module>') == 1


def test_a_terminal_is_written_in_its_own_encoding(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    with in_a_terminal(shell(model_dir, r"printf 'caf\303\251\n'"), tmp_path) as terminal:
        terminal.all()
        assert terminal.process.wait(PATIENCE) == 0
    assert b"caf\xe9" in terminal.shown


def in_a_shell(command: str, redirection: str) -> subprocess.CompletedProcess[str]:
    """`supervise COMMAND REDIRECTION` as a person types it."""
    line = f"set -o pipefail; {sys.executable} -m supervisor {command} {redirection}"
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


EVERYWHERE = [">&-", "2>&-", "<&-", ">&- 2>&- <&-", ">/dev/full", "2>/dev/full", "| true"]


@pytest.mark.parametrize("redirection", EVERYWHERE)
def test_a_run_needs_neither_output_nor_error(
    model_dir: Path, tmp_path: Path, redirection: str
) -> None:
    path = tmp_path / "trainer.yaml"
    path.write_text(yaml.safe_dump(shell(model_dir, "echo hello; exit 0")))
    done = in_a_shell(f"run {path}", redirection)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "SUCCEEDED, exit code 0" in log(model_dir)
    (output,) = model_dir.glob("*_restartable/attempts/0001/rank0.log")
    assert output.read_text() == "hello\n", "no file has taken the place of standard output"


@pytest.mark.parametrize("command", ["validate", "rules --config", "--help"])
@pytest.mark.parametrize(
    ("redirection", "code", "complaint"),
    [
        ("| true", 0, ""),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
        (
            ">/dev/full",
            74,
            "supervise: standard output cannot be written: No space left on device\n",
        ),
    ],
)
def test_what_is_printed_may_go_anywhere(
    tmp_path: Path, command: str, redirection: str, code: int, complaint: str
) -> None:
    path = tmp_path / "trainer.yaml"
    path.write_text(yaml.safe_dump(command_config(tmp_path / "run")))
    done = in_a_shell(command if command == "--help" else f"{command} {path}", redirection)
    assert (done.returncode, done.stderr) == (code, complaint)


def test_the_version_is_that_of_the_journal() -> None:
    done = in_a_shell("--version", "")
    first, _, _ = done.stdout.partition("\n")
    assert (done.returncode, first) == (0, f"supervise {writer()}")


def test_where_a_job_stands_may_be_told_to_nobody(model_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "trainer.yaml"
    path.write_text(yaml.safe_dump(shell(model_dir, "exit 0")))
    assert in_a_shell(f"run {path}", "").returncode == 0
    done = in_a_shell(f"status {model_dir}", "| true")
    assert (done.returncode, done.stderr) == (0, "")
    done = in_a_shell(f"status {model_dir}", ">/dev/full")
    assert done.returncode == 74
    assert done.stderr == "supervise: standard output cannot be written: No space left on device\n"


def test_a_job_that_fails_says_why_on_standard_error_once(model_dir: Path, tmp_path: Path) -> None:
    path = a_job_that_fails(model_dir, tmp_path)
    done = in_a_shell(f"run {path}", f"> {tmp_path / 'out'}")
    assert done.returncode == 70
    (word,) = done.stderr.splitlines()
    assert word.startswith("supervise: FAILED, exit code 70: ")
    where = f"at {tmp_path / 'train.py'}:1 (rule 'program-error')"
    assert f"root cause: ValueError: bad record 7, {where}; what to do: " in word
    assert Path(word.rpartition("more: ")[2]).is_file()
    done = in_a_shell(f"run {path}", "2>&1")
    assert done.stdout.count("FAILED, exit code 70") == 1, "not doubled where both are one file"
