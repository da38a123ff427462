"""Reads a version of a secret from Google Secret Manager, with the credentials of this machine.

    GET http://metadata.google.internal/.../instance/service-accounts/default/token
    GET https://secretmanager.googleapis.com/v1/projects/P/secrets/S/versions/V:access

A value is kept in memory only. A token is accepted only from an answer that is marked as a
metadata server's, and is sent only to the address of the API. We use no proxy and follow no
redirects.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from supervisor.host import bounded_http
from supervisor.host.bounded_http import Answer
from supervisor.host.retry import PassesError, Pauses, Retry
from supervisor.protocol.reading import parse_object

BASE = "https://secretmanager.googleapis.com/"
BASE_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"
"""gcloud's own variable for another address of this API."""
_METADATA_VARIABLE = "GCE_METADATA_HOST"
_METADATA = "metadata.google.internal"
_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"
_TIMEOUT = 10.0
"""Seconds for one complete answer."""
_RETRY = Retry(Pauses(0.5, 2.0), tries=4)
_MAX_ANSWER = 256 << 10
"""Bytes: a secret has at most 64 KiB."""
_MAX_RAW = 2 * _MAX_ANSWER
_MARK, _GOOGLE = "Metadata-Flavor", "Google"
"""The header of requests to a metadata server, and of its answers."""
_TOKEN_FORM = re.compile(r"[!-~]+")
"""Characters that a header can contain."""


class SecretError(Exception):
    """This secret cannot be read until a person mends the cause."""


class SecretManager:
    """The secrets that the service account of this machine may read."""

    def __init__(
        self, environ: Mapping[str, str] = os.environ, pause: Callable[[float], None] = time.sleep
    ) -> None:
        """`environ` may contain another metadata server, and another address of the API."""
        self._metadata = environ.get(_METADATA_VARIABLE, _METADATA)
        self._address = environ.get(BASE_VARIABLE, BASE)
        self._pause = pause
        self._token = ""

    def value(self, version: str) -> str:
        """Returns the value of projects/P/secrets/S/versions/V, without a line break at its end.

        Raises:
            SecretError: the secret does not exist, may not be read, or is not text.
            OSError: it cannot be read now.
        """
        base = self._base()
        self._token = self._token or self._fetch_token()
        path = f"{base.path.rstrip('/')}/v1/{quote(version)}:access"
        headers = {"Authorization": f"Bearer {self._token}"}
        host = base.netloc.rpartition("@")[2]
        answer = self._get(host, path, headers, encrypted=base.scheme == "https")
        if answer.status != http.client.OK:
            why = _object(answer.body).get("error", {})
            told = why.get("message") if isinstance(why, dict) else None
            raise SecretError(f"cannot be read: HTTP {answer.status}: {told or 'no message'}")
        try:
            text = base64.b64decode(_object(answer.body)["payload"]["data"], validate=True).decode()
        except (KeyError, TypeError, ValueError, binascii.Error):
            raise SecretError("is not text in UTF-8") from None
        if "\0" in text:
            raise SecretError("holds a NUL, which no variable can")
        return text.removesuffix("\n").removesuffix("\r")

    def _base(self) -> SplitResult:
        """Returns the address of the API.

        Raises:
            SecretError: the configured address is invalid.
        """
        try:
            base = urlsplit(self._address)
            if base.scheme in ("http", "https") and base.hostname and base.port != 0:
                return base
        except ValueError:  # an invalid port, for example
            pass
        raise SecretError(
            f"cannot be read: {BASE_VARIABLE} is not a valid address (example: {BASE})"
        )

    def _fetch_token(self) -> str:
        try:
            http.client.HTTPConnection(self._metadata)  # checks the name; does not connect yet
        except http.client.InvalidURL as error:
            text = f"{_METADATA_VARIABLE} names no host: {error}"
            raise SecretError(f"cannot be read: {text}") from None
        answer = self._get(self._metadata, _TOKEN, {_MARK: _GOOGLE}, encrypted=False)
        token = _object(answer.body).get("access_token")
        if answer.headers.get(_MARK) != _GOOGLE:
            text = f"{self._metadata} is not a metadata server: is this a machine of Google Cloud?"
        elif answer.status != http.client.OK or not isinstance(token, str):
            who = f"HTTP {answer.status} from {self._metadata}"
            text = f"{who}: has this machine a service account?"
        elif _TOKEN_FORM.fullmatch(token) is None:
            text = f"what {self._metadata} answers is no token"
        else:
            return token
        raise SecretError(f"cannot be read: this machine has no token: {text}")

    def _get(self, host: str, path: str, headers: Mapping[str, str], *, encrypted: bool) -> Answer:
        """Returns one answer; tries again after an error that may pass.

        Raises:
            OSError: there was no answer, or only HTTP 429 or 5xx.
        """

        def attempt(_left: float) -> Answer:
            try:
                answer = bounded_http.get(
                    host,
                    path,
                    headers,
                    seconds=_TIMEOUT,
                    most=_MAX_ANSWER,
                    raw=_MAX_RAW,
                    encrypted=encrypted,
                )
            except OSError as error:
                raise PassesError(OSError(f"{host} does not answer: {error}")) from error
            if answer.status == http.client.TOO_MANY_REQUESTS or answer.status >= 500:
                raise PassesError(OSError(f"{host} answers with HTTP {answer.status}"))
            return answer

        return _RETRY.call(attempt, sleep=self._pause)


def _object(body: bytes) -> dict[str, Any]:
    try:
        return parse_object(body, "the answer")
    except ValueError:
        return {}
