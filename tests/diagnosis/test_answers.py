"""An error about what somebody else answered, or beside a mount that is gone, is a guess: the next
answer may be another, and the module is there again once its folder is."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.protocol.failure_record import ExceptionInfo, FailureRecord

HEAD = 'Traceback (most recent call last):\n  File "/app/train.py", line 3, in <module>\n'
INDICES = "TypeError: string indices must be integers, not 'str'"
MISSING = "ModuleNotFoundError: No module named 'mypkg'"


def judged(code: str, error: str, *, before: str = "", recorded: bool = False) -> Failure:
    traceback = f"{HEAD}    {code}\n{error}\n"
    record = None
    if recorded:
        kind, _, message = error.partition(": ")
        info = ExceptionInfo(
            type=f"builtins.{kind}",
            message=message,
            bases=("builtins.Exception",),
            relation="raised",
        )
        record = FailureRecord(
            rank=0, time=1.0, stage=None, step=None, exceptions=(info,), traceback=traceback
        )
    rank = RankEvidence(WorkerExit(0, code=1), record, output=f"{before}{traceback}")
    failure = judge(Evidence((rank,)), Success())
    assert failure is not None
    return failure


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ('name = response.json()["name"]', INDICES),
        ("for run in requests.get(URL).json().items():", "AttributeError: 'list' has no 'items'"),
        ('total = reply["a"] + reply["b"]', "TypeError: unsupported operand type(s) for +"),
        ('first = json.loads(text)["rows"]["x"]', INDICES),
        ('name = session.get(url).json()["x"]', "TypeError: 'NoneType' is not subscriptable"),
        ('row = cursor.execute(QUERY)["x"]', INDICES),
    ],
)
def test_what_somebody_else_answered_is_a_guess(code: str, error: str, recorded: bool) -> None:
    failure = judged(code, error, recorded=recorded)
    assert failure.is_guess, failure.grounds


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ('rate = config["lr"]["x"]', INDICES),
        ('rate = config.get("lr") + "1"', "TypeError: unsupported operand type(s) for +"),
        ("params = get(params).apply", "AttributeError: 'dict' object has no attribute 'apply'"),
        ("print(response)", "NameError: name 'response' is not defined"),
        ("import mypkg", MISSING),
    ],
)
def test_what_is_the_programs_own_is_certain_as_ever(code: str, error: str, recorded: bool) -> None:
    assert judged(code, error, recorded=recorded).is_certain


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    "before",
    [
        "ls: cannot access '/mnt/code': Transport endpoint is not connected\n",
        "WARNING: cannot stat /mnt/code: [Errno 116] Stale file handle\n",
        "cp: error reading '/gcs/a': Input/output error\n",
    ],
)
def test_an_import_beside_a_mount_that_is_gone_is_a_guess(before: str, recorded: bool) -> None:
    assert judged("import mypkg", MISSING, before=before, recorded=recorded).is_guess


def test_so_it_is_where_the_mount_is_in_the_chain() -> None:
    lost = "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/code'\n"
    handling = "During handling of the above exception, another exception occurred:\n"
    failure = judged("import mypkg", MISSING, before=f"{HEAD}    import a\n{lost}\n{handling}\n")
    assert not failure.is_certain
