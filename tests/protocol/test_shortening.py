"""What is left of a shortened text holds no part of a word: the word may be a secret."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.messages import NoticeMessage, decode, encode
from supervisor.protocol.shortening import keep_beginning, keep_end

words = st.lists(st.text("abc", min_size=1, max_size=40), max_size=30)
spaces = st.sampled_from([" ", "  ", "\n", "\t"])
limits = st.integers(min_value=1, max_value=300)


@given(words, spaces, limits)
def test_no_word_is_cut(parts: list[str], space: str, limit: int) -> None:
    text = space.join(parts)
    first, last = keep_beginning(text, limit), keep_end(text, limit)
    assert len(first) <= limit
    assert len(last) <= limit
    assert first.split() == parts[: len(first.split())]
    assert last.split() == parts[len(parts) - len(last.split()) :]
    if len(text) <= limit:
        assert first == last == text


def test_a_word_that_is_longer_than_a_secret_is_cut() -> None:
    assert keep_beginning("x" * 2000, 1000) == keep_end("x" * 2000, 1000) == "x" * 1000
    assert keep_beginning("x" * 2000, 300) == keep_end("x" * 2000, 300) == ""


@given(st.integers(min_value=0, max_value=400))
def test_a_notice_holds_all_of_a_word_or_nothing(place: int) -> None:
    text = f"{'x ' * (place // 2)}correct-horse-battery-staple and more"
    told = decode(encode(NoticeMessage(text)))
    assert isinstance(told, NoticeMessage)
    assert ("correct" in told.text) == ("correct-horse-battery-staple" in told.text)
