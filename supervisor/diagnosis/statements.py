"""Separates what an error message states about what happened from its advice and suppositions.

Libraries put both into one message: PyTorch advises after any CUDA error to compile with
device-side assertions, transformers mentions its offline mode after a failed download, Ray lists
potential causes. If advice were read as a statement, jobs would end that could go on. So a message
is read sentence by sentence, and advice, questions, suppositions and examples are left out: from
their first word to the end of the sentence, or of the brackets around them.

Verbs that may also begin a statement ("Set changed size", "Read timed out", "Check failed") count
as advice only together with the words that follow them in advice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

_MAX_SENTENCE = 2000
_SENTENCE_END = re.compile(
    r"(?<!e\.g)(?<!i\.e)(?<!\bvs)[.!?][\"'`)\]]*[ \t]+(?=[A-Z\"'`<*\[(/])|"
    r"\n[ \t]*\n|[.!?:;][ \t]*\n|\n(?=[ \t]*(?:[^\sa-z]|\w+ ?[=:]))"
)
"""The end of a sentence. A line that begins in lower case continues the sentence before it."""
_CAUSES = re.compile(
    r"(?i)\b(?:(?:t?here|these) are )?(?:some )?(?:common|potential|possible|likely|"
    r"probable|typical) (?:root )?(?:causes?|reasons?|solutions?|fix(?:es)?|workarounds?)\b"
)
"""A heading of possible causes. The rest of its line, and the list below it, suppose: killed for
memory, by a person, by anything."""
_ITEM = re.compile(r"[ \t]+\S|[-*\N{BULLET}]|\(?\w{1,2}[.)] ")

_ASKS = (
    r"(?:please|kindly|consider|alternatively|otherwise|hint|tip|note that|feel free)\b",
    r"(?:make|be) sure\b|ensure\b|remember to|don't forget|compile with|refer to|visit|re-?run\b",
    r"try(?: (?!\d)|:|$)|(?:run|restart|retry|start)(?:ning)? (?:with|the|your|it|again|`)",
    r"(?:check(?: ?out)?|verify) (?:that|if|whether|the|your|out|for|installed|logs?|https?:)",
    r"see (?:also|how|the|https?:|`|above|below|full|\S+ for)|read (?:the|more|https?:)|search the|"
    r"look (?:at|for|in) |(?:report|open|file) (?:a|an|this) ",
    r"(?:use|set|add|pass|specify|provide|install|(?:up|down)grade|update|increase|reduce|raise|"
    r"lower|enable|disable|export|log|switch|remove|delete|change|replace|adjust) "
    r"(?:(?:the|a|an|your|it|to|in)\b|[-`'\"]|(?-i:[A-Z_]{3})|\w+=|\S+ (?:to|instead|with)\b)",
    r"(?-i:To) \w+|to (?:debug|fix|resolve|solve|avoid|disable|silence|enable|find out|continue)\b|"
    r"for (?:debugging|more|further|details|help)\b",
    r"you (?:may|might|can|could|should|need|probably|likely|are likely|want)\b",
    r"(?-i:If) |if (?:you|this|that|it|the|so|not|possible|your|any)\b|in case\b",
    r"(?:is|are|was|were|do|does|did|have|has|can|could|what|why|which) [^?]{0,300}\?",
)
"""The beginnings of clauses that advise or ask."""
_SUPPOSES = (
    r"(?:perhaps|maybe|possibly|probably|presumably|for example|for instance|may|might|"
    r"it is (?:also )?possible)\b",
    r"(?:it|this|that|which|these|they|there|another|one|some|(?:the|your|a common) \w+(?: \w+)?)"
    r"(?: error| problem| issue| exception| failure)? (?:also |is |are |has |most |very |can )*"
    r"(?:may|might|could|usually|often|typically|generally|commonly|sometimes|likely|probably|"
    r"possibly|happens?|occurs?|can (?:also )?be (?:also )?(?:caused by|due to)|indicates?|"
    r"suggests?)\b",
    # "could not be broadcast" is a statement, and so is "no structure could be identified"
    r"(?!no )(?:\w+ ){1,4}(?:(?:may|might)(?: not)?|could) (?:be|have|indicate|mean)\b",
)
"""The beginnings of clauses that suppose."""
_WITHIN = (
    r"please|perhaps|possibly|maybe|presumably|probably|(?:most |very )?likely|e\.g\.|such as",
    r"(?:may|might|could|can) (?:also )?(?:be|have been) (?:caused|due|because|related|the result)",
    r"consider \w+ing|make sure|did you|try again|try \w+ing|see (?:how to|https?:|the other)",
    r"for (?:more )?(?:details|information|debugging)|you (?:may|might|can|could|should)",
)
"""Words from which on a sentence advises or supposes, in any clause."""

_ADVICE = re.compile(
    r"(?i)(?:^|(?<=[:;(\[]))(?:[ \t]|[-*\N{BULLET}>][ \t]|\(?\d{1,2}[.)][ \t])*"
    rf"(?:{'|'.join(_ASKS + _SUPPOSES)})|\b(?:{'|'.join(_WITHIN)})(?!\w)"
)
_RESUMED = re.compile(
    r": (?=(?:[A-Z]+_[A-Z_]+|UN[A-Z]{5,}|INTERNAL|ABORTED|CANCELLED)\b|\[Errno|"
    r"(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b)"
)
"""The place where a statement follows advice: "See full details: NOT_FOUND: ..."."""


@lru_cache(maxsize=1024)
def stated(text: str) -> str:
    """Returns `text` without its advice, questions, suppositions and examples."""
    return "".join(_pieces(text))


def _pieces(text: str) -> Iterator[str]:
    at, supposing = 0, False
    while at < len(text):
        stop, following = _end_of_sentence(text, at)
        if not supposing:
            heading = _CAUSES.search(text, at, stop)
            supposing = heading is not None
            yield _without_advice(text[at : heading.start() if heading is not None else stop])
        gap = text[stop:following]
        yield gap
        at = following
        supposing = supposing and ("\n" not in gap or _ITEM.match(text, at) is not None)


def _end_of_sentence(text: str, at: int) -> tuple[int, int]:
    """Returns where the sentence at `at` ends, after a question mark, and where the next begins."""
    end = _SENTENCE_END.search(text, at, at + _MAX_SENTENCE)
    if end is None:
        return min(len(text), at + _MAX_SENTENCE), min(len(text), at + _MAX_SENTENCE)
    return end.start() + end[0].startswith("?"), end.end()


def _without_advice(sentence: str) -> str:
    kept, at, depth = "", 0, 0
    while (advice := _ADVICE.search(sentence, at)) is not None:
        before = sentence[at : advice.start()]
        for character in before:
            depth = max(0, depth + (character in "([") - (character in ")]"))
        kept += before
        at = _end_of_advice(sentence, advice.start(), in_brackets=depth > 0)
    return kept + sentence[at:]


def _end_of_advice(sentence: str, start: int, *, in_brackets: bool) -> int:
    """Returns where the advice that begins at `start` ends.

    It ends at the closing bracket around it, at a status or the name of an error, or with the
    sentence.
    """
    opened = 0
    for number in range(start, len(sentence) if in_brackets else start):
        opened += (sentence[number] in "([") - (sentence[number] in ")]")
        if opened < 0:
            return number
    resumed = _RESUMED.search(sentence, start)
    return resumed.start() if resumed is not None else len(sentence)
