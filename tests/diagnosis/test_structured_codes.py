"""Which structured codes an error has, and that each is judged one way only."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.diagnosis.rules import RULES, tables
from supervisor.diagnosis.structured_codes import codes_of

SAID = [
    ("requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: x", "http:503"),
    ("httpx.HTTPStatusError: Client error '404 Not Found' for url 'https://x'", "http:404"),
    ("aiohttp.ClientResponseError: 502, message='Bad Gateway', url=x", "http:502"),
    ("urllib.error.HTTPError: HTTP Error 416: Requested Range Not Satisfiable", "http:416"),
    ("wandb.errors.UsageError: problem: (<Response [520]>) An unknown error", "http:520"),
    ("kubernetes.client.exceptions.ApiException: (410)\nReason: Gone", "http:410"),
    ("kubernetes.client.exceptions.ApiException: (410)\nReason: Expired: too", "reason:Expired"),
    ("google.api_core.exceptions.NotFound: 404 The specified bucket does not exist.", "http:404"),
    ("gcsfs.retry.HttpError: Anonymous caller does not have access, 401", "http:401"),
    ("ValueError: HTTP response code: 403 with body '' [source locations='x']", "http:403"),
    ("RuntimeError: x [http_response_code='503']", "http:503"),
    ("botocore.exceptions.ClientError: An error occurred (404) when calling the HeadObject "
     "operation: Not Found", "http:404"),
    ("botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject "
     "operation (reached max retries: 4): Please reduce your request rate.", "s3:SlowDown"),
    ("googleapiclient.errors.HttpError: <HttpError 403 when requesting x returned \"Rate\". "
     "Details: \"[{'reason': 'rateLimitExceeded'}]\">", "reason:rateLimitExceeded"),
    ("grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:\n"
     "\tstatus = StatusCode.UNKNOWN\n", "grpc:UNKNOWN"),
    ("RuntimeError: {grpc_message:\"x\", grpc_status:14}", "grpc:UNAVAILABLE"),
    ("RuntimeError: rpc error: code = DeadlineExceeded desc = x", "grpc:DEADLINE_EXCEEDED"),
    ("OSError: [Errno 523] Unknown error 523", "errno:523"),
    ("ValueError: UNKNOWN: x [os_error_code='116']", "errno:116"),
    ("RuntimeError: Connection reset by peer (os error 104)", "errno:104"),
    ("ValueError: UNAVAILABLE: Error reading gs://b: CURL error[35] SSL connect error", "curl:35"),
    ("OSError: When listing objects: AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation: x",
     "s3:NoSuchBucket"),
    ("azure.core.exceptions.HttpResponseError: x\nErrorCode:ServerBusy", "azure:ServerBusy"),
    ("curl: (56) OpenSSL SSL_read: error", "curl:56"),
    ("psycopg2.errors.AdminShutdown: terminating connection", "pg:AdminShutdown"),
    ("sqlalchemy.exc.DBAPIError: (psycopg2.errors.DeadlockDetected) x", "pg:DeadlockDetected"),
    ("pymysql.err.OperationalError: (2013, 'Lost connection to MySQL server')", "mysql:2013"),
    ("sqlalchemy.exc.OperationalError: (pymysql.err.OperationalError) (1045, 'x')", "mysql:1045"),
    ("mysql.connector.errors.OperationalError: 2013 (HY000): Lost connection", "mysql:2013"),
    ("pymongo.errors.OperationFailure: not authorized, full error: {'ok': 0.0, 'code': 13}",
     "mongo:13"),
    ("requests.exceptions.SSLError: x (Caused by SSLError(SSLCertVerificationError(1, '[SSL: "
     "CERTIFICATE_VERIFY_FAILED] certificate verify failed')))", "ssl:CERTIFICATE_VERIFY_FAILED"),
    ("redis.exceptions.ResponseError: MISCONF Redis is configured to save", "redis:MISCONF"),
    ("redis.exceptions.NoScriptError: No matching script.", "redis:NoScript"),
    ("mlflow.exceptions.RestException: NOT_FOUND: x", "mlflow:NOT_FOUND"),
    ('RuntimeError: 500: {"error_code": "IO_ERROR", "message": "x"}', "mlflow:IO_ERROR"),
    ('psycopg.OperationalError: connection failed: connection to server at "h", port 1 failed: '
     'FATAL:  database "d" does not exist', "sqlstate:3D000"),
    ("sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) no such table: t\n[SQL: x]",
     "sqlite:ERROR"),
    ("sqlite3.OperationalError: database is locked", "sqlite:BUSY"),
    ("wandb.errors.UsageError: api_key not configured (no-tty).", "wandb:no-key"),
    ("requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://b/k?"
     "X-Amz-Expires=60&X-Amz-Signature=a", "http:403-signed"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code"), SAID)
def test_a_code_is_found_where_its_family_is_named(text: str, code: str) -> None:
    assert code in codes_of(text.partition(": ")[0], text)


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: batch (500) is not divisible by 8",
        "ValueError: expected 429 shards, found 428",
        "FileNotFoundError: no such file: '/data/part-503.bin'",
        "RuntimeError: the loader returned 404 tokens",
        "subprocess.CalledProcessError: Command 'x' returned non-zero exit status 128.",
        "RuntimeError: worker ended with exit status 404",
        "TypeError: unsupported status: 503",
        "KeyError: 'status_code=404'",
        "RuntimeError: no such table: shards",
        'ValueError: database "runs" does not exist',
        'ValueError: FATAL:  database "runs" does not exist',
        "ValueError: database is locked by another run",
        "RuntimeError: WRONGTYPE Operation against a key",
        "RuntimeError: No API key configured",
        "ValueError: INVALID_PARAMETER_VALUE: lr",
        "sqlite3.OperationalError: user function said: no such table: x",
        "RuntimeError: cannot sign https://b/k?X-Amz-Expires=60",
        'HTTP Request: HEAD https://huggingface.co/x "HTTP/1.1 404 Not Found"',
        '10.0.0.7:51000 - "GET /metrics HTTP/1.1" 404 Not Found',
    ],
)
def test_a_number_alone_is_no_code_nor_one_request_among_many(text: str) -> None:
    kind = text.partition(": ")[0] if "Error: " in text else ""
    assert codes_of(kind, text) == frozenset()


TABLES = {
    name: value
    for name, value in vars(tables).items()
    if isinstance(value, tuple) and not name.startswith("_")
}


def test_no_code_is_in_two_tables() -> None:
    codes = [code for table in TABLES.values() for code in table]
    assert sorted(codes) == sorted(set(codes))


def test_each_table_is_of_a_rule_and_has_the_form_of_a_code() -> None:
    asked = {rule.codes for rule in RULES if rule.codes}
    assert set(TABLES.values()) <= asked
    assert all(re.fullmatch(r"[a-z0-9]+:[\w*-]+", code) for table in asked for code in table)


@given(st.text(), st.sampled_from([text for text, _ in SAID if not text.startswith("gcsfs")]))
def test_a_code_is_found_whatever_comes_after_it(noise: str, text: str) -> None:
    kind = text.partition(": ")[0]
    assert codes_of(kind, text) <= codes_of(kind, f"{text}\n{noise}")
