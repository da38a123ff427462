"""Where an error was raised: the innermost line of the user's own code, of each error its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.diagnosis.failure import Evidence, RankEvidence, WorkerExit
from supervisor.diagnosis.rootcause import chain_of_record, chains_of_text
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.narrative.failure_text import end_of_traceback
from supervisor.protocol.failure_record import FailureRecord, record_of

PLAIN = "def work():\n    raise ValueError('bad record 7')\n\nwork()\n"
CHAINED = """\
def load():
    raise KeyError('shard')

try:
    load()
except KeyError as error:
    raise RuntimeError('no data') from error
"""
IN_A_LIBRARY = "import json\n\ndef read():\n    json.loads('{')\n\nread()\n"
SYNTAX = "import nothing as\n"
GROUP = """\
def one():
    raise OSError('first')

try:
    one()
except OSError as error:
    raise ExceptionGroup('all', [error])
"""


def run(folder: Path, source: str) -> tuple[Path, str]:
    """The program, and what it prints of its end."""
    path = folder / "train.py"
    path.write_text(source)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    return path, done.stderr


def record(path: Path) -> FailureRecord:
    try:
        exec(compile(path.read_text(), path, "exec"), {})
    except Exception as error:
        return record_of(error, rank=0, stage=None, step=None)
    raise AssertionError("it should fail")


@pytest.mark.parametrize(
    ("source", "places"),
    [
        (PLAIN, ["2 in work"]),
        (CHAINED, ["2 in load", "7"]),
        (IN_A_LIBRARY, ["4 in read"]),
        (SYNTAX, ["1"]),
        (GROUP, ["2 in one"]),
    ],
    ids=["plain", "chained", "in a library", "syntax", "group"],
)
def test_in_the_output_and_in_the_record(tmp_path: Path, source: str, places: list[str]) -> None:
    path, output = run(tmp_path, source)
    chain = min(chains_of_text(output), key=lambda chain: chain.origin)
    wanted = [f"{path}:{place}" for place in places]
    assert [member.at for member in chain.members][: len(wanted)] == wanted
    told = chain_of_record(record(path))
    assert told is not None
    assert [member.at for member in told.members][: len(wanted)] == wanted


def test_what_was_judged_is_what_is_shown(tmp_path: Path) -> None:
    path, output = run(tmp_path, PLAIN)
    rank = RankEvidence(WorkerExit(0, code=1), output=output)
    failure = judge(Evidence((rank,)), Success())
    assert failure is not None
    assert failure.where == f"{path}:2 in work"
    silent = judge(Evidence((RankEvidence(WorkerExit(0, code=1)),)), Success())
    assert silent is not None
    assert silent.where == ""


def test_the_end_of_a_traceback(tmp_path: Path) -> None:
    path, output = run(tmp_path, "def g():\n    max(1, 1 / 0)\ndef f():\n    g()\n\nf()\n")
    assert list(end_of_traceback(output)) == [
        f'  File "{path}", line 4, in f',
        "    g()",
        f'  File "{path}", line 2, in g',
        "    max(1, 1 / 0)",
        "ZeroDivisionError: division by zero",
    ]
    assert list(end_of_traceback("")) == []
    assert list(end_of_traceback("no traceback\n")) == ["no traceback"]


def test_the_end_of_a_traceback_has_the_last_frame_of_the_own_code_and_no_note_of_jax() -> None:
    jax = "/opt/venv/lib/python3.11/site-packages/jax/_src/"
    own = ['  File "/app/train.py", line 8, in main', "    return a + b"]
    inside = [
        f'  File "{jax}numpy/ufunc_api.py", line 182, in __call__',
        "    return call(*args)",
        f'  File "{jax}numpy/ufuncs.py", line 1238, in add',
        "    out = lax.add(x, y)",
    ]
    error = "TypeError: add got incompatible shapes for broadcasting: (3,), (4,)."
    note = (
        "--------------------\nFor simplicity, JAX has removed its internal frames from the "
        "traceback of the following exception. Set JAX_TRACEBACK_FILTERING=off to include these.\n"
    )
    text = "\n".join(
        [
            "Traceback (most recent call last):",
            '  File "/app/train.py", line 23, in <module>',
            "    main()",
            *own,
            "           ~~^~~",
            f'  File "{jax}numpy/array_methods.py", line 732, in _operator_add',
            "    return ufuncs.add(self, other)",
            *inside,
            error,
        ]
    )
    assert list(end_of_traceback(f"{text}\n{note}")) == [*own, *inside, error]
    several = "\n".join(f"line {number}" for number in range(9))
    assert list(end_of_traceback(f"{text}\n{several}"))[:3] == [*own, "line 3"]
