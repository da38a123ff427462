"""Keeps secrets out of what the supervisor writes: params.yaml, run.log, summary.json, the journal.

A token in an environment variable, on a command line or in the message of an exception must not
end in files that people attach to bug reports. Known are: the values of variables whose names say
what they are, and the forms of well-known tokens. What the worker writes itself (its output, its
failure record) stays as the worker wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

REDACTED = "[redacted]"

_MIN_VALUE = 8
"""A shorter value says nothing, and replacing it would garble innocent text."""

_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:token|key|secret|pat|passphrase)$|password|passwd|secret|credential|api_?key",
    re.IGNORECASE,
)

_TOKENS = re.compile(
    "|".join(
        (
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----END).)*(?:-----END [A-Z ]*KEY-----)?",
            r"\bhf_[A-Za-z0-9]{16,}",
            r"\bgh[pousr]_[A-Za-z0-9]{16,}",
            r"\bgithub_pat_\w{16,}",
            r"\bglpat-[\w-]{16,}",
            r"\bxox[abprs]-[\w-]{8,}",
            r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}",
            r"\bAIza[\w-]{30,}",
            r"\bya29\.[\w.-]{8,}",
            r"\bsk-[\w-]{16,}",
            r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
        )
    ),
    re.DOTALL,
)

_CONTEXTS = re.compile(
    r"""(?P<before>
        \bBearer\s+
      | (?<![\w-])--?[\w-]*(?:token|[-_]key|secret|passw(?:or)?d|passphrase)(?:=|\s+)["']?
      | \b[A-Z][A-Z0-9_]*(?:TOKEN|_KEY|SECRET|PASSW(?:OR)?D|PASSPHRASE)["']?\s*[=:]\s*["']?
      | \b[a-z][a-z0-9+.-]{0,20}://[^\s:/@]*:(?=[^\s/@]+@)
    )(?P<value>[^\s"',;@]+)""",
    re.VERBOSE,
)


class Redactor:
    """Replaces secrets by `[redacted]`."""

    def __init__(self, *variables: Mapping[str, str]) -> None:
        """The secrets among `variables` are known by value, wherever they turn up."""
        values = {
            value
            for mapping in variables
            for name, value in mapping.items()
            if _is_secret(name, value) and len(value) >= _MIN_VALUE
        }
        longest_first = sorted(values, key=lambda value: (-len(value), value))
        self._values = re.compile("|".join(map(re.escape, longest_first))) if values else None

    def text(self, text: str) -> str:
        """`text` without the secrets in it."""
        if self._values is not None:
            text = self._values.sub(REDACTED, text)
        text = _TOKENS.sub(REDACTED, text)
        return _CONTEXTS.sub(lambda match: match["before"] + REDACTED, text)

    def params(self, params: dict[str, Any]) -> dict[str, Any]:
        """The resolved config of a phase as files show it.

        Our trainer reads its own sections from there, and a name such as `eos_token` says nothing
        in them: only what is unmistakably a token goes. A command has its secrets without the file.
        """
        trainer: dict[str, Any] = _strings(
            params["trainer"], lambda text: _TOKENS.sub(REDACTED, text)
        )
        if (command := trainer.get("command")) is not None:
            command = _strings(command, self.text)
            env = {
                name: REDACTED if _is_secret(name, value) else value
                for name, value in command.get("env", {}).items()
            }
            argv = _without_flag_values(command["argv"])
            trainer["command"] = {**command, "argv": argv, **({"env": env} if env else {})}
        return {**params, "trainer": trainer}


def _strings(value: Any, clean: Callable[[str], str]) -> Any:
    """`value` with every string in it cleaned."""
    if isinstance(value, dict):
        return {key: _strings(item, clean) for key, item in value.items()}
    if isinstance(value, list):
        return [_strings(item, clean) for item in value]
    return clean(value) if isinstance(value, str) else value


def _is_secret(name: str, value: str) -> bool:
    """Whether a variable is a secret by its name; where a key file lies is none."""
    return bool(_SECRET_NAME.search(name)) and not value.startswith(("/", "~/", "./"))


def flags(argv: Sequence[str]) -> dict[str, str]:
    """The values of `--flag VALUE` and `--flag=VALUE`, by flag: variables by another name."""
    found = dict(word.partition("=")[::2] for word in argv if word.startswith("-"))
    for flag, value in pairwise(argv):
        if flag.startswith("-") and "=" not in flag and not value.startswith("-"):
            found[flag] = value
    return found


def _without_flag_values(argv: list[str]) -> list[str]:
    clean: list[str] = []
    for before, word in zip(["", *argv], argv, strict=False):
        flag, equals, value = word.partition("=")
        if equals and flag.startswith("-") and _is_secret(flag, value):
            word = f"{flag}={REDACTED}"
        elif flags((before, word)).get(before) and _is_secret(before, word):
            word = REDACTED
        clean.append(word)
    return clean
