"""What the parts of a judgement say by themselves, where a whole one would hide it."""

from __future__ import annotations

import pytest

from supervisor.config.judgement import Remedy
from supervisor.diagnosis.chain import Chain, Origin, PrintedError
from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, Survivor, WorkerExit
from supervisor.diagnosis.fitting import misfit
from supervisor.diagnosis.hints import hints_of
from supervisor.diagnosis.log_lines import clean_lines
from supervisor.diagnosis.outcome import Charge, Verdict
from supervisor.diagnosis.ownership import is_surely_own
from supervisor.diagnosis.statements import stated
from supervisor.diagnosis.structured_codes import codes_of
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.traceback_text import TracebackReader, exception_type
from supervisor.diagnosis.verdicts import judge, store_failure, succeeded
from supervisor.protocol.failure_record import record_of
from tests.diagnosis.test_aborts import SPMD
from tests.diagnosis.test_certain import OWN, failure, raised

ERROR = PrintedError("ValueError", "ValueError: x", "ValueError: x")
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


# --- hints: the hints around an error without words


def test_the_line_of_code_comes_first_then_what_was_printed_before() -> None:
    lines = ["a", "b", "Traceback", '  File "t.py", line 7, in f', "    assert x", "    ^^", "E"]
    assert hints_of(lines, 2, 6) == "assert x\na\nb"
    assert hints_of(lines, None, 6) == "assert x"
    assert hints_of(lines, 0, 6) == "assert x"
    assert hints_of(lines[:4], 2, 4) == "\na\nb"  # no line of code is shown


def test_five_lines_before_are_looked_at_and_three_for_the_line_of_code() -> None:
    lines = ["0", "1", "2", "3", "4", "5", "6", "Traceback", "    f()", "E"]
    assert hints_of(lines, 7, 9) == "f()\n2\n3\n4\n5\n6"
    assert hints_of(["-", "    f()", "^", "^", "^", "E"], None, 5) == ""


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


@pytest.mark.parametrize(
    "told",
    [
        "make: *** [Makefile:2: train] Aborted",
        "make: *** [all] Error 139",
        "make: *** [Makefile:2: train] Error 3",
        "a.sh: line 7:  42 Aborted",
    ],
)
def test_a_line_about_how_a_program_ended_identifies_no_failure(told: str) -> None:
    """So deaths at different steps are different failures."""
    of_7, of_8 = (judged(f"step {n}\n{told}\n", WorkerExit(0, code=2)) for n in (7, 8))
    assert of_7.signature != of_8.signature


@pytest.mark.parametrize("make", ["make", "gmake[2]"])
def test_a_recipe_of_make_that_failed_says_not_whether_it_built_or_trained(make: str) -> None:
    """Perhaps nothing could see the steps and checkpoints of the program."""
    told = f"{make}: *** [Makefile:7: train] Error 1\n"
    failure = judged(f"cc: no such file\n{told}", WorkerExit(0, code=2))
    assert (failure.rule, failure.verdict) == ("unknown", Verdict.RESTART)


def test_an_end_without_an_error_is_known_by_its_exit_code_too() -> None:
    """`sys.exit(11)` and `sys.exit(12)` may stand in the same line of the program."""

    def signature(ended: WorkerExit) -> str | None:
        return judged("cannot open the shard\n", ended).signature

    of_11 = signature(WorkerExit(0, code=11))
    assert of_11 is not None
    assert signature(WorkerExit(1, code=11)) == of_11
    assert signature(WorkerExit(0, code=12)) != of_11
    by_a_shell, by_itself = WorkerExit(0, code=128 + 11), WorkerExit(0, signal="SIGSEGV")
    assert signature(by_a_shell) == signature(by_itself)


# --- certainty: what speaks against a rule that can be certain


def test_the_advice_to_try_again_makes_no_error_of_code_doubtful() -> None:
    assert failure(raised("TypeError: no such unit; please try again later", OWN)).certain


def test_a_signal_that_may_pass_makes_no_abort_of_the_compiler_doubtful() -> None:
    assert judged(SPMD, WorkerExit(0, signal="SIGBUS")).is_certain


def test_who_was_told_to_stop_may_have_failed_in_its_handler() -> None:
    line = "ValueError: Incompatible shapes for broadcasting: (2,) and (3,)"
    told = judged(raised(line, OWN), WorkerExit(0, code=1, told_to_stop=True))
    assert (told.rule, told.certain) == ("jax-shapes", False)
    assert "SIGTERM handler" in told.grounds


def test_a_cell_of_a_notebook_is_not_surely_the_own_code() -> None:
    assert not is_surely_own("/tmp/ipykernel_4711/1.py")


# --- tracebacks: what belongs to one

