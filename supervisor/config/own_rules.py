"""The user's own rules (`autorestart.rules`), which come before ours, and their examples."""

from __future__ import annotations

import re
import signal
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from supervisor.config.fields import Section, StageName
from supervisor.config.judgement import Remedy, Verdict
from supervisor.config.patterns import Pattern
from supervisor.config.schema_clauses import (
    AlternativeForm,
    at_least_one,
    at_most_one,
    given,
    has,
    if_there,
    when,
    with_clauses,
)
from supervisor.protocol.messages import Stage

VerdictName = Annotated[Verdict, Field(strict=False)]
RemedyName = Literal[
    Remedy.LESS_AT_ONCE,
    Remedy.ROLL_BACK,
    Remedy.WAIT,
    Remedy.WAIT_LONG,
    Remedy.WAIT_FOR_CAPACITY,
]
"""All remedies except WAIT_FOR_STORAGE, which only we can tell."""


def _check_exit_code(value: int) -> int:
    if not 0 <= value <= 255:
        killed = (
            f"signal: {signal.Signals(-value).name}" if -value in _NUMBERS else "signal: SIGKILL"
        )
        raise ValueError(
            f"{value} is no exit code: give one from 0 to 255 (if a signal killed it, `{killed}`)"
        )
    return value


_NUMBERS = frozenset(signal.Signals)
_EXIT_CODE = {"type": "integer", "minimum": 0, "maximum": 255}
ExitCode = Annotated[int, AfterValidator(_check_exit_code), WithJsonSchema(_EXIT_CODE)]


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) or value is None else [value]


def _as_example(value: Any) -> Any:
    return {"text": value} if isinstance(value, str) else value


_ENDS_NOTHING = frozenset(
    {"SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGWINCH"}
)
"""Signals that do not end a process: by default it ignores them, stops or continues (signal(7))."""


def _signal_name(value: str) -> str:
    """Returns the main name of the signal `value`; some signals have two names. ValueError: it is
    no signal, or one that ends no process."""
    if value not in signal.Signals.__members__:
        raise ValueError(f"{value!r} is not a signal such as SIGKILL")
    name = signal.Signals[value].name
    if name in _ENDS_NOTHING:
        raise ValueError(f"{value!r} ends no process; give one that does, such as SIGKILL")
    return name


_SIGNAL = {
    "type": "string",
    "enum": [
        name
        for name, number in signal.Signals.__members__.items()
        if number.name not in _ENDS_NOTHING
    ],
    "errorMessage": "Give the name of a signal that ends a process, such as SIGKILL.",
}
SignalName = Annotated[str, AfterValidator(_signal_name), WithJsonSchema(_SIGNAL)]


class Example(Section):
    """A log (or a part of one) and how its process ended, with the result that the rules must
    give."""

    model_config = with_clauses(
        at_least_one("text", "exit_code", "signal"), at_most_one("exit_code", "signal")
    )

    text: Annotated[str | None, Field(min_length=1)] = None
    """The log, or a part of it."""
    exit_code: ExitCode | None = None
    """Exit code of the process. Default: 1, if no signal is given."""
    signal: SignalName | None = None
    """Signal that ended the process."""
    stage: StageName | None = None
    """Stage in which the process ended."""
    decides: bool | None = None
    """Whether this rule must decide about the example. Default: true, unless `expect` is
    given."""
    expect: VerdictName | None = None
    """The verdict that the example must get; any rule may decide it."""

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if self.text is None and self.exit_code is None and self.signal is None:
            raise ValueError("give the text of a log, an exit_code or a signal")
        if self.exit_code is not None and self.signal is not None:
            raise ValueError("give exit_code or signal: a process ends by one of them")
        return self


_TYPE_NAME = {
    "type": "string",
    "pattern": r"^(?:[\w.*<>]|[^\x00-\x7f])+$",  # \w is only ASCII in an editor
    "errorMessage": "Give the name of an exception type; `*` matches any text.",
}
ExampleOrText = Annotated[
    Example, BeforeValidator(_as_example), AlternativeForm({"type": "string", "minLength": 1})
]
TypeNames = Annotated[
    list[Annotated[str, WithJsonSchema(_TYPE_NAME)]],
    BeforeValidator(_as_list),
    AlternativeForm(_TYPE_NAME),
]
SignalNames = Annotated[
    list[Annotated[str, WithJsonSchema(_SIGNAL)]],
    BeforeValidator(_as_list),
    AlternativeForm(_SIGNAL),
]
ExitCodes = Annotated[list[ExitCode], BeforeValidator(_as_list), AlternativeForm(_EXIT_CODE)]
Stages = Annotated[list[StageName], BeforeValidator(_as_list), AlternativeForm({"enum": [*Stage]})]


