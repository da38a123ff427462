"""Rules about the state of the training: checkpoints, device memory, NaN and Inf."""

from __future__ import annotations

from supervisor.config.judgement import Remedy
from supervisor.diagnosis.rules.rule import FATAL, POLICY, Rule
from supervisor.diagnosis.rules.wording import (
    CHECKPOINT_FRAMES,
    FIX_CONFIG,
    OWN_TRAINER_REPLAYS,
    OWN_TRAINER_SKIPS,
    STATUS,
)

_DAMAGED = "a checkpoint is damaged"
_DAMAGED_REASON = "What is stored cannot be decoded; it will not be next time either."
_DAMAGED_ADVICE = "Move the newest checkpoint aside; the one before it may be whole."
_UNDECODABLE = (
    r"(?i)(?<!memory )(?<!heap )corrupt|"
    r"truncated|checksum|CRC-?32|\bCRC\b|bad magic|magic (?:number|bytes)",
    r"(?i)unpack failed|incomplete input|unexpected end of (?:data|input|file)|ran out of input",
    r"(?i)not a (?:zip|gzip|valid(?! model))|BadZipFile|BadGzipFile|UnpicklingError|pickle data|"
    r"invalid load key",
    r"(?i)zlib\.error|zstd|lz4|invalid (?:block|header|compressed)|incorrect header|ExtraData",
    r"(?i)OutOfData|extra data|HeaderTooLarge|HeaderTooSmall|InvalidHeader|"
    r"MetadataIncompleteBuffer",
    r"(?i)PytorchStreamReader|failed finding central directory|end-of-stream marker|short read",
)
_NAN_OR_INF = r"(?:(?:nan|inf)(?!-\w)|NaN|NAN|NaNs|nans|Inf|INF|infs)"
_NOT_A_NUMBER = (
    r"(?<![\w/@])(?<!\w[.-])(?<!(?i:user|host)[ =:])(?<!(?i:user|host) ['\"])"
    r"(?<!(?i:bucket|folder)[ =:])(?<!(?i:bucket|folder) ['\"])"
    rf"(?:(?:jax\.)?(?:np|jnp|numpy|math|torch)\.)?(?:{_NAN_OR_INF}/)*{_NAN_OR_INF}\b(?![/@]|\.\w)"
)
"""NaN or Inf as a value; not as a part of a path, a URL, a file name, or the name of something."""
UNDECODABLE_RULES = frozenset(
    {
        "corrupt-checkpoint",
        "undecodable-while-restoring",
        "undecodable-in-a-restore",
        "unreadable-while-restoring",
        "unreadable-in-a-restore",
        "incomplete-checkpoint",
        "undecodable-data",
    }
)
"""The rules about what is stored and cannot be decoded."""
NOT_FINITE = "not-finite"
NOT_NUMBERS = (
    "NaN or Inf in the training",
    "The loss became NaN or Inf; going back to the last checkpoint may avoid it.",
    f"{OWN_TRAINER_REPLAYS}Find the first step whose loss or gradient norm is out of line: often "
    "it is some steps before the one that failed. Look at its data, and at the learning rate and "
    "clipping before it. "
    f"Before you go on, see that the newest checkpoint has no NaN yet.{OWN_TRAINER_SKIPS}",
)
"""Cause, reason and advice."""
_STRUCTURE = (
    "checkpoint does not fit the program",
    "The newest checkpoint holds another model or optimizer than the config describes.",
    "If the message begins with start_from, correct init.model of that phase, or start_from. Else "
    "go back to the config of the checkpoint, or use another model_dir.",
)

