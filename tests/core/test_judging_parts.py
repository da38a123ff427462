"""What the parts of a judgement say by themselves, where a whole one would hide it."""

from __future__ import annotations

import pytest

from supervisor.core.beside import beside
from supervisor.core.chain import Chain, Origin, Raised
from supervisor.core.codes import codes_of
from supervisor.core.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.core.fitting import misfit
from supervisor.core.ownership import is_surely_own
from supervisor.core.policy import Success
from supervisor.core.verdicts import judge
from tests.core.test_aborts import SPMD
from tests.core.test_certain import OWN, failure, raised

ERROR = Raised("ValueError", "ValueError: x", "ValueError: x")
ENDED = RankEvidence(WorkerExit(0, code=1))


def judged(output: str, ended: WorkerExit) -> Failure:
    found = judge(Evidence((RankEvidence(ended, output=output),)), Success(step=9))
    assert found is not None
    return found


# --- fitting: can it be what ended the process?


def test_an_error_of_a_thread_need_not_have_ended_the_program() -> None:
    assert "thread" in misfit(Chain((ERROR,), Origin.THREAD), ENDED)


def test_an_end_that_nobody_saw_contradicts_nothing() -> None:
    assert misfit(Chain((ERROR,), Origin.MAIN), RankEvidence(WorkerExit(0))) == ""


@pytest.mark.parametrize(("followed", "fits"), [(12, True), (13, False)])
def test_a_dozen_lines_may_follow_the_last_error(followed: int, *, fits: bool) -> None:
    chain = Chain((ERROR,), Origin.MAIN, followed=followed)
    assert (misfit(chain, ENDED) == "") is fits


# --- beside: the hints around an error without words


def test_the_line_of_code_comes_first_then_what_was_printed_before() -> None:
    lines = ["a", "b", "Traceback", '  File "t.py", line 7, in f', "    assert x", "    ^^", "E"]
    assert beside(lines, 2, 6) == "assert x\na\nb"
    assert beside(lines, None, 6) == "assert x"
    assert beside(lines, 0, 6) == "assert x"
    assert beside(lines[:4], 2, 4) == "\na\nb"  # no line of code is shown


def test_five_lines_before_are_looked_at_and_three_for_the_line_of_code() -> None:
    lines = ["0", "1", "2", "3", "4", "5", "6", "Traceback", "    f()", "E"]
    assert beside(lines, 7, 9) == "f()\n2\n3\n4\n5\n6"
    assert beside(["-", "    f()", "^", "^", "^", "E"], None, 5) == ""


# --- codes: a status is three digits in its range


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("upstream said 503 Service Unavailable", {"http:503"}),
        ("status: 700", set()),
        ("An error occurred (404) when calling the HeadObject operation", {"http:404"}),
    ],
)
def test_a_status_is_found_as_its_number_alone(text: str, codes: set[str]) -> None:
    assert codes_of("", text) == codes


# --- comparing: by what a silent end is known


def test_an_end_without_an_error_is_known_by_its_complaints_else_by_its_last_lines() -> None:
    def signature(output: str) -> str | None:
        return judged(output, WorkerExit(0, code=3)).signature

    complaint = signature("cannot open the shard\nbye 7\n")
    assert complaint is not None
    assert signature("cannot open the shard\nbye 8\n") == complaint
    assert signature("cannot reach the shard\nbye 8\n") != complaint
    assert signature("step 7 is done\n") != signature("step 8 is done\n")


# --- certainty: what speaks against a rule that can be certain


def test_the_advice_to_try_again_makes_no_error_of_code_doubtful() -> None:
    assert failure(raised("TypeError: no such unit; please try again later", OWN)).certain


def test_a_signal_that_may_pass_makes_no_abort_of_the_compiler_doubtful() -> None:
    assert judged(SPMD, WorkerExit(0, signal="SIGBUS")).is_certain


def test_who_was_told_to_stop_may_have_failed_in_its_handler() -> None:
    line = "ValueError: Incompatible shapes for broadcasting: (2,) and (3,)"
    told = judged(raised(line, OWN), WorkerExit(0, code=1, told_to_stop=True))
    assert (told.rule, told.certain) == ("shapes", False)
    assert "told it to stop" in told.grounds


def test_a_cell_of_a_notebook_is_not_surely_the_own_code() -> None:
    assert not is_surely_own("/tmp/ipykernel_4711/1.py")
