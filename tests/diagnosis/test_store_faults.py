"""What a fault of an object store means."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.store_faults import Meaning, StoreFault, ruling

BOTOCORE = "botocore.exceptions"
GOOGLE = "google.auth.exceptions"
REQUESTS = "requests.exceptions"


def raised(*types: str) -> StoreFault:
    """A fault without an answer."""
    return StoreFault(types=types)


@pytest.mark.parametrize(
    ("fault", "meaning"),
    [
        *[
            (StoreFault(status), Meaning.PASSES)
            for status in (408, 409, 429, 500, 502, 503, 504, 599)
        ],
        (StoreFault(503, "SlowDown", "Please reduce your request rate."), Meaning.PASSES),
        (StoreFault(400, "RequestTimeout"), Meaning.PASSES),
        (StoreFault(409, "OperationAborted"), Meaning.PASSES),
        (StoreFault(403, "rateLimitExceeded"), Meaning.PASSES),
        (raised(f"{REQUESTS}.ConnectionError", f"{REQUESTS}.RequestException"), Meaning.PASSES),
        (
            raised("urllib3.exceptions.ProtocolError", "urllib3.exceptions.HTTPError"),
            Meaning.PASSES,
        ),
        (raised(f"{BOTOCORE}.ReadTimeoutError", f"{BOTOCORE}.HTTPClientError"), Meaning.PASSES),
        (raised("builtins.TimeoutError", "builtins.OSError"), Meaning.PASSES),
        (raised("builtins.ConnectionResetError", "builtins.ConnectionError"), Meaning.PASSES),
        (raised(f"{GOOGLE}.TransportError", f"{GOOGLE}.GoogleAuthError"), Meaning.PASSES),
        (StoreFault(401, "authError", "Invalid Credentials"), Meaning.RENEWS),
        (StoreFault(400, "ExpiredToken"), Meaning.RENEWS),
        (raised(f"{GOOGLE}.RefreshError", f"{GOOGLE}.GoogleAuthError"), Meaning.RENEWS),
        (raised(f"{BOTOCORE}.UnauthorizedSSOTokenError", f"{BOTOCORE}.SSOError"), Meaning.RENEWS),
        (raised(f"{GOOGLE}.DefaultCredentialsError"), Meaning.RENEWS),
        (raised(f"{BOTOCORE}.NoCredentialsError", f"{BOTOCORE}.BotoCoreError"), Meaning.RENEWS),
        (StoreFault(404, "notFound", "No such object: bucket/x"), Meaning.MISSING),
        (StoreFault(404, "NoSuchKey"), Meaning.MISSING),
        (StoreFault(412, "conditionNotMet"), Meaning.CONFLICT),
        (StoreFault(409, "ConditionalRequestConflict"), Meaning.CONFLICT),
        (StoreFault(404, "notFound", "The specified bucket does not exist."), Meaning.REFUSED),
        (StoreFault(404, "NoSuchBucket"), Meaning.REFUSED),
        (StoreFault(401, "required", "Anonymous caller does not have access"), Meaning.REFUSED),
        (
            StoreFault(403, "forbidden", "sa@p does not have storage.objects.create"),
            Meaning.REFUSED,
        ),
        (StoreFault(403, "RequestTimeTooSkewed"), Meaning.REFUSED),
        (StoreFault(400, "InvalidRequest", types=(f"{BOTOCORE}.ClientError",)), Meaning.REFUSED),
        (raised(f"{BOTOCORE}.ProfileNotFound", f"{BOTOCORE}.BotoCoreError"), Meaning.REFUSED),
        (raised(f"{BOTOCORE}.SSLError", f"{BOTOCORE}.ConnectionError"), Meaning.REFUSED),
        (raised(f"{REQUESTS}.SSLError", "ssl.SSLCertVerificationError"), Meaning.REFUSED),
        (raised(f"{REQUESTS}.MissingSchema", f"{REQUESTS}.RequestException"), Meaning.REFUSED),
    ],
)
def test_what_a_fault_means(fault: StoreFault, meaning: Meaning) -> None:
    rule = ruling(fault)
    assert rule is not None
    assert rule.meaning is meaning


def test_an_error_of_our_own_is_no_fault_of_the_store() -> None:
    assert ruling(raised("builtins.TypeError", "builtins.Exception", "builtins.object")) is None
