"""The type of a rule: the conditions under which it matches, and what to do then."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from supervisor.config.judgement import Remedy
from supervisor.config.patterns import Pattern
from supervisor.diagnosis.outcome import Charge, Confidence, Verdict
from supervisor.diagnosis.searching import Searched, lowered
from supervisor.diagnosis.speakers import Speaker

FATAL, RESTART, POLICY = Verdict.FATAL, Verdict.RESTART, Verdict.POLICY
MEDIUM, LOW = Confidence.MEDIUM, Confidence.LOW
_MOST = 1024
"""Size of the caches; larger than the number of patterns and names in the rules of one job."""

OOM_KILLED = "oom-killed"
"""The kernel killed a process of the group for memory: its cgroup's counter says so."""
NO_OOM_KILL = "no-oom-kill"
"""The counter of OOM kills exists and did not rise."""
GUARD_LOST = "guard-lost"
"""The guard process was killed, and all processes of the job with it."""
TOLD_TO_STOP = "told-to-stop"
"""The rank got a SIGTERM that the supervisor did not send."""
PEER_ENDED_FIRST = "peer-ended-first"
"""Another rank was killed from outside, got SIGTERM or crashed before the supervisor killed any."""
NO_SPACE = "no-space"
"""The disk of model_dir is full."""
NO_STEP_TOLD = "no-step-told"
"""Success requires a step, but no step was reported and no checkpoint was seen."""
STILL_RUNNING = "still-running"
"""The workers ended with success, but processes that they had started did not end."""


class Compared(StrEnum):
    """When a second failure with the same signature counts as a repetition, which ends the job."""

    NEVER = "no"
    """The failure may repeat and still pass later, or its remedy says when to stop."""
    AS_A_GUESS = "yes, the 2nd ends"
    """The second occurrence ends the job. For a FATAL that is a guess; a certain one ends it
    anyway."""
    UNLESS_NAMED = "if it names no peer"
    """Only an error that names no lost task, rank or address is compared, because it may be the
    program's own fault. One that names them is a victim's."""
    ALWAYS = "yes"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the table. It matches if all its conditions hold; an empty one always holds."""

    name: str
    verdict: Verdict
    cause: str
    reason: str
    """One line: why this verdict."""
    advice: str
    """One line: what the person should do."""
    charge: Charge = Charge.RESTARTS
    types: tuple[str, ...] = ()
    """Names of exception types, with as much of the module path as is needed; `*` matches anything.
    Known base classes match too."""
    patterns: tuple[str, ...] = ()
    """Regular expressions; one must occur in `Type: message`, or in a line from native code."""
    frames: tuple[str, ...] = ()
    """Regular expressions; one must occur in the traceback's frames, each `path:function`."""
    matches_suppositions: bool = False
    """True: its patterns may also match advice and suppositions in the text (see `statements`).
    Only for rules that say another try may succeed, never for a FATAL."""
    speakers: tuple[Speaker, ...] = ()
    """Who must have raised the error."""
    codes: tuple[str, ...] = ()
    """Structured codes (`http:404`), one of which the error must have; `*` matches anything."""
    signals: tuple[str, ...] = ()
    exit_codes: tuple[int, ...] = ()
    stages: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    """Facts that must be known, such as `OOM_KILLED` above."""
    without_context: bool = False
    """True: it matches only errors without a cause or context. An error raised while another one
    is handled tells little."""
    transient: bool = False
    """True: the same failure may repeat and still pass later, so its signatures are not compared.
    (Nor are those of a victim that names its peer.)"""
    victim: bool = False
    """True: it is what ranks or processes suffer when another one fails. It is the root cause only
    if there is no other error."""
    culprit: bool = False
    """True: such an exit, even without an error text, explains what other ranks suffer."""
    hardware: bool = False
    """True: it points at the devices, so they are probed."""
    per_rung: bool = False
    """True: it may hold only on the present number of devices. Then it costs the rung, not the
    job."""
    certain: bool = False
    """True: the FATAL cannot be transient by construction, so it ends the job at once. Any other
    FATAL is a guess and gets one more attempt; for example, its text was seen in one program
    only."""
    confidence: Confidence = Confidence.HIGH
    from_config: bool = False
    """True: the rule comes from the config, so the search for its patterns needs a time limit."""
    store_trouble_is_free: bool = False
    """True: if the client of an object store raised the error, the failure charges nothing and the
    job waits for the store."""
    remedy: Remedy | None = None
    """What is done beyond a restart. The remedy limits how often it is tried, so signatures are
    not compared."""

    @property
    def compared(self) -> Compared:
        """Returns when the signatures of its failures are compared."""
        if self.verdict is FATAL:
            return Compared.AS_A_GUESS
        if self.transient or self.remedy is not None:
            return Compared.NEVER
        return Compared.UNLESS_NAMED if self.victim else Compared.ALWAYS

    @property
    def about_text(self) -> bool:
        """True if it matches an error, not only the exit of a process."""
        return bool(self.types or self.patterns or self.frames or self.speakers or self.codes)


