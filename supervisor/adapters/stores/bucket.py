"""The objects of a bucket: `gs://` by Google's JSON API, `s3://` (and compatible) by botocore.

google-auth and botocore find the credentials in Google's and AWS's own ways. The variables of their
clients name an emulator (STORAGE_EMULATOR_HOST, AWS_ENDPOINT_URL); we have no options of our own.
The libraries' own retries are off: they make each request once, `diagnosis.store_faults` says what
a failure means, and only this module tries again. docs/reference/libraries.md says why we do not
use fsspec or obstore.
"""

from __future__ import annotations

import errno
import importlib
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cache, partial
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from supervisor.diagnosis.store_faults import (
    NO_BUCKET,
    Meaning,
    RefusedError,
    StoreFault,
    fault_of,
    ruling,
)
from supervisor.host.retry import PassesError, Pauses, Retry
from supervisor.ports import (
    MAX_OBJECT,
    ConflictError,
    Listing,
    Objects,
    StoredObject,
    UnavailableError,
)
from supervisor.protocol.location import Uri
from supervisor.protocol.reading import UnreadableError, parse_object
from supervisor.protocol.shortening import keep_beginning

_SILENCE = 15.0
"""A try fails after this many seconds without a byte, or a quarter of the bound if that is less."""

_PAUSES = Pauses(0.25, 8.0, spread=0.5)

_MAX_ANSWER = 64 << 20
"""The largest page of a listing, or answer of an error, in bytes."""
_MAX_LISTED = 1_000_000
"""The most names to list directly below one place; a place of ours never has more."""
_CHUNK = 1 << 20
_CONNECTIONS = 32
"""The most connections to keep open: one for each thread that makes requests at the same time."""
_GOOGLE = "https://storage.{}"
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"

_T = TypeVar("_T")


def bucket(uri: Uri, bound: float = 60.0) -> Objects:
    """Returns the objects below `uri`. A call takes at most `bound` seconds, with all its tries.

    Raises:
        ImportError: the client library is missing; the text says how to install it.
    """
    package, extra, kind = _KINDS[uri.scheme]
    try:
        importlib.import_module(package)
    except ImportError as error:
        remedy = f"pip install '.[{extra}]' in a checkout"
        text = f"{uri.scheme}:// needs {package}, which cannot be imported ({error}): {remedy}"
        raise ImportError(text) from error
    silence = min(_SILENCE, bound / 4)
    return _Bucket(uri, bound, lambda: kind(uri.bucket, silence, bound))


class _Store(Protocol):
    """One try of each operation, by the full name of an object. Raises its library's exceptions.

    Safe in any thread. Each read has a timeout: a call always ends, but may take longer than it
    should.
    """

    def read(self, name: str, limit: int) -> StoredObject: ...
    def write(self, name: str, data: bytes, expected: str | None) -> str: ...
    def delete(self, name: str) -> None: ...
    def exists(self, name: str) -> bool: ...
    def list(self, prefix: str) -> Mapping[str, int]: ...


