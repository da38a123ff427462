"""A bucket of Google Cloud Storage on this host: gcp-storage-emulator, and what it lacks.

It lacks what several writers, and readers of other writers' objects, depend on: preconditions, the
generation of an object that is read, pages of a listing, and an error that tells a missing bucket
from a missing object. These follow https://cloud.google.com/storage/docs/json_api/v1. Everything is
kept in memory.

gcs_emulator.py BUCKET PAGE prints its port, and ends when its standard input ends.
"""

from __future__ import annotations

import io
import json
import re
import sys
import threading
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from gcp_storage_emulator import server as emulator
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers.buckets import create_bucket
from gcp_storage_emulator.server import Request, RequestHandler, Router, _read_data, _read_raw_data
from gcp_storage_emulator.storage import Storage

_OBJECTS = re.compile(r"(?:/\w+)?(?:/storage/v1)?/b/(?P<bucket>[^/]+)/o(?:/(?P<name>.+))?")
_NO_BUCKET = (404, "The specified bucket does not exist.", "notFound")
_UNMET = (412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet")


def read_data(handler: Any, query: Any, read: Any = _read_data) -> Any:
    """Return the body as the emulator does, with two of its bugs fixed. It fails for an empty
    object. And it drops the last byte of an object that ends in a carriage return, if gcsfs sends
    it, because gcsfs ends lines in a line feed alone: one in 256 of Orbax's files ends so."""
    data: Any = read(handler, query) or b""
    if handler.headers.get("Content-Type", "").startswith("multipart/related"):
        handler.rfile.seek(0)
        data["content"] = _second_part(_read_raw_data(handler))
    return data


def _second_part(body: bytes) -> bytes:
    """Return the content that follows the metadata. The first line is the boundary; its end shows
    which newline is used."""
    first = body[: body.index(b"\n") + 1]
    boundary = first.rstrip(b"\r\n")
    newline = first.removeprefix(boundary)
    part = body.split(newline + boundary)[1]
    return part.partition(newline * 2)[2]


emulator._read_data = read_data


class Memory(Storage):  # type: ignore[misc]
    """Storage that does not write a copy of all metadata at every change."""

    def _write_config_to_file(self) -> None:
        pass


class Handler(RequestHandler):  # type: ignore[misc]
    """Handles one request at a time. A slow client holds up only its own connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    page: int
    """Most objects in one page of a listing."""
    _lock = threading.Lock()
    _generation: str | None
    wfile: Any
    rfile: Any

    def do_GET(self) -> None:  # noqa: N802
        self._serve(self.command)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def end_headers(self) -> None:
        if self._generation is not None:
            self.send_header("x-goog-generation", self._generation)
        super().end_headers()

    def _serve(self, method: str) -> None:
        body = _read_raw_data(self) or b""
        del self.headers["Transfer-Encoding"], self.headers["Content-Length"]
        self.headers["Content-Length"] = str(len(body))
        client, self._generation = self.wfile, None
        self.wfile = io.BytesIO()
        try:
            with self._lock:
                self._answer(method, body)
            client.write(self.wfile.getvalue())
        finally:
            self.wfile = client

    def _answer(self, method: str, body: bytes) -> None:
        self.rfile, connection = io.BytesIO(body), self.rfile
        try:
            request = Request(self, method)
            match = _OBJECTS.fullmatch(request.path)
            if match and not self._is_answered(request, match):
                match = None
            if match is None:
                self.rfile.seek(0)
                Router(self).handle(method)
        finally:
            self.rfile = connection

    def _is_answered(self, request: Request, match: re.Match[str]) -> bool:
        """Answer a request that the emulator would answer otherwise than the service; returns True
        if it was answered."""
        bucket, name = match["bucket"], match["name"]
        query = {key: values[0] for key, values in request.query.items()}
        if bucket not in self.storage.buckets:
            self._refuse(*_NO_BUCKET)
            return True
        if request.method == "GET" and name is None:
            self._list(bucket, query)
            return True
        found = self._found(bucket, unquote(name) if name else _uploaded(request, query))
        refusal = _refusal(request.method, query, found)
        if refusal is not None:
            self._refuse(*refusal)
        elif request.method == "GET" and query.get("alt") == "media":
            self._generation = found
        return refusal is not None

    def _found(self, bucket: str, name: str | None) -> str | None:
        """Return the generation of an object; None: there is no such object."""
        try:
            return str(self.storage.get_file_obj(bucket, name)["generation"])
        except NotFound:
            return None

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        first, end = query.get("startOffset", ""), query.get("endOffset")
        files, folders = self.storage.get_file_list(
            bucket, query.get("prefix"), query.get("delimiter"), query.get("matchGlob")
        )
        named = sorted(
            [(file["name"], file) for file in files] + [(name, None) for name in folders]
        )
        after = query.get("pageToken", "")
        rest = [
            (name, file)
            for name, file in named
            if name > after and name >= first and (not end or name < end)
        ]
        size = min(int(query.get("maxResults", self.page)), self.page)
        page = rest[:size]
        answer: dict[str, Any] = {
            "kind": "storage#objects",
            "items": [file for _, file in page if file is not None],
            "prefixes": [name for name, file in page if file is None],
        }
        if len(rest) > size:
            answer["nextPageToken"] = page[-1][0]
        self._send(200, answer)

    def _refuse(self, status: int, message: str, reason: str) -> None:
        error = {"code": status, "message": message}
        reasons = [{"message": message, "domain": "global", "reason": reason}]
        self._send(status, None if status == 304 else {"error": {**error, "errors": reasons}})

    def _send(self, status: int, answer: object) -> None:
        content = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _uploaded(request: Request, query: dict[str, str]) -> str | None:
    """Return the name of the object that a request uploads."""
    if "name" in query:
        return query["name"]
    data = request.data
    meta = data.get("meta", data) if isinstance(data, dict) else {}
    name = meta.get("name")
    return name if isinstance(name, str) else None


def _refusal(method: str, query: dict[str, str], found: str | None) -> tuple[int, str, str] | None:
    """Return the service's error if a precondition is not met or the object is missing, else
    None."""
    generation = found or "0"
    if method in ("GET", "DELETE") and (
        found is None or query.get("generation", generation) != generation
    ):
        return 404, "No such object", "notFound"
    if query.get("ifGenerationMatch", generation) != generation:
        return _UNMET
    if query.get("ifGenerationNotMatch") == generation:
        return (304, "Not Modified", "notModified") if method == "GET" else _UNMET
    return None


class Server(ThreadingHTTPServer):
    """Accepts as many connections at once as a parallel transfer opens."""

    daemon_threads = True
    request_queue_size = 128


def main(bucket: str, page: int) -> None:
    """Serve until standard input ends."""
    storage = Memory(use_memory_fs=True)
    create_bucket(bucket, storage)
    storage.buckets[bucket]["softDeletePolicy"]["retentionDurationSeconds"] = "0"
    Handler.page = page
    server = Server(("127.0.0.1", 0), partial(Handler, storage))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
