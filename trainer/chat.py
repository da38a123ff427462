"""What is learned of a chat: the answers, each as the model would be asked for it.

What the chat template writes is the only truth about the form of a chat, so answers are found by
rendering: the text up to a question, with what the template puts before an answer, is read; what
comes to it with the answer is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from supervisor.config.training.data_files import ANSWERS, DataError


class Part(NamedTuple):
    """A piece of text of an example."""

    text: str
    is_learned: bool


class Renders(Protocol):
    """A chat template (`PretrainedTokenizer.render`)."""

    def __call__(self, messages: Sequence[Any], where: str, *, asks: bool) -> str:
        """Return the text of `messages`."""
        ...


def examples_of(messages: Sequence[Any], where: str, render: Renders) -> list[list[Part]]:
    """Return the examples that the chat `messages` makes: one with all answers, or, if the template
    writes earlier answers otherwise than the last one (as Qwen3's does, without their thinking),
    one for each answer.

    Raises:
        DataError: the template refuses the chat, or does not begin an answer as it asks for one.
    """
    whole, parts, alone, at = render(messages, where, asks=False), list[Part](), [], 0
    is_one = True
    for number, message in enumerate(messages):
        if message["role"] != ANSWERS:
            continue
        before = render(messages[:number], where, asks=True)
        after = render(messages[: number + 1], where, asks=False)
        if not after.startswith(before):
            raise DataError(
                f"{where}: the chat template does not begin the answer in message {number + 1} as "
                "it asks for one: use one that does"
            )
        answer = Part(after[len(before) :], True)
        is_one = is_one and whole.startswith(after) and at <= len(before)
        parts += [Part(whole[at : len(before)], False), answer]
        alone.append([Part(before, False), answer])
        at = len(after)
    return [parts] if is_one else alone
