"""The section `command` of `trainer.yaml`: a program in place of our trainer."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from supervisor.config.fields import Section, compiled, local_place


class SuccessConfig(Section):
    """When the command has done its work; at most one of step, pattern and file."""

    exit_code: Annotated[int, Field(ge=0, le=255)] = 0
    step: Annotated[int, Field(ge=0)] | None = None
    pattern: str | None = None
    file: str | None = None

    @field_validator("pattern")
    @classmethod
    def _regular(cls, value: str | None) -> str | None:
        return value if value is None else compiled(value).pattern

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(item is not None for item in (self.step, self.pattern, self.file)) > 1:
            raise ValueError("give one of step, pattern and file")
        return self


class ProgressConfig(Section):
    """How to read the step from the command's output: one group that holds its number."""

    pattern: str

    @field_validator("pattern")
    @classmethod
    def _one_group(cls, value: str) -> str:
        if compiled(value).groups != 1:
            raise ValueError(r"needs exactly one group, for the step: 'completed step: (\d+)'")
        return value


VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
SecretVersion = Annotated[
    str, Field(pattern=r"^projects/[a-z0-9.:-]+/secrets/[A-Za-z0-9_-]+/versions/[A-Za-z0-9_-]+$")
]


class Command(Section):
    """Any program in place of our trainer."""

    argv: Annotated[list[str], Field(min_length=1)]
    env: dict[Annotated[str, Field(pattern=r"^[^=]+$")], str] = Field(default_factory=dict)
    env_file: Annotated[str, Field(min_length=1), AfterValidator(local_place)] | None = None
    """A file on the machine, open to nobody else, with more variables: those that are secret."""
    env_secrets: dict[VariableName, SecretVersion] = Field(default_factory=dict)
    """Variables whose values are in Google Secret Manager."""
    success: SuccessConfig | None = None
    progress: ProgressConfig | None = None
    bootstrap: bool = True
    preload: list[Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*$")]] | None = None
    """The modules that a standby imports; left out: those that the program was seen to import."""
    global_batch: Annotated[int, Field(ge=1)] | None = None
    """Examples in a step over all devices: `{per_device_batch}` is one device's part."""
    elastic: bool = False
    """Whether the program keeps its global batch by itself, on whatever it finds."""
