"""Writes the config of a command as a commented trainer.yaml; never over a file that exists."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.config.command_line import ARGV, DEVICES, MODEL_DIR, RESTARTS, SUCCESS_STEP
from supervisor.config.load import Job
from supervisor.config.problems import Location
from supervisor.config.yaml_source import parse_source, to_yaml
from supervisor.prepare import Prepared

_PRIVATE, _NORMAL = 0o600, 0o666
NOTES: Mapping[Location, str] = {
    MODEL_DIR: "The directory of the job. A run with the same directory continues the same job.",
    DEVICES: "The accelerators to train on.",
    RESTARTS: "The most restarts in a row without a new committed checkpoint.",
    ARGV: "The program and its arguments. No shell reads them. {model_dir} stands for the "
    "directory\nof the job, and {{ for one brace.",
    SUCCESS_STEP: "The step that the program must have completed, beside exit code 0.",
}
"""What stands above a key."""
PATHS_BEGIN = "Relative paths begin at the directory in which supervise is run."
_END = """
# All keys: docs/reference/config.md. Those that a command needs most often, below `command`:
#   env: {NAME: value}                      variables of the program
# And below `init`:
#   checkpoint: {directory: out/ckpt}       where the program saves
"""
_COMMAND: Location = ("trainer", "command")


@dataclass(frozen=True, slots=True)
class _Unset:
    """A key of the command that the config does not have, but should."""

    name: str
    example: str
    meaning: str
    without: str
    """What holds while the key is not there."""


_WANTED = (
    _Unset(
        "progress",
        "{pattern: '^step +(\\d+)'}",
        "How the step is read from the output.",
        "the steps are those that the program or the bootstrap reports; others are only shown",
    ),
    _Unset(
        "success",
        "{step: 1000}",
        "When the work is done, beside exit code 0.",
        "exit code 0 alone means success",
    ),
)
"""What only the person who wrote the program knows."""


class NotWrittenError(Exception):
    """The file cannot be written; the text says why. `exists`: there is a file already."""

    def __init__(self, text: str, *, exists: bool = False) -> None:
        super().__init__(text)
        self.exists = exists


def commented(job: Job, head: str, notes: Mapping[Location, str] = NOTES) -> str:
    """Returns the config of `job` as YAML, with `head` and `notes` as comments."""
    text = to_yaml(job.source.data)
    lines = parse_source("", text).lines
    places = {line: place for place, line in lines.items() if place in notes}
    written = [f"# {line}" for line in head.splitlines()]
    end = _end_of_command(lines)
    for number, line in enumerate(text.splitlines(), 1):
        if number == end:
            written += _examples(job)
        if number in places:
            indent = " " * (len(line) - len(line.lstrip()))
            written += [f"{indent}# {note}" for note in notes[places[number]].splitlines()]
        written.append(line)
    if end is None:
        written += _examples(job)
    return "\n".join([*written, _END])


def _end_of_command(lines: Mapping[Location, int]) -> int | None:
    """Returns the line of the key that follows the section of the command; None: it is the last."""
    begin = lines[_COMMAND]
    return min(
        (line for place, line in lines.items() if len(place) == len(_COMMAND) and line > begin),
        default=None,
    )


def _examples(job: Job) -> list[str]:
    """Returns an example, as a comment, of each key that the command should have and does not."""
    return [
        f"    # {line}"
        for key in _unset(job)
        for line in (key.meaning, f"Without it, {key.without}.", f"{key.name}: {key.example}")
    ]


def _unset(job: Job) -> list[_Unset]:
    command = job.source.data["trainer"]["command"]
    return [key for key in _WANTED if key.name not in command]


def write_config(path: Path, prepared: Prepared, text: str) -> list[str]:
    """Write `text`, the config of `prepared`, to `path`; returns what a person should know.

    Nobody else may read a file with what looks like a secret.

    Raises:
        NotWrittenError: there is such a file already, or it cannot be written.
    """
    redactor = prepared.redactor({})
    secret = next(
        (word for plan in prepared.plans for word in plan.argv if redactor.text(word) != word), None
    )
    try:
        descriptor = os.open(
            path,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
            _NORMAL if secret is None else _PRIVATE,
        )
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise NotWrittenError(
            f"{path} exists, and is not overwritten: move it away, or name another file",
            exists=True,
        ) from None
    except OSError as error:
        raise NotWrittenError(f"{path} cannot be written: {error.strerror}") from error
    quoted = shlex.quote(str(path))
    told = [
        f"wrote {path}; nothing was started",
        f"the job will be in {prepared.job.source.data['trainer']['init']['model_dir']}",
        f"to check it: supervise validate {quoted}",
        f"to run it:   supervise run {quoted}",
    ]
    told += [
        f"note: command.{key.name} is not set: {key.without} (an example is in {path})"
        for key in _unset(prepared.job)
    ]
    if secret is not None:
        told.append(
            f"note: {path} holds what looks like a secret, so only you may read it; better write "
            "the secret into a file for command.env_file"
        )
    return told
