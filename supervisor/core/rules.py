"""The rule table: which failures can never succeed, which are worth another try, and why.

Ordered data; the first rule that matches decides. All conditions that a rule states must hold. The
question that each verdict answers is: what would happen if the same job were started again,
unchanged? Where the answer is not known it is RESTART, because the signature rule ends a failure
that comes back the same.

The order is the precedence. Statuses and exception types both mislead (a full disk is reported as
RESOURCE_EXHAUSTED, a lost peer as INTERNAL, an object store's outage as ValueError), so rules about
what a text says in particular come first, then those about status codes, then those about the
exception's type, and how a process ended comes last. The fragments of text are those that jax, XLA,
libtpu, Orbax, TensorStore, Grain, Ray and the clients of cloud storage print.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.outcome import Charge, Confidence, Verdict

_FATAL, _RESTART, _POLICY = Verdict.FATAL, Verdict.RESTART, Verdict.POLICY
_MEDIUM, _LOW = Confidence.MEDIUM, Confidence.LOW


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
    """Names of exception types, their module left out, or `module.*`; base classes match too."""
    pattern: str = ""
    """A regular expression, searched in `Type: message` (or in the line of native code)."""
    signals: tuple[str, ...] = ()
    exit_codes: tuple[int, ...] = ()
    stages: tuple[str, ...] = ()
    transient: bool = False
    """Whether the same failure may well come back and still pass: no signature is compared."""
    victim: bool = False
    """Whether it is what other ranks (or processes) suffer when one fails: never the root cause
    where another error is there to be found."""
    confidence: Confidence = Confidence.HIGH

    @property
    def about_text(self) -> bool:
        """Whether it looks at an error, not only at how the process ended."""
        return bool(self.types or self.pattern)


DISK_FULL = "disk-full"

_FIX_CODE = "Fix the program; run the same command again to go on from the newest checkpoint."
_FIX_CONFIG = "Correct the config; run the same command again."
_NONE_NEEDED = "None needed: it is restarted."
_SEE_PEERS = "None needed: it is restarted. If it comes back, read the other ranks' logs first."

_STATUS = r"(?:^|[\s:(\"'])"
"""What stands before the name of an absl status."""
_HTTP = (
    r"(?:http_response_code='|[\"']code[\"']: |status(?:[_ ]code)?[=: ]+|(?:Server|Client) error '|"
    r"HTTP (?:Error )?|status code', |response code |^[\w.]+: |\()"
)
"""What stands before the number of an HTTP status."""

_OF_THE_TEXT: tuple[Rule, ...] = (
    Rule(
        "devices-differ",
        _FATAL,
        "devices found differ from the config",
        "The backend found other devices than trainer.init.devices asks for.",
        "Correct trainer.init.devices, or give the job the devices it asks for.",
        types=("DevicesDiffer",),
    ),
    Rule(
        "no-usable-checkpoint",
        _FATAL,
        "every checkpoint is damaged",
        "The files of every checkpoint differ from what was saved; starting afresh is not ours to "
        "decide.",
        "Put an undamaged copy in place, or do as the message says to start from the beginning; "
        "then run the same command again. Suspect the storage.",
        types=("NoUsableCheckpointError",),
    ),
    Rule(
        DISK_FULL,
        _POLICY,
        "disk full",
        "No space was left on the device; it may be freed.",
        "Free space under model_dir (or enlarge /dev/shm, where that is what is full).",
        pattern=r"No space left on device|os_error_code='28'|\[Errno 28\]|\[Errno 122\]|"
        r"Disk quota exceeded|Insufficient disk space",
        transient=True,
    ),
    Rule(
        "resource-limit",
        _POLICY,
        "a limit of the host is reached",
        "The host refused memory, files or processes; that may pass, or the limit is too low.",
        "Look at ulimit, /dev/shm and the memory of the host or container.",
        types=("MemoryError",),
        transient=True,
    ),
    Rule(
        "resource-limit-text",
        _POLICY,
        "a limit of the host is reached",
        "The host refused memory, files or processes; that may pass, or the limit is too low.",
        "Look at ulimit, /dev/shm and the memory of the host or container.",
        pattern=r"\[Errno (?:11|12|23|24)\]|Too many open files|Cannot allocate memory|"
        r"can't start new thread|std::bad_alloc|Bus error|insufficient shared memory|"
        r"os_error_code='(?:11|12|23|24)'|"
        r"OutOfMemoryError: (?:Task|Actor|\d+ Workers)|node running low on memory|"
        r"(?:exit code |signal:? )-9\b|oom-?kill|[Kk]illed by the OOM",
        transient=True,
    ),
    Rule(
        "expired-credentials",
        _POLICY,
        "credentials are missing or have expired",
        "The storage or the hub does not accept who we say we are; a new token may.",
        "Renew the credentials (gcloud auth, service account, HF_TOKEN).",
        pattern=r"invalid_grant|Invalid Credentials|invalid_token|ExpiredToken|"
        r"token (?:has )?expired|"
        r"[Cc]redentials? (?:has |have )?expired|[Uu]nable to locate credentials|"
        r"default credentials were not found|could not be refreshed|RequestTimeTooSkewed|"
        r"AccessTokenExpired|Reauthentication is needed|InvalidAccessKeyId|NoCredentialsError|"
        rf"{_STATUS}UNAUTHENTICATED\b|{_HTTP}401\b|\b401 (?:Client Error|Unauthorized)|authError",
        transient=True,
    ),
    Rule(
        "quota",
        _POLICY,
        "a quota is used up",
        "The quota of a service is exhausted; it is refilled with time or raised by a person.",
        "Look at the quotas of the project; raise the one that the message names.",
        pattern=r"[Qq]uota (?:metric )?.{0,80}exceeded|Quota exceeded|quotaExceeded|usageLimits|"
        r"(?:exceeded|insufficient).{0,40}\bquota|billing account|DailyLimitExceeded",
        transient=True,
    ),
    Rule(
        "no-capacity",
        _POLICY,
        "no capacity",
        "The machines asked for are not to be had at the moment.",
        "Wait, or ask for another zone or a smaller slice.",
        pattern=r"no more capacity in the zone|ZONE_RESOURCE_POOL_EXHAUSTED|STOCKOUT|"
        r"does not have enough resources available|InsufficientInstanceCapacity",
        transient=True,
    ),
    Rule(
        "storage",
        _RESTART,
        "storage or network trouble",
        "A service or the network did not answer as it should; that passes.",
        "None needed: it is restarted. If it stays, look at the state of the service.",
        pattern=rf"{_HTTP}(?:408|429|50[0234])\b|\b(?:429 Too Many Requests|500 Internal|502 Bad "
        r"Gateway|503 Service|504 Gateway)|[Tt]oo [Mm]any [Rr]equests|rateLimitExceeded|SlowDown|"
        r"[Rr]ate.?[Ll]imit|All \d+ retry attempts failed|Max retries exceeded|backendError|"
        r"[Rr]etry (?:deadline|budget|timeout).{0,40}exceeded|Timeout of [\d.]+s exceeded|"
        r"Deadline of [\d.]+s exceeded|Connection(?: to \S+)? timed out|Read timed out|"
        r"[Nn]etwork is unreachable|No route to host|Temporary failure in name resolution|"
        r"Name or service not known|NameResolutionError|[Cc]ould not resolve host|"
        r"Failed to establish a new connection|nodename nor servname|SSL(?:Error|EOFError)|"
        r"Remote end closed connection|IncompleteRead|RemoteDisconnected|ProtocolError|"
        r"Server disconnected|CURL error|curl_easy|[Cc]lientConnectorError|"
        r"\[Errno (?:5|70|100|101|103|104|107|108|110|111|112|113|116|121)\]|Stale file handle|"
        r"os_error_code='(?:5|104|107|110|111|116|121)'|Transport endpoint is not connected|"
        r"Input/output error|[Cc]heck your (?:internet )?connection",
        transient=True,
    ),
    Rule(
        "program-input-mismatch",
        _FATAL,
        "the program was given other inputs than it was compiled for",
        "Hosts run different programs, or a compiled program gets other inputs than its own.",
        _FIX_CODE,
        pattern=r"RuntimeProgramInputMismatch|inconsistent HLO module|"
        r"unexpected peer shows up in the launch group|compiled with .{0,80}called with",
    ),
    Rule(
        "compile",
        _FATAL,
        "compilation failed",
        "The program cannot be compiled for these devices; it never will be as it is.",
        _FIX_CODE,
        pattern=r"CompileTime\w+|compile permanent error|[Cc]ompilation failure|"
        r"[Rr]an out of memory in memory space|exceeded scoped vmem|"
        r"Unimplemented primitive in Pallas|MLIR translation rule for primitive|"
        r"[Mm]osaic failed|MosaicError|failed to legalize|LoweringError|LoweringException|"
        r"Cannot lower|lowering rule|Lowering rule|VerificationError|Pallas TPU|"
        r"(?:while|during|in) (?:HLO |XLA )?compil(?:ing|ation)|[Ff]ailed to compile|"
        r"XlaCompile|ptxas|Unsupported (?:target|conversion|element type|HLO)|"
        r"Bad lhs type|Invalid (?:block|grid|vector) (?:shape|layout)|"
        r"HLO verification|RET_CHECK failure \S*(?:compiler|hlo|service|layout|verifier)",
    ),
    Rule(
        "device-assert",
        _FATAL,
        "an assertion failed on the device",
        "The program itself asked the device to stop.",
        _FIX_CODE,
        pattern=r"observed errors are: \[User\]|BoundsCheck|device-side assert",
    ),
    Rule(
        "hardware",
        _RESTART,
        "hardware or interconnect fault",
        "The runtime reports a fault of the hardware, not of the program.",
        "If it comes back, have the host replaced.",
        pattern=r"observed errors are: \[(?:Hardware|Network|Power)\]|[Ss]lice failure|ICI link|"
        r"MXLA error|Megascale|[Uu]ncorrectable ECC|\bXid\b|CUDA_ERROR_(?:ECC|ILLEGAL|LAUNCH|"
        r"HARDWARE|NVLINK)|[Cc]ore halted|[Hh]ost unreachable|GPU has fallen off the bus",
        transient=True,
    ),
    Rule(
        "busy-accelerator",
        _RESTART,
        "accelerator busy or not ready",
        "The accelerator is held by another process or not ready yet; it may be free in a while.",
        "Look for another process on the accelerator.",
        pattern=r"TPU is already in use|libtpu_lockfile|libtpu.so already in use|iommu group|"
        r"/dev/vfio|"
        r"/dev/accel|TPU initialization failed|No accelerator found|TPU platform|"
        r"[Dd]evice or resource busy|CUDA_ERROR_(?:NOT_READY|SYSTEM_NOT_READY|NO_DEVICE)|"
        r"Failed to get (?:global TPU topology|TPU metadata)",
        transient=True,
    ),
    Rule(
        "backend-missing",
        _FATAL,
        "no such backend",
        "The installed jaxlib or libtpu cannot serve the platform that is asked for.",
        "Install the jax, jaxlib and libtpu that fit each other and the machine.",
        pattern=r"[Uu]nknown backend|not in the list of known backends|requires.{0,40}jaxlib|"
        r"jaxlib (?:version|was built|is version)|was built using AVX|incompatible with jax|"
        r"cannot open shared object file|undefined symbol|GLIBC",
    ),
    Rule(
        "port-in-use",
        _RESTART,
        "a port is in use",
        "Another process holds the port; the next attempt takes another one or finds it free.",
        _NONE_NEEDED,
        pattern=r"Failed to start RPC server|[Aa]ddress already in use|\[Errno 98\]",
        transient=True,
    ),
    Rule(
        "backend-failed",
        _RESTART,
        "the backend could not be initialised",
        "The accelerator's runtime did not come up; that may pass.",
        "Look for another process on the accelerator, and whether the devices are there.",
        pattern=r"Unable to initialize backend|Backend .{0,20}failed to initialize",
        transient=True,
        confidence=_MEDIUM,
    ),
    Rule(
        "lost-peer",
        _RESTART,
        "lost a peer",
        "Another worker or the coordination service went away; this one is a victim.",
        _SEE_PEERS,
        pattern=r"tasks are unhealthy|[Cc]oordination ?[Ss]ervice|[Cc]oordination agent|"
        r"heartbeat|incarnation|[Bb]arrier (?:has )?(?:failed|timed out)|Barrier result|"
        r"Shutdown barrier|another task died|distributed service detected|RegisterTask|"
        r"Connection (?:closed|reset|refused|aborted)|Socket closed|[Bb]roken pipe|"
        r"grpc_status\"?:(?:1|4|10|14)\b|[Gg]loo\b.{0,400}(?:[Cc]onnection|timed out|[Tt]imeout|"
        r"failed)|NCCL (?:operation|error)|remote process exited|[Ff]ailed to connect to|"
        r"GetKeyValue\(\) timed out|[Rr]endezvous.{0,80}(?:stuck|timed out|terminat)|"
        r"preemption (?:sync|notice)|[Pp]reempted|failed to join|Timed out (?:waiting|while)|"
        r"jax.distributed.{0,60}(?:timed out|[Tt]imeout)",
        transient=True,
        victim=True,
        confidence=_MEDIUM,
    ),
    Rule(
        "lost-worker",
        _RESTART,
        "a helper process died",
        "A process that worked for this one (data loading, Ray) was killed or crashed.",
        "If it comes back, read what the helper printed, and look at the host's memory.",
        pattern=r"[Ww]orker process was terminated|process pool was terminated|terminated abruptly|"
        r"exited unexpectedly|worker process has died|ended unexpectedly|died unexpectedly|"
        r"unexpectedly (?:exit|die|crash|terminat)|Owner's|node (?:died|failed|was terminated)|"
        r"The actor is (?:temporarily )?unavailable|data input stall|"
        r"exit code -\d+|was killed by signal",
        transient=True,
        victim=True,
        confidence=_MEDIUM,
    ),
    Rule(
        "corrupt-checkpoint",
        _POLICY,
        "a checkpoint is damaged",
        "What is stored cannot be decoded; the same bytes will not be decoded next time either.",
        "Move the newest checkpoint aside; the one before it may be whole.",
        pattern=r"Encountered error while reading array index|Error decoding|checksum|CRC-?32|"
        r"Error parsing|[Cc]orrupt|[Tt]runcated|Error opening \"\w+\" driver: (?:Metadata at|Error "
        r"reading) (?:local )?(?:file)?.*(?:does not exist|/local/|d/[0-9a-f]+)|"
        r"Error reading .{0,200}in OCDBT database|No structure could be identified|"
        r"manifest\.ocdbt|[Uu]npack failed|incomplete input|[Uu]nexpected end of (?:data|input|"
        r"file)|"
        r"[Bb]ad magic|BadZipFile|not a zip file|UnpicklingError|zlib\.error|zstd|"
        r"Failed to read .{0,60}_?METADATA|not a valid (?:checkpoint|msgpack)|ExtraData|OutOfData",
    ),
    Rule(
        "unreadable-checkpoint",
        _POLICY,
        "a checkpoint is damaged",
        "What is stored cannot be decoded; the same bytes will not be decoded next time either.",
        "Move the newest checkpoint aside; the one before it may be whole.",
        types=("JSONDecodeError", "UnicodeDecodeError", "EOFError", "error", "BadGzipFile"),
        stages=("RESTORING",),
    ),
    Rule(
        "out-of-memory",
        _POLICY,
        "out of device memory at run time",
        "Memory ran out while the program ran; fragmentation may not repeat.",
        "If it comes back: a smaller micro batch, or more accumulation.",
        pattern=r"RuntimeBufferAllocationFailure|RuntimeProgramAllocationFailure|"
        r"[Oo]ut of memory|OUT_OF_MEMORY|Attempting to (?:allocate|reserve)|"
        r"[Ff]ailed to allocate|Error allocating device buffer|"
        rf"{_STATUS}RESOURCE_EXHAUSTED\b(?!.{{0,200}}(?:[Mm]essage larger|max_receive))",
    ),
    Rule(
        "not-finite",
        _POLICY,
        "NaN or Inf in the training",
        "The numbers are no numbers any more; an earlier state and other luck may avoid it.",
        "Look at the data and the learning rate at that step.",
        types=("FloatingPointError",),
    ),
    Rule(
        "not-finite-text",
        _POLICY,
        "NaN or Inf in the training",
        "The numbers are no numbers any more; an earlier state and other luck may avoid it.",
        "Look at the data and the learning rate at that step.",
        pattern=r"^[^\n]*(?:\b(?:nan|NaN|NAN|NaNs|nans|inf|Inf|[Nn]on-?[Ff]inite|not finite|"
        r"isfinite|"
        r"all_?finite|tree_all_finite|is_?nan)\b|\b[Dd]iverged\b|\bloss (?:spike|explo))",
    ),
    Rule(
        "checkpoint-structure",
        _FATAL,
        "checkpoint does not fit the program",
        "The newest checkpoint holds another model or optimizer than the config describes.",
        "Go back to the config of the checkpoint, or use another model_dir.",
        pattern=r"not compatible with the stored shape|tree structures? (?:do|does) not match|"
        r"Topology mismatch detected|Structure mismatch: Target path|"
        r"checkpoint in .* does not fit the config|state dict keys do not match|"
        r"StepAlreadyExistsError|"
        r"[Dd]ict key mismatch|PyTreeDef mismatch|on-disk (?:tree|structure)|"
        r"do not match, target dict|Custom node type mismatch|[Tt]ree structure mismatch|"
        r"was not found in the checkpoint|[Cc]heckpoint path should be absolute|"
        r"Sharding .{0,80}incompatible with",
    ),
    Rule(
        "shapes",
        _FATAL,
        "shapes or shardings do not fit",
        "The shapes, dtypes or shardings in the program do not fit each other.",
        _FIX_CODE,
        pattern=r"[Ii]ncompatible shapes|dot_general requires|cannot reshape|"
        r"could not be broadcast|"
        r"Non-hashable static arg|product of mesh_shape|Resource axis.*not found in mesh|"
        r"Array has been deleted|Buffer has been (?:deleted|donated)|donated buffer|"
        r"Incorrect output shape|divisible by|[Ss]hape mismatch|out_specs|in_specs|mesh axis|"
        r"addressable devices|fully addressable|array of size \d+ into shape",
    ),
    Rule(
        "data-range",
        _FATAL,
        "data that the program cannot take",
        "The data holds what the program refuses; it will be the same data next time.",
        "Correct the data or the vocabulary; then run the same command again.",
        pattern=r"out of range for vocab|out.of.(?:bounds|range)|vocab(?:_| )?size",
    ),
    Rule(
        "no-such-object",
        _FATAL,
        "a file is missing or may not be read",
        "What the configuration names does not exist or is not allowed.",
        _FIX_CONFIG,
        pattern=rf"{_HTTP}(?:403|404|410)\b|\b404 (?:Not Found|Client Error|GET)|"
        rf"does not have storage|"
        r"RepositoryNotFound|EntryNotFound|RevisionNotFound|GatedRepo|NoSuch(?:Key|Bucket)|"
        rf"AccessDenied|{_STATUS}(?:NOT_FOUND|PERMISSION_DENIED)\b|[Nn]o such file or directory|"
        r"Permission denied|Read-only file system|\[Errno (?:1|2|13|17|20|21|30|36)\]|"
        r"os_error_code='(?:1|2|13|20|21|30|36)'",
    ),
)

_OF_THE_STATUS: tuple[Rule, ...] = (
    Rule(
        "data-loss",
        _RESTART,
        "the runtime reports lost data",
        "DATA_LOSS without a word of stored data: memory or the interconnect.",
        "If it comes back, have the host replaced.",
        pattern=rf"{_STATUS}DATA_LOSS\b",
        transient=True,
    ),
    Rule(
        "unavailable",
        _RESTART,
        "a service was not available",
        "The status is one of those that pass.",
        "None needed: it is restarted. If it stays, look at the state of the service.",
        pattern=rf"{_STATUS}(?:UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED|CANCELLED)\b",
        transient=True,
        victim=True,
        confidence=_MEDIUM,
    ),
    Rule(
        "invalid",
        _FATAL,
        "the program asked for what cannot be done",
        "The status says that the request itself is wrong.",
        _FIX_CODE,
        pattern=rf"{_STATUS}(?:INVALID_ARGUMENT|UNIMPLEMENTED|OUT_OF_RANGE|FAILED_PRECONDITION)\b",
        confidence=_MEDIUM,
    ),
    Rule(
        "usage",
        _FATAL,
        "the command line or config is refused",
        "The program does not take the options that it was given.",
        _FIX_CONFIG,
        pattern=r"error: (?:unrecognized|the following|argument|invalid|ambiguous)|"
        r"FATAL Flags parsing error|Could not override|Key '.*' is not in struct|"
        r"^\S*python\S*: (?:No module named|can't open file)|[Cc]ommand not found|"
        r"[Ee]xec format error",
    ),
)

_OF_THE_TYPE: tuple[Rule, ...] = (
    Rule(
        "interrupted",
        _RESTART,
        "interrupted",
        "Somebody interrupted the program; it says nothing against it.",
        _NONE_NEEDED,
        types=("KeyboardInterrupt",),
        transient=True,
    ),
    Rule(
        "tracing",
        _FATAL,
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
            "KeyReuseError",
            "IndivisibleError",
            "ShardingTypeError",
            "NotImplementedError",
        ),
    ),
    Rule(
        "assertion",
        _FATAL,
        "an assertion failed",
        "The program states that this must not happen; trying again does not change that.",
        _FIX_CODE,
        types=(
            "AssertionError",
            "JaxRuntimeCheckError",
            "OOBError",
            "FailedCheckError",
            "checkify.JaxRuntimeError",
        ),
    ),
    Rule(
        "invalid-config",
        _FATAL,
        "invalid configuration",
        "The configuration is refused by the program.",
        _FIX_CONFIG,
        types=(
            "ValidationError",
            "ConfigError",
            "OmegaConfBaseException",
            "UsageError",
            "omegaconf.*",
            "hydra.*",
            "absl.flags.*",
            "yaml.*",
            "jsonschema.*",
            "jaxtyping.*",
            "beartype.*",
            "gin.*",
            "fiddle.*",
        ),
    ),
    Rule(
        "broken-program",
        _FATAL,
        "the program is broken",
        "Code that is missing or cannot be parsed does not get better by itself.",
        _FIX_CODE,
        types=(
            "ImportError",
            "ModuleNotFoundError",
            "SyntaxError",
            "IndentationError",
            "TabError",
            "NameError",
            "UnboundLocalError",
        ),
    ),
    Rule(
        "timeout",
        _RESTART,
        "something took too long",
        "A wait came to its end: for capacity, a worker or a service.",
        "If it comes back, see what it waits for, and whether that can ever be there.",
        types=(
            "TimeoutError",
            "GetTimeoutError",
            "Timeout",
            "ReadTimeout",
            "ConnectTimeout",
            "ConnectionError",
            "ConnectionResetError",
            "ConnectionRefusedError",
            "ConnectionAbortedError",
            "ConnectError",
            "ReadError",
            "RetryError",
            "TransportError",
            "ServiceUnavailable",
            "InternalServerError",
            "TooManyRequests",
            "DeadlineExceeded",
            "GatewayTimeout",
            "BadGateway",
            "gaierror",
            "PlacementGroupSchedulingError",
        ),
        transient=True,
    ),
    Rule(
        "pipe",
        _RESTART,
        "the other end of a pipe went away",
        "Who read from it, or wrote into it, is gone.",
        _NONE_NEEDED,
        types=("BrokenPipeError", "EOFError", "BrokenProcessPool", "IncompleteReadError"),
        transient=True,
        victim=True,
        confidence=_MEDIUM,
    ),
    Rule(
        "lost-actor",
        _RESTART,
        "a Ray worker died",
        "Ray lost the process or the node that the work ran on.",
        "If it comes back, look at the node's memory and at Ray's logs.",
        types=(
            "ActorDiedError",
            "RayActorError",
            "ActorUnavailableError",
            "WorkerCrashedError",
            "NodeDiedError",
            "ObjectLostError",
            "OwnerDiedError",
            "ObjectFetchTimedOutError",
            "LocalRayletDiedError",
            "RaySystemError",
        ),
        transient=True,
        victim=True,
        confidence=_MEDIUM,
    ),
    Rule(
        "expired-login",
        _POLICY,
        "credentials are missing or have expired",
        "The storage or the hub does not accept who we say we are; a new token may.",
        "Renew the credentials (gcloud auth, service account, HF_TOKEN).",
        types=("RefreshError", "DefaultCredentialsError", "Unauthenticated", "Unauthorized"),
        transient=True,
    ),
    Rule(
        "missing-file",
        _FATAL,
        "a file is missing or may not be read",
        "A path in the configuration does not exist or is not allowed.",
        _FIX_CONFIG,
        types=(
            "FileNotFoundError",
            "PermissionError",
            "NotADirectoryError",
            "IsADirectoryError",
            "FileExistsError",
            "NotFound",
            "Forbidden",
        ),
    ),
    Rule(
        "program-error",
        _FATAL,
        "an error in the program",
        "Errors of this type come from the code, its settings or its data: they come back.",
        _FIX_CODE,
        types=(
            "ValueError",
            "TypeError",
            "LookupError",
            "KeyError",
            "IndexError",
            "AttributeError",
            "ArithmeticError",
            "ZeroDivisionError",
            "OverflowError",
            "RecursionError",
            "UnicodeError",
            "UnicodeDecodeError",
            "UnicodeEncodeError",
            "JSONDecodeError",
            "StopIteration",
            "DataError",
            "flax.*",
            "chex.*",
            "optax.*",
            "haiku.*",
            "equinox.*",
            "einops.*",
            "sentencepiece.*",
            "tokenizers.*",
            "datasets.*",
        ),
        confidence=_MEDIUM,
    ),
    Rule(
        "exception",
        _RESTART,
        "an exception",
        "No rule says that it can never succeed.",
        "If it comes back, read the traceback.",
        types=("BaseException",),
        confidence=_LOW,
    ),
)

_OF_THE_EXIT: tuple[Rule, ...] = (
    Rule(
        "sigterm",
        _RESTART,
        "preempted (SIGTERM that the supervisor did not send)",
        "Somebody else told the worker to stop: as a rule the machine is being taken away.",
        _NONE_NEEDED,
        charge=Charge.PREEMPTIONS,
        signals=("SIGTERM",),
        transient=True,
        confidence=_MEDIUM,
    ),
    Rule(
        "sigkill",
        _POLICY,
        "killed",
        "Killed from outside: by the kernel for memory, by a person, or by the platform.",
        "If it comes back, look for the kernel's out-of-memory killer (dmesg).",
        signals=("SIGKILL",),
        transient=True,
        confidence=_LOW,
    ),
    Rule(
        "cpu-mismatch",
        _FATAL,
        "built for another processor",
        "The program has instructions that this processor does not know.",
        "Install builds of jaxlib and the other libraries that fit the machine.",
        signals=("SIGILL",),
        confidence=_MEDIUM,
    ),
    Rule(
        "crash",
        _RESTART,
        "crashed",
        "Native code crashed; that may not repeat.",
        "If it comes back, look at the end of the worker's output for a native stack.",
        signals=("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGTRAP", "SIGSYS"),
        confidence=_LOW,
    ),
    Rule(
        "not-executable",
        _FATAL,
        "the command cannot be run",
        "A shell or wrapper could not find or run the command.",
        _FIX_CONFIG,
        exit_codes=(126, 127),
    ),
    Rule(
        "early-exit",
        _RESTART,
        "ended before its work was done",
        "It exited with code 0, but the success criterion does not hold.",
        "If it comes back, see why the program ends early, or correct `success`.",
        exit_codes=(0,),
        transient=True,
        confidence=_MEDIUM,
    ),
    Rule(
        "unknown",
        _RESTART,
        "unknown",
        "Nothing says that it can never succeed.",
        "If it comes back, read the worker's output.",
        confidence=_LOW,
    ),
)

RULES = (*_OF_THE_TEXT, *_OF_THE_STATUS, *_OF_THE_TYPE, *_OF_THE_EXIT)
