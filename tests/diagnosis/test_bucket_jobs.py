"""What is charged of a job in an object store: all that is not the trouble of that store."""

from __future__ import annotations

import pytest

from supervisor.config.judgement import Remedy
from supervisor.diagnosis.failure import Evidence, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Charge
from supervisor.diagnosis.rules import RULES, rules_for_jobs_in_a_store
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge

PLACES = "/venv/lib/python3.12/site-packages/"
UNAVAILABLE = "503 Server Error: Service Unavailable for url"
CUT = "IncompleteRead(10 bytes read, 7 more expected)"


def printed(error: str, *files: str) -> str:
    frames = "".join(f'  File "{PLACES}{file}", line 3, in call\n' for file in files)
    head = 'Traceback (most recent call last):\n  File "/app/t.py", line 1, in <module>\n'
    return f"{head}{frames}{error}\n"


@pytest.mark.parametrize(
    ("output", "is_free"),
    [
        # databases, trackers, hubs, local disks and ports, whatever their code
        (printed("pymysql.err.OperationalError: (2013, 'Lost connection to MySQL')"), False),
        (printed("OSError: [Errno 5] Input/output error: '/mnt/disk/a'"), False),
        (printed("ConnectionRefusedError: [Errno 111] Connection refused"), False),
        (printed(f"wandb.errors.CommError: {UNAVAILABLE}: https://api.wandb.ai/x"), False),
        (printed(f"requests.exceptions.HTTPError: {UNAVAILABLE}: https://x", "wandb/a.py"), False),
        (
            printed(
                f"requests.exceptions.HTTPError: {UNAVAILABLE}: https://huggingface.co/x",
                *("huggingface_hub/utils/_http.py", "requests/models.py"),
            ),
            False,
        ),
        (printed(f"requests.exceptions.HTTPError: {UNAVAILABLE}: https://x.org/y"), False),
        (printed(f"http.client.IncompleteRead: {CUT}"), False),
        (
            printed(
                "google.api_core.exceptions.ServiceUnavailable: 503 POST https://x: try",
                *("google/cloud/bigquery/client.py", "google/api_core/retry.py"),
            ),
            False,
        ),
        # clients of a store, also through what carries their bytes
        (printed("google.api_core.exceptions.ServiceUnavailable: 503 GET https://x: try"), True),
        (printed("gcsfs.retry.ChecksumError: checksum mismatch"), True),
        (
            printed(f"http.client.IncompleteRead: {CUT}", "gcsfs/core.py", "urllib3/response.py"),
            True,
        ),
        (
            printed(
                "requests.exceptions.ConnectionError: [Errno 111] Connection refused",
                *("google/cloud/storage/blob.py", "requests/adapters.py"),
            ),
            True,
        ),
        (
            printed(
                "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the "
                "PutObject operation: reduce"
            ),
            True,
        ),
        (
            printed(
                'ValueError: UNAVAILABLE: Error opening "zarr" driver: Error reading '
                "\"gs://b/c/.zarray\": HTTP response code 503 [http_response_code='503']",
                "orbax/checkpoint/type_handlers.py",
            ),
            True,
        ),
    ],
)
def test_only_the_trouble_of_the_store_is_free_of_charge(output: str, is_free: bool) -> None:
    rank = RankEvidence(WorkerExit(0, code=1), output=output)
    success = Success(step=10**9)
    failure = judge(Evidence((rank,)), success, rules_for_jobs_in_a_store(RULES))
    usual = judge(Evidence((rank,)), success)
    assert failure is not None
    assert usual is not None
    assert usual.charge is not Charge.NOTHING
    assert (failure.rule, failure.verdict) == (usual.rule, usual.verdict)
    assert (failure.charge is Charge.NOTHING) == is_free
    assert (failure.remedy is Remedy.WAIT_FOR_STORAGE) == is_free


def test_no_rule_stands_twice() -> None:
    names = [rule.name for rule in rules_for_jobs_in_a_store(RULES)]
    assert names == [rule.name for rule in RULES]
