"""Rules about errors in the code and its settings: what cannot be imported, parsed or traced.

A rule here is certain only if no trouble outside the program is ever reported like that. A
half-installed package, a lost mount and a missing result look like errors of code too, so the other
rules are guesses.
"""

from __future__ import annotations

from supervisor.diagnosis.rules.rule import FATAL, Rule
from supervisor.diagnosis.rules.wording import ASSERTION, FIX_CODE, FIX_CONFIG, MISFIT_SHAPES
from supervisor.diagnosis.speakers import NOT_IO, Speaker

_BUILTIN = r"^(?:builtins\.)?"
"""Begins a pattern, before one of Python's own types. A traceback leaves out the module `builtins`;
a failure record has it."""

_CONFIG_TYPES = (
    "*ValidationError",
    "*ConfigError",
    "*ConfigurationError",
    "UsageError",
    "*ArgumentError",
    "omegaconf.*",
    "hydra.*",
    "absl.flags.*",
    "yaml.*",
    "toml*.*",
    "jsonschema.*",
    "jaxtyping.*",
    "beartype.*",
    "gin.*",
    "ml_collections.*",
    "tyro.*",
    "draccus.*",
)
_CODE_TYPES = ("SyntaxError", "IndentationError", "TabError")
_CONFIG = (
    "invalid configuration",
    "The configuration is refused by the program.",
    FIX_CONFIG,
)
_CODE_ERROR = (
    "an error in the program",
    "Errors of this type come from the code or its settings, whatever words are in them.",
    FIX_CODE,
)
CODE_ERROR_TYPES = (
    "TypeError",
    "AttributeError",
    "NameError",
    "UnboundLocalError",
    "RecursionError",
)
_TRACING = (
    "tracing or lowering failed",
    "JAX cannot trace the program: it fails the same way every time.",
    FIX_CODE,
)
_BROKEN = (
    "the program is broken",
    "Code that is missing or cannot be parsed does not get better by itself.",
    FIX_CODE,
)
_MISSING = (
    "a module is missing",
    _BROKEN[1],
    "Install it for the interpreter in the command, as the program's own requirements name it (a "
    "package may be called otherwise than its module), or correct the import; run the same command "
    "again.",
)

RULES_WITHOUT_CONTEXT = (
    Rule(
        "invalid-config-alone",
        FATAL,
        *_CONFIG,
        types=_CONFIG_TYPES,
        speakers=NOT_IO,
        without_context=True,
    ),
    Rule(
        "unparsable",
        FATAL,
        *_BROKEN,
        types=_CODE_TYPES,
        speakers=(Speaker.OWN, Speaker.LIBRARY),
        without_context=True,
        certain=True,
    ),
    Rule("broken-program-alone", FATAL, *_BROKEN, types=_CODE_TYPES, without_context=True),
    Rule(
        "own-error",
        FATAL,
        *_CODE_ERROR,
        types=("TypeError", "AttributeError", "NameError", "UnboundLocalError"),
        # A value may be None because something outside failed before.
        patterns=(r"^(?![^\n]*\bNoneType\b)",),
        speakers=(Speaker.OWN,),
        without_context=True,
        certain=True,
    ),
    Rule(
        "jax-shapes",
        FATAL,
        *MISFIT_SHAPES,
        types=("TypeError", "ValueError"),
        patterns=(
            r"\b\w+ got incompatible shapes for broadcasting: |Incompatible (?:shapes|types) for "
            r"broadcasting: |dot_general requires (?:contracting|batch) dimensions ",
            r"cannot reshape array of shape \([\d, ]*\) \(size \d+\) into shape",
            r"Cannot concatenate arrays with (?:shapes that differ|different numbers of dim)",
            r"dynamic_(?:update_)?slice .{0,60}must have the same rank as operand",
            r"conv_general_dilated .{0,120}dimension size",
            r"vmap got inconsistent sizes for array axes",
            r"Size of label '.' for operand \d+ \(\d+\) does not match previous terms",
        ),
        speakers=(Speaker.OWN, Speaker.LIBRARY),
        without_context=True,
        per_rung=True,
        certain=True,
    ),
    Rule("program-error-alone", FATAL, *_CODE_ERROR, types=CODE_ERROR_TYPES, without_context=True),
    Rule(
        "no-standard-input",
        FATAL,
        "there is no standard input",
        "The program asks a person for a line, and nobody can answer: its standard input is empty.",
        "Give the answer by an option, a file or an environment variable (`--yes`, `WANDB_MODE`), "
        "or take the question out; run the same command again.",
        types=("EOFError",),
        patterns=(rf"{_BUILTIN}EOFError: EOF when reading a line\s*$",),
        without_context=True,
    ),
    Rule(
        "missing-key",
        FATAL,
        "an error in the program",
        "A key or a variable that the program asks for is not there.",
        FIX_CODE,
        types=("KeyError",),
        # A key that is missing in a server's answer is not the program's error.
        speakers=NOT_IO,
        patterns=(rf"{_BUILTIN}KeyError: '?[\w.\[\]/-]{{0,80}}'?\s*$",),
        without_context=True,
    ),
)
RULES = (
    Rule(
        "tracing",
        FATAL,
        *_TRACING,
        types=(
            "ConcretizationTypeError",
            "TracerArrayConversionError",
            "TracerBoolConversionError",
            "TracerIntegerConversionError",
            "UnexpectedTracerError",
            "NonConcreteBooleanIndexError",
            "errors.KeyReuseError",
            "IndivisibleError",
            "ShardingTypeError",
            "TraceContextError",
            "JaxTransformError",
        ),
        per_rung=True,
        certain=True,
    ),
    Rule(
        "not-implemented",
        FATAL,
        *_TRACING,
        types=("NotImplementedError",),
        per_rung=True,
    ),
    Rule("assertion", FATAL, *ASSERTION, types=("AssertionError",), speakers=NOT_IO),
    Rule("invalid-config", FATAL, *_CONFIG, types=_CONFIG_TYPES, speakers=NOT_IO),
    Rule(
        "missing-module",
        FATAL,
        *_MISSING,
        types=("ModuleNotFoundError", "ImportError"),
        # Not "(unknown location)": Python says that of a package of which only the folder exists.
        patterns=(r"No module named ", r"cannot import name '[^'\n]{1,80}' from .{1,200}\(/"),
        without_context=True,
        certain=True,
    ),
    Rule(
        "broken-program",
        FATAL,
        *_BROKEN,
        types=(
            *_CODE_TYPES,
            "ImportError",
            "ModuleNotFoundError",
            "PackageNotFoundError",
            "DistributionNotFound",
            "*VersionConflict",
        ),
    ),
)
