"""Rules about what compilers, accelerators, and the other ranks and processes say."""

from __future__ import annotations

from supervisor.core.outcome import Charge
from supervisor.core.remedy import Remedy
from supervisor.core.rules.phrases import (
    FIX_CODE,
    FIX_CONFIG,
    NONE_NEEDED,
    PREEMPTED,
    STATUS,
    WHO_STOPS_IT,
)
from supervisor.core.rules.rule import FATAL, MEDIUM, RESTART, Rule

_SEE_PEERS = f"{NONE_NEEDED}read the other ranks' logs first."
_HALTED = (
    "If it comes back on this host alone, have the host replaced. If it comes back on others, too, "
    "it is a bug of a Pallas (Mosaic) kernel, which the message names after HLO:, or of libtpu: "
    "run without that kernel, or with another libtpu."
)

_DIFFER = (
    "the ranks run different programs",
    "Hosts run different programs, or a compiled program gets other inputs than its own.",
    FIX_CODE,
)
_COMPILE = (
    "compilation failed",
    "The program cannot be compiled for these devices: each attempt fails the same way.",
    FIX_CODE,
)

_NO_RESOURCE_MISSING = (
    r"^(?![\s\S]*(?:(?i:memory|no space|thread|timed? ?out|unavailable)|RESOURCE_EXHAUSTED|"
    r"CUDA_ERROR|CUDNN_STATUS))[\s\S]*"
)
_STANDING = (
    r"^(?![\s\S]*(?i:unavailable|socket|connection|timed? ?out|deadline|killed|preempt|cancelled|"
    r"signal|exit(?:ed)?(?: with)?(?: \S+){0,3} (?:-\d|13[0-9]|143)|resource_exhausted))[\s\S]*?"
)
"""Before words of a compiler: where a service or a process that compiles went away, they pass."""
_NATIVE_ABORT = r"(?:Check failed: |Non-OK-status: |LLVM ERROR: |RET_CHECK failure)"
_IN_THE_COMPILER = (
    r"<native>:xla::(?:\w+::)*(?:Spmd\w+|Hlo(?:Pass|Verifier|DataflowAnalysis)\w*|\w*IrEmitter\w*|"
    r"ThunkEmitter|BufferAssign\w+|LayoutAssignment|\w*Compiler|\w+Simplifier)::",
    r"<native>:xla::spmd::|<native>:.*::(?:CompileAndLoad|RunHloPasses|RunBackend)\(",
    r"<native>:mlir::(?:PassManager|detail::OpToOpPassAdaptor|OperationPass)",
    r"<native>:llvm::(?:\(anonymous namespace\)::)?(?:SelectionDAG|FPPassManager|"
    r"MachineFunctionPass|legacy::PassManager|PassManager)",
)
"""Functions that only run while a program is compiled (openxla #44941, #47370; Reactant #1097)."""
_IN_A_TRANSFER = (
    r"<native>:(?:xla::)?.*(?:nccl|gloo|[Rr]endezvous|Collective\w*(?:Thunk|Clique|Interface)|"
    r"Communicator|Megascale|TransferManager|CopyToDevice|CopyRawTo)",
)

