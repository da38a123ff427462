"""Takes out of a text what tells whose machine it comes from: the file is for a public issue."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from supervisor.core.redaction import Redactor
from supervisor.protocol.messages import printable

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Colours, which would stand before a name as if they were part of it."""
_ADDRESS = re.compile(
    r"\b(?!127\.0\.0\.1\b)(?!0\.0\.0\.0\b)\d{1,3}(?:\.\d{1,3}){3}\b"
    r"|\b[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*::(?:[0-9a-f]{1,4}\b(?::[0-9a-f]{1,4}\b)*)?"
    r"|\b(?:[0-9a-f]{1,4}:){4,7}[0-9a-f]{1,4}\b"
)
"""Of the network, and of its cards; times of day have fewer colons."""
_UUID = re.compile(r"\b((?:MIG-)?(?:GPU-)?)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+")
_CLOUD = re.compile(r"\bprojects/[\w:.-]+|\b[\w-]+\.(?:c\.[\w.-]+\.)?internal\b")
_LEAST = 3
"""Shorter names are parts of words."""
_COMMON = {"root", "localhost", "user", "home", "tmp", "tpu", "gpu", "cpu", "jax"}


class Scrub:
    """Cleans texts, each name always by the same stand-in."""

    def __init__(self, environ: Mapping[str, str], folders: Mapping[Path, str]) -> None:
        """`folders` are paths, each with what stands for it."""
        self._redactor = Redactor(environ)
        self._uuids: dict[str, str] = {}
        paths = {str(path): name for path, name in folders.items()}
        paths.setdefault(str(Path.home()), "~")
        by_length = sorted(paths.items(), key=lambda pair: -len(pair[0]))
        self._paths = {path: name for path, name in by_length if len(path) > 1}
        names = dict.fromkeys(_host_names(), "<host>") | _user_names()
        self._names = [
            (re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])"), stands)
            for name, stands in sorted(names.items(), key=lambda pair: -len(pair[0]))
            if len(name) >= _LEAST and name.lower() not in _COMMON
        ]

    def __call__(self, text: str) -> str:
        """`text` without control characters and without what tells whose machine it is.

        Those are names of hosts and users, addresses, secrets and numbers of devices.
        """
        text = self._redactor.text(_ANSI.sub("", text))
        for path, name in self._paths.items():
            text = text.replace(path, name)
        for pattern, stands in self._names:
            text = pattern.sub(stands, text)
        text = _UUID.sub(self._numbered, text)
        text = _ADDRESS.sub("<address>", _EMAIL.sub("<email>", text))
        return printable(_CLOUD.sub("<cloud>", text))

    def _numbered(self, match: re.Match[str]) -> str:
        number = self._uuids.setdefault(match[0][len(match[1]) :].lower(), str(len(self._uuids)))
        return f"{match[1]}#{number}"


def _host_names() -> set[str]:
    name = socket.gethostname()
    return {name, name.partition(".")[0]}


def _user_names() -> dict[str, str]:
    with suppress(KeyError, OSError):  # a user without a name
        return {getpass.getuser(): "<user>"}
    return {}
