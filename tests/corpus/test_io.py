"""Failures of I/O: none that may pass ends a job at once, and none that stays comes three times.

`io.jsonl` is what the real libraries raised (requests, httpx, aiohttp, urllib, paramiko, psycopg2,
PyMySQL, redis-py, PyMongo, sqlite3, SQLAlchemy, botocore, google-cloud-storage, googleapiclient,
gcsfs, gRPC, kubernetes, huggingface_hub) of servers on this machine that refuse, fail, stop and
break off. `io.txt` has what needs a cloud or another library, by their sources.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.core.failure import Evidence, RankEvidence, WorkerExit
from supervisor.core.outcome import Verdict
from supervisor.core.policy import Success
from supervisor.core.verdicts import judge
from tests.corpus.cases import IO, Case, Ends, judged, read_cases

_LINES = Path(__file__).with_name("io.txt")
_HEAD = (
    "I1121 09:08:25.278659   32226 trainer.py:129] step 118 loss 2.8311\n"
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 214, in <module>\n    main()\n'
    '  File "/app/train.py", line 176, in main\n    run(cfg)\n'
)


@pytest.mark.parametrize("case", read_cases(IO), ids=lambda case: case.id)
def test_what_a_real_library_raised(case: Case) -> None:
    [item] = judged([case])
    assert item.right, (item.failure.rule, item.failure.root_cause)
    assert item.ends is not Ends.AT_ONCE


def _lines(want: str) -> list[str]:
    section = _LINES.read_text(encoding="utf-8").partition(f"== {want}\n")[2].partition("\n== ")[0]
    return [line for line in section.splitlines() if line and not line.startswith("# ")]


@pytest.mark.parametrize(
    ("want", "line"),
    [(want, line) for want in ("transient", "permanent", "credentials") for line in _lines(want)],
)
def test_what_a_library_is_known_to_say(want: str, line: str) -> None:
    output = _HEAD + line.replace("\\n", "\n").replace("\\t", "\t") + "\n"
    rank = RankEvidence(WorkerExit(0, code=1), output=output)
    failure = judge(Evidence((rank,)), Success(step=10**9))
    assert failure is not None
    if want == "transient":
        assert failure.verdict is not Verdict.FATAL
    elif want == "credentials":
        assert failure.verdict is Verdict.POLICY
    else:
        assert failure.is_guess or failure.compared


def test_the_words_of_io_in_the_own_code_are_still_its_own() -> None:
    rank = RankEvidence(
        WorkerExit(0, code=1), output=f"{_HEAD}ValueError: unknown scheduler 'reset_on_timeout'\n"
    )
    failure = judge(Evidence((rank,)), Success(step=10**9))
    assert failure is not None
    assert failure.verdict is Verdict.FATAL
