"""What is charged of a job in an object store: all that is not the trouble of that store."""

from __future__ import annotations

import pytest

from supervisor.core.failure import Evidence, RankEvidence, WorkerExit
from supervisor.core.outcome import Charge
from supervisor.core.policy import Success
from supervisor.core.rules import RULES, in_a_bucket
from supervisor.core.verdicts import judge

HEAD = 'Traceback (most recent call last):\n  File "/app/t.py", line 1, in <module>\n'


@pytest.mark.parametrize(
    ("error", "charge"),
    [
        ("pymysql.err.OperationalError: (2013, 'Lost connection to MySQL server')", "charged"),
        ("OSError: [Errno 5] Input/output error: '/mnt/disk/a'", "charged"),
        ("ConnectionRefusedError: [Errno 111] Connection refused", "charged"),
        ("google.api_core.exceptions.ServiceUnavailable: 503 GET https://x: try", "nothing"),
        ("gcsfs.retry.ChecksumError: checksum mismatch", "nothing"),
        ("http.client.IncompleteRead: IncompleteRead(10 bytes read, 7 more expected)", "nothing"),
    ],
)
def test_only_the_trouble_of_the_store_is_free_of_charge(error: str, charge: str) -> None:
    rank = RankEvidence(WorkerExit(0, code=1), output=f"{HEAD}{error}\n")
    success = Success(step=10**9)
    failure = judge(Evidence((rank,)), success, in_a_bucket(RULES))
    usual = judge(Evidence((rank,)), success)
    assert failure is not None
    assert usual is not None
    assert failure.rule == usual.rule
    assert failure.verdict == usual.verdict
    assert (failure.charge is Charge.NOTHING) == (charge == "nothing")
