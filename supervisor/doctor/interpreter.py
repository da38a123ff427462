"""The program whose interpreter is asked, and how it is asked: in a child process, because neither
jax nor the user's packages may be imported here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.config import placeholders
from supervisor.config.plan import PhasePlan
from supervisor.engines.python_program import interpreter_words, script_of
from supervisor.prepare import Prepared
from supervisor.protocol.environment import without_supervisor_variables
from supervisor.protocol.reading import UnreadableError, parse_object

_KILLED = 2.0
"""Seconds for a killed child to end. One that waits in the kernel does not."""
_SHOWN = 300
"""Most characters of an error that are told."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that a job would run."""

    phases: tuple[str, ...]
    """The phases that run it; none: no job is given."""
    words: tuple[str, ...]
    """Its command line up to the interpreter; empty: it is not started by Python."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables that the config gives it."""
    folder: str = ""
    """The folder of its script, where Python looks for modules first; empty: there is none."""
    platform: str | None = None
    """The platform of its devices; None: not known."""
    num_devices: int | None = None
    """How many devices it needs on this host; None: not known."""
    is_ours: bool = False
    """Whether it is our trainer."""
    is_recorded: bool = False
    """Whether a journal names it: its working directory is not known then."""

    def __str__(self) -> str:
        return " ".join(self.words)


def own_interpreter() -> Program:
    """Returns the interpreter of supervise itself, for where no job is given."""
    return Program((), (sys.executable,))


def programs_of(prepared: Prepared) -> list[Program]:
    """Returns the different programs of a job, as far as the interpreter is concerned."""
    found: list[Program] = []
    for plan in prepared.plans:
        one = _program(plan)
        for index, other in enumerate(found):
            if _same(one, other):
                found[index] = _both(other, one)
                break
        else:
            found.append(one)
    return found


def _program(plan: PhasePlan) -> Program:
    words, script = tuple(interpreter_words(plan.argv)), script_of(plan.argv)
    if any(placeholders.names(word) for word in words):
        words = ()
    path = plan.argv[script] if words and script is not None else ""
    folder = str(Path(path).absolute().parent) if path and not placeholders.names(path) else ""
    given = {**plan.secrets, **plan.env}
    env = {name: text for name, text in given.items() if not placeholders.names(text)}
    count = None if plan.num_hosts else plan.num_devices
    name = (plan.name,)
    return Program(name, words, env, folder, plan.platform, count, not plan.is_command)


def _same(one: Program, other: Program) -> bool:
    asked = (one.words, one.env, one.folder, one.platform, one.is_ours)
    return asked == (other.words, other.env, other.folder, other.platform, other.is_ours)


def _both(one: Program, other: Program) -> Program:
    counts = [each.num_devices for each in (one, other) if each.num_devices is not None]
    most = max(counts, default=None)
    phases = (*one.phases, *other.phases)
    return Program(phases, one.words, one.env, one.folder, one.platform, most, is_ours=one.is_ours)


def recorded_programs(config: Sequence[Mapping[str, Any]]) -> Iterator[Program]:
    """Yields the programs of a job whose journal has the resolved `config`, whose secrets and
    working directory are not known. What is not of the form that we write is left out."""
    for params in config:
        with suppress(KeyError, TypeError, AttributeError):
            trainer = params["trainer"]
            devices = trainer["init"].get("devices") or {}
            command = trainer.get("command")
            argv = [sys.executable] if command is None else [str(one) for one in command["argv"]]
            count = devices.get("count")
            yield Program(
                (str(trainer["name"]),),
                tuple(interpreter_words(argv)),
                platform=devices.get("platform"),
                num_devices=count if type(count) is int else None,
                is_ours=command is None,
                is_recorded=True,
            )


class QuestionError(Exception):
    """An interpreter did not answer; the text says why."""


_asked: set[subprocess.Popen[bytes]] = set()
"""The children that have not ended yet."""


def ask(program: Program, code: str, seconds: float, env: Mapping[str, str]) -> dict[str, Any]:
    """Run `code` in the interpreter of `program`, and return the last line of its output, an
    object in JSON. `env` has variables beside those of the program. The code finds modules as the
    script of the program does, and writes no compiled modules.

    Raises:
        QuestionError: it cannot be started, fails, or says nothing within `seconds`.
    """
    first = f"import sys; sys.path[:1] = sys.argv[1:2]\n{code}"
    folder = [program.folder] if program.folder else []
    variables = without_supervisor_variables(os.environ) | dict(program.env) | dict(env)
    try:
        child = subprocess.Popen(
            [*program.words, "-c", first, *folder],
            env={**variables, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise QuestionError(f"it cannot be started: {error.strerror or error}") from error
    _asked.add(child)
    try:
        out, err = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        ended = _end(child)
        more = "" if ended else ", and cannot be killed: it waits in the kernel"
        raise QuestionError(f"it has not answered within {seconds:g} s{more}") from error
    finally:
        _asked.discard(child)
    if child.returncode != 0:
        raise QuestionError(_last_line(err) or f"it ended with exit code {child.returncode}")
    try:
        return parse_object(out.strip().rpartition(b"\n")[2], "its answer")
    except UnreadableError as error:
        raise QuestionError(str(error)) from error


def _end(child: subprocess.Popen[bytes]) -> bool:
    """Kill a child with what it has started; False: it does not end."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(_KILLED)
    except subprocess.TimeoutExpired:
        return False
    return True


def end_questions() -> None:
    """Kill the children that have not ended, as when a person stops this command."""
    for child in tuple(_asked):
        _end(child)


def _last_line(err: bytes) -> str:
    text = err.decode(errors="replace").strip().rpartition("\n")[2]
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
