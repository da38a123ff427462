"""A Cloud TPU API on this host: queued resources, as version 2 of the real API has them.

The test controls the time: a slice changes its state only by `step` and `become`. Answers follow
the discovery document and the errors that people have reported; see
`supervisor.adapters.platforms.queued_resources`.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

NEXT = {
    "CREATING": "WAITING_FOR_RESOURCES",
    "ACCEPTED": "WAITING_FOR_RESOURCES",
    "WAITING_FOR_RESOURCES": "PROVISIONING",
    "PROVISIONING": "ACTIVE",
    "SUSPENDING": "SUSPENDED",
}
NO_CAPACITY = (
    8,
    'There is no more capacity in the zone "us-west4-a"; you can try in another zone where Cloud '
    "TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0x9f48947a7d]",
)
QUOTA = (
    "Quota limit 'TPUV5sPreemptibleLitepodPerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0"
)
_STATUS = {
    400: "FAILED_PRECONDITION",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


@dataclass
class Resource:
    """A queued resource."""

    body: dict[str, Any]
    state: str = "CREATING"
    error: tuple[int, str] | None = None

    @property
    def accelerator_type(self) -> str:
        return str(self.body["tpu"]["nodeSpec"][0]["node"]["acceleratorType"])

    @property
    def startup_script(self) -> str:
        return str(self.body["tpu"]["nodeSpec"][0]["node"]["metadata"]["startup-script"])

    def shown(self, name: str) -> dict[str, Any]:
        state: dict[str, Any] = {"state": self.state}
        if self.error is not None:
            state["failedData"] = {"error": {"code": self.error[0], "message": self.error[1]}}
        return {"name": name, "state": state, **self.body}


@dataclass
class Fault:
    """What goes wrong with the next request of `method`.

    The request is answered with an error (`status`, `message`, `rpc_status`), or is done but never
    answered (`lost`). Or a creation returns an operation that is not done for the first `looks`
    looks and may fail then (`operation_error`).
    """

    method: str
    status: int | None = None
    message: str = "as the test wants it"
    rpc_status: str | None = None
    lost: bool = False
    looks: int = 0
    operation_error: tuple[int, str] | None = None


@dataclass
class CloudTpu:
    """The API, and all requests that it got."""

    resources: dict[str, Resource] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    page: int = 2
    """Most resources in one answer, whatever page size was asked for."""
    hidden: set[str] = field(default_factory=set)
    """Ids that lists leave out."""

    def __post_init__(self) -> None:
        self._operations: dict[str, tuple[int, tuple[int, str] | None]] = {}
        self._lock = threading.RLock()

    def step(self) -> None:
        """Move each resource to its next state; those that are being deleted disappear."""
        with self._lock:
            for id_, resource in list(self.resources.items()):
                if resource.state == "DELETING":
                    del self.resources[id_]
                resource.state = NEXT.get(resource.state, resource.state)

    def become(self, id_: str, state: str, error: tuple[int, str] | None = None) -> None:
        """Put a resource into `state`."""
        with self._lock:
            self.resources[id_].state = state
            self.resources[id_].error = error

    def answer(
        self, method: str, target: str, body: dict[str, Any]
    ) -> tuple[int, dict[str, Any]] | None:
        """Return the status and the body of the answer; None: there is no answer."""
        url = urlsplit(target)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        with self._lock:
            self.requests.append(f"{method} {url.path.rpartition('/')[2]}")
            fault = next((one for one in self.faults if one.method == method), None)
            if fault is not None:
                self.faults.remove(fault)
                if fault.status is not None:
                    return _error(fault.status, fault.message, fault.rpc_status)
            done = self._done(method, url.path.removeprefix("/v2/"), asked, body, fault)
            return None if fault is not None and fault.lost else done

    def _done(
        self,
        method: str,
        path: str,
        asked: dict[str, str],
        body: dict[str, Any],
        fault: Fault | None,
    ) -> tuple[int, dict[str, Any]]:
        parts = path.split("/")
        if parts[4] == "operations":
            return 200, self._operation(path)
        if len(parts) == 5:
            if method == "GET":
                return 200, self._list(path, asked)
            return self._create(path, asked, body, fault or Fault(method))
        if (resource := self.resources.get(parts[5])) is None:
            return _error(404, f"Resource '{path}' was not found")
        if method == "GET":
            return 200, resource.shown(path)
        return self._delete(path, resource, force=asked.get("force") == "true")

    def _list(self, path: str, asked: dict[str, str]) -> dict[str, Any]:
        start = int(asked.get("pageToken", "0"))
        ids = [id_ for id_ in self.resources if id_ not in self.hidden]
        shown = [self.resources[id_].shown(f"{path}/{id_}") for id_ in ids]
        wanted = ("name", "state") if "fields" in asked else ("name", "state", "tpu", "spot")
        page = [{key: one[key] for key in wanted if key in one} for one in shown]
        more = {"nextPageToken": str(start + self.page)} if start + self.page < len(page) else {}
        return {"queuedResources": page[start : start + self.page], **more}

    def _create(
        self, path: str, asked: dict[str, str], body: dict[str, Any], fault: Fault
    ) -> tuple[int, dict[str, Any]]:
        id_ = asked["queuedResourceId"]
        if id_ in self.resources:
            return _error(409, f"Resource '{path}/{id_}' already exists")
        if fault.operation_error is None:
            self.resources[id_] = Resource(body)
        name = f"{path.rpartition('/')[0]}/operations/create-{id_}-{len(self.requests)}"
        self._operations[name] = (fault.looks, fault.operation_error)
        return 200, self._operation(name)

    def _operation(self, name: str) -> dict[str, Any]:
        left, error = self._operations[name]
        self._operations[name] = (left - 1, error)
        if left > 0:
            return {"name": name, "done": False}
        if error is not None:
            return {"name": name, "done": True, "error": {"code": error[0], "message": error[1]}}
        return {"name": name, "done": True, "response": {}}

    def _delete(self, path: str, resource: Resource, *, force: bool) -> tuple[int, dict[str, Any]]:
        if resource.state == "DELETING":
            return _error(409, f"Resource '{path}' is being deleted", "ABORTED")
        if not force and resource.state not in ("ACCEPTED", "FAILED", "SUSPENDED"):
            return _error(400, f"Resource '{path}' still has nodes")
        resource.state = "DELETING"
        return 200, {"name": f"{path}/delete", "done": False}

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Answer over HTTP; yields the address."""
        http = _Server(("127.0.0.1", 0), self._handler())
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}/"
        http.shutdown()
        thread.join()
        http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else {}
                answer = cloud.answer(self.command, self.path, body)
                if answer is None:
                    self.close_connection = True
                    return
                data = json.dumps(answer[1]).encode()
                self.send_response(answer[0])
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = _any  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore that a client was killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _error(status: int, message: str, rpc_status: str | None = None) -> tuple[int, dict[str, Any]]:
    name = rpc_status or _STATUS.get(status, "UNKNOWN")
    return status, {"error": {"code": status, "message": message, "status": name}}
