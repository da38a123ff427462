"""A proxy in front of an object store. It fails by plan, as networks and services do.

The plan chooses for each request what goes wrong: nothing, or one `Fault`. The proxy records all
requests.
"""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.emulators import Emulator

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Request:
    """A request. `target` is path and query as they were sent."""

    method: str
    target: str
    body: bytes
    count: int
    """How many requests came before this one."""


@dataclass(frozen=True)
class Answer:
    """The answer that a client gets."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request. The fields apply in their order."""

    passed_on: bool = False
    """The store carries out the request, whatever the client is answered."""
    wait: float = 0.0
    """Seconds before the answer; the wait ends early when the proxy ends."""
    resets: bool = False
    """The connection is reset in place of an answer."""
    answer: Answer | None = None
    """Replaces the store's answer."""
    is_stale: bool = False
    """The client gets the store's first answer to the same request."""
    drips: float = 0.0
    """Seconds between two bytes of the answer's body; if it has no body, of its headers."""


RESET = Fault(resets=True)
LOST_ANSWER = Fault(passed_on=True, resets=True)
SILENCE = Fault(wait=3600.0, resets=True)
STALE = Fault(passed_on=True, is_stale=True)


def slow(seconds: float) -> Fault:
    """Return a fault: the right answer, `seconds` late."""
    return Fault(passed_on=True, wait=seconds)


def answered(status: int, reason: str = "", message: str = "") -> Fault:
    """Return a fault: an error of Google's service, in JSON. It also serves for other services if
    only the status matters."""
    reasons = [{"reason": reason, "message": message, "domain": "global"}]
    told = json.dumps({"error": {"code": status, "message": message, "errors": reasons}})
    return Fault(answer=Answer(status, told.encode()))


def answered_s3(status: int, code: str, message: str = "") -> Fault:
    """Return a fault: an error of Amazon's service, in XML."""
    told = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Fault(answer=Answer(status, told.encode()))


EXPIRED = {
    "gs": answered(401, "authError", "Invalid Credentials"),
    "s3": answered_s3(400, "ExpiredToken", "The provided token has expired."),
}
FORBIDDEN = {
    "gs": answered(403, "forbidden", "sa@p does not have storage.objects.get access."),
    "s3": answered_s3(403, "AccessDenied", "User: sa@p is not authorized."),
}
NO_BUCKET = {
    "gs": answered(404, "notFound", "The specified bucket does not exist."),
    "s3": answered_s3(404, "NoSuchBucket", "The specified bucket does not exist"),
}

Plan = Callable[[Request], Fault | None]


@dataclass
class FaultyStore:
    """A proxy of an emulator. The plan may be changed at any time."""

    upstream: Emulator
    plan: Plan = lambda request: None
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._first: dict[tuple[str, str], Answer] = {}
        self._ended = threading.Event()
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.store = self

    @property
    def proxied(self) -> Emulator:
        """The emulator at the address of the proxy."""
        return replace(self.upstream, url=f"http://127.0.0.1:{self._http.server_address[1]}")

    @contextmanager
    def serving(self) -> Iterator[FaultyStore]:
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._http.shutdown()
            thread.join()
            self._http.server_close()

    def ended(self, within: float) -> bool:
        """Wait at most `within` seconds; returns True if the proxy ends meanwhile."""
        return self._ended.wait(within)

    def answer(
        self, method: str, target: str, body: bytes, pass_on: Callable[[], Answer]
    ) -> tuple[Answer | None, float]:
        """Return the answer to a request (None: none), and the seconds between two bytes of it."""
        with self._lock:
            request = Request(method, target, body, len(self.requests))
            self.requests.append(request)
            fault = self.plan(request) or Fault(passed_on=True)
        told = pass_on() if fault.passed_on else None
        if told is not None:
            with self._lock:
                first = self._first.setdefault((method, target), told)
            told = first if fault.is_stale else told
        self._ended.wait(fault.wait)
        return None if fault.resets else fault.answer or told, fault.drips


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    store: FaultyStore

    def shutdown_request(self, request: object) -> None:
        """Close at once; the default shuts the connection down in an orderly way first."""
        self.close_request(request)  # type: ignore[arg-type]

    def handle_error(self, *_: object) -> None:
        """Ignore that a client has gone."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        body = self._body()
        store = self.server.store
        answer, pause = store.answer(self.command, self.path, body, lambda: self._passed_on(body))
        if answer is None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        if pause:
            self._drip(answer.body, pause)
            return
        self.end_headers()
        self.wfile.write(answer.body if self.command != "HEAD" else b"")

    def _drip(self, body: bytes, pause: float) -> None:
        self.close_connection = True
        if body:
            self.end_headers()
        else:
            self.flush_headers()
        for byte in body or b"x" * 1000:
            if self.server.store.ended(pause):
                return
            self.wfile.write(bytes([byte]))
            self.wfile.flush()

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _passed_on(self, body: bytes) -> Answer:
        connection = http.client.HTTPConnection(
            urlsplit(self.server.store.upstream.url).netloc, timeout=60
        )
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP_BY_HOP}
        try:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            kept = [(k, v) for k, v in answer.getheaders() if k.lower() not in _HOP_BY_HOP]
            return Answer(answer.status, answer.read(), tuple(kept))
        finally:
            connection.close()

    def log_message(self, *_: object) -> None:
        pass