class _Bucket:
    """Implements `ports.Objects` on a store whose requests may fail, by trying again."""

    def __init__(self, uri: Uri, bound: float, connect: Callable[[], _Store]) -> None:
        self._uri = uri
        self._bound = bound
        self._connect = connect
        self._store: _Store | None = None
        self._lock = threading.Lock()

    def read(self, path: str, limit: int = MAX_OBJECT) -> StoredObject:
        """See `ports.Objects`."""
        name = (self._uri / path).path
        return self._call(path, lambda store: store.read(name, limit))

    def write(self, path: str, data: bytes, *, expected: str | None = None) -> str:
        """See `ports.Objects`."""
        name = (self._uri / path).path
        try:
            return self._call(path, lambda store: store.write(name, data, expected))
        except FileNotFoundError as error:  # S3 answers so if a version was expected
            if not expected:
                raise
            raise ConflictError(errno.ESTALE, "it is not there any more", error.filename) from error

    def delete(self, path: str) -> None:
        """See `ports.Objects`."""
        name = (self._uri / path).path
        try:
            self._call(path, lambda store: store.delete(name))
        except FileNotFoundError:
            return

    def exists(self, path: str) -> bool:
        """See `ports.Objects`."""
        name = (self._uri / path).path
        try:
            return self._call(path, lambda store: store.exists(name))
        except FileNotFoundError:
            return False

    def list(self, path: str) -> Listing:
        """See `ports.Objects`."""
        place = self._uri / path if path else self._uri
        prefix = f"{place.path}/" if place.path else ""
        try:
            found = self._call(path, lambda store: store.list(prefix))
        except FileNotFoundError as error:  # a folder that is not there has an empty list
            words = f"{place}: 404: the store knows no such bucket; {NO_BUCKET}"
            raise OSError(errno.EIO, words) from error
        below = {name.removeprefix(prefix): size for name, size in found.items() if name != prefix}
        return Listing(
            {name: size for name, size in below.items() if not name.endswith("/")},
            frozenset(name.rstrip("/") for name in below if name.endswith("/")),
        )

    def _call(self, path: str, operation: Callable[[_Store], _T]) -> _T:
        """Try `operation` until it succeeds, it is refused, or the time is over."""
        where = str(self._uri / path if path else self._uri)
        retry = Retry(_PAUSES, seconds=self._bound)
        known: Exception | None = None

        def attempt(left: float) -> _T:
            nonlocal known
            try:
                return self._try(operation, left)
            except UnreadableError:
                raise
            except Exception as error:
                judged = self._judged(error, where)
                if isinstance(judged, PassesError):
                    if known is not None and isinstance(error, TimeoutError):
                        judged = PassesError(known)  # the earlier error says more than a timeout
                    known = judged.final
                raise judged from error

        return retry.call(attempt, sleep=time.sleep, clock=time.monotonic, luck=random.random)

    def _try(self, operation: Callable[[_Store], _T], limit: float) -> _T:
        return _within(limit, lambda: operation(self._connected()))

    def _connected(self) -> _Store:
        with self._lock:
            if self._store is None:
                self._store = self._connect()
            return self._store

    def _judged(self, error: Exception, where: str) -> Exception:
        """Returns the exception to raise in place of `error`; a `PassesError` means: try again."""
        fault = fault_of(error)
        rule = ruling(fault)
        if rule is None:
            return error
        if rule.meaning is Meaning.MISSING:
            return FileNotFoundError(errno.ENOENT, "no such object", where)
        if rule.meaning is Meaning.CONFLICT:
            return ConflictError(errno.ESTALE, "it is another version", where)
        words = _words(fault, where, rule.remedy)
        if rule.meaning is Meaning.REFUSED:
            return OSError(errno.EIO, words)
        if rule.meaning is Meaning.RENEWS:
            with self._lock:
                self._store = None
        return PassesError(UnavailableError(errno.EIO, words))


def _words(fault: StoreFault, where: str, remedy: str) -> str:
    answer = " ".join(str(part) for part in (fault.status, fault.code) if part)
    message = " ".join(fault.message.split()).removesuffix(".")
    said = keep_beginning(message, 300) or "no answer in time"
    return "; ".join(filter(None, [f"{where}: {answer}{': ' * bool(answer)}{said}", remedy]))


def _within(seconds: float, call: Callable[[], _T]) -> _T:
    """Returns what `call` returns, or raises what it raises. Runs it in a thread of its own.

    Raises:
        TimeoutError: it takes longer than `seconds`. It goes on in its thread until the client's
            own timeouts end it. These start again with each byte, so they do not bound the call.
    """
    done: Future[_T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="bucket", daemon=True).start()
    return done.result(seconds)


def _up_to(limit: int, read: Callable[[int], bytes], name: str, seconds: float) -> bytes:
    """Returns all that `read` reads; its argument is the most bytes to read at once.

    Raises:
        UnreadableError: there are more than `limit` bytes.
        TimeoutError: reading to the end takes more than `seconds`.
    """
    until = time.monotonic() + seconds
    data = bytearray()
    while chunk := read(min(_CHUNK, limit + 1 - len(data))):
        data += chunk
        if len(data) > limit:
            raise UnreadableError(name, f"has more than {limit} bytes", number=errno.EFBIG)
        if time.monotonic() > until:
            raise TimeoutError(f"no whole answer within {seconds:g} s")
    return bytes(data)