class RuleConfig(Section):
    """One of the user's own rules: its conditions, which must all match, and the verdict."""

    model_config = with_clauses(
        at_least_one("type", "regex", "exit_code", "signal", "stage"),
        at_most_one("exit_code", "signal"),
        when(
            has("certain", {"type": "boolean"}),
            if_there("verdict", {"const": "FATAL"}, "`certain` is only for verdict FATAL."),
        ),
        when(
            has("transient", {"type": "boolean"}),
            if_there(
                "verdict", {"enum": ["RESTART", "POLICY"]}, "`transient` is not for verdict FATAL."
            ),
        ),
        when(
            given("remedy"),
            if_there("verdict", {"const": "POLICY"}, "`remedy` is only for verdict POLICY."),
        ),
    )

    name: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")] = None
    """Name of the rule in messages. Default: own-1, own-2, ..."""
    type: TypeNames = Field(default_factory=list)
    """Exception type, or a list of them; `*` matches any text."""
    regex: str | None = None
    """Regular expression that must match somewhere in the error or the output."""
    exit_code: ExitCodes = Field(default_factory=list)
    """Exit code, or a list of them."""
    signal: SignalNames = Field(default_factory=list)
    """Signal that ended the process, such as SIGKILL, or a list of them."""
    stage: Stages = Field(default_factory=list)
    """Stage in which the process ended, or a list of them."""
    verdict: VerdictName
    """What to do: RESTART, FATAL (end the job), or POLICY (restart with a remedy)."""
    certain: bool | None = None
    """With verdict FATAL: whether the job ends at once (the default) or after one more attempt."""
    transient: bool | None = None
    """With verdict RESTART or POLICY: whether another attempt may succeed although the same failure
    came again. If true, only the budget ends the job; if false, `repeated_failure_limit` ends it
    too, unless there is a `remedy`. Default: false."""
    remedy: RemedyName | None = None
    """With verdict POLICY: what the next attempt does differently."""
    cause: Annotated[str | None, Field(min_length=1)] = None
    """Name of the cause in messages."""
    reason: Annotated[str | None, Field(min_length=1)] = None
    """Why the verdict is right, for messages."""
    advice: Annotated[str | None, Field(min_length=1)] = None
    """What a person should do, for messages."""
    examples: list[ExampleOrText] = Field(default_factory=list)
    """Logs on which the rule is tested when the config is read. A text alone is short for
    `{text: ...}`."""

    @field_validator("regex")
    @classmethod
    def _check_regex(cls, value: str | None) -> str | None:
        return value if value is None else Pattern(value).source

    @field_validator("type")
    @classmethod
    def _check_type_names(cls, value: list[str]) -> list[str]:
        for name in value:
            if not re.fullmatch(r"[\w.*<>]+", name):
                raise ValueError(f"{name!r} is not the name of an exception type (`*` matches any)")
        return value

    @field_validator("signal")
    @classmethod
    def _check_signal_names(cls, value: list[str]) -> list[str]:
        return [_signal_name(name) for name in value]

    @field_validator("certain")
    @classmethod
    def _check_certain(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        verdict = info.data.get("verdict")
        if value is not None and verdict is not None and verdict is not Verdict.FATAL:
            raise ValueError(
                f"is only for verdict FATAL, not {verdict}: take it out, or make the verdict FATAL"
            )
        return value

    @field_validator("transient")
    @classmethod
    def _check_transient(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value is not None and info.data.get("verdict") is Verdict.FATAL:
            raise ValueError("is not for verdict FATAL: take it out, or make the verdict RESTART")
        return value

    @model_validator(mode="after")
    def _check_conditions(self) -> Self:
        if not (self.type or self.regex or self.exit_code or self.signal or self.stage):
            raise ValueError("give at least one of type, regex, exit_code, signal and stage")
        return self

    @model_validator(mode="after")
    def _check_remedy(self) -> Self:
        if self.remedy is not None and self.verdict is not Verdict.POLICY:
            raise ValueError(f"a remedy needs verdict POLICY, not {self.verdict}")
        return self
