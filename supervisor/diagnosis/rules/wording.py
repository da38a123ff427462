"""Texts and fragments of patterns that several rules share."""

from __future__ import annotations

import re

FROM_THE_NEWEST = " to go on from the newest checkpoint"
"""Ends an advice to run the command again; `advice_at_the_end` drops it where there is none."""
OWN_TRAINER_REPLAYS = (
    "Where supervise's own trainer runs, `supervise replay MODEL_DIR` first: it runs the step that "
    "failed again, and tells the records of its batch and where the first NaN or Inf is. "
)
"""Begins an advice; what tells it of another program drops it."""
OWN_TRAINER_SKIPS = (
    " Where supervise's own trainer runs, trainer.init.loop.skip_bad_batches passes over a few "
    "batches."
)
"""Ends an advice; what tells it of another program drops it."""
FIX_CODE = f"Fix the program; run the same command again{FROM_THE_NEWEST}."
FIX_CONFIG = "Correct the command line or the config, as the message says; run it again."
FIX_PATH = (
    "Correct what the message names where it is set (the command, the config or the program), or "
    "put it in place; run the same command again."
)
ASSERTION = (
    "an assertion failed",
    "The program states that this must not happen; trying again does not change that.",
    "Look at what it checks and at the values in its message, and correct what gave them: data, "
    f"config or program. Run the same command again{FROM_THE_NEWEST}.",
)
MISFIT_SHAPES = (
    "shapes or shardings do not fit",
    "The shapes, dtypes or shardings in the program do not fit each other.",
    "Correct what the message names in the program; if earlier steps went well, look first at the "
    f"data of this one. Run the same command again{FROM_THE_NEWEST}.",
)
KILLED_NOT_FOR_MEMORY = (
    "killed",
    "Nobody is told who sends SIGKILL: a person, a script, the platform, or the program "
    "itself. It was not the kernel for memory: the counter of the job's cgroup did not rise.",
    "If it comes back, find out who sends SIGKILL: supervise did not, and nor did the kernel for "
    "memory (the counter of the job's cgroup did not rise). If it dies at one step each time, look "
    "first for `os.kill` in the program and `kill` in its scripts; else at that time in the "
    "platform's own log (`journalctl`, Slurm's `sacct`, `kubectl describe pod`).",
)
REFUSED_INSTRUCTION = (
    "the processor refuses an instruction",
    "Native code was built for another processor, or divides an integer by zero.",
    "Install builds that fit this CPU; read the stacks (rank*.stacks.txt, output).",
)
NONE_NEEDED = "None needed: it is restarted. If it comes back, "
"""Begins an advice that is only for a failure which comes back; `advice_at_the_end` replaces it."""
_IF_BACK = re.compile(r"If it comes back[,:] ")
"""Begins an advice of more than a restart. `advice_at_the_end` drops it: then it did come back."""
SEE_SERVICE = f"{NONE_NEEDED}look at the state of the service."
WHO_STOPS_IT = f"{NONE_NEEDED}find out who sends SIGTERM."
PREEMPTED = "preempted (SIGTERM that the supervisor did not send)"

STATUS = r"(?:^|[\s:(\"'])"
"""Matches what precedes the name of an absl status."""
_NOT_BY_RUNTIME = r"(?i)^(?!\S*(?:(?:Xla|Jax)Runtime|\bOS|\bIO|NVML)Error)[^\n]*\b"
"""Matches the first line of any exception except those of the runtime, the system and drivers,
which use the words of `REQUIREMENTS` for passing troubles too."""
_COMES_AND_GOES = (
    r"(?:bytes|devices|workers|processes|hosts|peers|nodes|chips|replicas|addresses|connections)\b"
)
"""Things of which there may be too few for a while."""
REQUIREMENTS = (
    _NOT_BY_RUNTIME + r"(?:must (?:not )?(?:be|have|match|equal|contain|provide|specify|set|use)|"
    r"should (?:not )?(?:be|have|match|equal))",
    rf"(?i)^(?![^\n]*\b{_COMES_AND_GOES}|\S*(?:(?:Xla|Jax)Runtime|\bOS|\bIO|NVML)Error)"
    r"[^\n]*\bexpected\b.{0,100}\b(?:got|but|found|received)",
    _NOT_BY_RUNTIME + r"(?:not supported|does(?: not|n't) support|not implemented|misconfigured|"
    r"unsupported|unrecognized|incompatible|undefined)\b",
    _NOT_BY_RUNTIME + r"(?:unknown|invalid|illegal|duplicate) (?:\w+ ){0,2}(?:option|argument|"
    r"parameter|key|name|mode|choice|model|optimizer|scheduler|activation|loss|dtype|type|"
    r"config\w*|setting|value for)\b|(?i:\b(?:unknown|invalid) \w+:? ['\"])",
    _NOT_BY_RUNTIME + r"(?:is|are) (?:required|not (?:set|defined|allowed|installed|a valid|valid))"
    r"\b|(?i:\bdata\w* is empty\b)",
    _NOT_BY_RUNTIME + r"(?:only be called once|called before|before (?:any|calling|use)|cannot be "
    r"(?:used|called|set|changed|converted|None)|already (?:been )?(?:initialized|defined|"
    r"consumed|set))\b",
    _NOT_BY_RUNTIME + r"Internal: src/\w+\.cc",
)
"""Words of a check that holds or fails the same way every time."""
CHECKPOINT_FRAMES = (
    r"orbax[/.]",
    r"(?i)[/_.-](?:checkpoint|ckpt)\w*\.py:",
    r"(?i):\w*(?:restore|load_?(?:checkpoint|ckpt|state)|from_bytes|from_state_dict)\w*(?:\n|$)",
)
"""Frames of code that reads or writes checkpoints."""


def advice_at_the_end(advice: str, cause: str, *, has_checkpoint: bool) -> str:
    """Returns `advice` for a failure with this `cause` after which the program is not restarted."""
    advice = advice if has_checkpoint else advice.replace(FROM_THE_NEWEST, "")
    _, promised, look = advice.partition(NONE_NEEDED)
    if not promised:
        did = _IF_BACK.match(advice)
        return advice if did is None else _sentence(advice[did.end() :])
    again = f"Run the same command again{FROM_THE_NEWEST if has_checkpoint else ''}."
    return f"The last failure was: {cause}. {_sentence(look)} {again}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
