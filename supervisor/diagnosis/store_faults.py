"""Decides what a fault of an object store means, by an ordered table: the first match decides.

A fault that may pass is worth another try. One that a person must mend is not, and its rule says
what to do. Status and code are those that the services document:
https://cloud.google.com/storage/docs/retry-strategy and
.../json_api/v1/status-codes, https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Container
from dataclasses import dataclass

from supervisor.protocol.reading import UnreadableError, parse_object
from supervisor.protocol.shortening import keep_beginning

_MAX_WORDS = 10_000


class Meaning(enum.Enum):
    """What a fault means for the caller."""

    PASSES = "may pass"
    RENEWS = "passes once the credentials are renewed, which a new client finds"
    MISSING = "there is no such object"
    CONFLICT = "the object is another version"
    REFUSED = "a person must act"


@dataclass(frozen=True, slots=True)
class StoreFault:
    """The fault of one try, as far as the client library reports it."""

    status: int | None = None
    """The HTTP status; None: there was no answer."""
    code: str = ""
    """The store's own name for the error; without an answer, the name of the exception's type."""
    message: str = ""
    types: tuple[str, ...] = ()
    """The types of the exception and of those that led to it, with base classes: `MODULE.NAME`."""


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One row of the table. All its conditions must hold; one of several values is enough."""

    meaning: Meaning
    statuses: Container[int] | None = None
    codes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    """Names of types, with as much of the module path as is needed."""
    pattern: str = ""
    """A regular expression that must occur in the message."""
    remedy: str = ""
    """What a person can do about it."""


_PASSES, _RENEWS, _REFUSED = Meaning.PASSES, Meaning.RENEWS, Meaning.REFUSED
_NO_CREDENTIALS = (
    "give this host credentials: for gs:// Google's application default credentials, "
    "for s3:// in one of the ways of the AWS SDKs"
)
_EXPIRED = "renew the credentials"
NO_BUCKET = "create the bucket, or correct model_dir"
_CERTIFICATE = "check this host's clock and certificates, and any proxy"

FAULT_RULES = (
    FaultRule(_REFUSED, codes=("NoSuchBucket",), remedy=NO_BUCKET),
    FaultRule(_REFUSED, statuses=(404,), pattern="bucket does not exist", remedy=NO_BUCKET),
    FaultRule(Meaning.MISSING, statuses=(404,)),
    FaultRule(Meaning.CONFLICT, statuses=(412,)),
    FaultRule(Meaning.CONFLICT, statuses=(409,), codes=("ConditionalRequestConflict",)),
    FaultRule(_REFUSED, statuses=(401,), pattern="Anonymous caller", remedy=_NO_CREDENTIALS),
    FaultRule(_RENEWS, statuses=(401,), remedy=_EXPIRED),
    FaultRule(
        _RENEWS,
        codes=(
            *("ExpiredToken", "ExpiredTokenException", "InvalidToken"),
            *("RequestExpired", "TokenRefreshRequired"),
        ),
        remedy=_EXPIRED,
    ),
    FaultRule(_PASSES, statuses=(403,), codes=("rateLimitExceeded", "userRateLimitExceeded")),
    FaultRule(_REFUSED, codes=("RequestTimeTooSkewed",), remedy="set this host's clock"),
    FaultRule(
        _REFUSED,
        statuses=(403,),
        remedy="let these credentials read, write, list and delete objects there",
    ),
    FaultRule(_PASSES, statuses=(408, 409, 425, 429, 499)),
    FaultRule(_PASSES, statuses=range(500, 600)),
    FaultRule(
        _PASSES,
        codes=("IncompleteBody", "RequestTimeout", "SlowDown", "XAmzContentSHA256Mismatch"),
    ),
    FaultRule(_REFUSED, statuses=range(600)),
    # Faults without an answer of the store. On a new machine the service that gives out credentials
    # may not be up yet.
    FaultRule(
        _RENEWS, types=("DefaultCredentialsError", "NoCredentialsError"), remedy=_NO_CREDENTIALS
    ),
    FaultRule(
        _RENEWS,
        types=(
            *("google.auth.exceptions.RefreshError", "MetadataRetrievalError"),
            *("CredentialRetrievalError", "TokenRetrievalError"),
            *("botocore.exceptions.SSOError", "botocore.exceptions.LoginError"),
        ),
        remedy=_EXPIRED,
    ),
    FaultRule(_REFUSED, types=("SSLCertVerificationError",), remedy=_CERTIFICATE),
    FaultRule(_REFUSED, types=("botocore.exceptions.SSLError",), remedy=_CERTIFICATE),
    FaultRule(
        _REFUSED,
        types=tuple(
            f"requests.exceptions.{name}"
            for name in ("InvalidURL", "InvalidSchema", "MissingSchema")
        ),
        remedy="correct STORAGE_EMULATOR_HOST",
    ),
    FaultRule(
        _PASSES,
        types=(
            *("ConnectionError", "TimeoutError", "socket.gaierror"),
            *("urllib3.exceptions.HTTPError", "requests.exceptions.RequestException"),
            *("google.auth.exceptions.TransportError", "google.auth.exceptions.ResponseError"),
            *("botocore.exceptions.HTTPClientError", "botocore.parsers.ResponseParserError"),
            "botocore.exceptions.IncompleteReadError",
        ),
    ),
    FaultRule(
        _REFUSED,
        types=(
            *("botocore.exceptions.BotoCoreError", "google.auth.exceptions.GoogleAuthError"),
            "botocore.exceptions.ClientError",
        ),
    ),
)


class RefusedError(Exception):
    """An error answer of Google's JSON API."""

    def __init__(self, status: int, content: bytes) -> None:
        reason, message = "", keep_beginning(content.decode(errors="replace"), _MAX_WORDS)
        try:
            told = parse_object(content, "an answer")["error"]
            reason = str(told["errors"][0]["reason"])[:_MAX_WORDS]
            message = keep_beginning(str(told["message"]), _MAX_WORDS)
        except (UnreadableError, TypeError, LookupError):
            pass  # no JSON: a proxy's answer, or that to a download
        super().__init__(message)
        self.fault = StoreFault(status, reason, message)


def fault_of(error: BaseException) -> StoreFault:
    """Returns the fault that `error`, or an error that led to it, reports."""
    chain = [error]
    while (earlier := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(earlier)
    types = tuple(f"{t.__module__}.{t.__qualname__}" for e in chain for t in type(e).__mro__)
    for each in chain:
        if isinstance(each, RefusedError):
            return each.fault
        answer = getattr(each, "response", None)
        if isinstance(answer, dict):  # an error of botocore
            status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
            told = answer.get("Error", {})
            return StoreFault(status, told.get("Code", ""), told.get("Message", ""), types)
    return StoreFault(None, type(error).__name__, str(error), types)


def ruling(fault: StoreFault) -> FaultRule | None:
    """Returns the rule that decides what `fault` means; None: it is no fault of a store."""
    return next((rule for rule in FAULT_RULES if _matches(rule, fault)), None)


def _matches(rule: FaultRule, fault: StoreFault) -> bool:
    if rule.statuses is not None and (fault.status is None or fault.status not in rule.statuses):
        return False
    if rule.codes and fault.code not in rule.codes:
        return False
    if rule.types and not any(_is_named(name, rule.types) for name in fault.types):
        return False
    return re.search(rule.pattern, fault.message) is not None


def _is_named(name: str, wanted: tuple[str, ...]) -> bool:
    return any(name == one or name.endswith(f".{one}") for one in wanted)