RULES = (
    Rule(
        "corrupt-checkpoint",
        POLICY,
        _DAMAGED,
        _DAMAGED_REASON,
        _DAMAGED_ADVICE,
        patterns=(
            r"Encountered error while reading array index|manifest\.ocdbt|"
            r"^(?!.{0,200}Error writing)[^\n]*in OCDBT database",
            # TensorFlow's tensor_bundle.cc
            r"calculated on the restored bytes",
            r"Error reading .{0,300}(?:/local/|/d/[0-9a-f]+)|No structure could be identified|"
            r"Available items: \[\]",
            r"(?i)error (?:decoding|parsing).{0,300}(?:ocdbt|zarr|manifest|checkpoint|ckpt)",
            r"(?i)(?:checkpoint|ckpt|safetensors|\.msgpack|_METADATA)[^\n]{0,200}(?:corrupt|"
            r"truncated|"
            r"checksum|damaged|incomplete|unreadable|malformed|not valid json)",
            r"(?i)(?:corrupt|truncated|damaged|incomplete|malformed|"
            r"invalid)\w* (?:\w+ )?(?:checkpoint|"
            r"ckpt|safetensors)|not a valid (?:checkpoint|msgpack)|SafetensorError",
        ),
    ),
    Rule(
        "undecodable-while-restoring",
        POLICY,
        _DAMAGED,
        _DAMAGED_REASON,
        _DAMAGED_ADVICE,
        patterns=_UNDECODABLE,
        stages=("RESTORING",),
    ),
    Rule(
        "undecodable-in-a-restore",
        POLICY,
        _DAMAGED,
        _DAMAGED_REASON,
        _DAMAGED_ADVICE,
        patterns=_UNDECODABLE,
        frames=CHECKPOINT_FRAMES,
    ),
    Rule(
        "unreadable-while-restoring",
        POLICY,
        _DAMAGED,
        _DAMAGED_REASON,
        _DAMAGED_ADVICE,
        types=(
            "JSONDecodeError",
            "UnicodeDecodeError",
            "EOFError",
            "*FormatError",
            "struct.error",
        ),
        stages=("RESTORING",),
    ),
    Rule(
        "unreadable-in-a-restore",
        POLICY,
        _DAMAGED,
        _DAMAGED_REASON,
        _DAMAGED_ADVICE,
        types=("JSONDecodeError", "UnicodeDecodeError", "EOFError", "struct.error"),
        frames=CHECKPOINT_FRAMES,
    ),
    Rule(
        "incomplete-checkpoint",
        POLICY,
        _DAMAGED,
        "A part of what a checkpoint holds is not there; the save was cut off, or files were lost.",
        _DAMAGED_ADVICE,
        patterns=(r"Error opening \"\w+\" driver: Metadata at .{0,400}does not exist",),
        frames=CHECKPOINT_FRAMES,
    ),
    Rule(
        "undecodable-data",
        FATAL,
        "data that cannot be decoded",
        "The bytes of the data are damaged or of another format; they are the same next time.",
        "Replace the file that the message or the traceback names (if they name none, look first "
        "at the newest file that the program has saved); a checkpoint that a kill has cut, move "
        "into another folder. Then run the command again.",
        # Only exceptions: printed lines have these words for cut logs and texts, too.
        types=("BaseException",),
        patterns=_UNDECODABLE,
    ),
    Rule(
        "out-of-memory",
        POLICY,
        "out of device memory at run time",
        "Memory ran out while the program ran; fragmentation may not repeat.",
        "If it comes back: a request for more than the device has at all comes from a wrong shape "
        "at that line. Else a smaller micro batch, or more accumulation, helps.",
        patterns=(
            r"RuntimeBufferAllocationFailure|RuntimeProgramAllocationFailure|OUT_OF_MEMORY",
            r"(?i)out of memory|ran out of memory|attempting to (?:allocate|reserve)|\bOOM\b",
            r"(?i)failed to allocate|error allocating device buffer|allocation (?:failure|failed)",
            r"(?i)(?:insufficient|not enough) (?:device |gpu |hbm |free )?memory|OutOfMemoryError",
            rf"{STATUS}RESOURCE_EXHAUSTED\b(?!.{{0,200}}(?:[Mm]essage larger|max_receive))",
        ),
        remedy=Remedy.LESS_AT_ONCE,
    ),
    Rule(
        NOT_FINITE,
        POLICY,
        *NOT_NUMBERS,
        types=("FloatingPointError",),
        remedy=Remedy.ROLL_BACK,
    ),
    Rule(
        "not-finite-text",
        POLICY,
        *NOT_NUMBERS,
        patterns=(
            rf"^[^\n]*{_NOT_A_NUMBER}",
            r"^[^\n]*\b(?:is_?nan|is_?inf|isfinite)\b",
            r"(?i)^[^\n]*(?:\bnon-?finite|not finite|all_?finite|infinite (?:loss|grad)|"
            r"diverged\b)",
            r"(?i)^[^\n]*\b(?:loss|grad\w*|norm)\b.{0,40}(?:spike|explo|diverg|blew up|overflow)",
        ),
        remedy=Remedy.ROLL_BACK,
    ),
    Rule(
        "checkpoint-structure",
        FATAL,
        *_STRUCTURE,
        patterns=(
            r"(?i)not compatible with the stored shape|tree structures? (?:do|does|did) not match",
            r"(?i)target dict keys and state dict keys do not match|PyTreeDef mismatch|"
            r"dict key mismatch|structure mismatch: target path",
            r"(?i)checkpoint in .{1,300} does not fit the config|custom node type mismatch",
            r"(?i)checkpoint path should be absolute|unsupported type: <class .{1,80}for key",
        ),
        certain=True,
    ),
    Rule(
        "checkpoint-mismatch",
        FATAL,
        *_STRUCTURE,
        # Not certain: a checkpoint that lacks a part, or a folder that is not mounted, gives the
        # same errors.
        patterns=(
            r"(?i)(?:topology|structure) mismatch|state[_ ]dict keys do not match",
            r"StepAlreadyExistsError|(?i:on-disk (?:tree|structure))",
            r"(?i)(?:not|n't) (?:was )?(?:found|present|exist) in (?:the )?(?:checkpoint|ckpt|"
            r"state[_ ]dict)|loading state_dict for",
            # torch/distributed/checkpoint/default_planner.py
            r"(?i)(?:missing|unexpected) (?:key|parameter|leaf|leaves)\w*.{0,60}(?:checkpoint|"
            r"state_dict|restor)",
            r"(?i)no (?:checkpoint|step)s? (?:was |were )?(?:found|available|exist)",
        ),
    ),
    Rule(
        "checkpoint-destination",
        FATAL,
        "the checkpoint cannot be written there",
        "The place that the config names cannot take a checkpoint.",
        FIX_CONFIG,
        # tensorstore's OCDBT driver: another writer uses the same place
        patterns=(
            r"Configuration mismatch on \w+: expected",
            r"(?i)destination .{0,300}already exists|directory .{0,300}is not empty",
        ),
    ),
)