BEGUN = 'Traceback (most recent call last):\n  File "/app/t.py", line 1, in <module>\n'


def test_a_frame_after_the_exception_is_no_part_of_its_message() -> None:
    lines = f'{BEGUN}ValueError: x\nand y\n  File "/app/u.py", line 3, in g\n'.splitlines()
    [chain] = TracebackReader(lines).chains()
    assert [each.text for each in chain.members] == ["ValueError: x\nand y"]


def test_a_traceback_that_is_cut_off_before_its_exception_is_none() -> None:
    assert not list(TracebackReader(BEGUN.splitlines()).chains())


@pytest.mark.parametrize("line", ["os.path: x", "Foo: x", "train.steps.loss: 7"])
def test_a_name_is_no_exception_unless_it_is_written_as_one(line: str) -> None:
    assert exception_type(line) is None


def test_an_error_without_words_is_itself_where_the_output_has_no_hint() -> None:
    record = record_of(RuntimeError(), rank=0, stage=None, step=7)
    rank = RankEvidence(WorkerExit(0, code=1), record=record, output="step 7\n")
    found = judge(Evidence((rank,)), Success(step=9))
    assert found is not None
    assert found.rule == "exception"


# --- statements: advice ends with its sentence, and what could not be is no supposition


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: operands could not be broadcast together with shapes (2,) (3,)",  # numpy
        "ValueError: No structure could be identified for the checkpoint at /run/7.",  # orbax
    ],
)
def test_what_could_not_be_done_is_stated(text: str) -> None:
    assert stated(text) == text


def test_what_could_be_is_supposed() -> None:
    assert stated("It failed. The driver could be too old.") == "It failed. "


def test_advice_outside_brackets_does_not_end_at_a_bracket() -> None:
    assert stated("it failed: see the docs) of CUDA") == "it failed:"


# --- weighing and verdicts: which end counts, and how it is told


def test_an_end_with_exit_code_0_is_not_judged_by_what_was_printed() -> None:
    assert judged(f"{BEGUN}ValueError: x\n", WorkerExit(0, code=0)).rule == "no-step-told"


def test_who_said_that_a_peer_is_gone_before_it_was_killed_was_not_struck_without_a_word() -> None:
    record = record_of(RuntimeError("barrier timed out"), rank=0, stage=None, step=7)
    killed = RankEvidence(WorkerExit(0, signal="SIGKILL"), record=record, ended_before_kill=True)
    found = judge(Evidence((killed,)), Success(step=9))
    assert found is not None
    assert (found.rule, found.struck) == ("lost-peer", False)


def test_what_goes_on_in_the_background_is_named() -> None:
    evidence = Evidence((RankEvidence(WorkerExit(0, code=0)),), survivors=(Survivor(7, "sleep"),))
    found = judge(evidence, Success())
    assert found is not None
    assert found.root_cause == "exit code 0, but still running: pid 7 (sleep)"


def test_exit_code_0_proves_nothing_where_processes_go_on_or_a_stop_was_asked_for() -> None:
    ended = RankEvidence(WorkerExit(0, code=0))
    assert succeeded(Evidence((ended,)), Success())
    assert not succeeded(Evidence((ended,), survivors=(Survivor(7, "sleep"),)), Success())
    told = RankEvidence(WorkerExit(0, code=0, told_to_stop=True))
    assert not succeeded(Evidence((told,)), Success())


@pytest.mark.parametrize(
    ("error", "said"),
    [(OSError(5, "Input/output error"), "Input/output error"), (OSError("no"), "no")],
)
def test_a_store_that_does_not_answer_is_told_in_its_own_words(error: OSError, said: str) -> None:
    found = store_failure(error, WorkerExit(3, code=0))
    assert (found.root_cause, found.rank, found.exit) == (said, 3, "exit code 0")
    assert (found.verdict, found.charge) == (Verdict.RESTART, Charge.NOTHING)
    assert found.remedy is Remedy.WAIT_FOR_STORAGE


# --- log lines: what a collector did to them


def test_the_parts_of_a_line_in_json_are_put_together() -> None:
    log = '{"log":"Value","stream":"stderr"}\n{"log":"Error: x\\n","stream":"stderr"}\n'
    assert clean_lines(log) == ["ValueError: x"]


def test_whole_lines_in_json_keep_their_order() -> None:
    said = (("a", "stdout"), ("b", "stderr"), ("c", "stdout"))
    log = "".join(f'{{"log":"{text}\\n","stream":"{stream}"}}\n' for text, stream in said)
    assert clean_lines(log) == ["a", "b", "c"]


def test_frames_alone_keep_their_indentation() -> None:
    log = '  File "/app/t.py", line 1, in f\n    g()\n'
    assert clean_lines(log) == log.splitlines()
