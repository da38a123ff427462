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
    """When the command has completed its work: give at most one of step, pattern and file."""

    exit_code: Annotated[int, Field(ge=0, le=255)] = 0
    """Exit code of a program that has completed its work."""
    step: Annotated[int, Field(ge=1)] | None = None
    """Step that the program must have completed."""
    pattern: str | None = None
    """Regular expression that a line of the output must match."""
    file: Annotated[str, AfterValidator(no_variable)] | None = None
    """File, or object in a bucket, that must exist."""

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
    """How to read the step from the command's output."""

    pattern: str
    """Regular expression with one group, which matches the step: `completed step: (\\d+)`."""

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
    """Returns what is wrong with a command that is one text, and the list to write instead."""
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
    """Any program, in place of our trainer."""

    argv: Annotated[list[str], Field(min_length=1), BeforeValidator(_words)]
    """The program and its arguments. No shell reads them; they may have placeholders such as
    {model_dir}."""
    env: dict[Annotated[str, Field(pattern=r"^[^=]+$")], str] = Field(default_factory=dict)
    """Environment variables of the program."""
    env_file: Annotated[str, Field(min_length=1), AfterValidator(local_place)] | None = None
    """File on the machine with the secret variables, one NAME=VALUE a line. No other user may have
    access to it."""
    env_secrets: dict[VariableName, SecretVersion] = Field(default_factory=dict)
    """Variables whose values are in Google Secret Manager."""
    success: SuccessConfig | None = None
    """When the program has completed its work. Default: when it exits with 0."""
    progress: ProgressConfig | None = None
    """How to read the step from the output. Default: the output is not read; the supervisor knows
    the steps only if the program or the bootstrap reports them."""
    bootstrap: bool = True
    """Whether a Python program runs under the bootstrap, which reports its failures, stages and
    saves to the supervisor."""
    preload: list[Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*$")]] | None = None
    """Modules that a standby imports. Default: the installed modules that the program imported in
    an earlier attempt."""
    global_batch: Annotated[int, Field(ge=1)] | None = None
    """Examples in a step over all devices. `{per_device_batch}` is the share of one device."""
    elastic: bool = False
    """Whether the program keeps its global batch by itself, on any number of devices."""
