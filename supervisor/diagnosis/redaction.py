"""Keeps secrets out of what the supervisor writes: params.yaml, run.log, summary.json, the journal.

A token in an environment variable, on a command line or in the message of an exception must not
end up in files that people attach to bug reports. The redactor recognises the values of variables
whose names mark them as secrets, and the forms in `secret_forms`. What the worker writes itself
(its output, its failure record) stays as the worker wrote it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeGuard
from urllib.parse import quote, quote_plus

from supervisor.config.problems import Problem
from supervisor.config.secret_names import (
    REDACTED,
    flags,
    is_secret,
    without_flag_values,
)
from supervisor.diagnosis.secret_forms import FORMS, Form

_MIN_VALUE = 8
"""Characters: a shorter value identifies nothing, and replacing it would garble innocent text."""

_MIN_LINE = 4
"""Characters: the same for one line of a value, if a line begins or ends with it."""

_MAX_SHOWN_TWICE = 256
"""Characters: for a longer value, such as a key file, the forms that Python shows twice are left
out, because each form takes memory."""

_BEGINNING = 500
"""Characters by which a longer value is recognised if its rest is cut off. `protocol.shortening`
and the readers of an output cut only within longer words."""

_OWN_SECTIONS = frozenset({"autorestart", "notify", "provision"})
"""Sections of `init` that the trainer does not read."""


def own_sections(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sections of a phase's resolved config that the trainer does not read."""
    init: Mapping[str, Any] = params["trainer"]["init"]
    return {key: init[key] for key in _OWN_SECTIONS.intersection(init)}


class Redactor:
    """Replaces secrets by `[redacted]`."""

    def __init__(self, *variables: Mapping[str, str], known: Iterable[str] = ()) -> None:
        """Take the secrets: those among `variables`, by their names, and the values `known`.

        They are recognised wherever they occur, also as JSON or a URL quotes them.
        """
        given = {
            *known,
            *(
                value
                for mapping in variables
                for name, value in mapping.items()
                if is_secret(name, value)
            ),
        }
        written = {
            form for value in given for form in (*_quoted_forms(value), *_stripped_lines(value))
        }
        values = {form for form in written if len(form) >= _MIN_VALUE}
        longest_first = sorted(values, key=lambda value: (-len(value), value))
        whole = map(re.escape, longest_first)
        cut = (f"{re.escape(v[:_BEGINNING])}.*" for v in longest_first if len(v) > _BEGINNING)
        split = (form for value in sorted(given) for form in _short_line_patterns(value))
        forms = [*whole, *cut, *split]
        self._values = re.compile("|".join(forms)) if forms else None

    def text(self, text: str) -> str:
        """Returns `text` with its secrets replaced."""
        if self._values is not None:
            text = self._values.sub(REDACTED, text)
        return _replaced(FORMS, text)

    def problem(self, problem: Problem) -> str:
        """Describes a problem of a config. Its message has no values of keys with secret names."""
        where = f"{problem.key}: " if problem.key else ""
        return f"{self.text(problem.origin)}: {where}{self.text(problem.message)}"

    def params(self, params: dict[str, Any]) -> dict[str, Any]:
        """Returns the resolved config of a phase as files show it.

        Our trainer reads its own sections from such a file, and a name such as `eos_token` marks no
        secret in them: only unmistakable tokens are replaced. A command does not read its secrets
        from the file, so every secret in its section is replaced.
        """
        trainer: dict[str, Any] = _strings(params["trainer"], _tokens_removed)
        for key, section in own_sections(params).items():
            trainer["init"][key] = _strings(_without_flags(section), self.text)
        if "faults" in trainer:  # the trainer gets them by its environment
            trainer["faults"] = _strings(params["trainer"]["faults"], self.text)
        if (command := trainer.get("command")) is not None:
            command = _strings(_without_flags(command), self.text)
            env = {
                name: REDACTED if is_secret(name, value) else value
                for name, value in command.get("env", {}).items()
            }
            trainer["command"] = {**command, **({"env": env} if env else {})}
        return {**params, "trainer": trainer}


