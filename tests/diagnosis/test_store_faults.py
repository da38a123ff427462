"""What a fault of an object store means."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.store_faults import Fault, Meaning, ruling

BOTOCORE = "botocore.exceptions"
GOOGLE = "google.auth.exceptions"
REQUESTS = "requests.exceptions"


def raised(*types: str) -> Fault:
    """A fault without an answer."""
    return Fault(types=types)


@pytest.mark.parametrize(
    ("fault", "meaning"),
    [
        *[(Fault(status), Meaning.PASSES) for status in (408, 409, 429, 500, 502, 503, 504, 599)],
        (Fault(503, "SlowDown", "Please reduce your request rate."), Meaning.PASSES),
        (Fault(400, "RequestTimeout"), Meaning.PASSES),
        (Fault(409, "OperationAborted"), Meaning.PASSES),
        (Fault(403, "rateLimitExceeded"), Meaning.PASSES),
        (raised(f"{REQUESTS}.ConnectionError", f"{REQUESTS}.RequestException"), Meaning.PASSES),
        (
            raised("urllib3.exceptions.ProtocolError", "urllib3.exceptions.HTTPError"),
            Meaning.PASSES,
        ),
        (raised(f"{BOTOCORE}.ReadTimeoutError", f"{BOTOCORE}.HTTPClientError"), Meaning.PASSES),
        (raised("builtins.TimeoutError", "builtins.OSError"), Meaning.PASSES),
        (raised("builtins.ConnectionResetError", "builtins.ConnectionError"), Meaning.PASSES),
        (raised(f"{GOOGLE}.TransportError", f"{GOOGLE}.GoogleAuthError"), Meaning.PASSES),
        (Fault(401, "authError", "Invalid Credentials"), Meaning.RENEWS),
        (Fault(400, "ExpiredToken"), Meaning.RENEWS),
        (raised(f"{GOOGLE}.RefreshError", f"{GOOGLE}.GoogleAuthError"), Meaning.RENEWS),
        (raised(f"{BOTOCORE}.UnauthorizedSSOTokenError", f"{BOTOCORE}.SSOError"), Meaning.RENEWS),
        (raised(f"{GOOGLE}.DefaultCredentialsError"), Meaning.RENEWS),
        (raised(f"{BOTOCORE}.NoCredentialsError", f"{BOTOCORE}.BotoCoreError"), Meaning.RENEWS),
        (Fault(404, "notFound", "No such object: bucket/x"), Meaning.MISSING),
        (Fault(404, "NoSuchKey"), Meaning.MISSING),
        (Fault(412, "conditionNotMet"), Meaning.CONFLICT),
        (Fault(409, "ConditionalRequestConflict"), Meaning.CONFLICT),
        (Fault(404, "notFound", "The specified bucket does not exist."), Meaning.REFUSED),
        (Fault(404, "NoSuchBucket"), Meaning.REFUSED),
        (Fault(401, "required", "Anonymous caller does not have access"), Meaning.REFUSED),
        (Fault(403, "forbidden", "sa@p does not have storage.objects.create"), Meaning.REFUSED),
        (Fault(403, "RequestTimeTooSkewed"), Meaning.REFUSED),
        (Fault(400, "InvalidRequest", types=(f"{BOTOCORE}.ClientError",)), Meaning.REFUSED),
        (raised(f"{BOTOCORE}.ProfileNotFound", f"{BOTOCORE}.BotoCoreError"), Meaning.REFUSED),
        (raised(f"{BOTOCORE}.SSLError", f"{BOTOCORE}.ConnectionError"), Meaning.REFUSED),
        (raised(f"{REQUESTS}.SSLError", "ssl.SSLCertVerificationError"), Meaning.REFUSED),
        (raised(f"{REQUESTS}.MissingSchema", f"{REQUESTS}.RequestException"), Meaning.REFUSED),
    ],
)
def test_what_a_fault_means(fault: Fault, meaning: Meaning) -> None:
    rule = ruling(fault)
    assert rule is not None
    assert rule.meaning is meaning


def test_an_error_of_our_own_is_no_fault_of_the_store() -> None:
    assert ruling(raised("builtins.TypeError", "builtins.Exception", "builtins.object")) is None