RULES = (
    Rule(
        "programs-differ",
        FATAL,
        *_DIFFER,
        patterns=(
            r"RuntimeProgramInputMismatch|inconsistent HLO module|different HLO",
            r"passed to device_put is not the same on each process",
            r"op\.preamble\.length <= op\.nbytes",
        ),
        certain=True,
    ),
    Rule(
        "programs-may-differ",
        FATAL,
        *_DIFFER,
        # A peer that was started again, or a stale connection, is worded so, too.
        patterns=(
            r"unexpected peer shows up in the launch group|compiled with .{0,80}called with",
        ),
    ),
    Rule(
        "cluster-misconfigured",
        FATAL,
        "the cluster is described wrongly",
        "Ranks, process counts or the moment of initialisation do not fit one another.",
        FIX_CONFIG,
        patterns=(
            r"Unexpected task registered|(?i:number of (?:processes|tasks|hosts) .{0,40}mismatch)",
            r"(?i)distributed\.initialize.{0,60}(?:must be called before|only be called once)",
            r"(?i)(?:num_processes|process_id|coordinator_address|"
            r"coordinator_bind_address)\b.{0,80}"
            r"(?:must|should|invalid|defined|required|less than|greater)",
        ),
    ),
    Rule(
        "compile",
        FATAL,
        *_COMPILE,
        patterns=(
            r"CompileTime\w+|compile permanent error",
            r"(?i)ran out of memory in memory space|exceed\w* .{0,20}(?:scoped )?(?:vmem|smem)",
            r"(?i)scoped allocation with size|unimplemented primitive|MLIR translation rule",
            r"Mosaic failed|MosaicError|MLIRError|(?i:not implemented in mosaic)",
            r"(?i)cannot lower jaxpr|lowering rule|Lowering(?:Error|Exception)|Pallas \w+ lowering",
            r"(?i)HLO verif\w+|failed to legalize",
        ),
        per_rung=True,
        certain=True,
    ),
    Rule(
        "compile-reported",
        FATAL,
        *_COMPILE,
        # A compiler that was killed, or that a service does not answer, is reported so, too.
        patterns=(
            _STANDING + r"(?i:compilation (?:failure|error|failed)|during context \[|cannot lower|"
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
        *_COMPILE,
        patterns=(_NO_RESOURCE_MISSING + _NATIVE_ABORT,),
        frames=_IN_THE_COMPILER,
        per_rung=True,
        certain=True,
    ),
    Rule(
        "compiler-abort-reported",
        FATAL,
        *_COMPILE,
        # LLVM runs in compilers alone; glog names the file of a check, here with none of its stack.
        patterns=(
            _NO_RESOURCE_MISSING + "LLVM ERROR: ",
            _NO_RESOURCE_MISSING
            + r"\b(?:hlo_\w+|\w*compiler|\w*ir_emitter\w*|\w*_partition(?:er|ing)|"
            r"layout_\w+|\w*_verifier|sharding_propagation|\w*mosaic\w*)\.(?:cc|h):\d+\] "
            + _NATIVE_ABORT,
        ),
        per_rung=True,
    ),
    Rule(
        "transfer-abort",
        RESTART,
        "a transfer between devices was broken off",
        "Native code gave up while data was on its way: a link, a device or another rank failed.",
        _SEE_PEERS,
        patterns=(_NATIVE_ABORT,),
        frames=_IN_A_TRANSFER,
        transient=True,
        victim=True,
        confidence=MEDIUM,
    ),
    Rule(
        "device-assert",
        FATAL,
        "an assertion failed on the device",
        "The program itself asked the device to stop.",
        FIX_CODE,
        patterns=(
            # libtpu 0.0.52; CUDA 12 (cudaErrorAssert)
            r"observed errors are: \[User\]|device-side assert triggered|CUDA_ERROR_ASSERT",
            # libtpu 0.0.42, vllm-project/tpu-inference #412: the kernel's own bookkeeping
            r"(?i)nonzero value (?:upon|on) exit from a mosaic kernel",
        ),
    ),
    Rule(
        "hardware",
        RESTART,
        "hardware or interconnect fault",
        "The runtime reports a fault of the hardware, not of the program.",
        "If it comes back, have the host replaced.",
        patterns=(
            r"observed errors are: \[(?:Hardware|Network|Power)\]|[Ss]lice failure|\bICI\b.{0,40}"
            r"(?:down|fail|error|fault)|(?i:detected slice)",
            r"MXLA error|[Mm]egascale|(?i:uncorrectable|double.bit) (?:ECC|error)|\bXid\b",
            r"CUDA_ERROR_(?:ECC|ILLEGAL|LAUNCH_(?:FAILED|TIMEOUT)|HARDWARE|NVLINK|MISALIGNED|"
            r"UNKNOWN|CONTAINED|EXTERNAL_DEVICE|SYSTEM_DRIVER)\w*",
            r"(?i)an illegal memory access was encountered|unspecified launch failure",
            # NVML (nvmlErrorString), nvidia-smi and the kernel driver (NVRM)
            r"(?i)fallen off the bus|gpu (?:is lost|requires a reset)",
            r"(?i)nvlink error|machine check|unable to determine the device handle",
        ),
        transient=True,
        hardware=True,
    ),
    Rule(
        "follows-a-halt",
        RESTART,
        "the accelerator had halted",
        "A core halted earlier, and what was enqueued after that fails with it.",
        f"Look for the first halt in the logs of all ranks. {_HALTED}",
        # libtpu 0.0.42; after "Core halted" and "unexpected peer" in logs of levanter, alone in
        # pytorch/xla #8459 and in logs of MaxText and sglang-jax
        patterns=(r"(?i)program continuator (?:has |was )?halted",),
        transient=True,
        victim=True,
        hardware=True,
    ),
    Rule(
        "core-halted",
        RESTART,
        "a core of the accelerator halted",
        "The hardware, the compiler or a kernel of the program stopped it: nothing says which.",
        _HALTED,
        patterns=(
            # libtpu 0.0.42 names all three; a kernel's bug in vllm-project/tpu-inference #412 and
            # #3405, the compiler's in jax #19118, neither in jax #9642 and pytorch/xla #7138
            r"(?i)halt is unexpected|\bhalted (?:prematurely|unexpectedly)|core halted",
            r"RuntimeUnexpectedCoreHalt|Fatal error occurred during TPU execution",
        ),
        transient=True,
        hardware=True,
    ),
    Rule(
        "backend-missing",
        FATAL,
        "no such backend",
        "The installed jaxlib or libtpu cannot serve the platform that is asked for.",
        "Install the jax, jaxlib and libtpu that fit each other and the machine.",
        patterns=(
            r"(?i)unknown backend|not in the list of known backends|no module named '?libtpu",
            r"(?i)requires.{0,40}jaxlib|jaxlib (?:version|was built|is version)|"
            r"incompatible with jax",
            r"(?i)built using AVX|cannot open shared object file|undefined symbol|GLIBC",
            r"(?i)CUDA_ERROR_NO_DEVICE|no CUDA-capable device|invalid device ordinal|"
            r"driver version "
            r"is insufficient|no kernel image is available|plugin .{0,60}(?:not found|"
            r"incompatible)",
            r"(?i)may indicate binary incompatibility|compiled using NumPy 1|"
            r"numpy\.core\.multiarray "
            r"failed to import",
            # jax _src/xla_bridge.py: the status after the backend's name tells absent from busy
            r"nable to initialize backend '[\w-]+': (?:NOT_FOUND|UNIMPLEMENTED|module ')(?!.{0,99}"
            r"(?:metadata|address|worker))",
            r"(?i)could not find registered platform|tpuplatform is not available|unable to find "
            r"driver in registry|(?:pjrt|plugin) API version|PJRT_\w+_Args size",
            r"/dev/(?:vfio|accel|nvidia)[^\n]{0,40}(?i:no such file|permission denied)",
        ),
    ),
    Rule(
        "busy-accelerator",
        RESTART,
        "accelerator busy or not ready",
        "The accelerator is held by another process or not ready yet; it may be free in a while.",
        "Look for another process on the accelerator.",
        patterns=(
            r"(?i)TPU is already in use|libtpu_lockfile|libtpu\.so (?:is )?already in use",
            r"(?i)iommu group|/dev/(?:vfio|accel|nvidia)|TPU initialization failed",
            r"(?i)no accelerator found|device or resource busy|\bEBUSY\b",
            r"(?i)CUDA_ERROR_(?:NOT_READY|SYSTEM_NOT_READY|DEVICE_UNAVAILABLE)|all CUDA-capable "
            r"devices are busy|Failed to get (?:global TPU topology|TPU metadata)",
            r"(?i)(?:accelerator|device|tpu|gpu|chip)s? (?:is|are) (?:busy|already in use|held by)",
            # libtpu 0.0.52: what a TPU VM asks its metadata server for
            r"worker_addresses|MetadataServer Query failed|Failed to refresh worker addresses|"
            r"(?i:(?:tpu|instance) metadata.{0,60}(?:fail|unavailable|timed out|error))",
            r"\[Errno (?:6|16|19)\]",
        ),
        transient=True,
        remedy=Remedy.WAIT,
        hardware=True,
    ),
    Rule(
        "gpu-library",
        RESTART,
        "cuDNN or cuBLAS could not be initialised",
        "As a rule another process holds the GPU memory that it needs; it may be free in a while.",
        "Look for another process on the GPU (nvidia-smi). If there is none, install the driver "
        "and the cuDNN that this jaxlib needs.",
        # another process: jax #15361; the driver: jthlab/phlash #31, stat-ml/TTDE #4
        patterns=(
            r"(?i)DNN library initialization failed|could not create cud?nn handle|"
            r"failed to create cublas handle",
        ),
        transient=True,
        remedy=Remedy.WAIT,
        hardware=True,
    ),
    Rule(
        "port-in-use",
        RESTART,
        "a port is in use",
        "Another process holds the port; the next attempt takes another one or finds it free.",
        f"{NONE_NEEDED}see which process holds the port that the message names.",
        patterns=(
            r"(?i)failed to start RPC server|address already in use|\[Errno 98\]|EADDRINUSE",
            r"(?i)(?:no|failed to|could not|cannot) (?:bind|add port|listen)|port \d+ is (?:in use|"
            r"already)",
        ),
        transient=True,
    ),
    Rule(
        "backend-failed",
        RESTART,
        "the backend could not be initialised",
        "The accelerator's runtime did not come up; that may pass.",
        "Look for another process on the accelerator, and whether the devices are there.",
        patterns=(
            r"(?i)unable to initialize backend|backend .{0,20}failed to initialize",
            r"(?i)failed call to cuInit|CU(?:DNN|BLAS|SPARSE|SOLVER)\w*_STATUS_(?:NOT_INIT|"
            r"INTERNAL|"
            r"ALLOC|EXECUTION)\w*|failed to initialize NVML|CUDA initialization|NVMLError",
            # jaxlib, NVML: a driver that was replaced under the running system, or lost devices
            r"(?i)driver/library version mismatch|unsupported display driver|LibRmVersionMismatch|"
            r"no visible (?:\w+ )?devices|no supported devices found for platform|"
            r"assert _default_backend is not None",  # jax _src/xla_bridge.py: JAX_PLATFORMS=cuda
        ),
        confidence=MEDIUM,
        hardware=True,
    ),
    Rule(
        "launcher-sigterm",
        RESTART,
        PREEMPTED,
        "torchrun ends with an exception when somebody tells it to stop.",
        WHO_STOPS_IT,
        charge=Charge.PREEMPTIONS,
        types=("SignalException",),
        patterns=(r"got signal: (?:15|(?:Signals\.)?SIGTERM)\b",),
        transient=True,
    ),
    Rule(
        "lost-peer",
        RESTART,
        "lost a peer",
        "Another worker or the coordination service went away; this one is a victim.",
        _SEE_PEERS,
        patterns=(
            r"(?i)tasks are unhealthy|coordination ?(?:service|agent)|different incarnation",
            r"(?i)incarnation id|(?:missing|missed|stopped sending|lost) heartbeats?",
            r"(?i)heartbeats?\b.{0,60}(?:timeout|timed out|fail|miss|lost|stop)",
            r"(?i)barrier (?:has |was )?(?:failed|timed out|timeout|aborted|cancel)|barrier result",
            r"(?i)shutdown barrier|another task died|distributed service detected|RegisterTask",
            r"(?i)connection (?:was )?(?:forcibly )?(?:closed|reset|refused|aborted|lost|dropped|"
            r"terminated)|socket closed|broken pipe|remote peer|peer (?:closed|disconnect|is gone)",
            r"grpc_status\"?:(?:1|4|10|14)\b|StatusCode\.(?:UNAVAILABLE|CANCELLED|DEADLINE|"
            r"ABORTED)",
            r"(?i)\bgloo\b[\s\S]{0,400}(?:connection|timed out|timeout|failed)",
            r"(?i)\b(?:nccl|rccl)\b.{0,40}(?:operation|error|timeout|timed out|abort|remote)|"
            r"nccl(?:System|Remote|Internal|InProgress)\w*|watchdog caught collective",
            r"(?i)remote process exited|failed to connect to|GetKeyValue\(\) timed out",
            r"(?i)rendezvous\b[\s\S]{0,200}(?:stuck|timed out|timeout|terminat|not all)|"
            r"join the rendezvous|termination timeout for",
            r"(?i)preemption (?:sync|notice)|\bpreempted\b|failed to join|distributed.{0,60}"
            r"(?:timed out|timeout)|(?:timed out|timeout) (?:waiting|while)|waiting for .{0,60}"
            r"(?:timed out|timeout)",
            r"(?i)lost connection to|node .{0,40}(?:is |has )?(?:dead|died|lost|unreachable)",
        ),
        victim=True,
        confidence=MEDIUM,
    ),
    Rule(
        "lost-worker",
        RESTART,
        "a helper process died",
        "A process that worked for this one (data loading, Ray) was killed or crashed.",
        "If it comes back, read what the helper printed, and look at the host's memory.",
        patterns=(
            r"(?i)(?:worker|process|subprocess|child|actor|pool|loader)\b.{0,60}(?:was |were |has |"
            r"have )?(?:terminated|killed|crashed|died|disappeared|gone)\b",
            r"(?i)(?:terminated|exit(?:ed)?|died|ended|crashed|stopped) (?:abruptly|unexpectedly)",
            r"(?i)unexpectedly (?:exit|die|crash|terminat|stop|end)|exit ?code:? -\d+|"
            r"(?:killed|terminated) by (?:a )?signal",
            r"died with <Signals",  # Python's subprocess.py
        ),
        transient=True,
        victim=True,
        confidence=MEDIUM,
    ),
    Rule(
        "compile-call",
        FATAL,
        "compilation failed",
        "It came out of the compiler: the same program does not compile the next time either.",
        FIX_CODE,
        types=("JaxRuntimeError", "XlaRuntimeError"),
        patterns=(
            rf"^(?![\s\S]*{STATUS}(?:UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED|CANCELLED|"
            r"RESOURCE_EXHAUSTED)\b)",
        ),
        frames=(r":(?:backend_compile\w*|compile_or_get_cached|_compile_and_\w+|_cached_comp\w+)",),
        confidence=MEDIUM,
        per_rung=True,
    ),
)
