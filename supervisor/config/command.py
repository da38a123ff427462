"""The section `command` of `trainer.yaml`: a program in place of our trainer."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from supervisor.config.fields import Section, local_place, no_variable
from supervisor.config.patterns import Pattern
from supervisor.config.problems import shown


class SuccessConfig(Section):
    """When the command has done its work; at most one of step, pattern and file."""

    exit_code: Annotated[int, Field(ge=0, le=255)] = 0
    """Exit code of a program that has done its work."""
    step: Annotated[int, Field(ge=1)] | None = None
    """Step that must be complete."""
    pattern: str | None = None
    """Regular expression that a line of the output must match."""
    file: Annotated[str, AfterValidator(no_variable)] | None = None
    """File, or object in a bucket, that must be there."""

    @field_validator("pattern")
    @classmethod
    def _regular(cls, value: str | None) -> str | None:
        return value if value is None else Pattern(value).source

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(item is not None for item in (self.step, self.pattern, self.file)) > 1:
            raise ValueError("give one of step, pattern and file")
        return self


class ProgressConfig(Section):
    """How to read the step from the command's output: one group that holds its number."""

    pattern: str
    """Regular expression with one group: `completed step: (\\d+)`."""

    @field_validator("pattern")
    @classmethod
    def _one_group(cls, value: str) -> str:
        if Pattern(value).groups != 1:
            raise ValueError(r"needs exactly one group, for the step: 'completed step: (\d+)'")
        return value


VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
SecretVersion = Annotated[
    str, Field(pattern=r"^projects/[a-z0-9.:-]+/secrets/[A-Za-z0-9_-]+/versions/[A-Za-z0-9_-]+$")
]


_SHELL = re.compile(r"[|&;<>()$`*?\n]|(?:^|\s)~")


def words_needed(text: str) -> str:
    """What is wrong with a command that is given as one text, and how it is written instead."""
    try:
        words = ["bash", "-c", text] if _SHELL.search(text) else shlex.split(text)
    except ValueError:  # a quote that is not closed
        words = ["bash", "-c", text]
    return f"is text, but no shell splits it into words: write {shown(words)}"


def _words(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(words_needed(value))
    return value


class Command(Section):
    """Any program in place of our trainer."""

    argv: Annotated[list[str], Field(min_length=1), BeforeValidator(_words)]
    """The program and its arguments, without a shell; may have placeholders such as {model_dir}."""
    env: dict[Annotated[str, Field(pattern=r"^[^=]+$")], str] = Field(default_factory=dict)
    """Environment variables of the program."""
    env_file: Annotated[str, Field(min_length=1), AfterValidator(local_place)] | None = None
    """File on the machine, open to nobody else, with more variables: those that are secret."""
    env_secrets: dict[VariableName, SecretVersion] = Field(default_factory=dict)
    """Variables whose values are in Google Secret Manager."""
    success: SuccessConfig | None = None
    """When the program has done its work. Default: it exits with 0."""
    progress: ProgressConfig | None = None
    """How to read the step from the output. Default: the program reports it, or nobody does."""
    bootstrap: bool = True
    """Whether a Python program runs under the bootstrap, which reports for it."""
    preload: list[Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*$")]] | None = None
    """Modules that a standby imports. Default: those that the program was seen to import."""
    global_batch: Annotated[int, Field(ge=1)] | None = None
    """Examples in a step over all devices: `{per_device_batch}` is one device's part."""
    elastic: bool = False
    """Whether the program keeps its global batch by itself, on whatever it finds."""
