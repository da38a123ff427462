"""One question over HTTP to a server that may be broken or hostile: bounded in time and in bytes.

`http.client` alone bounds neither: its timeout starts again with each byte, it waits for the end of
`100 Continue` without end, and a chunk of the size -1 is all that the server likes to send.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_RAW = 1 << 16
"""Bytes of an answer as they come, headers and all, whatever its encoding says of its size: where
a caller says nothing else."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said; of the body, the beginning."""

    status: int
    headers: Message
    body: bytes


def get(
    host: str,
    path: str,
    headers: Mapping[str, str],
    *,
    seconds: float,
    most: int,
    raw: int = MAX_RAW,
    encrypted: bool = False,
) -> Answer:
    """Return the answer of `host`, which may name a port, with at most `most` bytes of its body.

    No proxy is asked, and no redirection is followed. `encrypted`: over TLS.

    Raises:
        OSError: there is none within `seconds`, or it is none that HTTP knows.
    """
    until = time.monotonic() + seconds
    try:
        kind = http.client.HTTPSConnection if encrypted else http.client.HTTPConnection
        connection = kind(host, timeout=seconds)
        try:
            connection.request("GET", path, headers=dict(headers))
            response = http.client.HTTPResponse(connection.sock, method="GET")
            response.fp.close()
            response.fp = io.BufferedReader(_Bounded(connection.sock, until, raw))
            try:
                response.begin()
                return Answer(response.status, response.headers, response.read(most))
            finally:
                response.close()
        finally:
            connection.close()
    except TimeoutError as error:
        raise TimeoutError(f"no whole answer within {seconds:g} s") from error
    except (http.client.HTTPException, ValueError) as error:  # a host name can be no name, too
        raise OSError(f"{type(error).__name__}: {error}") from error


class _Bounded(io.RawIOBase):
    """What a socket receives, until `until` and up to `most` bytes."""

    def __init__(self, connected: socket.socket, until: float, most: int) -> None:
        self._socket = connected
        self._until = until
        self._most = self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        remaining = self._until - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining)
        with memoryview(buffer) as view:
            count = self._socket.recv_into(view, min(len(view), self._left + 1))
        self._left -= count
        if self._left < 0:
            raise OSError(f"the answer has more than {self._most} bytes")
        return count
