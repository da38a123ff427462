"""Reads a file of secret environment variables of a program; the config names only the file.

No other user may be able to read the file: see `files.secret_file`. Each line is `NAME=VALUE`. The
value is all that follows the first `=`, unchanged, to the end of the line; one pair of quotes
around it is removed. Nothing is expanded or unescaped. Empty lines and lines that begin with `#`
are skipped. No message shows a value.
"""

from __future__ import annotations

import re
from pathlib import Path

from supervisor.files import secret_file
from supervisor.protocol.environment import PREFIX

_MAX_BYTES = 256 << 10
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_env_file(path: Path) -> dict[str, str]:
    """Reads the variables in the file at `path`.

    Raises:
        OSError: it cannot be read.
        ValueError: the file must not be used (see `files.secret_file`), or a line is wrong. The
            text names the file and the line.
    """
    content = secret_file.read(path, _MAX_BYTES)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: is not UTF-8: save the file as UTF-8") from None
    return parse(text, str(path))


def parse(content: str, name: str) -> dict[str, str]:
    """Returns the variables in `content`, the text of the file `name`.

    Raises:
        ValueError: a line is wrong.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(content.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            variable, value = _variable(line)
            if variable in found:
                raise ValueError(f"{variable} is here twice")
        except ValueError as error:
            raise ValueError(f"{name}:{number}: {error}") from None
        found[variable] = value
    return found


def _variable(line: str) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    if not equals or _NAME.fullmatch(name) is None:
        raise ValueError("is not NAME=VALUE, with a name of letters, digits and _")
    if name.startswith(PREFIX):
        raise ValueError(f"{name}: names that begin with {PREFIX} are reserved")
    if "\0" in value:
        raise ValueError(f"{name} holds a NUL, which no variable can")
    if value[:1] in ("'", '"'):
        if len(value) < 2 or value[-1] != value[0]:
            raise ValueError(f"{name} begins with a quote that is not closed")
        value = value[1:-1]
    return name, value
