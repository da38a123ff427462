"""Locations: a directory that every program can use, or a prefix in an object store."""

from __future__ import annotations

import re
from dataclasses import dataclass

SCHEMES = ("gs", "s3")

_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<bucket>[^/]*)/*(?P<path>.*)", re.S)


@dataclass(frozen=True, slots=True)
class Uri:
    """A prefix in an object store: all objects whose name begins with `path` and a slash."""

    scheme: str
    bucket: str
    path: str = ""
    """It has no slash at either end. Empty: the whole bucket."""

    @classmethod
    def parse(cls, text: str) -> Uri | None:
        """Parse `text`; None: it is no URI.

        Raises:
            ValueError: the scheme is not supported, or there is no bucket.
        """
        match = _URI.fullmatch(text)
        if match is None:
            return None
        scheme, bucket = match["scheme"].lower(), match["bucket"]
        if scheme not in SCHEMES:
            known = ", ".join(f"{known}://" for known in SCHEMES)
            raise ValueError(f"is on no object store that is supported ({known})")
        if not bucket:
            raise ValueError(f"names no bucket ({scheme}://BUCKET/PATH)")
        parts = match["path"].split("/")
        return cls(scheme, bucket, "/".join(part for part in parts if part))

    def __truediv__(self, name: str) -> Uri:
        return Uri(self.scheme, self.bucket, f"{self.path}/{name}" if self.path else name)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.path}".rstrip("/")
