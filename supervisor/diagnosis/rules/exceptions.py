"""Rules about exception types, for errors whose text no earlier rule knows, and a few last texts.

Rules about errors in the code itself are in `code`.
"""

from __future__ import annotations

from supervisor.config.judgement import Remedy
from supervisor.diagnosis.outcome import Charge
from supervisor.diagnosis.rules.rule import FATAL, LOW, MEDIUM, POLICY, RESTART, TOLD_TO_STOP, Rule
from supervisor.diagnosis.rules.wording import (
    FIX_CODE,
    FIX_PATH,
    NONE_NEEDED,
    PREEMPTED,
    REQUIREMENTS,
    SEE_SERVICE,
)
from supervisor.diagnosis.speakers import NOT_IO, Speaker

_PASSING_WORDS = (
    r"(?:(?i:connect|socket|network|packet|https?\b|url\b|\bio\b|i/o|input/output|time[ds]?[ -]?"
    r"out|deadline|seconds|retr(?:y|ies)|attempt|\btr(?:y|ies)\b|again|temporar|unavailable|busy|"
    r"in use|lock|lease|held|wait|peer|\bworkers?\b|\bmembers?\b|process|\bnodes?\b|\bhosts?\b|"
    r"server|service|daemon|actor|replica|\branks? \d|pipe\b|queue|device|accelerator|driver|cuda|"
    r"cu[bd]\w+_status|\bhip\b|gpu|tpu|nccl|memory|killed|\bdied|\bdead|\blost\b|crash|"
    r"exit(?:ed)?\b|signal|download|upload|transfer|fetch|stream|\b(?:sav|writ|read)(?:e|ing)?\b|"
    r"unexpected|more bytes|went wrong|shut ?down|clos(?:ed|ing)|interrupt|cancel|abort|preempt|"
    r"heartbeat|(?:changed size|mutated) during|(?:internal|unknown) error|bad status|"
    r"status[ _]code|\b\d+\.\d+\.\d+\.\d+\b)|INTERNAL|UNKNOWN|UNAVAILABLE|Check failed)"
)
"""Words for things that may be different at the next attempt."""

