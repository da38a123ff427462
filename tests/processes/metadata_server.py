"""A metadata server that behaves like Google's, on this host.

It wants `Metadata-Flavor: Google`, sends an ETag, holds a `wait_for_change` request until the value
differs from `last_etag`, and now and then answers 503.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

PREFIX = "/computeMetadata/v1/instance/"


class MetadataServer:
    """The values, and what was asked for them."""

    def __init__(self) -> None:
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.failures = 0
        """How many requests from now on are answered with 503, which says this:"""
        self.failure = "try later"
        self.genuine = True
        """Whether answers are marked as those of a metadata server."""
        self.garbled = 0
        """How many requests from now on are answered with a chunk of the size -5."""
        self.slow: set[str] = set()
        """The keys whose requests get no answer, until they are taken out by `answer`."""
        self.requests: list[str] = []
        self._version = dict.fromkeys(self.values, 1)
        self._changed = threading.Condition()
        self._closing = False
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._http.server_address[1]}"

    def set(self, key: str, value: str) -> None:
        """Also to the value that it has: its ETag is another one then, as Google's may be."""
        with self._changed:
            self.values[key] = value
            self._version[key] = self._version.get(key, 0) + 1
            self._changed.notify_all()

    def answer(self, key: str) -> None:
        """Answer what was asked of a slow key."""
        with self._changed:
            self.slow.discard(key)
            self._changed.notify_all()

    def wait_for_waiting(self, key: str, timeout: float = 20.0) -> None:
        """Wait until somebody waits for a change of `key`'s value as it is now."""
        with self._changed:
            mark = f"{key} {self._etag(key)}"
            assert self._changed.wait_for(lambda: mark in self.requests, timeout), self.requests

    def _etag(self, key: str) -> str:
        return f"etag{self._version[key]}"

    @contextmanager
    def serving(self) -> Iterator[MetadataServer]:
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield self
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._http.shutdown()
        thread.join()
        self._http.server_close()

    def _answer(self, target: str, flavor: str | None) -> tuple[int, str, str]:
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        key = url.path.removeprefix(PREFIX)
        with self._changed:
            asked = query.get("last_etag", "")
            self.requests.append(f"{key} {asked}")
            self._changed.notify_all()
            self._changed.wait_for(lambda: key not in self.slow or self._closing)
            if flavor != "Google":
                return 403, "", ""
            if key not in self.values:
                return 404, "", ""
            if self.failures:
                self.failures -= 1
                return 503, "", self.failure
            if query.get("wait_for_change") == "true":
                self._changed.wait_for(
                    lambda: asked != self._etag(key) or self._closing, float(query["timeout_sec"])
                )
            return 200, self._etag(key), self.values[key]

    def _garbles(self) -> bool:
        with self._changed:
            self.garbled -= 1
            return self.garbled >= 0

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = server._answer(self.path, self.headers["Metadata-Flavor"])
                status, etag, body = answer
                self.send_response(status)
                if server.genuine:
                    self.send_header("Metadata-Flavor", "Google")
                if server._garbles():
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    self.wfile.write(b"-5\r\nTRUE\r\n")
                    return
                if etag:
                    self.send_header("ETag", etag)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        return Handler
