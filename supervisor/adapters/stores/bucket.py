"""The objects of a bucket, over fsspec: `gs://` by gcsfs, `s3://` (and what speaks it) by s3fs.

Their file systems know no preconditions, keep listings, and try again each in its own way and for
as long as it likes. So they give credentials, connections and requests here, and each request is
made once; what came of it is looked up in `diagnosis.store_faults`, and only here is it tried
again.

Credentials are found in Google's and AWS's own ways, and an emulator (STORAGE_EMULATOR_HOST,
AWS_ENDPOINT_URL) in the clients' own; there are no options of ours.
"""

from __future__ import annotations

import errno
import importlib
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

from supervisor.diagnosis.store_faults import Fault, Meaning, pause_before, ruling
from supervisor.ports import MAX_OBJECT, ConflictError, Listing, Objects, Stored, UnavailableError
from supervisor.protocol.location import Uri
from supervisor.protocol.reading import UnreadableError, parse_object
from supervisor.protocol.shortening import beginning

if TYPE_CHECKING:
    import asyncio  # 3 MB that a job in a directory need not carry

_SILENCE = 15.0
"""Seconds without a byte after which a try has failed; a quarter of the bound, if that is less."""

_MAX_ANSWER = 64 << 20
"""Bytes of a page of a listing, or of an error."""
_MAX_LISTED = 1_000_000
"""Names directly below one place; what has more is not ours."""
_MAX_WORDS = 10_000
_CHUNK = 1 << 20

_T = TypeVar("_T")


def bucket(uri: Uri, bound: float = 60.0) -> Objects:
    """The objects below `uri`. A call takes at most `bound` seconds, all tries together.

    Raises:
        ImportError: what it takes is not installed; the text says how to install it.
    """
    package, extra, kind = _KINDS[uri.scheme]
    try:
        importlib.import_module(package)
    except ImportError as error:
        remedy = f"pip install '.[{extra}]' in a checkout"
        text = f"{uri.scheme}:// needs {package}, which is not to be had ({error}): {remedy}"
        raise ImportError(text) from error
    silence = min(_SILENCE, bound / 4)
    return _Bucket(uri, bound, lambda: kind(uri.bucket, silence))


class _Store(Protocol):
    """One try of each operation, by the whole name of an object; raises what its library does."""

    loop: asyncio.AbstractEventLoop

    async def read(self, name: str, limit: int) -> Stored: ...
    async def write(self, name: str, data: bytes, expected: str | None) -> str: ...
    async def delete(self, name: str) -> None: ...
    async def exists(self, name: str) -> bool: ...
    async def list(self, prefix: str) -> Mapping[str, int]: ...


