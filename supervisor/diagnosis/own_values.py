"""Recognises an error of the user's own code about a value: it is no I/O error, whatever its words.

`ValueError: read timeout must be positive` has the words of a timeout, but comes back each time.
Such an error stands alone, has a type that is about values, was raised in the user's own code, and
holds no structured code. Rules that recognise transient trouble only by words are not trusted here:
if the error states a requirement, they do not apply; otherwise they apply, but a repetition counts.
"""

from __future__ import annotations

from supervisor.diagnosis.chain import Chain, PrintedError
from supervisor.diagnosis.rules import Rule, leftmost_match
from supervisor.diagnosis.rules.wording import REQUIREMENTS
from supervisor.diagnosis.speakers import Speaker

_ABOUT_VALUES = frozenset(
    {
        "ValueError",
        "TypeError",
        "KeyError",
        "IndexError",
        "AttributeError",
        "NameError",
        "ZeroDivisionError",
        "OverflowError",
        "AssertionError",
    }
)


def matches_words_only(rule: Rule) -> bool:
    """True if the rule recognises transient trouble by words alone, and has no remedy but another
    attempt."""
    by_words = bool(rule.patterns) and not (rule.types or rule.codes or rule.from_config)
    return by_words and rule.transient and rule.remedy is None


def is_about_a_value(chain: Chain, member: PrintedError) -> bool:
    """True if the user's own code raised the error about a value, see the head of this file."""
    return (
        member.type.removeprefix("builtins.") in _ABOUT_VALUES
        and len(chain.members) == 1
        and not chain.lacks_cause
        and member.speaker is Speaker.OWN
        and not member.codes
    )


def states_requirement(chain: Chain, member: PrintedError) -> bool:
    """True if it is such an error, and says what the value must be."""
    return (
        is_about_a_value(chain, member) and leftmost_match(REQUIREMENTS, member.stated) is not None
    )