class _Google:
    """Google Cloud Storage by its JSON API: https://cloud.google.com/storage/docs/json_api/v1."""

    def __init__(self, bucket: str, silence: float, bound: float) -> None:
        import google.auth
        from google.auth.credentials import AnonymousCredentials
        from google.auth.transport.requests import AuthorizedSession, Request
        from requests.adapters import HTTPAdapter

        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
        default = google.auth.default
        credentials = AnonymousCredentials() if emulator else default(scopes=[_GOOGLE_SCOPE])[0]
        self._session = AuthorizedSession(
            credentials, refresh_status_codes=(), max_refresh_attempts=0, auth_request=Request()
        )
        adapter = HTTPAdapter(pool_maxsize=_CONNECTIONS, max_retries=0)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)
        self._timeout = (silence, silence)
        self._bound = bound
        self._url = _google_url(emulator)
        self._objects = f"storage/v1/b/{quote(bucket, safe='')}/o"

    def read(self, name: str, limit: int) -> StoredObject:
        headers, content = self._ask("GET", self._object(name), {"alt": "media"}, limit=limit)
        generation = headers.get("x-goog-generation")
        if not generation:  # some emulators do not tell it
            remedy = "STORAGE_EMULATOR_HOST must name a store that tells it, as Google's does"
            raise UnreadableError(name, "comes without its generation", remedy)
        return StoredObject(content, generation)

    def write(self, name: str, data: bytes, expected: str | None) -> str:
        condition = {} if expected is None else {"ifGenerationMatch": expected or "0"}
        query = {"uploadType": "media", "name": name, "fields": "generation", **condition}
        _, content = self._ask("POST", f"upload/{self._objects}", query, data)
        return str(parse_object(content, name)["generation"])

    def delete(self, name: str) -> None:
        self._ask("DELETE", self._object(name), {})

    def exists(self, name: str) -> bool:
        self._ask("GET", self._object(name), {"fields": "name"})
        return True

    def list(self, prefix: str) -> Mapping[str, int]:
        found: dict[str, int] = {}
        fields = "items(name,size),prefixes,nextPageToken"
        query = {"prefix": prefix, "delimiter": "/", "fields": fields}
        while True:
            _, content = self._ask("GET", self._objects, query)
            page = parse_object(content, prefix)
            try:
                found |= {str(item["name"]): int(item["size"]) for item in page.get("items", ())}
                found |= dict.fromkeys(map(str, page.get("prefixes", ())), 0)
            except (TypeError, LookupError, ValueError) as error:
                raise UnreadableError(prefix, "has a listing of another form") from error
            if "nextPageToken" not in page or len(found) > _MAX_LISTED:
                return found
            query["pageToken"] = str(page["nextPageToken"])

    def _object(self, name: str) -> str:
        return f"{self._objects}/{quote(name, safe='')}"

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        data: bytes | None = None,
        limit: int = _MAX_ANSWER,
    ) -> tuple[Mapping[str, str], bytes]:
        with self._session.request(
            method,
            f"{self._url}/{path}",
            params=query,
            headers={"Content-Type": "application/octet-stream"} if data is not None else {},
            data=data,
            timeout=self._timeout,
            stream=True,
        ) as answer:
            read = partial(answer.raw.read, decode_content=True)
            content = _up_to(limit, read, path, self._bound)
            if answer.status_code >= 400:
                raise RefusedError(answer.status_code, content)
            return answer.headers, content


def _google_url(emulator: str) -> str:
    """Returns the address of the JSON API. `emulator` is an address, a host, or empty."""
    if not emulator:
        return _GOOGLE.format(os.environ.get("GOOGLE_CLOUD_UNIVERSE_DOMAIN") or "googleapis.com")
    return emulator.rstrip("/") if "://" in emulator else f"http://{emulator}"


class _Amazon:
    """Amazon S3 and compatible stores. The version is the ETag, which follows from the content."""

    def __init__(self, bucket: str, silence: float, bound: float) -> None:
        import botocore.session
        from botocore.config import Config

        config = Config(
            connect_timeout=silence,
            read_timeout=silence,
            retries={"total_max_attempts": 1},
            max_pool_connections=_CONNECTIONS,
        )
        session = botocore.session.Session()
        session.register_component("data_loader", _models())
        self._client = session.create_client("s3", config=config)
        self._bucket = bucket
        self._bound = bound

    def read(self, name: str, limit: int) -> StoredObject:
        answer = self._client.get_object(Bucket=self._bucket, Key=name)
        with answer["Body"] as body:
            return StoredObject(_up_to(limit, body.read, name, self._bound), answer["ETag"])

    def write(self, name: str, data: bytes, expected: str | None) -> str:
        condition = {"IfMatch": expected} if expected else {"IfNoneMatch": "*"}
        answer = self._client.put_object(
            Bucket=self._bucket, Key=name, Body=data, **(condition if expected is not None else {})
        )
        return str(answer["ETag"])

    def delete(self, name: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=name)

    def exists(self, name: str) -> bool:
        """Uses a listing: HEAD answers the same for a missing bucket as for a missing object."""
        answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=name, MaxKeys=1)
        return any(item["Key"] == name for item in answer.get("Contents", ()))

    def list(self, prefix: str) -> Mapping[str, int]:
        found: dict[str, int] = {}
        page: dict[str, str] = {}
        while True:
            answer = self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=prefix, Delimiter="/", **page
            )
            found |= {item["Key"]: item["Size"] for item in answer.get("Contents", ())}
            found |= {place["Prefix"]: 0 for place in answer.get("CommonPrefixes", ())}
            if not answer.get("IsTruncated") or len(found) > _MAX_LISTED:
                return found
            page = {"ContinuationToken": answer["NextContinuationToken"]}


@cache
def _models() -> Any:
    """Returns botocore's descriptions of services, 12 MB that all our clients share."""
    import botocore.session

    return botocore.session.Session().get_component("data_loader")


_KINDS: dict[str, tuple[str, str, Callable[[str, float, float], _Store]]] = {
    "gs": ("google.auth.transport.requests", "gcs", _Google),
    "s3": ("botocore.session", "s3", _Amazon),
}
