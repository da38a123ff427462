"""Rules about the world outside the program: disks, limits, credentials, services, the network."""

from __future__ import annotations

from supervisor.core.outcome import Charge
from supervisor.core.remedy import Remedy
from supervisor.core.rules.phrases import FIX_PATH, HTTP, SEE_SERVICE, STATUS
from supervisor.core.rules.rule import FATAL, NO_SPACE, POLICY, RESTART, Rule

DISK_FULL = "disk-full"

_LIMIT = "a limit of the host is reached"
_LIMIT_REASON = "The host refused memory, files or processes; that may pass, or it is too low."
_LIMIT_ADVICE = "Look at ulimit, /dev/shm and the memory of the host or container."
_LOGIN = "credentials are missing or have expired"
_LOGIN_REASON = "The storage or the hub does not accept who we say we are; a new token may."
_LOGIN_ADVICE = "Renew the credentials (gcloud auth, service account, HF_TOKEN)."

RULES = (
    Rule(
        "devices-missing",
        RESTART,
        "fewer devices than there should be",
        "The backend found fewer devices than the attempt was started for; they may come back.",
        "None needed where the ladder has a smaller rung; else give the job what it asks for.",
        types=("DevicesMissing",),
        transient=True,
        hardware=True,
    ),
    Rule(
        "devices-differ",
        FATAL,
        "devices found differ from the config",
        "The backend found other devices than trainer.init.devices asks for.",
        "Correct trainer.init.devices, or give the job the devices it asks for.",
        types=("DevicesDiffer",),
        certain=True,
    ),
    Rule(
        "no-usable-checkpoint",
        FATAL,
        "every checkpoint is damaged",
        "The files of every checkpoint differ from what was saved; starting afresh is not ours to "
        "decide.",
        "Put an undamaged copy in place, or do as the message says to start from the beginning; "
        "then run the same command again. Suspect the storage.",
        types=("NoUsableCheckpointError",),
    ),
    Rule(
        "foreign-checkpoint",
        FATAL,
        "the checkpoints may be another program's",
        "No checkpoint can be restored, and some are not known to be this job's; to pass over them "
        "for good is not ours to decide.",
        "Move what is not this job's away, or choose another trainer.init.checkpoint.directory; "
        "then run the same command again.",
        types=("ForeignCheckpointError",),
        certain=True,
    ),
    Rule(
        "unmarked-checkpoint",
        FATAL,
        "a checkpoint lacks the mark of its commit",
        "A step above all committed ones is none itself, and may be somebody's copy; to train on "
        "would overwrite it.",
        "Do as the message says: complete the copy and add the mark, or remove the step; then run "
        "the same command again.",
        types=("UnmarkedCheckpointError",),
        certain=True,
    ),
    Rule(
        "checkpoint-unreadable",
        RESTART,
        "storage or network trouble",
        "Nobody can tell now whether the newest step is a committed checkpoint; to take an older "
        "one would be to throw it away.",
        "See that the checkpoint that the message names can be read, or move it away.",
        types=("UnreadableCheckpointError",),
        transient=True,
    ),
    Rule(
        "fenced",
        RESTART,
        "the job has another owner",
        "The trainer could not see that its supervisor still owns the job, so it committed "
        "nothing more.",
        "None needed where another supervisor has the job; else see that the file with its owner "
        "can be read.",
        types=("FencedError",),
        transient=True,
    ),
    Rule(
        DISK_FULL,
        POLICY,
        "disk full",
        "No space was left on the device; it may be freed.",
        "Free space under model_dir (or enlarge /dev/shm, where that is what is full).",
        patterns=(
            r"(?i)no space left on device|disk quota exceeded|\bENOSPC\b|\bEDQUOT\b",
            r"(?i)(?:not enough|insufficient|no) (?:free |available )?(?:disk )?space\b",
            r"(?i)(?:disk|volume|filesystem|device) (?:is )?full\b",
            r"os_error_code='(?:28|122)'|\[Errno (?:28|122)\]",
        ),
        transient=True,
    ),
    Rule(
        "disk-full-silently",
        POLICY,
        "disk full",
        "The disk of model_dir has no room, which is reported in many ways.",
        "Free space under model_dir.",
        patterns=(r"(?i)\b(?:write|save|saving|flush|close|bus error|input/output)",),
        facts=(NO_SPACE,),
        transient=True,
    ),
    Rule(
        "offline",
        FATAL,
        "the network is switched off by a setting",
        "The program is told to work offline, and what it wants is not in its cache.",
        "Fill the cache, or take HF_HUB_OFFLINE (or the like) out of the environment.",
        patterns=(r"(?i)offline mode|outgoing traffic has been disabled|HF_\w*OFFLINE",),
    ),
    Rule(
        "resource-limit",
        POLICY,
        _LIMIT,
        _LIMIT_REASON,
        _LIMIT_ADVICE,
        types=("MemoryError", "*MemoryError", "ObjectStoreFullError", "PlasmaObjectNotAvailable"),
        patterns=(r"^(?!.*(?i:cuda|hip|hbm|device|gpu|tpu))",),
        transient=True,
    ),
    Rule(
        "resource-limit-text",
        POLICY,
        _LIMIT,
        _LIMIT_REASON,
        _LIMIT_ADVICE,
        patterns=(
            r"\[Errno (?:11|12|23|24|27)\]|os_error_code='(?:11|12|23|24|27)'",
            r"(?i)too many open files|cannot allocate memory|file too large\b",
            r"(?i)can't start new thread(?! at interpreter)|std::bad_alloc|pthread_create failed",
            r"(?i)(?:unable|failed) to (?:create|start|spawn) (?:a )?(?:new )?(?:thread|process)",
            r"(?i)resource temporarily unavailable",
            r"(?i)(?:insufficient|out of|enlarge|raise your|limited by) ?(?:the )?shared memory",
            r"(?i)/dev/shm\b.{0,80}(?:full|too small|space|limit|size)|\bshm_open\b|Bus error",
            r"(?i)ulimit|RLIMIT_\w+|memory limit (?:of|exceeded)|exceed\w* .{0,30}memory limit",
            r"OutOfMemoryError: (?:Task|Actor|\d+ [Ww]orkers?)|node running low on memory",
            r"(?i)(?:exit ?code:?|signal:?|returncode:?|status:?) -9\b",
            r"(?i)killed by (?:the )?(?:kernel'?s? )?oom|\bOOMKilled\b|signal: killed",
            r"(?i)\boom-kill:|\b\d+ oom[-_ ]kill",
            r"(?i)object store (?:is )?(?:full|memory)|unable to allocate .{1,40} for an array",
        ),
        transient=True,
    ),
    Rule(
        "no-such-place",
        FATAL,
        "a repository or bucket does not exist, or is closed to us",
        "What the program asks for is not there for us, whoever we say we are.",
        FIX_PATH,
        types=("RepositoryNotFoundError", "RevisionNotFoundError", "DatasetNotFoundError"),
    ),
    Rule(
        "expired-credentials",
        POLICY,
        _LOGIN,
        _LOGIN_REASON,
        _LOGIN_ADVICE,
        patterns=(
            r"(?i)invalid_grant|invalid credentials|invalid_token|\bExpired?Token|invalid_client",
            r"(?i)(?:token|credentials?|session|certificate|login|key)s? (?:has |have |is |are |"
            r"was )?"
            r"(?:been )?(?:expired|revoked)",
            r"(?i)(?:unable|could not|cannot|can't|failed) (?:to )?(?:locate|find|load|refresh|"
            r"retrieve|obtain|get|determine).{0,40}(?:credentials|access token|api.?key)",
            r"(?i)default credentials were not found|could not be refreshed|RequestTimeTooSkewed",
            r"(?i)reauthentication is needed|InvalidAccessKeyId|SignatureDoesNotMatch|authError",
            r"(?i)NoCredentials|PartialCredentials|CredentialRetrieval|AnonymousCredentials",
            r"(?i)not (?:logged in|authenticated)\b|login required|invalid (?:user )?(?:access )?"
            r"(?:token|api.?key)|api_?key not configured|token is required|missing api.?key",
            rf"{STATUS}UNAUTHENTICATED\b|{HTTP}401\b|\b401 (?:Client Error|Unauthorized)",
        ),
        transient=True,
        remedy=Remedy.WAIT_LONG,
    ),
    Rule(
        "quota",
        POLICY,
        "a quota is used up",
        "The quota of a service is exhausted; it is refilled with time or raised by a person.",
        "Look at the quotas of the project; raise the one that the message names.",
        patterns=(
            r"(?i)quota (?:metric )?.{0,80}(?:exceeded|exhausted|reached)|quotaExceeded|"
            r"usageLimits",
            r"(?i)(?:exceed\w*|insufficient|exhausted|over)\b.{0,40}\bquota",
            r"(?i)billing (?:account|is disabled|not enabled|has been)|(?:Daily|User)LimitExceeded",
        ),
        transient=True,
        remedy=Remedy.WAIT_LONG,
    ),
    Rule(
        "no-capacity",
        POLICY,
        "no capacity",
        "The machines asked for are not to be had at the moment.",
        "Wait, or ask for another zone or a smaller slice.",
        patterns=(
            r"(?i)no more capacity in the zone|ZONE_RESOURCE_POOL_EXHAUSTED|\bSTOCKOUT\b",
            r"(?i)does not have enough resources available|Insufficient\w*Capacity",
        ),
        charge=Charge.NOTHING,
        transient=True,
        remedy=Remedy.WAIT_FOR_CAPACITY,
    ),
    Rule(
        "storage",
        RESTART,
        "storage or network trouble",
        "A service or the network did not answer as it should; that passes.",
        SEE_SERVICE,
        patterns=(
            rf"{HTTP}(?:408|425|429|5(?:00|02|03|04|2\d))\b",
            r"(?i)\b(?:408 request timeout|429 (?:too many|client error)|500 (?:internal|server)|"
            r"502 (?:bad|server)|503 (?:service|server|slow|get|post|put|patch|delete)|"
            r"504 (?:gateway|server|deadline))",
            r"(?i)too many requests|rateLimitExceeded|\bSlowDown\b|throttl|backendError|"
            r"rate.?limit(?:ed|ing|er)?\b.{0,40}(?:exceed|reach|hit|error)|"
            r"exceed.{0,40}rate.?limit|"
            r"rate.?limited",
            r"(?i)(?:temporarily|currently|service) (?:is )?(?:unavailable|overloaded)",
            r"(?i)(?:service|server|backend|endpoint|network|host) (?:is )?(?:temporarily )?"
            r"(?:unavailable|unreachable|overloaded|not responding)",
            r"(?i)all \d+ (?:retry )?attempts failed|max retries exceeded|retries exhausted|"
            r"(?:giving up|failed) after \d+ (?:retries|attempts|tries)",
            r"(?i)(?:retry|deadline|timeout) (?:of [\d.]+ ?s\w* )?(?:deadline |budget |limit )?"
            r"(?:has been |was )?exceeded",
            r"(?i)(?:connection|connect|read|request|operation|socket|handshake)\b.{0,60}"
            r"(?:timed out|timeout)|timed out.{0,40}(?:connect|read|request)",
            r"(?i)network is (?:unreachable|down)|no route to host|host is (?:down|unreachable)",
            r"(?i)(?:temporary failure|error|failure) in name resolution|name or service not known|"
            r"nameresolution|could ?n[o']t? resolve host|nodename nor servname|\bgetaddrinfo\b|"
            r"no address associated with hostname|\bdns\b.{0,40}(?:fail|error|timed? ?out)",
            r"(?i)failed to establish a new connection|SSL(?:Error|EOFError|:)|_ssl\.c|ssl_error",
            r"(?i)remote end closed connection|IncompleteRead|RemoteDisconnected|ProtocolError",
            r"(?i)server disconnected|peer closed connection|CURL error|curl_easy|ChunkedEncoding",
            r"(?i)clientConnectorError|unexpected eof while reading|connection pool",
            r"\[Errno (?:5|70|100|101|103|104|107|108|110|111|112|113|116|121)\]",
            r"os_error_code='(?:5|70|100|101|103|104|107|108|110|111|112|113|116|121)'",
            r"(?i)stale (?:nfs )?file handle|transport endpoint is not connected|remote i/o error",
            r"(?i)input/output error|we encountered an internal error",
            r"(?i)/upload/storage/v1/b/\S*[?&]upload(?:Type=resumable|_id=)",
            r"(?i)generation mismatch|conditionNotMet|pre-?conditions? you specified did not hold",
            r"(?i)database is locked|could not (?:acquire|obtain) (?:a |the )?lock|text file busy",
        ),
        transient=True,
    ),
)
