"""Rules about native code that reports a failed check of its own, or a refused instruction.

A check in native code is an assertion. As a rule it fails because of the program and its versions,
and fails again. A check about another process, a transfer or the machine's resources may pass the
next time: the rules before these know such texts, and the patterns here exclude them.
"""

from __future__ import annotations

from supervisor.diagnosis.rules.rule import FATAL, MEDIUM, Rule
from supervisor.diagnosis.rules.wording import REFUSED_INSTRUCTION

_NOT_ABOUT_THE_WORLD = (
    r"^(?![\s\S]*(?i:memory|alloc|no space|\bthread|socket|connect|network|\brpc\b|\bpeer|"
    r"heartbeat|time[ds]?[ -]?out|deadline|unavailable|cancell?ed|\babort(?:ed|ing)\b|rendezvous|"
    r"barrier|\bnccl|gloo|collective|handshake|preempt|\bdead\b|\bkilled\b|lost\b|status == |"
    r"\bstatus\.ok|internal: |unknown: |hardware fault|\becc\b|"
    r"raylet|node_manager|\bgcs_\w+|core_worker|plasma|object_\w+\.cc|CUDA_ERROR|CUDNN_STATUS)|"
    r"[\s\S]*\b(?:INTERNAL|UNKNOWN|DATA_LOSS)\b)"
)
"""Begins a pattern. Excludes texts about another process, a transfer, the machine, or a service
that runs the job."""

RULES = (
    Rule(
        "native-check",
        FATAL,
        "a check of native code failed",
        "Native code states that this must not happen: the same program on the same versions does "
        "the same.",
        "Look for the check in the library's issues; try another version of it, or change what "
        "the program asks of it.",
        patterns=(
            _NOT_ABOUT_THE_WORLD + r"[\s\S]*\bCheck failed: ",
            _NOT_ABOUT_THE_WORLD + r"(?:F\d{4} \d\d:|\d{4}-\d\d-\d\d [\d:.]+: F )",
        ),
        confidence=MEDIUM,
        per_rung=True,
    ),
    Rule(
        "refused-instruction-told",
        FATAL,
        *REFUSED_INSTRUCTION,
        # Shells print this for SIGILL and SIGFPE
        patterns=(
            r"^(?:\S+: line \d+: +\d+ )?(?:Illegal instruction|Floating point exception)"
            r"(?: +\(core dumped\)|$)",
        ),
        confidence=MEDIUM,
    ),
)
