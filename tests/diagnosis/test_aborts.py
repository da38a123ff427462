"""What is made of native code that ends a process: known by its own stack, and the same whether
faulthandler adds Python's or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from tests.corpus.cases import COMPOSED, CORPUS, PROVOKED, Case, judge_together, read_cases

LOG = "step 117 loss 2.83\nstep 118 loss 2.81\n"
FLUSH = "    @     0x7f02  absl::lts_20260107::log_internal::LogMessage::Flush()\n"
CHECK = "*** Check failure stack trace: ***\n" + FLUSH
SPMD = (  # Reactant.jl #1097
    "F0000 00:00:1743369422.138947  105286 literal.h:1812] Check failed: a() == b() (5 vs. 4)\n"
    + CHECK
    + "    @     0x40057c409930  xla::LiteralBase::Get<>()\n"
    "    @     0x40057db0aa38  xla::spmd::SpmdPartitioningVisitor::HandleDynamicUpdateSlice()\n"
)
DATAFLOW = (  # marin #1921
    "F0912 11:59:01.941641  741969 shape_tree.cc:54] Check failed: result->start >= 0 (-1 vs. 0)\n"
    + CHECK
    + "    @     0x7f0e204fd1d4  xla::HloDataflowAnalysis::GetValueSet()\n"
    "    @     0x7f0e2025905c  xla::BufferAssignment::GetUniqueSlice()\n"
)
EMITTER = (  # openxla #47370
    "F0000 00:00:1786848421.425461 3829339 ir_emitter.cc:3562] Check failed: 1 == n (1 vs. 2)\n"
)
LLVM = (
    "LLVM ERROR: Cannot select: 0x55d0: f16 = fpow 0x55d1\nPLEASE submit a bug report to x\n"
    "Stack dump:\n #0 0x00007f3c2e llvm::sys::PrintStackTrace(llvm::raw_ostream&, int)\n"
)
SELECTION = LLVM + " #1 0x00007f3c2f llvm::SelectionDAGISel::runOnMachineFunction(x)\n"
TRANSFER = (
    "F1121 09:17:01.7 24391 thunk.cc:76] Check failed: status.ok() : INTERNAL: it was broken off\n"
    + CHECK
    + "    @     0x7f0e2025905c  xla::gpu::CollectiveThunk::ExecuteOnStream()\n"
)
ELSEWHERE = (
    "F1121 09:17:01.7 24391 device.cc:76] Check failed: stream != nullptr\n"
    + CHECK
    + "    @     0x7f0e2025905c  xla::PjRtStreamExecutorLoadedExecutable::Execute()\n"
)
MEMORY = SPMD.replace("(5 vs. 4)", "RESOURCE_EXHAUSTED: out of memory")
FULL = "LLVM ERROR: IO failure on output stream: No space left on device\n"

STACK = """\
Fatal Python error: {error}

Current thread 0x00007f5f8c3ff640 (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/jax/_src/compiler.py", line 300 in backend_compile
  File "/app/nan_checks/connection_reset.py", line 7 in restore_corrupt_checkpoint
  File "/app/train.py", line 4 in <module>

Extension modules: numpy._core._multiarray_umath, jaxlib.utils (total: 2)
"""
"""What faulthandler writes; the names of files and functions are no statements."""
ERRORS = {
    "SIGSEGV": "Segmentation fault",
    "SIGABRT": "Aborted",
    "SIGBUS": "Bus error",
    "SIGFPE": "Floating point exception",
    "SIGILL": "Illegal instruction",
}
CASES = [case for path in (CORPUS, PROVOKED, COMPOSED) for case in read_cases(path)]
KILLED = [case for case in CASES if case.ended.signal in ERRORS]


def ended_by(signal: str, output: str) -> Failure:
    rank = RankEvidence(WorkerExit(0, signal=signal), output=LOG + output)
    found = judge(Evidence((rank,)), Success(step=10**9))
    assert found is not None
    return found


@pytest.mark.parametrize("output", [SPMD, DATAFLOW, SELECTION])
def test_what_the_compilers_own_stack_shows_is_certain(output: str) -> None:
    found = ended_by("SIGABRT", output)
    assert (found.verdict, found.rule, found.certain) == (Verdict.FATAL, "compiler-abort", True)


@pytest.mark.parametrize("output", [EMITTER, LLVM])
def test_what_only_the_line_tells_is_a_guess(output: str) -> None:
    found = ended_by("SIGABRT", output)
    assert (found.verdict, found.rule) == (Verdict.FATAL, "compiler-abort-reported")
    assert found.is_guess


def test_any_other_check_is_a_guess() -> None:
    found = ended_by("SIGABRT", ELSEWHERE)
    assert (found.verdict, found.rule, found.certain) == (Verdict.FATAL, "native-check", False)


@pytest.mark.parametrize("output", [MEMORY, FULL, TRANSFER])
def test_a_missing_resource_or_a_transfer_is_no_fatal(output: str) -> None:
    assert ended_by("SIGABRT", output).verdict is not Verdict.FATAL


def test_a_broken_transfer_makes_a_victim_and_the_rest_is_compared() -> None:
    assert ended_by("SIGABRT", TRANSFER).rule == "transfer-abort"
    assert ended_by("SIGABRT", ELSEWHERE).signature is not None


@pytest.mark.parametrize(
    ("signal", "output"),
    [
        *((signal, "") for signal in ERRORS),
        *(("SIGABRT", output) for output in (SPMD, EMITTER, LLVM, SELECTION)),
        *(("SIGABRT", output) for output in (TRANSFER, ELSEWHERE, MEMORY, FULL)),
    ],
)
def test_the_verdict_is_the_same_with_faulthandlers_text(signal: str, output: str) -> None:
    bare = ended_by(signal, output)
    told = ended_by(signal, output + STACK.format(error=ERRORS[signal]))
    assert (told.verdict, told.cause, told.certain) == (bare.verdict, bare.cause, bare.certain)


@pytest.mark.parametrize("case", KILLED, ids=lambda case: case.id)
def test_so_it_is_of_every_case_that_a_signal_ended(case: Case) -> None:
    assert case.ended.signal is not None
    stack = STACK.format(error=ERRORS[case.ended.signal])
    cut = case.output.partition("Fatal Python error: ")[0]
    without = judge_together([replace(case, output=cut)])
    told = judge_together([replace(case, output=f"{cut}\n{stack}")])
    assert (told.verdict, told.cause) == (without.verdict, without.cause)
