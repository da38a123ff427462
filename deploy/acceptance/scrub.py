"""Removes from texts what identifies a machine or its owner: the report is for a public issue."""

from __future__ import annotations

import getpass
import ipaddress
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from supervisor.diagnosis.redaction import Redactor
from supervisor.protocol.messages import printable

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Colour codes; before a name they would look like a part of it."""
_HOME = re.compile(r"/(home|Users)/[^/\s:;,'\"()]+")
_BUCKET = re.compile(r"\b(gs|gcs|s3|az|abfss?|hdfs)://[^\s,;'\"()]+", re.I)
_FLAG = re.compile(
    r"(--?xla\w+=)(?!(?:true|false|[\d.]+)(?![^\s'\"]))(?:\"[^\"]*\"|'[^']*'|[^\s'\"]+)", re.I
)
"""An XLA flag, whose value may be a path. The values true, false and numbers are kept."""
_IPV4 = re.compile(r"\b(?!127\.0\.0\.1\b)(?!0\.)\d{1,3}(?:\.\d{1,3}){3}\b")
_IPV6 = re.compile(
    r"(?<![\w:.])(?:[\da-f]{0,4}:){2,8}[\da-f]{0,4}(?:(?:\.\d{1,3}){3})?(?![\w(])", re.I
)
"""What may be an IPv6 address: `_no_ipv6` decides."""
_MAC = re.compile(r"\b[\da-f]{2}([:-])[\da-f]{2}(?:\1[\da-f]{2}){4,18}\b", re.I)
_UUID = re.compile(r"\b((?:MIG-)?(?:GPU-)?)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)
_EMAIL = re.compile(
    r"(?<![\w.+-])[\w.+-]+@(?:[a-z][\w.-]*\w|\d{1,3}(?:\.\d{1,3}){3}|\[[^\]\s]+\])", re.I
)
_HOST = re.compile(
    r"(?<![\w.-])(?!(?:[\w-]+\.)*(?:github|google|nvidia|openxla|python|pytorch)\.(?:com|org)\b)"
    r"[a-z\d][\w-]*(?:\.[\w-]+)*\.(?:com|net|org|edu|gov|mil|local|lan|corp|internal|intranet|svc"
    r"|io|ai|dev|cloud|ac\.\w\w|co\.\w\w|de|uk|fr|nl|ch|at|eu|us|ca|au|jp|cn|kr)"
    r"(?![\w(-]|\.\w)",
    re.I,
)
"""A host name, recognised by its last part. Kept: documentation sites, and `a.b.net(`, which is a
function call."""
_CLOUD = re.compile(r"\bprojects/[\w:.-]+")


def _no_ipv6(match: re.Match[str]) -> str:
    for end in (match[0], match[0].removesuffix(":")):
        with suppress(ValueError):
            address = ipaddress.IPv6Address(end)
            is_telling = not (address.is_loopback or address.is_unspecified)
            return f"<address>{match[0][len(end) :]}" if is_telling else match[0]
    return match[0]


_FORMS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (_FLAG, r"\1<value>"),
    (_BUCKET, r"\1://<bucket>"),
    (_HOME, r"/\1/<user>"),
    (_EMAIL, "<email>"),
    (_MAC, "<address>"),
    (_IPV6, _no_ipv6),
    (_IPV4, "<address>"),
    (_HOST, "<host>"),
    (_CLOUD, "<cloud>"),
)
"""Private data that its form alone gives away, each with its replacement."""
_LEAST = 3
"""Shorter host and user names are kept: they would match parts of words."""
_COMMON = {"root", "localhost", "user", "home", "tmp", "tpu", "gpu", "cpu", "jax"}


class Scrub:
    """Removes private data from texts. The same device UUID always gets the same number."""

    def __init__(self, environ: Mapping[str, str], folders: Mapping[Path, str]) -> None:
        """`folders` maps each path to its replacement."""
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
        """Returns `text` without control characters and without private data.

        Private data are names of hosts, users and buckets, paths, addresses, secrets and UUIDs of
        devices.
        """
        text = self._redactor.text(_ANSI.sub("", text))
        for path, name in self._paths.items():
            text = text.replace(path, name)
        for pattern, stands in self._names:
            text = pattern.sub(stands, text)
        text = _UUID.sub(self._numbered, text)
        for form, instead in _FORMS:
            text = form.sub(instead, text)
        return printable(text)

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