def _strings(value: Any, clean: Callable[[str], str]) -> Any:
    """Returns `value` with `clean` applied to every string in it."""
    if isinstance(value, dict):
        return {key: _strings(item, clean) for key, item in value.items()}
    if isinstance(value, list):
        return [_strings(item, clean) for item in value]
    return clean(value) if isinstance(value, str) else value


def _replaced(forms: Iterable[Form], text: str) -> str:
    lower = text.lower()
    for form in forms:
        if any(hint in lower for hint in form.hints):
            text = form.pattern.sub(_kept, text)
    return text


def _kept(match: re.Match[str]) -> str:
    return (match.groupdict().get("keep") or "") + REDACTED


def _tokens_removed(text: str) -> str:
    return _replaced(_UNMISTAKABLE, text)


_UNMISTAKABLE = tuple(form for form in FORMS if form.unmistakable)


def _quoted_forms(value: str) -> set[str]:
    """Returns the forms in which a text may hold a value.

    As it is, in JSON, in a URL, in a shell, as Python shows it, and as Python shows that again (an
    exception in the message of another).
    """
    data = value.encode("utf-8", "surrogatepass")
    shown = _shown_by_python(value)
    again = map(_shown_by_python, shown if len(value) <= _MAX_SHOWN_TWICE else ())
    return shown.union(
        {value, *(json.dumps(value, ensure_ascii=is_plain)[1:-1] for is_plain in (True, False))},
        {quote(data, safe=""), quote(data), quote_plus(data)},
        {shlex.quote(value).removeprefix("'").removesuffix("'")},
        *again,
    )


def _stripped_lines(value: str) -> list[str]:
    """Returns the stripped lines of a value; none if its only line is the value itself.

    An output is read line by line, and a carriage return ends a line too.
    """
    lines = [line.strip() for line in value.splitlines()]
    return lines if lines != [value] else []


def _short_line_patterns(value: str) -> Iterator[str]:
    """Yields an expression for each short line of a value.

    It matches only at the beginning or end of a line: elsewhere the text may be any word.
    """
    lines = _stripped_lines(value)
    for number, line in enumerate(lines):
        if _MIN_LINE <= len(line) < _MIN_VALUE:
            begins = r"^[ \t]*" if number else ""
            ends = r"(?=\s*$)" if number < len(lines) - 1 else r"(?!\w)"
            yield f"(?m:{begins}{re.escape(line)}{ends})"


def _shown_by_python(value: str) -> set[str]:
    """Returns the value as `repr` and `ascii` show it, and as `repr` shows its bytes.

    Each form is there with and without escaped quotes: that depends on the rest of the text.
    """
    parts = value.split("'")
    data = (part.encode("utf-8", "surrogatepass") for part in parts)
    bodies = (
        [repr(part)[1:-1] for part in parts],
        [ascii(part)[1:-1] for part in parts],
        [repr(part)[2:-1] for part in data],
    )
    return {mark.join(body) for body in bodies for mark in ("'", "\\'")}


def flags_in(value: Any) -> Iterator[dict[str, str]]:
    """Yields the values of flags, by flag, of each list of words in a config: it may be an argv."""
    if isinstance(value, dict):
        for item in value.values():
            yield from flags_in(item)
    elif _is_argv(value):
        yield flags(value)
    elif isinstance(value, list):
        for item in value:
            yield from flags_in(item)


def _is_argv(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _without_flags(value: Any) -> Any:
    """Returns `value` without the secrets behind flags in any argv in it."""
    if isinstance(value, dict):
        return {key: _without_flags(item) for key, item in value.items()}
    if _is_argv(value):
        return without_flag_values(value)
    return [_without_flags(item) for item in value] if isinstance(value, list) else value
