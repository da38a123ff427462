"""Rules about errors of I/O: hubs, stores, databases, the network, other machines.

First come a setting that forbids the network, and repositories that do not exist. Then come
credentials, quotas and capacity, by structured code (`tables.py`) or by words. Then come the other
codes, and between them bytes that were damaged in a transfer. Last come types that mean one thing
only, and words about services and networks that are away for a while.

The rule `io-error`, near the end of the table, has the remaining errors of I/O libraries: it
restarts, and compares their signatures. Words alone make an error of an I/O library FATAL only by a
rule that names its speakers (see `rules/__init__.py`).
"""

from __future__ import annotations

from supervisor.config.judgement import Remedy
from supervisor.diagnosis.outcome import Charge
from supervisor.diagnosis.rules import tables
from supervisor.diagnosis.rules.rule import FATAL, MEDIUM, POLICY, RESTART, Rule
from supervisor.diagnosis.rules.wording import FIX_PATH, SEE_SERVICE, STATUS
from supervisor.diagnosis.speakers import ANYBODY, Speaker

_IO = (Speaker.IO,)
_NO_PLACE = (
    "a repository or bucket does not exist, or is closed to us",
    "What the program asks for does not exist, or we may not read it.",
    FIX_PATH,
)
_LOGIN = (
    "credentials are missing or have expired",
    "The storage or the hub rejects our credentials; a new token may be accepted.",
    "Renew the credentials (gcloud auth, service account, HF_TOKEN).",
)
_QUOTA = (
    "a quota is used up",
    "The quota of a service is exhausted; it is refilled with time or raised by a person.",
    "Look at the quotas of the project; raise the one that the message names.",
)
_TROUBLE = (
    "storage or network trouble",
    "A service or the network did not answer as it should; that passes.",
    SEE_SERVICE,
)
_REFUSED = (
    "a service refuses the request",
    "The code of the error says that the same request is refused again: its object does not exist, "
    "these credentials may not use it, or the request is wrong.",
    FIX_PATH,
)
_IN_TRANSIT = (
    "a transfer came in damaged",
    "Bytes were cut or broken on their way; another transfer brings them whole.",
    SEE_SERVICE,
)
_BROKEN = (
    r"checksum|\bcrc(?:-?32c?)?\b|\bmd5\b|\bsha-?(?:1|256|512)\b|\bdigest|\bhash\b|corrupt|"
    r"truncat|incomplete|decod|decompress|\binflate|zlib|gzip|size mismatch|of size \d|"
    r"sizes differ|bytes (?:missing|remaining|expected|read|received)|"
    r"expected \d+ (?:more )?bytes|unexpected end|short read|premature"
)
"""Words for damaged bytes, from any code that compares or decodes them."""

