"""What a plain error or a check of native code says: of the program alone, or of what may pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from tests.diagnosis.test_rules_reached import ended, printed

WORDS = Path(__file__).parents[1] / "corpus" / "plain.txt"
"""Plain errors that each speak of one thing that may be otherwise next time."""


def judged(evidence: Evidence) -> Failure:
    failure = judge(evidence, Success(step=9))
    assert failure is not None
    return failure


@pytest.mark.parametrize("line", WORDS.read_text(encoding="utf-8").splitlines())
def test_what_may_be_otherwise_next_time_is_tried_again(line: str) -> None:
    assert judged(ended(printed(line))).verdict is not Verdict.FATAL


@pytest.mark.parametrize("kind", ["RuntimeError", "Exception", "builtins.RuntimeError"])
def test_what_speaks_of_the_program_alone_is_a_guess(kind: str) -> None:
    found = judged(ended(printed(f"{kind}: the table has 7 rows, and the index 9")))
    assert (found.verdict, found.rule, found.certain) == (Verdict.FATAL, "plain-error", False)


@pytest.mark.parametrize("kind", ["jaxlib.xla_extension.XlaRuntimeError", "acme.OddRuntimeError"])
def test_an_error_that_is_only_derived_from_a_plain_one_is_none(kind: str) -> None:
    assert judged(ended(printed(f"{kind}: INTERNAL: odd"))).rule != "plain-error"


def test_a_plain_error_says_too_little_to_make_what_follows_it_certain() -> None:
    after = printed("RuntimeError: the table is odd", "AssertionError: two is not three")
    found = judged(ended(after))
    assert (found.rule, found.certain) == ("own-assertion", False)


CHECK = (
    "F1121 09:17:01.700000 7 {file}:1] Check failed: {said}\n*** Check failure stack trace: ***\n"
)


def native(file: str, said: str) -> Failure:
    rank = RankEvidence(WorkerExit(0, signal="SIGABRT"), output=CHECK.format(file=file, said=said))
    return judged(Evidence((rank,)))


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("array.h", "n < sizes_size"),  # transformers #12771
        ("dma_descriptor_state.cc", "a.Unit() == b.Unit() (k512Byte vs. k1024Byte)"),  # jax #23825
        ("host_command_dispatcher.cc", "!handlers.empty() no handler was registered"),  # jax #12260
    ],
)
def test_a_check_of_native_code_is_a_guess_that_it_fails_again(file: str, said: str) -> None:
    found = native(file, said)
    assert (found.verdict, found.rule, found.certain) == (Verdict.FATAL, "native-check", False)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("node_manager.cc", "id != local_id Exiting because it has mistakenly been marked dead"),
        ("raylet.cc", "erased == 1"),
        ("gcs_server.cc", "started"),
        ("core_worker.cc", "options.ok"),
        ("plasma_store.cc", "entry"),
        ("object_manager.cc", "entry"),
        ("x.cc", "buffer != nullptr out of host memory"),
        ("x.cc", "fd >= 0 the socket is gone"),
        ("x.cc", "done within the deadline"),
        ("x.cc", "barrier was reached"),
        ("x.cc", "status.ok() "),
        ("x.cc", "Execute() is OK (INTERNAL: the stream failed"),
        ("x.cc", "result == CUDA_ERROR_UNKNOWN"),
    ],
)
def test_a_check_about_others_or_the_machine_is_none(file: str, said: str) -> None:
    assert native(file, said).verdict is not Verdict.FATAL


def test_a_crash_in_the_compiler_is_a_guess_and_what_somebody_sent_is_none() -> None:
    """jax #9642: no check failed, but the stack says who ran."""
    stack = (
        "*** {name} received by PID 7 (TID 7) on cpu 25 from PID 7; stack trace: ***\n"
        "PC: @     0x7fcf5129603b  (unknown)  raise\n"
        "    @     0x7fcf42732dbc       1328  TpuCompiler_RunHloPasses\n"
    )
    crash = RankEvidence(WorkerExit(0, signal="SIGSEGV"), output=stack.format(name="SIGSEGV"))
    found = judged(Evidence((crash,)))
    assert (found.verdict, found.rule, found.certain) == (Verdict.FATAL, "compiler-crash", False)
    sent = RankEvidence(WorkerExit(0, signal="SIGTERM"), output=stack.format(name="SIGTERM"))
    assert judged(Evidence((sent,))).rule == "sigterm"


def test_an_error_that_points_at_those_above_it_gives_way_to_them() -> None:
    """jax #15361: the traceback says only that cuDNN did not start."""
    cause = (
        "2023-07-31 01:53:45.016563: E cuda_dnn.cc:427] Loaded runtime CuDNN library: 8.5.0 but "
        "source was compiled with: 8.6.0.\n"
    )
    effect = printed(
        "XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization failed. Look at the "
        "errors above for more details."
    )
    assert judged(ended(cause + effect)).rule == "versions-differ"
    assert judged(ended(effect)).rule == "gpu-library"


@pytest.mark.parametrize(
    "head",
    ["ERROR 07-07 18:02:56 [core.py:519] ", "FAILED tests/a.py::test_b - ", "rank 3: ERROR: "],
)
def test_the_type_of_an_error_is_read_behind_what_a_logger_writes(head: str) -> None:
    found = judged(ended(f"{head}ValueError: the sharding is odd, and of no known kind\n"))
    assert (found.verdict, found.rule, found.certain) == (Verdict.FATAL, "program-error", False)


def test_a_folder_of_a_source_is_no_status() -> None:
    """jax #15210."""
    said = "Register(a) is OK (FAILED_PRECONDITION: registered\nhal/internal/factory.cc:39\n)"
    assert native("registration.cc", said).rule == "native-check"


def test_one_message_said_again_and_again_is_no_prefix() -> None:
    """conda-forge/jaxlib-feedstock #329."""
    line = "E1027 15:11:27.1844{n} 3266602 cuda_dnn.cc:456] Loaded runtime CuDNN library: 9.10.1 "
    said = "but source was compiled with: 9.13.1.  CuDNN library needs to match.\n"
    output = "".join(line.format(n=n) + said for n in range(3))
    found = judged(Evidence((RankEvidence(WorkerExit(0, code=1), output=output),)))
    assert (found.verdict, found.rule) == (Verdict.FATAL, "versions-differ")
    assert "Loaded runtime CuDNN library" in found.root_cause
