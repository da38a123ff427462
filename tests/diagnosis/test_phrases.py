"""Errors as JAX, XLA, libtpu, CUDA, NCCL, Orbax, Ray, torch and the clients of clouds word them.

The corpora hold what could be provoked; tests/corpus/phrases.txt what needs hardware, a cloud or
another library. Each line is the last error of a program that died of it, below the verdict that a
person would give.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.diagnosis.failure import Evidence, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge

PHRASES = Path(__file__).parents[1] / "corpus" / "phrases.txt"


def phrases(name: str) -> list[str]:
    """The lines of a section of the file."""
    _, _, section = PHRASES.read_text(encoding="utf-8").partition(f"== {name}\n")
    return [line for line in section.partition("\n== ")[0].splitlines() if line]


CASCADE = """\
E1121 09:49:58.131565 7 coordination_service.cc:1798] Shutdown barrier has failed:
INTERNAL: Barrier failed because: task is set to ERROR: UNAVAILABLE: heartbeat timeout
F1121 09:49:58.703086 7 client.h:80] Terminating process: the JAX distributed service detected
fatal errors. This most likely indicates that another task died; see the other task logs.
*** Check failure stack trace: ***
    @     0x7f02  absl::LogMessage::Flush()
Fatal Python error: Aborted
"""
"""What a rank of jax.distributed prints on its way out, whatever ended it."""
TEARDOWN = """\
Exception ignored in: <function Pool.__del__ at 0x7f3a>
Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/pool.py", line 271, in __del__
AttributeError: 'NoneType' object has no attribute 'close'
/usr/lib/python3.11/x.py:254: UserWarning: resource_tracker: 2 leaked shared_memory objects
"""


def verdict_of(line: str, stage: str | None = None, after: str = "") -> str:
    output = (
        "I1121 08:55:30.936021 1405 trainer.py:65] step 12 loss 5.9\n"
        "Traceback (most recent call last):\n"
        '  File "/app/train.py", line 141, in <module>\n    main()\n'
        '  File "/app/train.py", line 12, in main\n    work()\n'
        f"{line}\n{after}"
    )
    rank = RankEvidence(WorkerExit(0, code=1), output=output, stage=stage)
    failure = judge(Evidence((rank,)), Success(step=10**9))
    assert failure is not None
    return f"{failure.verdict} {failure.rule}"


@pytest.mark.parametrize(
    ("line", "verdict"),
    [(line, verdict) for verdict in Verdict for line in phrases(verdict)],
)
def test_the_verdict_about_an_exception(line: str, verdict: Verdict) -> None:
    assert verdict_of(line).startswith(verdict)
    assert verdict_of(line, after=CASCADE).startswith(verdict)
    assert verdict_of(line, after=TEARDOWN).startswith(verdict)


@pytest.mark.parametrize("line", phrases("RESTORING"))
def test_what_cannot_be_decoded_is_a_damaged_checkpoint_only_while_restoring(line: str) -> None:
    assert verdict_of(line, "RESTORING").startswith("POLICY")
    assert not verdict_of(line, "TRAINING").startswith("POLICY corrupt")
