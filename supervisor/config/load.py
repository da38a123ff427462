"""Makes a checked job config from a source and `--set` options, and reports all problems at once.

A source is a file, or the data that `command_line` makes of a command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from supervisor.config.conflicts import conflicts, conflicts_across
from supervisor.config.overrides import apply_override
from supervisor.config.places import local_state_directory
from supervisor.config.problems import (
    ConfigError,
    Location,
    Problem,
    shown,
    unknown_key,
)
from supervisor.config.schema import TRAINER_SECTIONS, Phase
from supervisor.config.violations import data_location, violations
from supervisor.config.yaml_source import YamlSource, read_source
from supervisor.protocol.location import Uri

EXIT_CODE_PRESETS: dict[str, dict[int, int]] = {
    # XPK restarts a job that exits with 42 or with 127 to 255; all other codes end the job.
    "xpk": {1: 42, 69: 42, 74: 42, 75: 42},
}
OWN_EXIT_CODES = ("0", "1", "64", "69", "70", "73", "74", "75", "76", "78", "79")
"""The codes of `core.exit_codes`, which a config can map. A test compares the two lists."""
_TRAINER_ONLY_MESSAGE = "is only for our trainer (fit); a command has its own settings"


@dataclass(frozen=True, slots=True)
class Job:
    """A checked config."""

    source: YamlSource
    phases: tuple[Phase, ...]
    """The phases in the order in which they run."""
    locations: tuple[Location, ...]
    """Where each phase is in the source."""
    exit_codes: Mapping[int, int]
    """The exit codes that replace those of `supervise run`, by the code that each replaces."""

    @property
    def remote(self) -> Uri | None:
        """The URI of model_dir in an object store; None: model_dir is a directory."""
        return Uri.parse(self.phases[0].init.model_dir)

    @property
    def model_dir(self) -> Path:
        """The absolute path of the job's directory on this host. If model_dir is in an object
        store, this is the local copy."""
        if self.remote is not None:
            return local_state_directory(str(self.remote))
        return Path(self.phases[0].init.model_dir).expanduser().absolute()

    def problem(self, index: int, where: Location, message: str) -> Problem:
        """Returns the problem with the text `message` at the key `where` of the phase `index`."""
        return _problem_at(self.source, self.locations[index], where, message)

    @property
    def shown_model_dir(self) -> Path | Uri:
        """The model_dir that people and programs see: the URI, or else the directory."""
        return self.remote or self.model_dir


def load_job(path: Path, overrides: Sequence[str] = ()) -> Job:
    """Returns the job in the file at `path`, with the `key=value` overrides applied; raises what
    `job_of` raises."""
    return job_of(read_source(path), overrides)


def job_of(source: YamlSource, overrides: Sequence[str] = ()) -> Job:
    """Returns the job in `source`, with the `key=value` overrides applied, also to `source`.

    Raises:
        ConfigError: the config has problems; the error holds all of them.
    """
    problems: list[Problem] = []
    for override in overrides:
        with _collecting(problems):
            apply_override(source, override)
    if problems:
        raise ConfigError(problems)
    job = _mapping(source)
    problems += _unknown_at_top(source, job)
    exit_codes: Mapping[int, int] = {}
    locations: list[Location] = []
    phases: list[Phase] = []
    with _collecting(problems):
        exit_codes = _exit_codes(source, job.get("exit_codes"))
    with _collecting(problems):
        locations = _phase_locations(source, job.get("trainer"))
    for location in locations:
        data, misplaced = _without_trainer_sections(_value_at(source.data, location))
        problems += [
            source.problem((*location, "init", key), _TRAINER_ONLY_MESSAGE) for key in misplaced
        ]
        try:
            phases.append(Phase.model_validate(data))
        except ValidationError as error:
            problems += [
                source.problem((*location, *where), message)
                for where, message in violations(error, Phase, data, location)
            ]
        else:
            problems += [
                _problem_at(source, location, where, message)
                for where, message in conflicts(phases[-1])
            ]
    if not problems:
        problems = [
            _problem_at(source, locations[index], where, message)
            for index, where, message in conflicts_across(phases)
        ]
    if problems:
        raise ConfigError(problems)
    source.data = _without_extensions(job)
    return Job(source, tuple(phases), tuple(locations), exit_codes)


@contextmanager
def _collecting(problems: list[Problem]) -> Iterator[None]:
    """Catches a ConfigError and adds its problems to `problems`."""
    try:
        yield
    except ConfigError as error:
        problems += error.problems


def _mapping(source: YamlSource) -> dict[str, Any]:
    if isinstance(source.data, dict):
        return source.data
    message = f"is not a mapping (value {shown(source.data)}); a config starts with `trainer:`"
    raise ConfigError([source.problem((), message)])


def _unknown_at_top(source: YamlSource, data: Mapping[str, Any]) -> Iterator[Problem]:
    known = ("trainer", "exit_codes")
    for key, value in data.items():
        if key not in known and not key.startswith(_ANCHOR_PREFIX):
            yield source.problem((key,), unknown_key((key,), value, known, _remedy(key, value)))


def _remedy(key: str, value: Any) -> str | None:
    """Returns what to do about an unknown key at the top level; None: its name and its value give
    no hint."""
    if key in Phase.model_fields:
        return f"it belongs below `trainer:` (trainer.{key})"
    if isinstance(value, dict):
        return f"a key that only holds anchors begins with {_ANCHOR_PREFIX} ({_ANCHOR_PREFIX}{key})"
    return None


def _phase_locations(source: YamlSource, trainer: Any) -> list[Location]:
    if trainer is None:
        message = _EMPTY_MESSAGE if "trainer" in source.data else "is required"
        raise ConfigError([source.problem(("trainer",), message)])
    if isinstance(trainer, dict):
        return [("trainer",)]
    if not isinstance(trainer, list):
        raise ConfigError(
            [source.problem(("trainer",), f"is not a mapping or a list (value {shown(trainer)})")]
        )
    if not trainer:
        raise ConfigError(
            [source.problem(("trainer",), "is an empty list; give at least one phase")]
        )
    problems = [
        source.problem(
            ("trainer", index),
            f"each phase is a mapping with the one key `trainer` (value {shown(item)})",
        )
        for index, item in enumerate(trainer)
        if not (isinstance(item, dict) and list(item) == ["trainer"])
    ]
    if problems:
        raise ConfigError(problems)
    return [("trainer", index, "trainer") for index in range(len(trainer))]


_EMPTY_MESSAGE = "has nothing below it; give it `init`, and `command` (any program) or `fit`"


def _exit_codes(source: YamlSource, value: Any) -> Mapping[int, int]:
    if value is None:
        return {}
    if isinstance(value, str) and value in EXIT_CODE_PRESETS:
        return EXIT_CODE_PRESETS[value]
    if isinstance(value, dict) and all(
        re.fullmatch(r"[0-9]{1,3}", key) and type(code) is int and 0 <= code <= 255
        for key, code in value.items()
    ):
        unknown = [key for key in value if key not in OWN_EXIT_CODES]
        if unknown:
            known = ", ".join(OWN_EXIT_CODES)
            message = f"is no exit code of `supervise run`, which ends with one of {known}"
            raise ConfigError([source.problem(("exit_codes", key), message) for key in unknown])
        return {int(key): code for key, code in value.items()}
    presets = ", ".join(EXIT_CODE_PRESETS)
    message = f"is neither a preset ({presets}) nor a map of exit codes (value {shown(value)})"
    raise ConfigError([source.problem(("exit_codes",), message)])


def _value_at(data: Any, location: Location) -> Any:
    for part in location:
        data = data[part]
    return data


def _without_trainer_sections(data: Any) -> tuple[Any, list[str]]:
    """Returns the phase without the sections of our trainer, and the names of these sections.

    This is only done to a phase that runs a command: its sections may follow another schema. Any
    other phase comes back as it is, without names.
    """
    init = data.get("init") if isinstance(data, dict) else None
    if not isinstance(init, dict) or data.get("command") is None or data.get("fit") is not None:
        return data, []
    given = [key for key in TRAINER_SECTIONS if init.get(key) is not None]
    own = {key: value for key, value in init.items() if key not in TRAINER_SECTIONS}
    return {**data, "init": own}, given


def _problem_at(source: YamlSource, base: Location, where: Location, message: str) -> Problem:
    """Returns the problem at the key `where` of the phase at `base`."""
    return source.problem((*base, *data_location(_value_at(source.data, base), where)), message)


def _without_extensions(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if not key.startswith(_ANCHOR_PREFIX)}


_ANCHOR_PREFIX = "x-"
"""The prefix of top-level keys that only hold YAML anchors, as in a file for Docker Compose."""
