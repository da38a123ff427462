"""Rules about accelerators and their runtimes, and about lost ranks and helper processes."""

from __future__ import annotations

from supervisor.config.judgement import Remedy
from supervisor.diagnosis.outcome import Charge
from supervisor.diagnosis.rules.compiler import NATIVE_ABORT
from supervisor.diagnosis.rules.rule import FATAL, MEDIUM, RESTART, Rule
from supervisor.diagnosis.rules.wording import (
    FIX_CODE,
    NONE_NEEDED,
    PREEMPTED,
    STATUS,
    WHO_STOPS_IT,
)

_SEE_PEERS = f"{NONE_NEEDED}read the other ranks' logs first."
_HALTED = (
    "If it comes back on this host alone, have the host replaced. If it comes back on others, too, "
    "it is a bug of a Pallas (Mosaic) kernel, which the message names after HLO:, or of libtpu: "
    "run without that kernel, or with another libtpu."
)

_TRANSFER_FRAMES = (
    r"<native>:(?:xla::)?.*(?:nccl|gloo|[Rr]endezvous|Collective\w*(?:Thunk|Clique|Interface)|"
    r"Communicator|Megascale|TransferManager|CopyToDevice|CopyRawTo)",
)

_XID_OF_THE_HARDWARE = (
    r"\bXid\b[^\n\d(]{0,20}(?:\([^)\n]*\)[^\n\d]{0,4})?"
    r"(?:46|48|54|6[234]|74|79|9[245]|110|119|12[01]|136|140|14[3-9]|150)\b"
)
"""NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) lists these
as errors of memory, links or power, or asks to reset the GPU or the machine. For other numbers it
asks to restart or examine the application (13, 31), to do nothing (43), or to look for an earlier
error (45)."""

_DEVICE_LIBRARY = (
    r"(?:\blib(?:tpu|cu(?:da|dnn|blas|dss|fft|file|pti|rand|solver|sparse|tensor)|nv|nccl|rccl|roc|"
    r"hip|amdhip|hsa-runtime|MIOpen)[\w.+-]*|\b(?:jaxlib|jax_plugins|jax_cuda\d+_\w+)/[^\s:]*)"
)
"""Libraries of devices: those of TPUs, CUDA and ROCm, and of jaxlib."""