class _Bucket:
    """The port `Objects` on a store that may fail."""

    def __init__(self, uri: Uri, bound: float, connect: Callable[[], _Store]) -> None:
        self._uri = uri
        self._bound = bound
        self._connect = connect
        self._store: _Store | None = None
        self._lock = threading.Lock()

    def read(self, path: str, limit: int = MAX_OBJECT) -> Stored:
        """See `ports.Objects`."""
        name = (self._uri / path).path
        return self._call(path, lambda store: store.read(name, limit))

    def write(self, path: str, data: bytes, *, expected: str | None = None) -> str:
        """See `ports.Objects`."""
        name = (self._uri / path).path
        try:
            return self._call(path, lambda store: store.write(name, data, expected))
        except FileNotFoundError as error:  # of S3, where a version was expected
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
        found = self._call(path, lambda store: store.list(prefix))
        below = {name.removeprefix(prefix): size for name, size in found.items() if name != prefix}
        return Listing(
            {name: size for name, size in below.items() if not name.endswith("/")},
            frozenset(name.rstrip("/") for name in below if name.endswith("/")),
        )

    def _call(self, path: str, operation: Callable[[_Store], Coroutine[Any, Any, _T]]) -> _T:
        """Try until it is done, it is refused, or the time is over."""
        where = str(self._uri / path if path else self._uri)
        end = time.monotonic() + self._bound
        tries = 0
        while True:
            try:
                return self._try(operation, max(end - time.monotonic(), 0.01))
            except UnreadableError:
                raise
            except Exception as error:
                tries += 1
                pause = pause_before(tries, random.random())
                self._judge(error, where, is_last=time.monotonic() + pause >= end)
            time.sleep(pause)

    def _try(self, operation: Callable[[_Store], Coroutine[Any, Any, _T]], limit: float) -> _T:
        from fsspec.asyn import sync

        with self._lock:
            if self._store is None:
                self._store = self._connect()
            store = self._store
        done: _T = sync(store.loop, operation, store, timeout=limit)
        return done

    def _judge(self, error: Exception, where: str, *, is_last: bool) -> None:
        """Return if there is to be another try; otherwise raise what the port has for it."""
        fault = _fault_of(error)
        rule = ruling(fault)
        if rule is None:
            raise error
        if rule.meaning is Meaning.MISSING:
            raise FileNotFoundError(errno.ENOENT, "no such object", where) from error
        if rule.meaning is Meaning.CONFLICT:
            raise ConflictError(errno.ESTALE, "it is another version", where) from error
        if rule.meaning is Meaning.RENEWS:
            with self._lock:
                self._store = None
        if rule.meaning is Meaning.REFUSED or is_last:
            kind = OSError if rule.meaning is Meaning.REFUSED else UnavailableError
            raise kind(errno.EIO, _words(fault, where, rule.remedy)) from error


def _words(fault: Fault, where: str, remedy: str) -> str:
    answer = " ".join(str(part) for part in (fault.status, fault.code) if part)
    said = beginning(" ".join(fault.message.split()), 300) or "no answer in time"
    return "; ".join(filter(None, [f"{where}: {answer}{': ' * bool(answer)}{said}", remedy]))


class _RefusedError(Exception):
    """An answer of Google's that is an error."""

    def __init__(self, status: int, content: bytes) -> None:
        reason, message = "", beginning(content.decode(errors="replace"), _MAX_WORDS)
        try:
            told = parse_object(content, "an answer")["error"]
            reason = str(told["errors"][0]["reason"])[:_MAX_WORDS]
            message = beginning(str(told["message"]), _MAX_WORDS)
        except (UnreadableError, TypeError, LookupError):
            pass  # a proxy's words, or of a download
        super().__init__(message)
        self.fault = Fault(status, reason, message)


