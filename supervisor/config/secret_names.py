"""Recognises secrets by their names: variables, flags, keys of the config.

Messages about a config quote its values. A value with the name of a secret is removed before the
message is made, so that no exception, log or terminal ever has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

REDACTED = "[redacted]"

_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:token|key|secret|pat|pass|auth|bearer|pem|cookies?|dsn|creds?)$|[_-]pwd$|pgpass$"
    r"|passw(?:or)?d|passphrase|secret|credential|api_?key|connection_?string|webhook"
    r"|(?:access|account|auth|private|shared)key$|(?:access|auth|bearer|refresh)token$"
    r"|(?:^|_)(?:database|db|redis|mongo(?:db)?|postgres|mysql|broker|amqp)_ur[il]$",
    re.IGNORECASE,
)
_NO_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:eos|bos|pad|unk|mask|sep|cls)_token(?:_ids?)?$|[_-](?:file|path|dir)$",
    re.IGNORECASE,
)
_SECRET_WORD = re.compile(r"(?:^|[_-])(?:token|key|secret|pass|pwd|auth)\d*[_-]", re.IGNORECASE)
"""Such words also mark a secret inside a name: `OPENAI_KEY_1`, `SLACK_TOKEN_BOT`."""
_NO_SECRET_WORD = re.compile(
    r"^-*(?:num|max|min|n)[_-]|(?:^|[_-])(?:key[_-]values?|pass[_-](?:rate|through))(?:[_-]|$)"
    r"|[_-](?:sock|length|len|count|size|bits|heads|dim|types?|ids?|name|url|ttl|timeout|expiry"
    r"|enabled|method|mode)$",
    re.IGNORECASE,
)
_SETTING = re.compile(r"[-+.,e\d]{1,7}|true|false|yes|no|on|off|none|null", re.IGNORECASE)
_MAY_BEGIN_LIKE_A_PATH = re.compile(r"passw|secret|token", re.IGNORECASE)
_ENVIRONMENT = re.compile(r"env|envs|environ|environment|env_?vars", re.IGNORECASE)
"""Keys that hold the environment of a program, in any form."""


def is_secret(name: str, value: str = "") -> bool:
    """True if the name of a variable says that it holds a secret.

    The path of a key file is no secret. `value` helps to decide: it may look like a path or like a
    setting.
    """
    has_word = _SECRET_WORD.search(name) and not _NO_SECRET_WORD.search(name)
    is_named = _SECRET_NAME.search(name) or (has_word and not _SETTING.fullmatch(value))
    if not is_named or _NO_SECRET_NAME.search(name):
        return False
    is_path = value.startswith(("/", "~/", "./", "../"))
    return not is_path or bool(_MAY_BEGIN_LIKE_A_PATH.search(name))


def num_shown_parts(location: Sequence[str | int]) -> int:
    """Returns how many parts of `location` a message may show.

    These are the parts down to the name of a secret, or to a variable of an environment: a key
    below it may be a part of the secret. Without such a name they are all parts.
    """
    for index, part in enumerate(location):
        if not isinstance(part, str):
            continue
        if _holds_secret(part):
            return index + 1
        if _ENVIRONMENT.fullmatch(part):
            return min(index + 2, len(location))
    return len(location)


def is_hidden(location: Sequence[str | int]) -> bool:
    """True if no message may show the value at `location`: it is a secret, or in an environment."""
    if "env_secrets" in location[:-1]:  # a user may write the secret here in place of its name
        return True
    return any(
        isinstance(part, str) and (_ENVIRONMENT.fullmatch(part) or _holds_secret(part))
        for part in location
    )


def _holds_secret(key: str) -> bool:
    return key != "env_secrets" and is_secret(key)  # env_secrets only has the names of secrets


def without_secrets(value: Any) -> Any:
    """Returns a value of the config without the secrets that its keys, flags and assignments
    name."""
    if isinstance(value, dict):
        return {
            key: REDACTED if is_hidden((key,)) else without_secrets(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        if all(isinstance(word, str) for word in value):
            return _without_assignments([without_secrets(w) if " " in w else w for w in value])
        return [without_secrets(item) for item in value]
    if isinstance(value, str):
        return " ".join(_without_assignments(value.split(" ")))
    return value


def _without_assignments(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line without the secrets after flags and in `NAME=VALUE`."""
    parts = [word.partition("=") for word in without_flag_values(words)]
    return [
        f"{name}={REDACTED}" if equals and is_secret(name, value) else name + equals + value
        for name, equals, value in parts
    ]


def flags(argv: Sequence[str]) -> dict[str, str]:
    """Returns the values of `--flag VALUE` and `--flag=VALUE`, by flag.

    A flag without a value has an empty one.
    """
    found = dict(word.partition("=")[::2] for word in argv if word.startswith("-"))
    for flag, value in pairwise(argv):
        if flag.startswith("-") and "=" not in flag and not value.startswith("-"):
            found[flag] = value
    return found


def without_flag_values(argv: Sequence[str]) -> list[str]:
    """Returns `argv` without the secrets after flags."""
    clean: list[str] = []
    for before, word in zip(["", *argv], argv, strict=False):
        flag, equals, value = word.partition("=")
        if equals and flag.startswith("-") and is_secret(flag, value):
            word = f"{flag}={REDACTED}"
        elif flags((before, word)).get(before) and is_secret(before, word):
            word = REDACTED
        clean.append(word)
    return clean