RULES = (
    Rule(
        "offline",
        FATAL,
        "the network is switched off by a setting",
        "The program is told to work offline, and a file that it needs is not in its cache.",
        "Fill the cache, or take HF_HUB_OFFLINE (or the like) out of the environment.",
        # huggingface_hub/utils/_http.py and file_download.py. Not "offline mode" alone: advice has
        # these words too.
        patterns=(
            r"(?i)offline mode is (?:enabled|set|on)|outgoing traffic has been disabled",
            r"HF_\w*OFFLINE\b['\"`]?(?: is set|=(?:1|[Tt]rue))",
        ),
        speakers=ANYBODY,
    ),
    Rule(
        "no-such-place",
        FATAL,
        *_NO_PLACE,
        # Before the codes: the Hub answers 401 for a repository that does not exist.
        types=("RepositoryNotFoundError", "RevisionNotFoundError", "DatasetNotFoundError"),
    ),
    Rule(
        "no-such-place-text",
        FATAL,
        *_NO_PLACE,
        patterns=(r"\bRepository Not Found for url\b|\bRevision Not Found for url\b",),
        speakers=ANYBODY,
    ),
    Rule(
        "tracker-refused",
        FATAL,
        "the experiment tracker refuses the run",
        "The tracker has this run already, with other values or as deleted, and refuses it each "
        "time.",
        "Log the same values as before under this run's id, or leave those out that change (wandb: "
        "`config.update(..., allow_val_change=True)`). Restore a deleted run, or give it a new id; "
        "run the same command again.",
        patterns=(
            # wandb sdk/wandb_config.py; W&B's server
            r"\bAttempted to change value of key \"",
            r"\brun \S+ was previously created and deleted\b",
            # mlflow store/tracking/file_store.py, sqlalchemy_store.py
            r"\bChanging param values is not allowed\.",
        ),
        speakers=ANYBODY,
    ),
    Rule(
        "rejected-credentials",
        POLICY,
        *_LOGIN,
        codes=tables.CREDENTIALS,
        transient=True,
        remedy=Remedy.WAIT_LONG,
    ),
    Rule(
        "expired-credentials",
        POLICY,
        *_LOGIN,
        patterns=(
            r"(?i)invalid_grant|invalid credentials|invalid_token|\bExpired?Token|invalid_client",
            r"(?i)(?:token|credentials?|session|certificate|login|key)s? (?:has |have |is |are |"
            r"was )?"
            r"(?:been )?(?:expired|revoked)",
            r"(?i)(?:unable|could not|cannot|can't|failed) (?:to )?(?:locate|find|load|refresh|"
            r"retrieve|obtain|get|determine).{0,40}(?:credentials|access token|api.?key)",
            # google.auth
            r"(?i)default credentials were not found|credentials cannot be refreshed",
            r"(?i)reauthentication is needed|InvalidAccessKeyId|SignatureDoesNotMatch|authError",
            r"(?i)NoCredentials|PartialCredentials|CredentialRetrieval",  # botocore
            r"(?i)not (?:logged in|authenticated)\b|invalid (?:user )?(?:access )?"
            r"(?:token|api.?key)|api_?key not configured|token is required",
            rf"{STATUS}UNAUTHENTICATED\b",
        ),
        transient=True,
        remedy=Remedy.WAIT_LONG,
    ),
    Rule(
        "quota-code",
        POLICY,
        *_QUOTA,
        codes=tables.QUOTA,
        transient=True,
        remedy=Remedy.WAIT_LONG,
    ),
    Rule(
        "rate-limit",
        RESTART,
        *_TROUBLE,
        # Before the rule `quota`: Google's text for this speaks of a quota, too.
        codes=tables.RATE_LIMIT,
        transient=True,
    ),
    Rule(
        "quota",
        POLICY,
        *_QUOTA,
        patterns=(
            r"(?i)quota (?:metric )?.{0,80}(?:exceeded|exhausted|reached)|quotaExceeded",
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
        "The requested machines are not available at the moment.",
        "Wait, or ask for another zone or a smaller slice.",
        patterns=(
            r"(?i)no more capacity in the zone|ZONE_RESOURCE_POOL_EXHAUSTED",
            r"(?i)does not have enough resources available|Insufficient\w*Capacity",
        ),
        charge=Charge.NOTHING,
        transient=True,
        remedy=Remedy.WAIT_FOR_CAPACITY,
    ),
    Rule(
        "server-full",
        POLICY,
        "a server has no room",
        "The disk of a store or database is full; it may be freed.",
        "Free space where the message says, or give the server more.",
        codes=tables.SERVER_FULL,
        transient=True,
    ),
    Rule("passing-code", RESTART, *_TROUBLE, codes=tables.PASSING, transient=True),
    Rule(
        "message-too-large",
        FATAL,
        *_REFUSED,
        # The code alone is not enough: gRPC also uses it if the server has no room at the moment.
        codes=("grpc:RESOURCE_EXHAUSTED",),
        patterns=(r"message larger than max",),
        speakers=_IO,
    ),
    Rule(
        "passing-call",
        RESTART,
        "a service was not available",
        "The status of the call is one of those that pass.",
        SEE_SERVICE,
        codes=tables.RPC_PASSING,
        speakers=_IO,
        transient=True,
        victim=True,
        confidence=MEDIUM,
    ),
    Rule(
        "broken-transfer",
        RESTART,
        *_IN_TRANSIT,
        types=(
            # HTTP clients and stores raise these for the body of a response, never for a file.
            "IncompleteRead",
            "IncompleteReadError",
            "ContentDecodingError",
            "ChunkedEncodingError",
            "ClientPayloadError",
            "ContentTooShortError",
            "InvalidChunkLength",
            "ResponseStreamingError",
            "FlexibleChecksumError",
            "google.resumable_media.*DataCorruption",
            "gcsfs.*ChecksumError",
            "httpx.DecodingError",
            "urllib3.exceptions.DecodeError",
            # A response that cannot be parsed has no status of its own: aiohttp calls it 400.
            "aiohttp.http_exceptions.*",
            "redis.exceptions.InvalidResponse",
        ),
        transient=True,
    ),
    Rule(
        "broken-download",
        RESTART,
        *_IN_TRANSIT,
        # huggingface_hub, hf_xet, torch.hub, TFDS, pooch, Keras, gsutil, gcloud storage, rclone.
        # Not transient: if the digest in the program is wrong, the failure comes back the same.
        patterns=(
            r"(?i)\bconsistency check failed: file should be of size",
            r"(?i)\bfile reconstruction error\b|\bCAS (?:client|service) error\b",
            rf"(?i)\b(?:down|up)load(?:ed|ing|s)?\b[^\n]{{0,200}}(?:{_BROKEN})",
            r"\bNonMatchingChecksumError\b",
            rf"(?i)(?:{_BROKEN})[^\n]{{0,200}}(?:\b(?:down|up)load(?:ed|ing|s)?\b|"
            r"\bon transfer\b|\bin transit\b|\bcontent-encoding\b|\bresponse body\b|"
            r"\bcloud-supplied\b)",
            r"invalid hash value \(expected",
        ),
    ),
    Rule(
        "lost-upload",
        RESTART,
        *_TROUBLE,
        # https://cloud.google.com/storage/docs/performing-resumable-uploads: the client has to
        # begin the upload again
        codes=("http:404", "http:410"),
        patterns=(r"[?&]upload_id=", r"(?i)\bresum(?:ing|able) upload\b"),
        transient=True,
    ),
    Rule(
        "refused-code",
        FATAL,
        *_REFUSED,
        codes=tables.STAYING,
    ),
    Rule("refused-call", FATAL, *_REFUSED, codes=tables.RPC_STAYING, speakers=_IO),
    Rule(
        "broken-answer",
        RESTART,
        *_IN_TRANSIT,
        patterns=(rf"(?i){_BROKEN}",),
        speakers=_IO,
        transient=True,
    ),
    Rule(
        "passing-type",
        RESTART,
        *_TROUBLE,
        types=(
            # PyMongo: a server starts, stops or fails over
            "AutoReconnect",
            # Nobody answers, or what is in between fails
            "LocalEntryNotFoundError",
            "ServerNotFoundError",
            "NoValidConnectionsError",
            "ProxyError",
            "ConnectionClosedError",
            "MailboxError",
            "MailboxClosedError",
            "HandleAbandonedError",
            "WandbServiceConnectionError",
        ),
        speakers=_IO,
        transient=True,
    ),
    Rule(
        "passing-words",
        RESTART,
        *_TROUBLE,
        # PostgreSQL's postmaster, etcd's server/etcdserver/errors, gRPC core, HTTP/2, paramiko's
        # transport: a server starts, stops or fails over, or a stream ends
        patterns=(
            r"(?i)(?:starting|shutting) (?:up|down)\b|\bshut ?down\b",
            r"(?i)too many (?:clients|connections)|connection slots are reserved|server is busy",
            r"(?i)\bno leader\b|leader changed|not (?:the )?(?:leader|primary|master)\b",
            r"(?i)stream (?:removed|reset|closed|terminated|error)|RST_STREAM|GOAWAY|EOF detected",
            r"(?i)(?:connection|server|peer|session|socket|channel|transport)\b[^\n]{0,40}\b"
            r"(?:closed|reset|dropped|lost|aborted|gone|disconnected|terminated|interrupted)\b",
            r"(?i)ssh protocol banner|invalid packet blocking|mismatched mac\b",
            r"(?i)(?:could ?n[o']t|unable to|failed to|error) communicat",
            r"(?i)temporar(?:y|ily)|try again|timed? ?out\b|is loading\b|disk I/O error",
        ),
        speakers=_IO,
        transient=True,
    ),
    Rule(
        "refused-request",
        FATAL,
        "a request is wrong as it is",
        "The library refuses the URL, name or argument before it asks anybody.",
        FIX_PATH,
        types=(
            "requests.exceptions.InvalidURL",
            "requests.exceptions.MissingSchema",
            "requests.exceptions.InvalidSchema",
            "requests.exceptions.InvalidHeader",
            "http.client.InvalidURL",
            "urllib3.exceptions.LocationParseError",
            "urllib3.exceptions.URLSchemeUnknown",
            "httpx.UnsupportedProtocol",
            "httpx.InvalidURL",
            "aiohttp.*InvalidURL",
            "aiohttp.*InvalidUrlClientError",
            "requests.exceptions.TooManyRedirects",
            "HFValidationError",
            "botocore.exceptions.ParamValidationError",
            "botocore.exceptions.ProfileNotFound",
            "botocore.exceptions.NoRegionError",
            "botocore.exceptions.Unknown*",
            "botocore.exceptions.Invalid*",
            "pymongo.errors.ConfigurationError",
            "pymongo.errors.InvalidURI",
            "pymongo.errors.InvalidName",
            "redis.exceptions.DataError",
            "paramiko.*BadHostKeyException",
            "paramiko.*PasswordRequiredException",
            "paramiko.*AuthenticationException",
            "*.ProgrammingError",
            "*.IntegrityError",
            "*.NotSupportedError",
            "kubernetes.*ConfigException",
            "wandb.*UsageError",
        ),
        speakers=_IO,
    ),
    Rule(
        "storage",
        RESTART,
        *_TROUBLE,
        patterns=(
            r"(?i)too many requests|rateLimitExceeded|\bSlowDown\b|throttl|\bbackendError|"
            r"rate.?limit(?:ed|ing|er)?\b.{0,40}(?:exceed|reach|hit|error)|"
            r"exceed.{0,40}rate.?limit",
            r"(?i)(?:temporarily|currently|service) (?:is )?(?:unavailable|overloaded)",
            r"(?i)(?:service|server|backend|endpoint|network|host) (?:is )?(?:temporarily )?"
            r"(?:unavailable|unreachable|overloaded|not responding)",
            r"(?i)all \d+ (?:retry )?attempts failed|max retries exceeded|"
            r"(?:giving up|failed) after \d+ (?:retries|attempts|tries)",
            r"(?i)(?:retry|deadline|timeout) (?:of [\d.]+ ?s\w* )?(?:deadline |budget |limit )?"
            r"(?:has been |was )?exceeded",
            r"(?i)(?:connection|connect|read|request|operation|socket|handshake)\b.{0,60}"
            r"(?:timed out|timeout)|timed out.{0,40}(?:connect|read|request)",
            r"(?i)connection to the server .{1,100} was refused|toomanyrequests",
            r"(?i)network is (?:unreachable|down)|no route to host|host is (?:down|unreachable)",
            r"(?i)(?:temporary failure|error|failure) in name resolution|name or service not known|"
            r"nameresolution|(?:could ?n[o']t?|unable to) resolve host|"
            r"\bgetaddrinfo\b|"
            r"no address associated with hostname|\bdns\b.{0,40}(?:fail|error|timed? ?out)",
            r"(?i)failed to establish a new connection|SSL(?:Error|EOFError|:)|_ssl\.c|ssl_error",
            r"(?i)remote end closed connection|IncompleteRead|RemoteDisconnected|ProtocolError",
            r"(?i)server disconnected|peer closed connection|CURL error|ChunkedEncoding",
            r"(?i)unexpected eof while reading",
            r"(?i)stale (?:nfs )?file handle|transport endpoint is not connected|remote i/o error",
            r"(?i)input/output error|we encountered an internal error",
            r"(?i)generation mismatch|conditionNotMet|pre-?conditions? you specified did not hold",
            r"(?i)error happened while trying to locate the files? on the Hub",
            r"(?i)database is locked|could not (?:acquire|obtain) (?:a |the )?lock|text file busy",
        ),
        transient=True,
    ),
)
