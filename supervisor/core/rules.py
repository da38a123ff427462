"""The rule table: which failures can never succeed, which are worth another try, and why.

Ordered data; the first rule that matches decides. All conditions that a rule states must hold.
Statuses and exception types both mislead at times, so the rules about the text of an error come
before those about its type, those of the machine before those of the program, and how a process
ended comes last. The fragments of text are those that jax, XLA, Orbax and libtpu print.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.budget import Charge
from supervisor.core.failure import Verdict


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table. An empty condition is no condition."""

    name: str
    verdict: Verdict
    cause: str
    reason: str
    advice: str
    charge: Charge = Charge.RESTARTS
    types: tuple[str, ...] = ()
    """Names of exception types, their module left out; base classes match too."""
    pattern: str = ""
    """A regular expression, searched in the messages of the exceptions (or in the root line)."""
    signals: tuple[str, ...] = ()
    exit_codes: tuple[int, ...] = ()


DISK_FULL = "disk-full"

_FIX_CODE = "Fix the program; run the same command again to go on from the newest checkpoint."
_FIX_CONFIG = "Correct the config; run the same command again."
_NONE_NEEDED = "None needed: it is restarted."

RULES: tuple[Rule, ...] = (
    Rule(
        "devices-differ",
        Verdict.FATAL,
        "devices found differ from the config",
        "The backend found other devices than trainer.init.devices asks for.",
        "Correct trainer.init.devices, or give the job the devices it asks for.",
        types=("DevicesDiffer",),
    ),
    Rule(
        DISK_FULL,
        Verdict.RESTART,
        "disk full",
        "No space was left on the device; it may be freed.",
        "Free space under model_dir.",
        pattern=r"No space left on device|os_error_code='28'",
    ),
    Rule(
        "lost-peer",
        Verdict.RESTART,
        "lost a peer",
        "Another worker or the coordination service went away; this one is a victim.",
        _NONE_NEEDED,
        pattern=(
            r"tasks are unhealthy|coordination service|heartbeat timeout|"
            r"incarnation|Shutdown barrier has failed|Barrier timed out|"
            r"Connection (?:closed|reset) by peer|Socket closed"
        ),
    ),
    Rule(
        "hardware",
        Verdict.RESTART,
        "hardware or interconnect fault",
        "The runtime reports a fault of the hardware, not of the program.",
        "If it comes back, have the host replaced.",
        pattern=(
            r"observed errors are: \[(?:Hardware|Network|Power)\]|slice failure|"
            r"ICI link|MXLA error|DATA_LOSS"
        ),
    ),
    Rule(
        "busy-accelerator",
        Verdict.RESTART,
        "accelerator busy or not ready",
        "The accelerator is held by another process or not ready yet; it may be free in a while.",
        "Look for another process on the accelerator.",
        pattern=(
            r"TPU is already in use|iommu group|/dev/vfio|TPU initialization failed|"
            r"No accelerator found|Unable to initialize backend"
        ),
    ),
    Rule(
        "compile",
        Verdict.FATAL,
        "compilation failed",
        "The program cannot be compiled for these devices; it never will be as it is.",
        _FIX_CODE,
        pattern=(
            r"CompileTime\w+|compile permanent error|[Cc]ompilation failure|"
            r"Unimplemented primitive in Pallas|MLIR translation rule for primitive|"
            r"RuntimeProgramInputMismatch|inconsistent HLO module"
        ),
    ),
    Rule(
        "device-assert",
        Verdict.FATAL,
        "an assertion failed on the device",
        "The program itself asked the device to stop.",
        _FIX_CODE,
        pattern=r"observed errors are: \[User\]|BoundsCheck",
    ),
    Rule(
        "out-of-memory",
        Verdict.RESTART,
        "out of device memory at run time",
        "Memory ran out while the program ran; fragmentation may not repeat.",
        "If it comes back: a smaller micro batch, or more accumulation.",
        pattern=r"RESOURCE_EXHAUSTED|[Oo]ut of memory",
    ),
    Rule(
        "checkpoint-structure",
        Verdict.FATAL,
        "checkpoint does not fit the program",
        "The newest checkpoint holds another model or optimizer than the config describes.",
        "Go back to the config of the checkpoint, or use another model_dir.",
        pattern=(
            r"not compatible with the stored shape|tree structures do not match|"
            r"Topology mismatch detected"
        ),
    ),
    Rule(
        "tracing",
        Verdict.FATAL,
        "tracing or lowering failed",
        "JAX cannot trace the program: it fails the same way every time.",
        _FIX_CODE,
        types=(
            "ConcretizationTypeError",
            "TracerArrayConversionError",
            "TracerBoolConversionError",
            "TracerIntegerConversionError",
            "UnexpectedTracerError",
            "NonConcreteBooleanIndexError",
            "IndivisibleError",
        ),
    ),
    Rule(
        "shapes",
        Verdict.FATAL,
        "shapes or shardings do not fit",
        "The shapes, dtypes or shardings in the program do not fit each other.",
        _FIX_CODE,
        pattern=(
            r"Incompatible shapes for broadcasting|dot_general requires|"
            r"Non-hashable static arguments|must be >= the product of mesh_shape|"
            r"Resource axis.*not found in mesh|Array has been deleted"
        ),
    ),
    Rule(
        "assertion",
        Verdict.FATAL,
        "an assertion failed",
        "The program states that this must not happen; trying again does not change that.",
        _FIX_CODE,
        types=("AssertionError", "JaxRuntimeCheckError"),
    ),
    Rule(
        "invalid-config",
        Verdict.FATAL,
        "invalid configuration",
        "The configuration is refused by the program.",
        _FIX_CONFIG,
        types=("ValidationError", "ConfigError", "OmegaConfBaseException", "UsageError"),
    ),
    Rule(
        "broken-program",
        Verdict.FATAL,
        "the program is broken",
        "Code that is missing or cannot be parsed does not get better by itself.",
        _FIX_CODE,
        types=("ImportError", "SyntaxError", "NameError"),
    ),
    Rule(
        "missing-file",
        Verdict.FATAL,
        "a file is missing or may not be read",
        "A path in the configuration does not exist or is not allowed.",
        _FIX_CONFIG,
        types=("FileNotFoundError", "PermissionError", "NotADirectoryError", "IsADirectoryError"),
    ),
    Rule(
        "exception",
        Verdict.RESTART,
        "an exception",
        "No rule says that it can never succeed.",
        "If it comes back, read the traceback.",
        types=("BaseException",),
    ),
    Rule(
        "sigterm",
        Verdict.RESTART,
        "preempted (SIGTERM that the supervisor did not send)",
        "Somebody else told the worker to stop: as a rule the machine is being taken away.",
        _NONE_NEEDED,
        charge=Charge.PREEMPTIONS,
        signals=("SIGTERM",),
    ),
    Rule(
        "sigkill",
        Verdict.RESTART,
        "killed",
        "Killed from outside: by the kernel for memory, by a person, or by the platform.",
        "If it comes back, look for the kernel's out-of-memory killer (dmesg).",
        signals=("SIGKILL",),
    ),
    Rule(
        "crash",
        Verdict.RESTART,
        "crashed",
        "Native code crashed; that may not repeat.",
        "If it comes back, look at the end of the worker's output for a native stack.",
        signals=("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"),
    ),
    Rule(
        "not-executable",
        Verdict.FATAL,
        "the command cannot be run",
        "A shell or wrapper could not find or run the command.",
        _FIX_CONFIG,
        exit_codes=(126, 127),
    ),
    Rule(
        "early-exit",
        Verdict.RESTART,
        "ended before its work was done",
        "It exited with code 0, but the success criterion does not hold.",
        "If it comes back, see why the program ends early, or correct `success`.",
        exit_codes=(0,),
    ),
    Rule(
        "unknown",
        Verdict.RESTART,
        "unknown",
        "Nothing says that it can never succeed.",
        "If it comes back, read the worker's output.",
    ),
)
