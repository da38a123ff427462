"""What the user's own code states about a value is no I/O error, whatever words it has.

`ValueError: read timeout must be positive` has the words of a timeout and comes back each time. So
of an error that stands alone, of a type that is about values, raised in the user's own code and
without a code of anybody's, the rules that know passing trouble by its words alone are no judges:
where it states a requirement they do not apply, and else a repetition counts.
"""

from __future__ import annotations

from supervisor.diagnosis.chain import Chain, Raised
from supervisor.diagnosis.rules import Rule, found
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


def knows_words_alone(rule: Rule) -> bool:
    """Whether the rule knows passing trouble by its words, whoever says them, and only tries
    again."""
    by_words = bool(rule.patterns) and not (rule.types or rule.codes or rule.own)
    return by_words and rule.transient and rule.remedy is None


def is_about_a_value(chain: Chain, member: Raised) -> bool:
    """Whether the user's own code says it of a value, and nothing of what it says is of others."""
    return (
        member.type.removeprefix("builtins.") in _ABOUT_VALUES
        and len(chain.members) == 1
        and not chain.cut
        and member.speaker is Speaker.OWN
        and not member.codes
    )


def requires(chain: Chain, member: Raised) -> bool:
    """Whether it is such an error, and says what the value must be."""
    return is_about_a_value(chain, member) and found(REQUIREMENTS, member.stated) is not None
