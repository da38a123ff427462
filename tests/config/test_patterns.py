"""A pattern of a config means what Python's `re` means by it, and ends in time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.patterns import Pattern, SlowPatternError

_PIECES = (
    r"a b e . | * + ? ^ $ , < = 2 {e} {e<=1} {2} {,2} {1,} {} { } (a) (?:b|e) [ab] [^a{e}] []a]"
    r" \d \{ \w+ \b (?i:A) (?=a) (?>a+) a*+"
)


@given(
    st.lists(st.sampled_from(_PIECES.split(" ")), max_size=6).map("".join),
    st.text("abeA2{}<=1, \n", max_size=12),
)
def test_it_reads_as_re_does(source: str, text: str) -> None:
    try:
        expected = re.compile(source)
    except re.error:
        with pytest.raises(ValueError, match="is not a regular expression"):
            Pattern(source)
        return
    pattern = Pattern(source)
    assert pattern.groups == expected.groups
    found, wanted = pattern.search(text), expected.search(text)
    assert (found and found.span()) == (wanted and wanted.span())


@pytest.mark.parametrize("source", ["[[:alpha:]]+", "a[^[:digit:]]"])
def test_a_named_set_is_refused(source: str) -> None:
    """`re` takes it for the letters of the name."""
    with pytest.raises(ValueError, match=r"Python's re has no"):
        Pattern(source)


def test_a_search_without_an_end_is_given_up() -> None:
    with pytest.raises(SlowPatternError, match="takes too long in text that begins 'aaa"):
        Pattern("(?:a|aa)+b").search("a" * 60)


def test_what_is_shown_of_a_text_ends_with_a_word() -> None:
    """Half a secret would not be recognised as one."""
    with pytest.raises(SlowPatternError) as caught:
        Pattern("(?:a|aa)+b").search("secret is " + "a" * 200)
    assert str(caught.value).endswith("begins 'secret is'")
