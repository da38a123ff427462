"""Little programs, each run twice: by the interpreter alone, and by way of the bootstrap."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.engines.python_program import START, bootstrapped
from supervisor.protocol.failure_record import FailureRecord, parse_failure_record
from supervisor.protocol.messages import Message, decode

BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""The environment of these tests, where Python buffers its output as it does by default."""


@dataclass(frozen=True)
class Outcome:
    """What the program did, as far as anybody outside can see."""

    stdout: bytes
    stderr: bytes
    status: int


class Twice:
    """Runs command lines in a directory of programs, plainly and bootstrapped."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.failure_file = directory.parent / "failure.json"
        self.messages: list[Message] = []
        """What the last bootstrapped run said on the progress pipe."""

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def plainly(
        self, *arguments: str, python: str = sys.executable, env: Mapping[str, str] | None = None
    ) -> Outcome:
        """Unbuffered, unless `env` says otherwise: whole lines come in the same order as by the
        bootstrap."""
        return self._run([python, *arguments], {"PYTHONUNBUFFERED": "1", **(env or {})})

    def bootstrapped(
        self,
        *arguments: str,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        start: str = START,
    ) -> Outcome:
        """`start` is how the command line names the file of the bootstrap."""
        argv, why_not = bootstrapped([python, *arguments])
        assert why_not is None
        assert len(argv) == len(arguments) + 2
        argv = [start if word == START else word for word in argv]
        self.failure_file.unlink(missing_ok=True)
        read_end, write_end = os.pipe()
        status = os.fstat(read_end)
        own = {
            "SUPERVISE_JOB": "j",
            "SUPERVISE_RANK": "2",
            "SUPERVISE_FAILURE_FILE": str(self.failure_file),
            "SUPERVISE_STACKS_FILE": str(self.directory.parent / "stacks.txt"),
            "SUPERVISE_PROGRESS_FD": str(write_end),
            "SUPERVISE_PROGRESS_PIPE": f"{status.st_dev}:{status.st_ino}",
            **(env or {}),
        }
        try:
            outcome = self._run(argv, own, inherit=write_end)
        finally:
            os.close(write_end)
            with os.fdopen(read_end, "rb") as pipe:
                self.messages = [m for line in pipe if (m := decode(line)) is not None]
        return outcome

    @property
    def record(self) -> FailureRecord | None:
        """What the last bootstrapped run left."""
        if not self.failure_file.exists():
            return None
        return parse_failure_record(self.failure_file.read_bytes())

    def _run(
        self, argv: Sequence[str], env: Mapping[str, str], inherit: int | None = None
    ) -> Outcome:
        done = subprocess.run(
            argv,
            cwd=self.directory,
            env={**BUFFERED, "PYTHONDONTWRITEBYTECODE": "1", **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=() if inherit is None else (inherit,),
            timeout=120,
        )
        return Outcome(done.stdout, done.stderr, done.returncode)


def version(python: str) -> tuple[int, ...]:
    """Of the interpreter `python`; () where it does not run."""
    program = "import sys; sys.stdout.write('%d %d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", program], capture_output=True, timeout=60)
    except OSError:
        return ()
    return tuple(int(number) for number in done.stdout.split()) if done.returncode == 0 else ()


def interpreters() -> dict[tuple[int, ...], str]:
    """An interpreter of each version that this machine has; of our own version ourselves."""
    places = [f"/usr/bin/python{number}" for number in ("2", "3", "3.11", "3.12", "3.13", "3.14")]
    places += map(str, Path.home().glob(".pyenv/versions/*/bin/python"))
    found = {version(place): place for place in places}
    found[tuple(sys.version_info[:2])] = sys.executable
    found.pop((), None)
    return found


PYTHONS = interpreters()
SUPPORTED = [PYTHONS[v] for v in sorted(PYTHONS) if (3, 11) <= v <= (3, 13)]
UNSUPPORTED = [PYTHONS[v] for v in sorted(PYTHONS) if v < (3, 11)]
