"""An HTTP server for strangers: it reads a first line and headers, answers GET and HEAD, and bounds
the number of connections and the time that each of them may take.

It is the one of the standard library, with a thread for each connection. A connection carries one
request. Whoever is too slow is cut off by the main loop of the server, so the time of a request is
bounded whatever the client does.
"""

from __future__ import annotations

import select
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from ipaddress import ip_address
from typing import Any

MAX_CONNECTIONS = 64
SECONDS_TO_ASK = 5.0
"""Seconds from the start of a connection until its request is complete."""
SECONDS_TO_ANSWER = 30.0
"""Seconds until the client has taken the answer, unless it is a stream."""
MAX_STREAMS = 32
"""Connections that get events; the others stay free for pages and metrics."""
MAX_REQUEST = 32 << 10
"""Bytes of a request line and its headers; a browser with many cookies of its own sends 10 kB."""
STREAM_SECONDS = 3600.0
"""Seconds of a stream; a browser then connects again."""
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n"
_METHODS = ("GET", "HEAD")
_PLAIN = "text/plain; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Of each answer: a page may run the script of this server, and nothing else; nobody may embed or
keep it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request gets."""

    body: str | bytes
    content_type: str = _PLAIN
    status: int = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stream:
    """A request that gets server-sent events, as long as it listens."""

    next_part: Callable[[], bytes | None]
    """Waits a second at most and returns what is to be sent, which may be nothing; None: the stream
    is over."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a request says, without anything that is not needed for an answer."""

    path: str
    accept: str


class BoundedServer(ThreadingHTTPServer):
    """Listens at an address, once `serve_forever` runs."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(
        self,
        host: str,
        port: int,
        answer: Callable[[Request], Answer | Stream],
        seconds_to_ask: float = SECONDS_TO_ASK,
    ) -> None:
        """`host` is an IP address. `answer` is called in many threads.

        Raises:
            OSError: nobody can listen there.
        """
        self.answer = answer
        self._seconds_to_ask = seconds_to_ask
        self._deadlines: dict[socket.socket, float] = {}
        self._streams = 0
        self._lock = threading.Lock()
        address = ip_address(host)
        self.names = ("localhost", host) if address.is_loopback else ()
        """The names by which this server may be asked, where it listens to this machine alone: a
        page of another site whose name leads here (DNS rebinding) gets nothing. Empty: any."""
        self.address_family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Listen; unlike `HTTPServer` without asking for the name of the address, which may
        hang."""
        socketserver.TCPServer.server_bind(self)

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    # --- bounds -----------------------------------------------------------------------------------

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Returns whether there is room for another connection."""
        with self._lock:
            if len(self._deadlines) < MAX_CONNECTIONS:
                self._deadlines[request] = time.monotonic() + self._seconds_to_ask
                return True
        with suppress(OSError):
            request.send(_BUSY, socket.MSG_DONTWAIT)
        return False

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off who is too slow; called twice a second."""
        now = time.monotonic()
        with self._lock:
            for connection in [one for one, end in self._deadlines.items() if end <= now]:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # its thread wakes, and ends it

    def begin_answer(self, connection: socket.socket) -> None:
        """Give a connection, whose request is complete, the time of an answer."""
        with self._lock:
            if connection in self._deadlines:
                self._deadlines[connection] = time.monotonic() + SECONDS_TO_ANSWER

    def begin_stream(self, connection: socket.socket) -> bool:
        """Give a connection the time of a stream; returns whether there is room for one."""
        with self._lock:
            if self._streams >= MAX_STREAMS or connection not in self._deadlines:
                return False
            self._streams += 1
            self._deadlines[connection] = time.monotonic() + STREAM_SECONDS
        return True

    def end_stream(self) -> None:
        """A stream is over."""
        with self._lock:
            self._streams -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell of an error of ours; a client that is gone or too slow is none."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            sys.excepthook(type(error), error, error.__traceback__)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: BoundedServer

    def setup(self) -> None:
        """See `BaseRequestHandler`."""
        super().setup()
        self.rfile = _Bounded(self.rfile)  # type: ignore[assignment]

    def parse_request(self) -> bool:
        """Parse the request, and refuse what no request to us can be."""
        if not super().parse_request():
            return False
        if self.command not in _METHODS:
            allow = {"Allow": ", ".join(_METHODS)}
            self._send(_refusal(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", allow))
            return False
        if not _is_for(self.headers.get("Host", ""), self.server.names):
            names = ", ".join(self.server.names)
            self._send(_refusal(HTTPStatus.MISDIRECTED_REQUEST, f"ask for one of: {names}"))
            return False
        return True

    def do_GET(self) -> None:
        """Answer GET, and HEAD."""
        self.server.begin_answer(self.connection)
        path = self.path.partition("?")[0]
        found = self.server.answer(Request(path, self.headers.get("Accept", "")))
        if isinstance(found, Answer):
            self._send(found)
        elif self.command == "GET" and not self.server.begin_stream(self.connection):
            self._send(_refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many listen", {}))
        else:
            self._stream(found)

    do_HEAD = do_GET  # noqa: N815

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is none, without a word of it."""
        self._send(_refusal(code, HTTPStatus(code).phrase))

    def version_string(self) -> str:
        """Returns our name alone."""
        return "supervise"

    def log_message(self, *args: Any) -> None:
        """Log no request."""

    def _send(self, it: Answer) -> None:
        body = it.body.encode() if isinstance(it.body, str) else it.body
        self._begin(it.status, {"Content-Type": it.content_type, **it.headers}, len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _begin(self, status: int, headers: Mapping[str, str], length: int | None) -> None:
        self.close_connection = True
        self.send_response(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _stream(self, stream: Stream) -> None:
        if self.command == "HEAD":
            self._begin(HTTPStatus.OK, {"Content-Type": "text/event-stream"}, None)
            return
        try:
            self._begin(HTTPStatus.OK, {"Content-Type": "text/event-stream"}, None)
            self.connection.settimeout(SECONDS_TO_ANSWER)
            while (part := stream.next_part()) is not None and not self._is_gone():
                self.wfile.write(part)
        finally:
            self.server.end_stream()

    def _is_gone(self) -> bool:
        """Whether the client has closed its end."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        return bool(poll.poll(0)) and not self.connection.recv(1, socket.MSG_PEEK)


class _Bounded:
    """The first bytes of a stream; who sends more is cut off."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream = stream
        self._left = MAX_REQUEST

    def readline(self, most: int) -> bytes:
        line = self._stream.readline(min(most, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise ConnectionAbortedError("the request is too long")
        return line

    def close(self) -> None:
        self._stream.close()


def _refusal(status: int, why: str, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(f"{why}\n", status=status, headers=headers or {})


def _is_for(host: str, names: tuple[str, ...]) -> bool:
    """Whether the header `Host` has one of these names; its port may be that of a tunnel."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return not names or name.strip("[]").lower() in names
