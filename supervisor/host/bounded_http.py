"""One HTTP GET from a server that may be broken or hostile, bounded in time and bytes.

`http.client` alone bounds neither: its timeout starts again with each byte, it reads `100 Continue`
headers without limit, and for a chunk of size -1 it reads all that the server sends.
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
"""Default limit for the bytes received from the socket, headers and chunk framing included."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's answer; `body` is its beginning only, if it is long."""

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
    """Return the answer of `host` (`name` or `name:port`), with at most `most` bytes of its body.

    Uses no proxy and follows no redirects. `encrypted`: over TLS. `raw` limits the bytes received.

    Raises:
        OSError: no answer within `seconds`, or it is not valid HTTP.
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
    """Reads from a socket until the time `until` (monotonic clock), and at most `most` bytes."""

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