SILENT_CORRUPTION = "silent-corruption"
LOST_WORKER = "lost-worker"
"""The rule about a helper process that ended: what that process printed may say why."""
RULES = (
    Rule(
        SILENT_CORRUPTION,
        RESTART,
        "a device computed wrongly in silence",
        "A step that our trainer computed again with its devices in another order had other bits.",
        "Have the device in the message looked at before its quarantine ends. The job has gone "
        "back to the newest checkpoint after which a check passed; what else this device has "
        "computed since then may be wrong, too.",
        types=("SilentCorruptionError",),
        hardware=True,
    ),
    Rule(
        "transfer-abort",
        RESTART,
        "a transfer between devices was broken off",
        "Native code gave up while data was on its way: a link, a device or another rank failed.",
        _SEE_PEERS,
        patterns=(NATIVE_ABORT,),
        frames=_TRANSFER_FRAMES,
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
            r"MXLA error|[Mm]egascale|(?i:uncorrectable|double.bit) (?:ECC|error)",
            _XID_OF_THE_HARDWARE,
            r"CUDA_ERROR_(?:ECC|HARDWARE|NVLINK|CONTAINED|EXTERNAL_DEVICE|SYSTEM_DRIVER)\w*",
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
        "A core halted earlier, so everything that was enqueued after that failed too.",
        f"Look for the first halt in the logs of all ranks. {_HALTED}",
        # libtpu 0.0.42. It comes after "Core halted" and "unexpected peer" in logs of levanter, and
        # alone in pytorch/xla #8459 and in logs of MaxText and sglang-jax
        patterns=(r"(?i)program continuator (?:has |was )?halted",),
        transient=True,
        victim=True,
        hardware=True,
    ),
    Rule(
        "core-halted",
        RESTART,
        "a core of the accelerator halted",
        "The hardware, the compiler or a kernel of the program stopped the core; the message does "
        "not say which.",
        _HALTED,
        patterns=(
            # libtpu 0.0.42 names all three causes. It was a kernel's bug in
            # vllm-project/tpu-inference #412 and #3405, the compiler's in jax #19118, and neither
            # in jax #9642 and pytorch/xla #7138
            r"(?i)halt is unexpected|\bhalted (?:prematurely|unexpectedly)|core halted",
            r"RuntimeUnexpectedCoreHalt|Fatal error occurred during TPU execution",
        ),
        hardware=True,
    ),
    Rule(
        "device-fault",
        RESTART,
        "a fault on the device",
        "A kernel failed on the device: by a fault of the hardware, or of the program.",
        "If it comes back at the same step, look for what the program computes there.",
        patterns=(
            # CUDA driver API (CUresult), PyTorch's words for them
            r"CUDA_ERROR_(?:ILLEGAL|LAUNCH_(?:FAILED|TIMEOUT)|MISALIGNED|UNKNOWN)\w*",
            r"(?i)an illegal memory access was encountered|unspecified launch failure",
            r"(?i)cuda (?:runtime )?error(?: \(\d+\) ?)?: unknown error",
            r"\bXid\b",  # any other number; the program causes most of 13, 31, 43 and 45
        ),
        hardware=True,
        confidence=MEDIUM,
    ),
    Rule(
        "backend-missing",
        FATAL,
        "no such backend",
        "The installed jaxlib or libtpu cannot serve the platform that is asked for, or this "
        "machine has no such device.",
        "Install the jax, jaxlib and libtpu that fit each other and the machine, and see that it "
        "has the devices.",
        patterns=(
            r"(?i)unknown backend|not in the list of known backends|no module named '?libtpu",
            r"(?i)requires.{0,40}jaxlib|jaxlib (?:version|was built|is version)|"
            r"incompatible with jax",
            r"(?i)built using AVX",
            # ld.so about other libraries: `shared-library` and `symbol-missing` in setup.py
            rf"{_DEVICE_LIBRARY}: (?:cannot open shared object file|undefined symbol)",
            r"undefined symbol: (?:cu(?:da|dnn|blas|fft|solver|sparse)?[A-Z]|PJRT_|Tpu)",
            r"(?i)CUDA_ERROR_NO_DEVICE|no CUDA-capable device|invalid device ordinal|"
            r"driver version "
            r"is insufficient|no kernel image is available|plugin .{0,60}(?:not found|"
            r"incompatible)",
            r"(?i)may indicate binary incompatibility|compiled using NumPy 1|"
            r"numpy\.core\.multiarray "
            r"failed to import",
            # jax _src/xla_bridge.py: the status after the backend's name tells whether it is absent
            # or busy
            r"(?:nable to initialize backend '[\w-]+'|equested backend \w+, but it failed to "
            r"initialize): (?:NOT_FOUND|UNIMPLEMENTED|module ')(?!.{0,99}"
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
            # libtpu 0.0.52: a TPU VM asks its metadata server for these
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
        # Caused by another process in jax #15361; by the driver in jthlab/phlash #31 and
        # stat-ml/TTDE #4
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
            # jaxlib, NVML: the driver was replaced while the system ran, or devices are lost
            r"(?i)driver/library version mismatch|unsupported display driver|LibRmVersionMismatch|"
            r"no visible (?:\w+ )?devices|no supported devices found for platform",
        ),
        confidence=MEDIUM,
        hardware=True,
    ),
    Rule(
        "backend-unseen",
        FATAL,
        "no such backend",
        "JAX sees no GPU, or has no CUDA plugin; a driver that is being restarted looks so, too.",
        "See that `nvidia-smi` shows the GPUs (in a container: --gpus all), that `jax[cuda12]` or "
        "`jax[cuda13]` is installed, and what the program itself sets JAX_PLATFORMS to.",
        types=("AssertionError",),
        frames=(r"jax/_src/xla_bridge\.py:backends$",),  # `assert _default_backend is not None`
        confidence=MEDIUM,
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
        "launcher-hangup",
        RESTART,
        "its session or its reader went away",
        "torchrun ends with an exception when its terminal or session is gone, or on Ctrl-C.",
        "Start it where no session ends it: as a service, or under tmux.",
        types=("SignalException",),
        patterns=(r"got signal: (?:[123]|(?:Signals\.)?SIG(?:HUP|INT|QUIT))\b",),
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
        LOST_WORKER,
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
        "The compiler raised the error: the same program will not compile the next time either.",
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