_MISSING = (
    "a file is missing or may not be used",
    "A file or folder that the program uses is not there, is of another kind, or is not allowed.",
    FIX_PATH,
)
_EXISTS = (
    "a file exists already",
    "The program wants to make a file or folder that is there already, maybe since an earlier "
    "attempt.",
    "Let the program take up what is there (exist_ok=True), or move it away; run the same command "
    "again.",
)
SIGTERM_RULE = Rule(
    "exception-on-sigterm",
    RESTART,
    PREEMPTED,
    "It ended by an exception after a SIGTERM from somebody else; its handler raises it, or "
    "the save did not get done.",
    f"{NONE_NEEDED}find out who sends SIGTERM, and read the traceback.",
    charge=Charge.PREEMPTIONS,
    types=("BaseException",),
    facts=(TOLD_TO_STOP,),
    transient=True,
    confidence=MEDIUM,
)
RULES = (
    Rule(
        "timeout",
        RESTART,
        "something took too long or did not answer",
        "A wait for capacity, a worker or a service timed out.",
        "If it comes back, find out what it waits for, and whether that can ever be available.",
        types=(
            "*Timeout",
            "*TimeoutError",
            "*RetryError",
            "*UnavailableError",
            "*ServerError",
            "Aborted",
        ),
        transient=True,
    ),
    Rule(
        "connection",
        RESTART,
        "a connection failed",
        "A connection to a worker or a service was lost, or could not be made.",
        "If it comes back, see what it connects to, and why that does not answer.",
        types=(
            "*ConnectionError",
            "Connection*Error",
            "ConnectError",
            "httpx.ReadError",
            "httpcore.ReadError",
            "*TransportError",
        ),
        transient=True,
    ),
    Rule(
        "unschedulable",
        RESTART,
        "Ray finds no place for the work",
        "No node has what it asks for; one may join, or the request can never be met.",
        "If it comes back, compare what the task or actor asks for with what the nodes have.",
        types=("ActorUnschedulableError", "TaskUnschedulableError"),
    ),
    Rule(
        "pipe",
        RESTART,
        "the other end of a pipe went away",
        "The process at the other end of the pipe or connection is gone.",
        f"{NONE_NEEDED}see in the output which process that is, and why it ended.",
        types=(
            "BrokenPipeError",
            "EOFError",
            "CancelledError",
            "TaskCancelledError",
        ),
        transient=True,
        victim=True,
        confidence=MEDIUM,
    ),
    Rule(
        "lost-actor",
        RESTART,
        "a Ray worker died",
        "Ray lost the process or the node that the work ran on.",
        "If it comes back, look at the node's memory and at Ray's logs.",
        types=(
            "*ActorDiedError",
            "NodeDiedError",
            "Object*LostError",
            "OwnerDiedError",
            "ObjectFetchTimedOutError",
            "LocalRayletDiedError",
        ),
        transient=True,
        victim=True,
        confidence=MEDIUM,
    ),
    Rule(
        "expired-login",
        POLICY,
        "credentials are missing or have expired",
        "The storage or the hub rejects our credentials; a new token may be accepted.",
        "Renew the credentials (gcloud auth, service account, HF_TOKEN).",
        types=(
            "RefreshError",
            "*CredentialsError",
            "Unauthorized*",
            "*AuthenticationError",
        ),
        transient=True,
        remedy=Remedy.WAIT_LONG,
    ),
    Rule("file-exists", FATAL, *_EXISTS, types=("FileExistsError",)),
    Rule(
        "missing-file",
        FATAL,
        *_MISSING,
        types=(
            "*PermissionError",
            "NotADirectoryError",
            "IsADirectoryError",
            "*NotFound",
            "*NotFoundError",
            "*PermissionDenied*",
        ),
    ),
    Rule(
        "file-exists-text",
        FATAL,
        *_EXISTS,
        patterns=(r"(?i)\bfile exists\b|\[Errno 17\]|os_error_code='17'",),
    ),
    Rule(
        "missing-file-text",
        FATAL,
        *_MISSING,
        patterns=(
            r"(?i)no such file or directory|permission denied|read-only file system|file name too "
            r"long|operation not permitted|is a directory\b|not a directory\b",
            r"\[Errno (?:1|2|13|20|21|30|36)\]|os_error_code='(?:1|2|13|20|21|30|36)'",
            r"(?i)(?:file|directory|path|folder|dataset|checkpoint|tokenizer|"
            r"shard)\b.{0,200}(?:does "
            r"not|doesn't) exist|\bnot found:? ['\"/]",
            r"(?:^|\s)/\S{1,300} (?:does not|doesn't) exist\b",
        ),
    ),
    Rule(
        "program-error",
        FATAL,
        "an error in the program",
        "Errors of this type come from the code, its settings or its data: they come back.",
        FIX_CODE,
        types=(
            "LookupError",
            "ZeroDivisionError",
            "OverflowError",
            "RecursionError",
            "UnicodeError",
            "UnicodeEncodeError",
            "StopIteration",
            "struct.error",
            "*TypeError",
            "*ValueError",
            "*KeyError",
            "*IndexError",
            "*AttributeError",
            "*ShapeError",
            "*DataError",
            "*ParseError",
            "*DecodeError",
            "*SchemaError",
            "Unsupported*",
            "Invalid*",
            "Missing*",
            "Unknown*Error",
            "Duplicate*",
            "FrozenInstanceError",
            "PicklingError",
            "*Warning",
            "Arrow*",
            "flax.*",
            "haiku.*",
            "equinox.*",
            "einops.*",
            "datasets.*",
            "jinja2.*",
        ),
        speakers=NOT_IO,
        confidence=MEDIUM,
    ),
    Rule(
        "stated-requirement",
        FATAL,
        "the program refuses what it was given",
        "The text is that of a check, which fails the same way every time.",
        FIX_CODE,
        types=("BaseException",),
        patterns=REQUIREMENTS,
        confidence=MEDIUM,
    ),
    Rule(
        "suspected-connection",
        RESTART,
        "storage or network trouble",
        "The error advises to check the connection or to try again, so it suspects the network.",
        SEE_SERVICE,
        # transformers utils/hub.py; huggingface_hub file_download.py, utils/_http.py
        patterns=(
            r"(?i)check (?:your|the) (?:internet |network )?connect(?:ion|ivity)|"
            r"internet connection is on|"
            r"try (?:(?:your|the) request |(?:the )?download )?(?:again|later)|"
            r"retry (?:(?:your|the) request|(?:the )?download|the operation)",
        ),
        matches_suppositions=True,
        transient=True,
        confidence=LOW,
    ),
    SIGTERM_RULE,
    Rule(
        "plain-error",
        FATAL,
        "the program refuses to go on",
        "The text of this plain error names nothing that could be different at the next attempt.",
        FIX_CODE,
        types=("RuntimeError", "Exception"),
        speakers=NOT_IO,
        # Only these two types themselves: types derived from them have rules of their own.
        patterns=(
            rf"^(?:builtins\.)?(?:RuntimeError|Exception): (?![\s\S]*{_PASSING_WORDS})"
            r"[^\n]*\w",
        ),
        confidence=LOW,
    ),
    Rule(
        "io-error",
        RESTART,
        "an I/O error",
        "A library that talks to others failed without a code that is known; it may pass.",
        "If it comes back, see what the message names, and the state of the service.",
        types=("BaseException",),
        speakers=(Speaker.IO,),
        confidence=MEDIUM,
    ),
    Rule(
        "exception",
        RESTART,
        "an exception",
        "Unknown error: another attempt may succeed.",
        "If it comes back, read the traceback.",
        types=("BaseException",),
        confidence=LOW,
    ),
)
