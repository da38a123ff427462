"""Rules about the program itself, by the text of its errors: shapes, data, files, statuses."""

from __future__ import annotations

from supervisor.diagnosis.rules.rule import FATAL, MEDIUM, RESTART, Rule
from supervisor.diagnosis.rules.wording import (
    ASSERTION,
    FIX_CODE,
    FIX_CONFIG,
    FIX_PATH,
    MISFIT_SHAPES,
    NONE_NEEDED,
    SEE_SERVICE,
    STATUS,
)
from supervisor.diagnosis.speakers import ANYBODY, Speaker

_CHECKS = ("checkify.OOBError", "checkify.FailedCheckError", "checkify.JaxRuntimeError")
"""Types that checkify raises. It checks only what the program asks it to check."""
_OF_DATA = (
    r"(?:tokens?|vocab\w*|labels?|targets?|class(?:es)?|records?|samples?|examples?|datasets?|"
    r"embeddings?|(?:\w+_)?ids?)"
)
"""Words for what data and vocabularies hold. Python says `list index out of range` of any list."""
RULES = (
    Rule("check", FATAL, *ASSERTION, types=_CHECKS, certain=True),
    Rule(
        "chex",
        FATAL,
        *ASSERTION,
        types=("AssertionError",),
        frames=(r"(?:^|/)chex/_src/asserts\w*\.py:",),
        certain=True,
    ),
    Rule(
        "own-assertion",
        FATAL,
        *ASSERTION,
        types=("AssertionError",),
        speakers=(Speaker.OWN,),
        certain=True,
    ),
    Rule(
        "shapes",
        FATAL,
        *MISFIT_SHAPES,
        patterns=(
            r"(?i)incompatible shapes for|received incompatible devices|dot_general requires",
            r"(?i)non-hashable static arg|resource axis.{0,200}not found in mesh",
            r"(?i)incorrect output shape for return value|evenly divisible by the corr|"
            r"which implies that the global size of its dimension",
            r"\bout_specs which require\b|(?i:spans non-addressable)",
        ),
        per_rung=True,
        certain=True,
    ),
    Rule(
        "shapes-reported",
        FATAL,
        *MISFIT_SHAPES,
        # Not certain: half a file has another shape, too, and a failed step has deleted its inputs.
        patterns=(
            r"(?i)incompatible (?:shapes|devices|dtypes|sizes)|cannot reshape",
            r"(?i)could not (?:be )?broadcast|not broadcastable|cannot be (?:broadcast|multiplied)",
            r"(?i)product of mesh_shape",
            r"(?i)(?:array|buffer) has been (?:deleted|donated)|donated buffer|deleted or donated",
            r"(?i)incorrect output shape|divisible by|divides? evenly|(?:shape|size|dtype|rank|"
            r"dimension) ?mismatch|mismatch(?:ed)? (?:shape|size|dtype|dimension)",
            r"\bout_specs\b|\bin_specs\b|(?i:mesh axis|axis name|fully addressable|"
            r"addressable devices)",
            r"(?i)array of size \d+ into shape|same device|expected (?:shape|dtype|rank|ndim|size)",
        ),
        per_rung=True,
    ),
    Rule(
        "data-range",
        FATAL,
        "data that the program cannot take",
        "The data holds a value that the program refuses; the next attempt reads the same data.",
        "Correct the data or the vocabulary; then run the same command again.",
        patterns=(
            rf"(?i)\b{_OF_DATA}\b.{{0,100}}out.of.(?:bounds|range)\b|"
            rf"out.of.(?:bounds|range)\b.{{0,100}}\b{_OF_DATA}\b",
            r"index out of range in self",  # torch's embedding
            r"(?i)vocab(?:_| |ulary )?size|token.?ids?\b.{0,60}(?:exceed|invalid|larger|greater|"
            r"outside|>=)",
            rf"(?i)\b{_OF_DATA}\b.{{0,40}}(?:exceeds|is outside|too large for)",
        ),
    ),
    Rule(
        "no-such-object",
        FATAL,
        "an object or repository is missing or may not be read",
        "What the program asks for does not exist there, or we may not read it.",
        FIX_PATH,
        patterns=(
            r"does not have (?:storage|permission)",
            r"(?i)(?<!Local)EntryNotFound|GatedRepo|"
            r"NoSuch(?:Key|Bucket)|AccessDenied|bucket does not exist",
            r"(?i)not a (?:valid model identifier|local folder)|"
            r"does not appear to have a file named",
            r"(?i)can't load (?:the )?(?:tokenizer|config|model|feature)|couldn't find (?:a |any )?"
            r"(?:dataset|data|file|module)|repo(?:sitory)? (?:id|name) must|cannot find (?:the )?"
            r"(?:requested )?file|gated repo|is restricted and you",
            r"(?i)remote: Repository not found|pull access denied|no URLs matched",
            rf"{STATUS}(?:NOT_FOUND|PERMISSION_DENIED)\b",
        ),
    ),
    Rule(
        "check-your-connection",
        RESTART,
        "storage or network trouble",
        "A download failed, and the library suspects the network.",
        SEE_SERVICE,
        patterns=(r"(?i)could ?n[o']t? (?:reach|connect)",),
        transient=True,
    ),
    Rule(
        "data-loss",
        RESTART,
        "the runtime reports lost data",
        "DATA_LOSS that names no stored data comes from memory or the interconnect.",
        "If it comes back, have the host replaced.",
        patterns=(rf"{STATUS}DATA_LOSS\b",),
        transient=True,
    ),
    Rule(
        "unavailable",
        RESTART,
        "a service was not available",
        "The status is one of those that pass.",
        SEE_SERVICE,
        patterns=(
            rf"{STATUS}(?:UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED|CANCELLED)\b",
            rf"{STATUS}(?:Unavailable|Aborted|Deadline Exceeded|Cancelled): ",  # TensorFlow's names
        ),
        transient=True,
        victim=True,
        confidence=MEDIUM,
    ),
    Rule(
        "invalid",
        FATAL,
        "the program asked for what cannot be done",
        "The status says that the request itself is wrong.",
        FIX_CODE,
        patterns=(
            # Without FAILED_PRECONDITION and ALREADY_EXISTS: they report a state, which may pass.
            rf"{STATUS}(?:(?:INVALID_ARGUMENT|UNIMPLEMENTED|OUT_OF_RANGE)\b|"
            r"(?:Invalid argument|Unimplemented|Out of range): )"
            r"(?!.{0,200}\b(?:restarted|incarnation|disconnected|preempted|error state))",
        ),
        confidence=MEDIUM,
    ),
    Rule(
        "program-missing",
        FATAL,
        "the program is not there",
        "The script, module or command that should run is not there, or may not be read or run.",
        "Correct the command (relative paths are against the directory in which supervise was "
        "started), or put the program in place; run the same command again.",
        patterns=(
            r"^\S*python\S*: (?:No module named|can't open file|Error while finding module)",
            r"(?i)command not found|exec format error|^Error: Cannot find module '",
            r"^\S+: line \d+: (?:syntax error|unexpected EOF while)",
        ),
    ),
    Rule(
        "package-missing",
        FATAL,
        "a package cannot be installed",
        "pip or uv finds no version of a package that fits.",
        "Correct the requirement that the message names; run the same command again.",
        speakers=ANYBODY,
        patterns=(
            r"(?i)could not find a version that satisfies|no matching distribution found",
            r"\bNo solution found when resolving dependencies\b",  # uv
        ),
    ),
    Rule(
        "usage",
        FATAL,
        "the command line or config is refused",
        "The program does not take the options that it was given.",
        FIX_CONFIG,
        patterns=(
            r"(?i)(?<!cuda )\berror: (?:\(gcloud[\w.-]+\) )?(?:unrecognized|the following|argument|"
            r"invalid|ambiguous|no such option|missing|unknown)|flags parsing error|"
            r"unknown (?:command.line )?flags?\b|unknown option",
            r"(?i)no such option|missing (?:option|argument|command)\b|unexpected extra argument",
            r"Could not override|Key '.*' is not in struct|Missing mandatory value",
            r"(?i)invalid value for|\bunrecognized (?:config|option|argument|flag)",
            r": (?:unbound variable|parameter (?:null or )?not set)$",
        ),
    ),
    Rule(
        "interrupted",
        RESTART,
        "interrupted",
        "Somebody interrupted the program; the program is not at fault.",
        f"{NONE_NEEDED}find out who sends SIGINT.",
        types=("KeyboardInterrupt",),
        transient=True,
    ),
)
