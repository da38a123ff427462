"""Slices of the Cloud TPU API: queued resources, over its REST interface of version 2.

A queued resource is a request for a slice, and later the slice itself. A preempted one becomes
SUSPENDED and never becomes active again, but counts against the quota until it is deleted. Methods,
fields and states are those of the API's discovery document (revision 20261001):

    POST   v2/{parent}/queuedResources?queuedResourceId=ID&requestId=UUID   an Operation
    GET    v2/{parent}/queuedResources, v2/{name}, v2/{operation}
    DELETE v2/{name}?force=true    deletes its node too; an ACTIVE one cannot be deleted otherwise

The API does not promise that a list is complete at once: if the current resource is not in a list,
we ask for it by name.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.host.retry import PassesError, Pauses, Retry
from supervisor.ports import CloudSlice, Refusal, SliceState, UnavailableError
from supervisor.protocol.reading import UnreadableError, parse_json

BASE = "https://tpu.googleapis.com/"
BASE_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"
"""gcloud's own variable for another address of this API."""

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_RETRY = Retry(Pauses(1.0, 8.0), tries=5)
_OPERATION_PAUSES = Pauses(1.0, 15.0)
_OPERATION_LOOKS = 6
"""How often to ask if an operation is done. If it takes longer, the slice shows its result."""
_TIMEOUT = (10.0, 60.0)
"""Seconds to connect, and seconds without a byte."""
_PAGE = 100

_STATUS = {
    3: "INVALID_ARGUMENT",
    5: "NOT_FOUND",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    11: "OUT_OF_RANGE",
    12: "UNIMPLEMENTED",
    16: "UNAUTHENTICATED",
}
"""The values of google.rpc.Code that we treat in a special way."""
_NEVER_PASSES = frozenset(_STATUS.values()) - {"RESOURCE_EXHAUSTED"}
_PASSES = re.compile(
    r"no more capacity|insufficient (?:reserved )?capacity|stock-?out|resource pool exhausted"
    r"|(?:does not have|not) enough resources|quota\b.*\b(?:exceeded|exhausted)"
    r"|requests per minute",
    re.IGNORECASE | re.DOTALL,
)
"""Messages of the API about capacity and quota, under various codes, as people reported them:
'There is no more capacity in the zone "us-central1-c"' (hashicorp/terraform-provider-google#21243),
'Insufficient reserved capacity' (skypilot-org/skypilot#4579), "Quota limit 'TPUV6E...' has been
exceeded. Limit: 0 in region us-east5." (marin-community/marin#1612), "Quota '...' exhausted"
(marin-community/marin#87)."""


@dataclass(frozen=True, slots=True)
class _Answer:
    code: int
    body: Mapping[str, Any]

    @property
    def error(self) -> Mapping[str, Any]:
        found = self.body.get("error", {})
        return found if isinstance(found, Mapping) else {}

    def __str__(self) -> str:
        return f"HTTP {self.code}: {self.error.get('message') or 'no message'}"


