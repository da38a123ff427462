"""Extracts the structured codes from the text of an error: statuses, error numbers, reasons.

A code means the same whoever writes it, and a word does not: "invalid" may describe a config, or a
packet that was cut. So an error with a code is judged by the code first. This file only extracts
the codes, each as `FAMILY:VALUE` (`http:404`, `grpc:UNAVAILABLE`, `errno:116`, `s3:NoSuchBucket`);
`diagnosis/rules/tables.py` says which of them are transient.

A number counts only if its family is named beside it: `batch (500)` is no status. Services whose
messages stand for a code are in `diagnosis/message_codes.py`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from supervisor.diagnosis.message_codes import codes_of_messages

_NO_CODES = re.compile(
    r"(?:\w+\.)*(?:TypeError|AttributeError|NameError|KeyError|IndexError|SyntaxError|ImportError|"
    r"ModuleNotFoundError|ZeroDivisionError|RecursionError|UnboundLocalError)$"
)
"""Types of programming errors: a number in them is a value, not a status."""

_ACCESS_LOG = re.compile(r"HTTP Request: |[\"'](?:GET|HEAD|POST|PUT|PATCH|DELETE) \S+ HTTP/")
"""A line about one request among many, as httpx, urllib3 and servers log them."""

_METHOD = r"(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS)"
_HTTP = (
    # "503 Server Error: ... for url" (requests), "504 GET https://..." (google.api_core)
    rf"\b(\d{{3}}) (?:Client Error|Server Error|{_METHOD}\b)",
    # "Client error '404 Not Found' for url" (httpx), "HTTP status server error (503 ...)" (reqwest)
    r"(?:[Cc]lient|[Ss]erver) [Ee]rror:? ?['(]?(\d{3})\b",
    # "HTTP Error 503: ..." (urllib), "HTTP/1.1 502", "<HttpError 403 when requesting" (googleapi)
    r"\bHTTP(?:/[\d.]+|[ _]?[Ee]rror|[ _][Ss]tatus)?(?:[ _][Cc]ode)?[:=]? ?'?(\d{3})\b",
    r"\bHttpError[: ]+(\d{3})\b",
    # "HTTP response code 503 with body" (TensorFlow), "http_response_code='503'" (TensorStore)
    r"(?i:response[_ ](?:status[_ ])?code:? ?=?['\"]?)(\d{3})\b",
    # "<Response [520]>" (requests), "status_code=503", "HTTPStatusCode': 404", "status: 502"
    r"<Response \[(\d{3})\]",
    r"(?i:(?<!exit )\bstatus(?:[_ ]?code)?['\"]?[:= ]{1,3}['\"]?)(\d{3})\b",
    # "'code': 429" in the body of an answer; "error code: 1015" has four digits
    r"['\"](?i:code|status)['\"]: ?['\"]?(\d{3})\b",
    # "returned error 502: Bad Gateway" (wandb, git, curl -f)
    r"\breturned (?:an? )?(?:HTTP )?(?:error|status)(?: code)?[: ]+(\d{3})\b",
    # "503, message='Service Unavailable', url=" (aiohttp)
    r"\b(\d{3}), message=['\"]",
    # "failed with error code 503 != 200" (mlflow)
    r"\berror code (\d{3}) != 200\b",
    # "(410)\nReason: Expired" (kubernetes)
    r"\((\d{3})\)\s*\n?Reason: ",
    # "An error occurred (404) when calling the HeadObject operation" (botocore)
    r"An error occurred \((\d{3})\) when calling",
    # "AccessDeniedException: 403 ...", "ServiceException: 503" (gsutil); "HTTPError 404: ..."
    r"\b(?:(?:Service|AccessDenied|\w*NotFound|BadRequest|Resumable\w*)Exception|HTTPError):? "
    r"(\d{3})\b",
    # "google.api_core.exceptions.NotFound: 404 The ..."
    r"^google\.[\w.]+: (\d{3})\b",
    # "429 Too Many Requests": the number with its own name, anywhere
    r"\b(4(?:00 Bad Request|01 Unauthorized|03 Forbidden|04 Not Found|08 Request Time-?out|"
    r"10 Gone|12 Precondition Failed|16 Requested Range|29 Too Many)|5(?:00 Internal Server|"
    r"02 Bad Gateway|03 Service|03 Slow|04 Gateway|04 Deadline))",
)
_GRPC_NAMES = (
    "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS "
    "PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED "
    "INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED"
)
"""The names of the gRPC status codes, in the order of their numbers."""
_FORMS = tuple(
    (family, re.compile(form, re.MULTILINE))
    for family, form in (
        *(("http", form) for form in _HTTP),
        ("grpc", r"\bStatusCode\.([A-Z_]+)"),
        ("grpc", r"\bgrpc_status['\"]?: ?(\d{1,2})\b"),
        ("grpc", r"\brpc error: code = (\w+)"),
        ("s3", r"An error occurred \((\w+)\) when calling"),
        ("s3", r"<Code>(\w+)</Code>"),
        ("s3", r"\bAWS Error ([A-Z_]+) during"),
        ("grpc", r"\bgoogle::cloud::Status\(([A-Z_]+):"),
        ("azure", r"^ErrorCode:(\w+)"),
        ("s3", r"^botocore\.errorfactory\.(\w+)"),
        # Google's and Kubernetes' reason fields
        ("reason", r"['\"]?reason['\"]?: ?['\"](\w+)['\"]"),
        ("reason", r"^Reason: (Expired|Gone)\b"),
        ("reason", r"^Error from server \((\w+)\)"),  # kubectl
        ("reason", r"\b((?:user)?[rR]ateLimitExceeded|quotaExceeded|dailyLimitExceeded)\b"),
        ("reason", r"HttpError \d{3}: .*\((\w+)\)"),
        ("errno", r"\[Errno (-?\d+)\]|\bos_error_code='(\d+)'|\(os error (\d+)\)"),
        ("errno", r"\bError (\d{1,3}) (?:connecting to|while (?:reading|writing))"),
        ("curl", r"CURL error ?\[(\d+)\]|\bcurl: \((\d+)\)|\blibcurl code (\d+)"),
        ("curl", r"CURL error \((\d+)\)|\bcurl\w* .{0,40}error code:? (\d+)"),
        ("sqlstate", r"\bSQLSTATE[ :=\[(]+(\w{5})\b"),
        ("pg", r"\bpsycopg2?\.errors\.(\w+)|\basyncpg\.exceptions\.(\w+?)(?:Error)?\b"),
        ("mysql", r"(?i:mysql|mariadb)[\w.]{0,60}\)?: ?\(?(\d{4})\b|^ERROR (\d{4}) \(\w{5}\)"),
        ("mysql", r"\b(\d{4}) \(\w{5}\): "),
        ("mysql", r"(?i:mysql)[\w.]{0,60}\) \((\d{4}), "),
        ("mongo", r"^pymongo\.[\s\S]*?['\"]code['\"]: ?(\d+)"),
        ("ssl", r"\[SSL: (\w+)\]"),
        # mlflow/exceptions.py (RestException), and the body of an answer of MLflow and Databricks
        ("mlflow", r"\bmlflow\.exceptions\.\w+: ([A-Z]+(?:_[A-Z]+)*): "),
        ("mlflow", r"['\"]error_code['\"]: ?['\"]([A-Z]+(?:_[A-Z]+)*)['\"]"),
    )
)
_SIGNED = re.compile(
    r"[?&](?:X-(?:Amz|Goog)-(?:Expires|Signature)|Signature|sig)=|<X-Amz-Expires>|"
    r"<Message>Request has expired</Message>"
)
"""A signed address, which is valid for a limited time: S3 and GCS (V4, V2), CloudFront, Azure."""
_GCSFS = re.compile(r"^gcsfs\.[\w.]+: [\s\S]*, (\d{3})\s*$")


@lru_cache(maxsize=256)
def codes_of(kind: str, text: str) -> frozenset[str]:
    """Returns the codes in `text`: all lines of an error of type `kind` ("": a line of text)."""
    if _NO_CODES.match(kind) or (not kind and _ACCESS_LOG.search(text)):
        return frozenset()
    found = {
        f"{family}:{value}"
        for family, form in _FORMS
        for match in form.finditer(text)
        if (value := _normalised_code(family, next(filter(None, match.groups()), "")))
    }
    if match := _GCSFS.match(text):
        found.add(f"http:{match[1]}")
    if "http:403" in found and _SIGNED.search(text):
        found.add("http:403-signed")
    return frozenset(found) | codes_of_messages(text)


def _normalised_code(family: str, said: str) -> str:
    """Returns the code as the tables write it; empty: it is no code."""
    if family == "http":
        return said[:3] if "100" <= said[:3] <= "599" else ""
    if family == "grpc":
        return _grpc(said)
    if family == "s3":
        return _s3(said)
    return said


def _s3(said: str) -> str:
    if said.isdecimal():
        return ""  # an HTTP status, which the family `http` finds
    # The AWS SDK for C++ writes NO_SUCH_BUCKET.
    return said.title().replace("_", "") if said.isupper() else said


def _grpc(said: str) -> str:
    if said.isdecimal():
        return dict(enumerate(_GRPC_NAMES.split())).get(int(said), "")
    # Go writes `DeadlineExceeded`.
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", said).upper()
