"""The section `command` of `trainer.yaml`: a program in place of our trainer."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from supervisor.config import placeholders
from supervisor.config.fields import (
    LOCAL_PLACE_FORM,
    PLACE_FORM,
    Section,
    checked_local_place,
    checked_path,
)
from supervisor.config.patterns import Pattern
from supervisor.config.problems import shown
from supervisor.config.schema_clauses import (
    Keywords,
    absent,
    at_most_one,
    has,
    if_there,
    when,
    with_clauses,
)

TEMPLATE_FORM = {"type": "string", **placeholders.make_schema(placeholders.KNOWN)}
"""The JSON Schema of a text with placeholders."""
Template = Annotated[str, WithJsonSchema(TEMPLATE_FORM)]


class SuccessConfig(Section):
    """When the command has completed its work: give at most one of step, pattern and file."""

    model_config = with_clauses(at_most_one("step", "pattern", "file"))

    exit_code: Annotated[int, Field(ge=0, le=255)] = 0
    """Exit code of a program that has completed its work."""
    step: Annotated[int, Field(ge=1)] | None = None
    """Step that the program must have completed: a committed checkpoint of it, a report of the
    program, or `progress.pattern` must tell it. A step that is only recognised does not count. Once
    it is committed, a program that does nothing and does not exit within `deadlines.FINISHING` (5
    min) is ended, which is a success. One that crashes, or ends with another exit code, has failed
    all the same: what it does after that step is a part of its work."""
    pattern: str | None = None
    """Regular expression that a line of the output must match."""
    file: (
        Annotated[str, AfterValidator(checked_path), PLACE_FORM, Keywords(TEMPLATE_FORM)] | None
    ) = None
    """File, or object in a bucket, that must exist."""

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, value: str | None) -> str | None:
        return value if value is None else Pattern(value).source

    @model_validator(mode="after")
    def _check_one_sign(self) -> Self:
        if sum(item is not None for item in (self.step, self.pattern, self.file)) > 1:
            raise ValueError("give one of step, pattern and file")
        return self


WITH_A_GROUP = Keywords({"pattern": r"\(", "errorMessage": "It needs a group, for the step."})


class ProgressConfig(Section):
    """How to read the step from the command's output."""

    pattern: Annotated[str, WITH_A_GROUP]
    """Regular expression with one group, which matches the step: `completed step: (\\d+)`."""

    @field_validator("pattern")
    @classmethod
    def _check_one_group(cls, value: str) -> str:
        if Pattern(value).groups != 1:
            raise ValueError(r"needs exactly one group, for the step: 'completed step: (\d+)'")
        return value


VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
SecretVersion = Annotated[
    str, Field(pattern=r"^projects/[a-z0-9.:-]+/secrets/[A-Za-z0-9_-]+/versions/[A-Za-z0-9_-]+$")
]


_SHELL = re.compile(r"[|&;<>()$`*?\n]|(?:^|\s)~")


def explain_text_command(text: str) -> str:
    """Returns what is wrong with a command that is one text, and the list to write instead."""
    try:
        words = ["bash", "-c", text] if _SHELL.search(text) else shlex.split(text)
    except ValueError:  # a quote that is not closed
        words = ["bash", "-c", text]
    return f"is one text, but no shell reads it: write the list {shown(words)}"


def _refuse_text(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(explain_text_command(value))
    return value


class Command(Section):
    """Any program, in place of our trainer."""

    model_config = with_clauses(
        when(
            has("bootstrap", {"const": False}),
            absent("preload", "It needs the bootstrap."),
            if_there("save_on_sigterm", {"const": False}, "It needs the bootstrap."),
        ),
    )

    argv: Annotated[list[Template], Field(min_length=1), BeforeValidator(_refuse_text)]
    """The program and its arguments. No shell reads them; they may have placeholders such as
    {model_dir}."""
    env: dict[Annotated[str, Field(pattern=r"^[^=]+$")], Template] = Field(default_factory=dict)
    """Environment variables of the program."""
    env_file: (
        Annotated[str, Field(min_length=1), AfterValidator(checked_local_place), LOCAL_PLACE_FORM]
        | None
    ) = None
    """File on the machine with the secret variables, one NAME=VALUE a line. No other user may have
    access to it; but a group of yours may read a file of root."""
    env_secrets: dict[VariableName, SecretVersion] = Field(default_factory=dict)
    """Variables whose values are in Google Secret Manager."""
    success: SuccessConfig | None = None
    """When the program has completed its work. Default: when it exits with 0."""
    progress: ProgressConfig | None = None
    """How to read the step from the output. Default: the steps are those that the program or the
    bootstrap reports; else usual lines such as `step 12` are recognised, for people to see."""
    bootstrap: bool = True
    """Whether a Python program runs under the bootstrap, which reports its failures, stages and
    saves to the supervisor."""
    save_on_sigterm: bool = False
    """Whether SIGTERM makes the program's next call of Orbax's `CheckpointManager.save` save its
    step, whatever the save interval says, and end the program. For a Python program that calls
    `save` at every step."""
    preload: list[Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*$")]] | None = None
    """Modules that a standby imports. Default: the installed modules that the program imported in
    an earlier attempt."""
    global_batch: Annotated[int, Field(ge=1)] | None = None
    """Examples in a step over all devices. `{per_device_batch}` is the share of one device."""
    elastic: bool = False
    """Whether the program keeps its global batch by itself, on any number of devices."""
