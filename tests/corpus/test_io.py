"""Failures of I/O: none that may pass ends a job at once, and none that stays comes three times.

`io.jsonl` is what the real libraries raised (requests, httpx, aiohttp, urllib, paramiko, psycopg2,
PyMySQL, redis-py, PyMongo, sqlite3, SQLAlchemy, botocore, google-cloud-storage, googleapiclient,
gcsfs, gRPC, kubernetes, huggingface_hub) of servers on this machine that refuse, fail, stop and
break off. `io.txt` has what needs a cloud or another library, by their sources.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from tests.corpus.cases import IO, Ends, judged_file

_LINES = Path(__file__).with_name("io.txt")
_HEAD = (
    "I1121 09:08:25.278659   32226 trainer.py:129] step 118 loss 2.8311\n"
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 214, in <module>\n    main()\n'
    '  File "/app/train.py", line 176, in main\n    run(cfg)\n'
)


def test_what_a_real_library_raised() -> None:
    found = judged_file(IO)
    assert [(item.case.id, item.failure.rule) for item in found if not item.right] == []
    assert [item.case.id for item in found if item.ends is Ends.AT_ONCE] == []


def _lines(want: str) -> list[str]:
    section = _LINES.read_text(encoding="utf-8").partition(f"== {want}\n")[2].partition("\n== ")[0]
    return [line for line in section.splitlines() if line and not line.startswith("# ")]


@pytest.mark.parametrize("want", ["transient", "permanent", "credentials"])
def test_what_a_library_is_known_to_say(want: str) -> None:
    lines = _lines(want)
    assert lines
    assert [line for line in lines if not _is_as_wanted(want, _said(line))] == []


def _said(line: str) -> Failure:
    output = _HEAD + line.replace("\\n", "\n").replace("\\t", "\t") + "\n"
    rank = RankEvidence(WorkerExit(0, code=1), output=output)
    failure = judge(Evidence((rank,)), Success(step=10**9))
    assert failure is not None
    return failure


def _is_as_wanted(want: str, failure: Failure) -> bool:
    if want == "transient":
        return failure.verdict is not Verdict.FATAL
    if want == "credentials":
        return failure.verdict is Verdict.POLICY
    return failure.is_guess or failure.compared


def test_the_words_of_io_in_the_own_code_are_still_its_own() -> None:
    rank = RankEvidence(
        WorkerExit(0, code=1), output=f"{_HEAD}ValueError: unknown scheduler 'reset_on_timeout'\n"
    )
    failure = judge(Evidence((rank,)), Success(step=10**9))
    assert failure is not None
    assert failure.verdict is Verdict.FATAL
