"""`init.notify`: whom to tell of what happens to the job, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from supervisor.config.fields import Section
from supervisor.config.schema_clauses import (
    AlternativeForm,
    Keywords,
    absent,
    exactly_one,
    given,
    when,
    with_clauses,
)

Happening = Literal["failure", "restart", "shrink", "finish", "person"]

_URL = r"^https?://[^/\s]+"
_URL_FORM = Keywords(
    {"pattern": _URL, "errorMessage": "Give an http:// or https:// URL, or {env: NAME}."}
)


_SECRET = "webhook"
"""The type of errors whose text has no secret: that of a ValueError is not shown."""


def _no_url() -> PydanticCustomError:
    return PydanticCustomError(_SECRET, "is no http:// or https:// URL")


def checked_url(value: str) -> str:
    """Returns `value`, a URL. ValueError, without the value, which is a secret: it is none."""
    if not re.match(_URL, value) or not value.isascii() or re.search(r"\s", value):
        raise _no_url()
    try:
        found = urlsplit(value)
        is_whole = bool(found.hostname) and found.port != 0
    except ValueError:
        is_whole = False
    if not is_whole:
        raise _no_url()
    return value


def _as_mapping(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


class Webhook(Section):
    """A URL that takes messages by POST. Whoever knows it can write to the channel behind it, so
    it is never shown, logged or stored."""

    model_config = with_clauses(exactly_one("url", "env"))

    url: Annotated[str, AfterValidator(checked_url), _URL_FORM] | None = None
    """The URL. A text in place of this mapping is short for it."""
    env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """Variable of the supervisor's environment that has the URL."""

    def url_in(self, environ: Mapping[str, str]) -> str:
        """Returns the URL; empty: its variable is not set in `environ`."""
        return self.url if self.url is not None else environ.get(self.env or "", "")

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.url is None) == (self.env is None):
            raise PydanticCustomError(_SECRET, "give exactly one of url and env")
        return self


class Notify(Section):
    """Tells somebody of what happens to the job: by a command, or by a webhook."""

    model_config = with_clauses(
        exactly_one("command", "webhook"),
        when(given("format"), absent("command", "`format` is only for a webhook.")),
    )

    on: list[Happening] = Field(default=["failure", "shrink", "finish", "person"], min_length=1)
    """What to tell of: `failure` of an attempt, `restart` (an attempt after the first), `shrink`
    to a smaller rung, `finish` of the job, or that it needs a `person`."""
    command: Annotated[list[str], Field(min_length=1)] | None = None
    """Program that gets each message as JSON on its standard input. It may take 30 s."""
    webhook: (
        Annotated[
            Webhook,
            BeforeValidator(_as_mapping),
            AlternativeForm({"type": "string"} | _URL_FORM.form),
        ]
        | None
    ) = None
    """URL to which each message is posted."""
    format: Literal["slack", "json"] | None = None
    """What the webhook gets: `slack` is `{"text": ...}`, which Slack, Mattermost and others take;
    `json` is what a command gets. Default: slack."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.command is None) == (self.webhook is None):
            raise ValueError("give exactly one of command and webhook")
        if self.format is not None and self.webhook is None:
            raise ValueError("format is only for a webhook: a command always gets JSON")
        return self
