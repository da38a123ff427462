"""Makes the config of a job from a command line: `supervise run [options] -- python train.py`.

The result is what reading a config file gives: data, and the origin of each key. So the same checks
follow, and their problems name an option in place of a line. A directory for the job and the number
of restarts have defaults here, which a config does not have; `YamlSource.chosen` has those in use.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from supervisor.config import placeholders
from supervisor.config.named_program import assignments, named_program
from supervisor.config.problems import ConfigError, Location, Problem
from supervisor.config.topology import parse_slice
from supervisor.config.yaml_source import YamlSource

DEFAULT_RESTARTS = 3
RUNS = "runs"
"""The folder, in the working directory, of the jobs whose model_dir nobody names."""
MODEL_DIR: Location = ("trainer", "init", "model_dir")
RESTARTS: Location = ("trainer", "init", "autorestart", "max_num_restarts")
DEVICES: Location = ("trainer", "init", "devices")
ARGV: Location = ("trainer", "command", "argv")
SUCCESS_STEP: Location = ("trainer", "command", "success", "step")
_OPTIONS = {
    MODEL_DIR: "--model-dir",
    RESTARTS: "--max-restarts",
    DEVICES: "--devices",
    SUCCESS_STEP: "--success-step",
    ARGV: "the command",
}
_CHOSEN_MODEL_DIR = "the model_dir (--model-dir chooses another)"
"""What stands for the option that nobody gave."""
_MOST_OF_A_NAME = 40
_COUNT = re.compile(r"[0-9]{1,9}")
_PLATFORMS = ("cpu", "gpu", "tpu")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A job as a command line gives it. None: the option is not there."""

    argv: Sequence[str]
    """The program and its arguments, as they were typed."""
    directory: str
    """The working directory."""
    model_dir: str | None = None
    max_restarts: int | None = None
    devices: Mapping[str, Any] | None = None
    success_step: int | None = None


def source_of(given: CommandLine) -> YamlSource:
    """Returns the config of `given`, with the options as the origins of its keys.

    Raises:
        ConfigError: the command has a word that is not text.
    """
    if any("\ud800" <= letter <= "\udfff" for word in given.argv for letter in word):
        raise ConfigError([Problem(_OPTIONS[ARGV], "", "has a word that is not UTF-8 text")])
    model_dir, restarts = given.model_dir, given.max_restarts
    init = {
        "model_dir": default_model_dir(given) if model_dir is None else model_dir,
        **({} if given.devices is None else {"devices": dict(given.devices)}),
        "autorestart": {"max_num_restarts": DEFAULT_RESTARTS if restarts is None else restarts},
    }
    step = given.success_step
    command = {
        "argv": [placeholders.keep_unknown(word) for word in given.argv],
        **({} if step is None else {"success": {"step": step}}),
    }
    chosen = {
        place for place, value in ((MODEL_DIR, model_dir), (RESTARTS, restarts)) if value is None
    }
    data = {"trainer": {"init": init, "command": command}}
    options = _OPTIONS if model_dir is not None else _OPTIONS | {MODEL_DIR: _CHOSEN_MODEL_DIR}
    return YamlSource("the command line", data, options=dict(options), chosen=chosen)


def default_model_dir(given: CommandLine) -> str:
    """Returns `./runs/<name>-<8 hex>` for a command without a model_dir.

    The digits come from the program (a script: its absolute path), its arguments, the variables
    that `env` sets for it, and the working directory. So the same command goes on with the same
    job, and another argument is another job. How the program is launched (`nice`, the interpreter)
    makes no difference.
    """
    program = named_program(given.argv)
    word = given.argv[program.index]
    path = posixpath.normpath(posixpath.join(given.directory, word))
    identity = [
        given.directory,
        path if program.is_script else word,
        assignments(given.argv),
        list(given.argv[program.index + 1 :]),
    ]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:8]
    name = PurePosixPath(program.name).name
    stem = re.sub(r"\.(py|pyz|sh)$", "", name)
    kept = re.sub(r"[^\w.-]", "_", stem, flags=re.ASCII).lstrip(".")[:_MOST_OF_A_NAME]
    return f"./{RUNS}/{kept or 'job'}-{digest}"


def parse_count(text: str) -> int:
    """Returns the number `text`; ValueError: it is no whole number."""
    if _COUNT.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a whole number such as 3")
    return int(text)


def parse_devices(text: str) -> dict[str, Any]:
    """Returns the section `devices` for the short form `cpu:4`, `gpu`, `gpu:8` or `v5e-8`.

    Raises:
        ValueError: the text has no such form.
    """
    platform, colon, number = text.partition(":")
    if platform in _PLATFORMS and not colon:
        return {"platform": platform}
    if platform in _PLATFORMS and _COUNT.fullmatch(number) and int(number) > 0:
        return {"platform": platform, "count": int(number)}
    if platform in _PLATFORMS:
        raise ValueError(f"{text!r} gives no number of devices, as {platform}:4 does")
    try:
        parse_slice(text)
    except ValueError as error:
        if re.fullmatch(r"v\d\w*-\d+", text):
            raise
        raise ValueError(
            f"{text!r} is none of cpu:4 (simulated), gpu (all), gpu:8, tpu:4, or a TPU type such "
            "as v5e-8"
        ) from error
    return {"platform": "tpu", "type": text}