def _fault_of(error: BaseException) -> Fault:
    """What `error`, or what it came of, tells."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    types = tuple(f"{t.__module__}.{t.__qualname__}" for e in chain for t in type(e).__mro__)
    for each in chain:
        if isinstance(each, _RefusedError):
            return each.fault
        answer = getattr(each, "response", None)  # of botocore
        if isinstance(answer, dict):
            status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
            told = answer.get("Error", {})
            return Fault(status, told.get("Code", ""), told.get("Message", ""), types)
    return Fault(None, type(error).__name__, str(error), types)


async def _up_to(limit: int, read: Callable[[int], Awaitable[bytes]], name: str) -> bytes:
    """All that `read` gives, which reads at most so many bytes; no more than `limit`."""
    data = bytearray()
    while chunk := await read(min(_CHUNK, limit + 1 - len(data))):
        data += chunk
        if len(data) > limit:
            raise UnreadableError(name, f"has more than {limit} bytes", number=errno.EFBIG)
    return bytes(data)


class _Google:
    """Google Cloud Storage by its JSON API: https://cloud.google.com/storage/docs/json_api/v1."""

    def __init__(self, bucket: str, silence: float) -> None:
        import aiohttp
        from gcsfs.core import GCSFileSystem

        self._files = GCSFileSystem(
            token="anon" if os.environ.get("STORAGE_EMULATOR_HOST") else "google_default",
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        self._timeout = aiohttp.ClientTimeout(sock_connect=silence, sock_read=silence)
        self._objects = f"storage/v1/b/{quote(bucket, safe='')}/o"
        self.loop = self._files.loop

    async def read(self, name: str, limit: int) -> Stored:
        headers, content = await self._ask("GET", self._object(name), {"alt": "media"}, limit=limit)
        return Stored(content, headers["x-goog-generation"])

    async def write(self, name: str, data: bytes, expected: str | None) -> str:
        condition = {} if expected is None else {"ifGenerationMatch": expected or "0"}
        query = {"uploadType": "media", "name": name, "fields": "generation", **condition}
        _, content = await self._ask("POST", f"upload/{self._objects}", query, data)
        return str(parse_object(content, name)["generation"])

    async def delete(self, name: str) -> None:
        await self._ask("DELETE", self._object(name), {})

    async def exists(self, name: str) -> bool:
        await self._ask("GET", self._object(name), {"fields": "name"})
        return True

    async def list(self, prefix: str) -> Mapping[str, int]:
        found: dict[str, int] = {}
        fields = "items(name,size),prefixes,nextPageToken"
        query = {"prefix": prefix, "delimiter": "/", "fields": fields}
        while True:
            _, content = await self._ask("GET", self._objects, query)
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

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        data: bytes | None = None,
        limit: int = _MAX_ANSWER,
    ) -> tuple[Mapping[str, str], bytes]:
        import asyncio

        session = await self._files._set_session()
        plain = {"Content-Type": "application/octet-stream"} if data is not None else {}
        headers = await asyncio.to_thread(self._files._get_headers, plain)  # it may renew a token
        async with session.request(
            method,
            f"{self._files._location}/{path}",
            params=query,
            headers=headers,
            data=data,
            timeout=self._timeout,
        ) as answer:
            content = await _up_to(limit, answer.content.read, path)
            if answer.status >= 400:
                raise _RefusedError(answer.status, content)
            return answer.headers, content


class _Amazon:
    """Amazon S3, and what speaks it. The version is the ETag, which follows from the content."""

    def __init__(self, bucket: str, silence: float) -> None:
        from s3fs import S3FileSystem

        self._files = S3FileSystem(
            config_kwargs={
                "connect_timeout": silence,
                "read_timeout": silence,
                "retries": {"total_max_attempts": 1},
            },
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        self._files.retries = 1
        self._bucket = bucket
        self.loop = self._files.loop

    async def read(self, name: str, limit: int) -> Stored:
        answer = await self._ask("get_object", Key=name)
        async with answer["Body"] as body:
            return Stored(await _up_to(limit, body.read, name), answer["ETag"])

    async def write(self, name: str, data: bytes, expected: str | None) -> str:
        condition = {"IfMatch": expected} if expected else {"IfNoneMatch": "*"}
        answer = await self._ask(
            "put_object", Key=name, Body=data, **(condition if expected is not None else {})
        )
        return str(answer["ETag"])

    async def delete(self, name: str) -> None:
        await self._ask("delete_object", Key=name)

    async def exists(self, name: str) -> bool:
        """By a listing: to HEAD, a missing bucket is like a missing object."""
        answer = await self._ask("list_objects_v2", Prefix=name, MaxKeys=1)
        return any(item["Key"] == name for item in answer.get("Contents", ()))

    async def list(self, prefix: str) -> Mapping[str, int]:
        found: dict[str, int] = {}
        page: dict[str, str] = {}
        while True:
            answer = await self._ask("list_objects_v2", Prefix=prefix, Delimiter="/", **page)
            found |= {item["Key"]: item["Size"] for item in answer.get("Contents", ())}
            found |= {place["Prefix"]: 0 for place in answer.get("CommonPrefixes", ())}
            if not answer.get("IsTruncated") or len(found) > _MAX_LISTED:
                return found
            page = {"ContinuationToken": answer["NextContinuationToken"]}

    async def _ask(self, operation: str, **what: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await self._files._call_s3(operation, Bucket=self._bucket, **what)
        return answer


_KINDS: dict[str, tuple[str, str, Callable[[str, float], _Store]]] = {
    "gs": ("gcsfs", "gcs", _Google),
    "s3": ("s3fs", "s3", _Amazon),
}
