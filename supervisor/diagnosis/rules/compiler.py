"""Rules about programs that a compiler refuses, or that differ from those of the other ranks."""

from __future__ import annotations

from supervisor.diagnosis.rules.rule import FATAL, MEDIUM, PEER_ENDED_FIRST, RESTART, Rule
from supervisor.diagnosis.rules.wording import FIX_CODE, FIX_CONFIG, NONE_NEEDED

_DIFFER = (
    "the ranks run different programs",
    "Hosts run different programs, or a compiled program gets inputs that it was not compiled for.",
    FIX_CODE,
)
COMPILE = (
    "compilation failed",
    "The program cannot be compiled for these devices: each attempt fails the same way.",
    FIX_CODE,
)

_NO_RESOURCE_MISSING = (
    r"^(?![\s\S]*(?:(?i:memory|no space|thread|timed? ?out|unavailable)|RESOURCE_EXHAUSTED|"
    r"CUDA_ERROR|CUDNN_STATUS))[\s\S]*"
)
_NO_PASSING_TROUBLE = (
    r"^(?![\s\S]*(?i:unavailable|socket|connection|timed? ?out|deadline|killed|preempt|cancelled|"
    r"signal|exit(?:ed)?(?: with)?(?: \S+){0,3} (?:-\d|13[0-9]|143)|resource_exhausted))[\s\S]*?"
)
"""Begins a pattern, before a compiler's words. Excludes texts about a compile service or a
compiler's process that went away: that passes."""
NATIVE_ABORT = r"(?:Check failed: |Non-OK-status: |LLVM ERROR: |RET_CHECK failure)"
_COMPILER_FRAMES = (
    r"<native>:xla::(?:\w+::)*(?:Spmd\w+|Hlo(?:Pass|Verifier|DataflowAnalysis)\w*|\w*IrEmitter\w*|"
    r"ThunkEmitter|BufferAssign\w+|LayoutAssignment|\w*Compiler|\w+Simplifier)::",
    r"<native>:xla::spmd::|<native>:TpuCompiler_|<native>:.*::(?:CompileAndLoad|RunHloPasses|RunBackend)\(",
    r"<native>:mlir::(?:PassManager|detail::OpToOpPassAdaptor|OperationPass)",
    r"<native>:llvm::(?:\(anonymous namespace\)::)?(?:SelectionDAG|FPPassManager|"
    r"MachineFunctionPass|legacy::PassManager|PassManager)",
)
"""Functions that run only while a program is compiled (openxla #44941, #47370; Reactant #1097)."""
RULES = (
    Rule(
        "follows-a-loss",
        RESTART,
        "lost a peer",
        "Another rank was killed or crashed before; a message that is cut off looks like one of "
        "another program.",
        f"{NONE_NEEDED}read the other ranks' logs first.",
        # gloo transport/tcp/pair.cc, torch ProcessGroupWrapper.cpp, libtpu, Megascale
        patterns=(
            r"gloo::EnforceNotMet|op\.preamble\.|(?i:detected mismatch between collectives)",
            r"unexpected peer shows up in the launch group|different HLO fingerprints",
        ),
        facts=(PEER_ENDED_FIRST,),
        victim=True,
        confidence=MEDIUM,
    ),
    Rule(
        "programs-differ",
        FATAL,
        *_DIFFER,
        patterns=(
            r"RuntimeProgramInputMismatch",
            r"different HLO fingerprints",  # openxla.org/xla/megascale_errors
            r"passed to device_put is not the same on each process",
            r"op\.preamble\.length <= op\.nbytes",
        ),
        certain=True,
    ),
    Rule(
        "programs-may-differ",
        FATAL,
        *_DIFFER,
        # A peer that was started again and a stale connection are reported in these words too.
        patterns=(r"unexpected peer shows up in the launch group",),
    ),
    Rule(
        "cluster-misconfigured",
        FATAL,
        "the cluster is described wrongly",
        "Ranks, process counts, devices or calls do not fit one another.",
        FIX_CONFIG,
        patterns=(
            r"Unexpected task registered",
            r"(?i)distributed\.initialize.{0,60}(?:must be called before|only be called once)",
            # NCCL's user guide: an error in the program that uses it; bootstrap.cc, init.cc
            r"ncclInvalid(?:Usage|Argument)|Duplicate GPU detected|ranks has already checked in",
            # torch ProcessGroupWrapper.cpp
            r"(?i)detected mismatch between collectives",
            r"(?i)(?:num_processes|process_id|coordinator_address|"
            r"coordinator_bind_address)\b.{0,80}"
            r"(?:must|should|invalid|defined|required|less than|greater)",
        ),
    ),
    Rule(
        "compile",
        FATAL,
        *COMPILE,
        patterns=(
            r"CompileTime\w+|compile permanent error",
            r"(?i)ran out of memory in memory space|exceed\w* .{0,20}(?:scoped )?(?:vmem|smem)",
            r"(?i)scoped allocation with size|unimplemented primitive|MLIR translation rule",
            r"Mosaic failed|MosaicError|MLIRError",
            r"(?i)cannot lower jaxpr|lowering rule|Lowering(?:Error|Exception)|Pallas \w+ lowering",
            r"(?i)HLO verif\w+|failed to legalize",
        ),
        per_rung=True,
        certain=True,
    ),
    Rule(
        "compile-reported",
        FATAL,
        *COMPILE,
        # A killed compiler and a silent compile service are reported in these words too.
        patterns=(
            _NO_PASSING_TROUBLE
            + r"(?i:compilation (?:failure|error|failed)|during context \[|cannot lower|"
            r"failed to (?:lower|compile)\b|XlaCompile|\bptxas\b|nvlink fatal|"
            r"(?:while|during|in) (?:the )?(?:HLO |XLA )?(?:compiling|compilation)\b(?! cache))",
            # jax _src/pallas/mosaic/error_handling.py and triton/lowering.py
            r"(?i)VerificationError|Pallas (?:TPU|GPU|MGPU|Triton)",
            # jax _src/pallas/mosaic/lowering.py and mosaic_gpu/lowering.py
            r"(?i)unsupported (?:conversion|element type)",
            r"(?i)bad lhs type|block shape",  # libtpu; jax _src/pallas/core.py
            r"Shared memory size limit exceeded",  # XLA's Triton emitter
            r"RET_CHECK failure \S*(?:compiler|hlo|service|layout|verifier|mosaic|sharding|spmd)",
        ),
        per_rung=True,
    ),
    Rule(
        "compiler-abort",
        FATAL,
        *COMPILE,
        patterns=(_NO_RESOURCE_MISSING + NATIVE_ABORT,),
        frames=_COMPILER_FRAMES,
        per_rung=True,
        certain=True,
    ),
    Rule(
        "compiler-crash",
        FATAL,
        *COMPILE,
        # Abseil's and glog's signal handlers print this; the stack does not show the sender.
        patterns=(_NO_RESOURCE_MISSING + r"\*\*\* SIG(?!TERM|INT|KILL)[A-Z]+ ",),
        frames=_COMPILER_FRAMES,
        per_rung=True,
    ),
    Rule(
        "compiler-abort-reported",
        FATAL,
        *COMPILE,
        # Without a stack: LLVM runs only in compilers, and glog names the source file of a check.
        patterns=(
            _NO_RESOURCE_MISSING + "LLVM ERROR: ",
            _NO_RESOURCE_MISSING
            + r"\b(?:hlo_\w+|\w*compiler|\w*ir_emitter\w*|\w*_partition(?:er|ing)|"
            r"layout_\w+|\w*_verifier|sharding_propagation|\w*mosaic\w*)\.(?:cc|h):\d+\] "
            + NATIVE_ABORT,
        ),
        per_rung=True,
    ),
)