class QueuedResources:
    """See `ports.Slices`."""

    def __init__(
        self,
        parent: str,
        name: str,
        body: Callable[[int, int], Mapping[str, Any]],
        *,
        base: str = BASE,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """The queued resources of `parent` (projects/P/locations/ZONE) with the ids `name`-1,
        `name`-2, ... `body` returns the request's body for a generation and a rung."""
        self._parent = parent
        self._name = name
        self._body = body
        self._base = f"{base.rstrip('/')}/v2/"
        self._pause = pause
        self._session: Any = None

    def all(self, current: int) -> Mapping[int, CloudSlice]:
        """See `ports.Slices`."""
        found = {}
        for resource in self._listed():
            ours = re.fullmatch(rf"{re.escape(self._name)}-(\d+)", _id(resource))
            if ours is not None:
                found[int(ours[1])] = _slice(resource)
        if current and current not in found:
            answer = self._call("GET", self._path(current), {}, accepted=(404,))
            if answer.code != 404:
                found[current] = _slice(answer.body)
        return found

    def create(self, generation: int, rung: int) -> Refusal | None:
        """See `ports.Slices`."""
        id_ = f"{self._name}-{generation}"
        query = {
            "queuedResourceId": id_,
            "requestId": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self._parent}/{id_}")),
        }
        where = f"{self._parent}/queuedResources"
        accepted = (400, 403, 404, 409, 429)
        answer = self._call(
            "POST", where, query, json=self._body(generation, rung), accepted=accepted
        )
        if answer.error.get("status") == "ALREADY_EXISTS":
            return None
        if answer.code != 200:
            return _refusal(answer.error)
        return self._outcome(answer.body)

    def delete(self, generation: int) -> None:
        """See `ports.Slices`."""
        answer = self._call(
            "DELETE", self._path(generation), {"force": "true"}, accepted=(400, 404, 409)
        )
        if answer.code in (400, 409):
            raise UnavailableError(f"{self._name}-{generation} cannot be deleted now: {answer}")

    def _path(self, generation: int) -> str:
        return f"{self._parent}/queuedResources/{self._name}-{generation}"

    def _listed(self) -> Iterator[Mapping[str, Any]]:
        query = {
            "pageSize": str(_PAGE),
            "fields": "unreachable,nextPageToken,queuedResources(name,state)",
        }
        while True:
            body = self._call("GET", f"{self._parent}/queuedResources", query).body
            if body.get("unreachable"):
                raise UnavailableError(f"the Cloud TPU API does not reach {body['unreachable']}")
            yield from body.get("queuedResources", ())
            if not body.get("nextPageToken"):
                return
            query["pageToken"] = body["nextPageToken"]

    def _outcome(self, operation: Mapping[str, Any]) -> Refusal | None:
        """Waits for an operation that creates a resource, `_OPERATION_LOOKS` times at most. Returns
        why it was refused; None: it was not refused so far."""
        for number in range(1, _OPERATION_LOOKS + 1):
            if operation.get("done"):
                break
            self._pause(_OPERATION_PAUSES.before(number))
            operation = self._call("GET", str(operation["name"]), {}).body
        error = operation.get("error")
        return _refusal(error) if error else None

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        json: Mapping[str, Any] | None = None,
        accepted: tuple[int, ...] = (),
    ) -> _Answer:
        """Returns the answer if its status is 200 or in `accepted`. Tries again if an error may
        pass.

        Raises:
            UnavailableError: all tries failed.
            PermissionError: the credentials are missing or not sufficient.
            OSError: any other status, which another try would not change.
        """

        def attempt(_left: float) -> _Answer:
            try:
                answer = self._ask(method, path, query, json)
            except UnavailableError as error:
                raise PassesError(_unavailable(error)) from error
            if answer.code != 200 and answer.code not in accepted:
                _raise_if_permanent(answer)
                raise PassesError(_unavailable(answer))
            return answer

        return _RETRY.call(attempt, sleep=self._pause)

    def _ask(
        self, method: str, path: str, query: Mapping[str, str], json: Mapping[str, Any] | None
    ) -> _Answer:
        """Makes one try and returns the answer.

        Raises:
            UnavailableError: there was no answer.
            PermissionError: the credentials are missing or do not work.
        """
        import requests
        from google.auth import exceptions

        if self._session is None:
            self._session = _session(self._base)
        try:
            response = self._session.request(
                method, self._base + path, params=dict(query), json=json, timeout=_TIMEOUT
            )
            body = parse_json(response.content, path) if response.content else {}
        except exceptions.TransportError as error:
            raise UnavailableError(str(error)) from error
        except exceptions.RefreshError as error:
            raise PermissionError(f"the credentials do not work: {error}; {_REMEDY}") from error
        except UnreadableError:
            body = {}  # an error page of a proxy in between
        except requests.exceptions.RequestException as error:
            raise UnavailableError(str(error)) from error
        return _Answer(response.status_code, body if isinstance(body, Mapping) else {})


_REMEDY = (
    "run `gcloud auth application-default login`, or give the account the role roles/tpu.admin"
)


def _session(base: str) -> Any:
    """Returns a session with this machine's credentials; without them if `base` is not HTTPS."""
    import google.auth
    import requests
    from google.auth import exceptions
    from google.auth.transport.requests import AuthorizedSession

    if not base.startswith("https://"):
        return requests.Session()  # a test server: never send a token unencrypted
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    except exceptions.DefaultCredentialsError as error:
        raise PermissionError(f"there are no credentials: {error}; {_REMEDY}") from error
    return AuthorizedSession(credentials)


def _unavailable(problem: object) -> UnavailableError:
    return UnavailableError(f"the Cloud TPU API does not answer: {problem}")


def _raise_if_permanent(answer: _Answer) -> None:
    """Raise an error if another try would not change the answer."""
    if answer.code >= 500 or answer.code in (408, 429) or _PASSES.search(str(answer)):
        return
    if answer.code in (401, 403):
        raise PermissionError(f"the Cloud TPU API refuses: {answer}; {_REMEDY}")
    raise OSError(f"the Cloud TPU API rejects the request: {answer}")


def _id(resource: Mapping[str, Any]) -> str:
    return str(resource.get("name", "")).rpartition("/")[2]


def _slice(resource: Mapping[str, Any]) -> CloudSlice:
    told = resource.get("state", {})
    try:
        state = SliceState(told.get("state", SliceState.UNKNOWN))
    except ValueError:
        state = SliceState.UNKNOWN
    error = told.get("failedData", {}).get("error")
    return CloudSlice(state, _refusal(error) if error else None)


def _refusal(error: Mapping[str, Any]) -> Refusal:
    """Returns the refusal for an error of an HTTP answer (it has `status`), or of an operation or a
    FAILED slice (it has `code`)."""
    text = str(error.get("message") or "it does not say why")
    status = error.get("status") or _STATUS.get(error.get("code", 0), "")
    may_pass = status not in _NEVER_PASSES or _PASSES.search(text) is not None
    return Refusal(f"{text} ({status})" if status else text, may_pass)
