"""What one rule is: data that says what it matches, and what is to be done about that."""

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
"""More patterns and names than the rules of one job have."""

OOM_KILLED = "oom-killed"
"""The kernel killed a process of the group for memory: its cgroup's counter says so."""
NO_OOM_KILL = "no-oom-kill"
"""The same counter did not rise."""
GUARD_LOST = "guard-lost"
"""The guard process was killed, with which everything of the job dies."""
TOLD_TO_STOP = "told-to-stop"
"""The rank got a SIGTERM that the supervisor did not send."""
PEER_FELL = "peer-fell"
"""Another rank was ended from outside, told to stop or crashed before the supervisor killed any."""
NO_SPACE = "no-space"
"""The disk of model_dir has no room."""
NO_STEP_TOLD = "no-step-told"
"""Success asks for a step, and none was told, nor a checkpoint seen."""
STILL_RUNNING = "still-running"
"""The workers ended well, and some of what they had started did not end."""


class Compared(StrEnum):
    """Whether the same signature again proves that a failure comes each time."""

    NEVER = "no"
    """It may come again and still pass, or its remedy says when to stop."""
    AS_A_GUESS = "yes, the 2nd ends"
    """Where the FATAL is not certain; a certain one ends the job anyway."""
    UNLESS_NAMED = "if it names no peer"
    """Who names the task, rank or address that is gone is its victim; else it may be the program's
    own doing."""
    ALWAYS = "yes"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table. All conditions must hold; an empty one is no condition."""

    name: str
    verdict: Verdict
    cause: str
    reason: str
    """One line: why this verdict."""
    advice: str
    """One line: what the person should do."""
    charge: Charge = Charge.RESTARTS
    types: tuple[str, ...] = ()
    """Names of exception types, with as much of their module as matters; `*` stands for anything.
    Base classes match too, where they are known."""
    patterns: tuple[str, ...] = ()
    """Regular expressions; one must occur in `Type: message` (or in the line of native code)."""
    frames: tuple[str, ...] = ()
    """Regular expressions; one must occur in the traceback's frames, each `path:function`."""
    supposed: bool = False
    """Whether its patterns may also occur in what the text advises or supposes: see `statements`.
    For guesses that another try may succeed, and never for a FATAL."""
    speakers: tuple[Speaker, ...] = ()
    """Who must have raised the error."""
    codes: tuple[str, ...] = ()
    """Structured codes (`http:404`), one of which the error must have; `*` stands for anything."""
    signals: tuple[str, ...] = ()
    exit_codes: tuple[int, ...] = ()
    stages: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    """What must be known of the host."""
    alone: bool = False
    """Whether it is about errors that came of no other: what is raised while another is handled
    tells little."""
    transient: bool = False
    """Whether the same failure may well come back and still pass: no signature is compared. (Nor is
    that of a victim which names the other one.)"""
    victim: bool = False
    """Whether it is what other ranks (or processes) suffer when one fails: never the root cause
    where another error is there to be found."""
    culprit: bool = False
    """Whether such an end alone, without a word, is the root cause of what other ranks suffer."""
    hardware: bool = False
    """Whether it points at the devices."""
    per_rung: bool = False
    """Whether it may be so only on a certain number of devices."""
    certain: bool = False
    """Whether a FATAL is one by construction, so that it ends the job at once. Any other FATAL is a
    guess, which gets one more attempt. A rule whose words were seen in one program only is one."""
    confidence: Confidence = Confidence.HIGH
    own: bool = False
    """Whether it is of the config: nobody knows how long a search for its patterns takes."""
    of_a_store: bool = False
    """Whether it is charged with nothing, and the store waited for, where the client of an object
    store says it."""
    remedy: Remedy | None = None
    """What is done about it beyond a restart; it says itself when to stop, not the signature."""

    @property
    def compared(self) -> Compared:
        """Whether the signatures of its failures are compared."""
        if self.verdict is FATAL:
            return Compared.AS_A_GUESS
        if self.transient or self.remedy is not None:
            return Compared.NEVER
        return Compared.UNLESS_NAMED if self.victim else Compared.ALWAYS

    @property
    def about_text(self) -> bool:
        """Whether it looks at an error, not only at how the process ended."""
        return bool(self.types or self.patterns or self.frames or self.speakers or self.codes)


def names_match(rule: Rule, names: frozenset[str]) -> bool:
    """Whether the rule is about an exception type that goes by one of `names`."""
    return not rule.types or bool(_those_of(rule.types, names))


def codes_match(rule: Rule, codes: frozenset[str]) -> bool:
    """Whether the rule is about an error with one of `codes`."""
    return not rule.codes or bool(matching_codes(rule, codes))


def matching_codes(rule: Rule, codes: frozenset[str]) -> frozenset[str]:
    """Those of `codes` that the rule is about."""
    return _those_of(rule.codes, codes)


def says(rule: Rule, text: str) -> bool:
    """Whether the text has what the rule looks for.

    Raises:
        SlowPatternError: the search for the pattern of the config was given up.
    """
    return words(rule, text) is not None


def words(rule: Rule, text: str) -> str | None:
    """The words of `text` that the rule looks for, "" if for none; None: they are not there.

    Raises:
        SlowPatternError: the search for the pattern of the config was given up.
    """
    if not rule.own or not rule.patterns:
        return found(rule.patterns, text)
    matches = (_bounded(pattern).search(text) for pattern in rule.patterns)
    return next((match[0] for match in matches if match is not None), None)


def occurs(patterns: tuple[str, ...], text: str) -> bool:
    """Whether one of the patterns occurs in the text (no pattern: it does)."""
    return found(patterns, text) is not None


def found(patterns: tuple[str, ...], text: str) -> str | None:
    """What the patterns find first in the text, "" if there is no pattern; None: nothing."""
    if not patterns:
        return ""
    low = lowered(text)
    matches = [match for each in _searched(patterns) if (match := each.search_in(text, low))]
    return min(matches, key=_begin)[0] if matches else None


def _begin(match: re.Match[str]) -> int:
    return match.start()


def _those_of(wanted: tuple[str, ...], names: frozenset[str]) -> frozenset[str]:
    plain, globs = _split(wanted)
    found = plain & names
    return found if globs is None else found | {name for name in names if globs.fullmatch(name)}


@lru_cache(maxsize=_MOST)
def _split(wanted: tuple[str, ...]) -> tuple[frozenset[str], re.Pattern[str] | None]:
    """The plain names, and those with a `*` (None: there are none)."""
    globs = [name for name in wanted if "*" in name]
    parts = [".*".join(re.escape(part) for part in name.split("*")) for name in globs]
    return frozenset(wanted) - set(globs), re.compile("|".join(parts)) if parts else None


@lru_cache(maxsize=_MOST)
def _bounded(pattern: str) -> Pattern:
    return Pattern(pattern)


@lru_cache(maxsize=_MOST)
def _searched(patterns: tuple[str, ...]) -> tuple[Searched, ...]:
    return tuple(map(Searched, patterns))