def names_match(rule: Rule, names: frozenset[str]) -> bool:
    """True if the rule matches an exception type that has one of `names`."""
    return not rule.types or bool(_matching_names(rule.types, names))


def codes_match(rule: Rule, codes: frozenset[str]) -> bool:
    """True if the rule matches an error with these `codes`."""
    return not rule.codes or bool(codes_wanted(rule, codes))


def codes_wanted(rule: Rule, codes: frozenset[str]) -> frozenset[str]:
    """Returns those of `codes` that the rule asks for."""
    return _matching_names(rule.codes, codes)


def any_pattern_matches(rule: Rule, text: str) -> bool:
    """True if one of the rule's patterns occurs in the text, or if the rule has none.

    Raises:
        SlowPatternError: the search for a pattern from the config took too long.
    """
    return matched_text(rule, text) is not None


def matched_text(rule: Rule, text: str) -> str | None:
    """Returns the part of `text` that a pattern of the rule matches; "": the rule has no patterns;
    None: no pattern matches.

    Raises:
        SlowPatternError: the search for a pattern from the config took too long.
    """
    if not rule.from_config or not rule.patterns:
        return leftmost_match(rule.patterns, text)
    matches = (_bounded(pattern).search(text) for pattern in rule.patterns)
    return next((match[0] for match in matches if match is not None), None)


def any_occurs(patterns: tuple[str, ...], text: str) -> bool:
    """True if one of the patterns occurs in the text, or if there are none."""
    return leftmost_match(patterns, text) is not None


def leftmost_match(patterns: tuple[str, ...], text: str) -> str | None:
    """Returns the leftmost match of the patterns; "": there are no patterns; None: no match."""
    if not patterns:
        return ""
    low = lowered(text)
    matches = [match for each in _searched(patterns) if (match := each.search_in(text, low))]
    return min(matches, key=_begin)[0] if matches else None


def _begin(match: re.Match[str]) -> int:
    return match.start()


def _matching_names(wanted: tuple[str, ...], names: frozenset[str]) -> frozenset[str]:
    plain, globs = _split(wanted)
    found = plain & names
    return found if globs is None else found | {name for name in names if globs.fullmatch(name)}


@lru_cache(maxsize=_MOST)
def _split(wanted: tuple[str, ...]) -> tuple[frozenset[str], re.Pattern[str] | None]:
    """Returns the plain names, and a pattern for those with a `*` (None: there are none)."""
    globs = [name for name in wanted if "*" in name]
    parts = [".*".join(re.escape(part) for part in name.split("*")) for name in globs]
    return frozenset(wanted) - set(globs), re.compile("|".join(parts)) if parts else None


@lru_cache(maxsize=_MOST)
def _bounded(pattern: str) -> Pattern:
    return Pattern(pattern)


@lru_cache(maxsize=_MOST)
def _searched(patterns: tuple[str, ...]) -> tuple[Searched, ...]:
    return tuple(map(Searched, patterns))
