"""Google Secret Manager on this host, and a metadata server that gives a token for it."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "the-token-of-this-machine"
_TOKEN_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"


@dataclass
class SecretStore:
    """The secrets by version. `faults` are the statuses of the next answers; None: no fault."""

    secrets: dict[str, bytes] = field(default_factory=dict)
    faults: list[int | None] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    has_account: bool = True
    genuine: bool = True
    """Whether answers have the header of a real metadata server."""
    token: str = TOKEN

    def answer(self, path: str, headers: dict[str, str]) -> tuple[int, dict[str, object]]:
        self.requests.append(path)
        if (fault := self.faults.pop(0) if self.faults else None) is not None:
            return fault, {"error": {"code": fault, "message": "as the test wants it"}}
        if path == _TOKEN_PATH:
            assert headers["Metadata-Flavor"] == "Google"
            return (200, {"access_token": self.token}) if self.has_account else (404, {})
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"error": {"code": 401, "message": "no credentials"}}
        version = path.removeprefix("/v1/").removesuffix(":access")
        if version not in self.secrets:
            return 404, {"error": {"code": 404, "message": f"Secret [{version}] not found"}}
        data = base64.b64encode(self.secrets[version]).decode()
        return 200, {"name": version, "payload": {"data": data}}

    @contextmanager
    def serving(self) -> Iterator[dict[str, str]]:
        """Answer over HTTP; yields the environment that leads clients here."""
        http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        address = f"127.0.0.1:{http.server_address[1]}"
        try:
            yield {
                "GCE_METADATA_HOST": address,
                "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": f"http://{address}/",
            }
        finally:
            http.shutdown()
            thread.join()
            http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        store = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = store.answer(self.path, dict(self.headers))
                data = json.dumps(body).encode()
                self.send_response(status)
                if store.genuine:
                    self.send_header("metadata-flavor", "Google")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@contextmanager
def dripping() -> Iterator[str]:
    """Yield the address of a server whose answers come one byte at a time and never end."""
    ended = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))

    def drip(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not ended.wait(0.02):
                connection.sendall(b"x")

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=drip, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        ended.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
