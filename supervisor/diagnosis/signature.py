"""The fingerprint of a failure: the same when the same thing went wrong, however it is worded.

What changes from one attempt to the next (hosts, ports, paths, numbers, ids, times, sizes) is taken
out of the message, but not structured codes (statuses, error numbers, reasons); and what stands in
braces is put in order: a set is printed in another order by each process. Of the frames only those
of the user's own code count, without line numbers, so that an added comment or another version of a
library is no new failure.

No expression here repeats a repetition, and only the head of a message is looked at: time is
bounded whatever a program prints.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from supervisor.diagnosis.ownership import is_surely_own
from supervisor.diagnosis.random_words import is_encoded, is_random

_MAX_MESSAGE = 4000
_MAX_LINES = 4
_SAYS_SOMETHING = 4
"""A line with so many words tells failures apart by itself; what follows it may be of another
thread."""
_MAX_WORDS = 60
_FRAMES = 3
_QUOTED = re.compile(r"(?<!\w)(?:'[^'\n]{1,300}'|\"[^\"\n]{1,300}\"|`[^`\n]{1,300}`)(?!\w)")
_BRACES = re.compile(r"\{[^{}]{0,1000}\}")
_KEYED = re.compile(
    r"(?i)\b((?:host|hostname|node|address|addr|server|peer|endpoint|user|bucket|project|pod|ip)=|"
    r"(?:request|trace|correlation|session|job|run|upload|span)[-_ ]?id ?[=:] ?)"
    r"(?:'[^'\n]{0,300}'|\"[^\"\n]{0,300}\"|[^\s'\",;)]+)"
)
"""What stands behind the name of something that each attempt has another of."""
_TIME = re.compile(
    r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},? (?=\d|[A-Z][a-z]{2} )|"
    r"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6} (?=\d)|\b[AP]M\b"
)
_PATH = re.compile(r"(?:\b[a-z][a-z0-9+]{0,15}:/|(?<!\w)~?\.{0,2}/|/)[^\s'\"`,;)\]}>]*")
_TOKEN = re.compile(r"[^\s'\"`,;()<>{}\[\]=|]+")
_UNIT = re.compile(
    r"(?<=<n>) ?(?:[KkMGTP]i?[Bb]|[Bb]ytes?|[mun]?s|msecs?|sec(?:ond)?s?|min(?:ute)?s?|hours?|hrs?|"
    r"days?|%)(?!\w)"
)
_NUMBER = re.compile(r"[-+]?\d[\d_.]*(?:[eE][-+]?\d+)?(?:%|[KkMGTP]?i?[Bb]|[mun]?s|min|h)?")
_DIGITS = re.compile(r"\d+")
_NAMED = re.compile(
    r"(?i)(\b(?:container|pod|sandbox|instance|node|host|machine|replica)s?:? ['\"`(/]?)"
    r"[a-z]+(?:[_-][a-z]+)+(?![\w.])"
)
"""What was given a name of two words, as docker's `jovial_euler`."""
_ENCODED = re.compile(r"(?<![\w/.+-])[A-Za-z0-9+/_-]{16,}={0,2}(?![\w/.])")
_TEMPORARY = re.compile(r"tmp[a-z0-9_]{8}|\btmp\.[A-Za-z0-9]{6,}|\b(?:psm|wnsm)_[0-9a-f]{8}")
"""Of tempfile, mktemp(1) and multiprocessing.shared_memory."""
_NETWORK = (
    "com", "org", "net", "io", "ai", "co", "dev", "cloud", "app", "edu", "gov", "internal",
    "local", "localdomain", "lan", "corp", "svc", "test", "example", "goog",
)  # fmt: skip
"""What the name of a host ends in."""
_HOLE = re.compile(r"(?:<(?:n|id|path)>)+")
"""A number at one attempt may be an id at the next: both may be of digits alone."""
_WORD = re.compile(r"<\w*>|[^\W\d]+")


def signature(
    kind: str,
    message: str,
    frames: Iterable[tuple[str, str]],
    stage: str | None,
    step: int | None,
    codes: Iterable[str] = (),
) -> str:
    """A short name of the failure: its type, then a hash of all that identifies it."""
    name = kind.rpartition(".")[2]
    own = [_place(path, function) for path, function in frames if is_surely_own(path)]
    said = normalised(message.removeprefix(kind) if kind else message)
    parts = (name, said, *sorted(codes), *own[-_FRAMES:], stage or "", str(step))
    digest = hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:12]
    return f"{name or 'status'}-{digest}"


def _place(path: str, function: str) -> str:
    """A frame without its folder and line; copies of a file have a number in their names."""
    return f"{_DIGITS.sub('', path.rpartition('/')[2])}:{function}"


def normalised(message: str) -> str:
    """The first words of `message`, without what differs from one attempt to the next."""
    words: list[str] = []
    for line in _first_lines(message):
        found = _WORD.findall(_HOLE.sub("<>", _stable(line)))
        for word in found:
            if not (word.startswith("<") and words[-1:] == [word]):
                words.append(word)
        if len(found) >= _SAYS_SOMETHING and not line.rstrip().endswith(":"):
            break
    return " ".join(words[:_MAX_WORDS])


def _first_lines(message: str) -> list[str]:
    lines = [line for line in message[:_MAX_MESSAGE].splitlines() if line.strip()]
    return lines[:_MAX_LINES]


def _stable(text: str) -> str:
    """`text` with a placeholder for each part that is not the same at each attempt."""
    text = _NAMED.sub(r"\1<id>", _KEYED.sub(r"\1<id>", _TIME.sub("", text)))
    text = _ENCODED.sub(lambda match: "<id>" if is_encoded(match[0]) else match[0], text)
    text = _QUOTED.sub(_quoted, text)
    text = _UNIT.sub("", _TOKEN.sub(_token, _PATH.sub("<path>", text)))
    return _BRACES.sub(_sorted, text)


def _quoted(match: re.Match[str]) -> str:
    """A quoted name: as it is if it can be a word of the program, else a placeholder. What has
    blanks is no name: its words are looked at one by one."""
    name = match[0][1:-1]
    if " " in name:
        return match[0]
    varies = _DIGITS.search(name) or "/" in name or _is_drawn(name)
    return "<id>" if varies else match[0]


def _token(match: re.Match[str]) -> str:
    """What stands between blanks and punctuation."""
    token = match[0]
    if _NUMBER.fullmatch(token.rstrip(".:")):
        return "<n>"
    if _is_drawn(token):
        return "<id>"
    found = len(_DIGITS.findall(token))
    if not found:
        return token
    plain = token.strip(".:!?-").replace("_", "")
    if found > 1 or not plain.isalnum() or (plain[0].isdigit() or not plain[-1].isdigit()):
        return "<id>"
    return _DIGITS.sub("<n>", token)


def _is_drawn(name: str) -> bool:
    """Whether the next attempt has another: the name of a host, or one that nobody chose."""
    return bool(_TEMPORARY.search(name)) or _is_host(name) or is_random(name)


def _is_host(name: str) -> bool:
    head, dot, last = name.rstrip(".:").rpartition(".")
    return bool(dot and head) and last.lower() in _NETWORK


def _sorted(match: re.Match[str]) -> str:
    return "{" + ",".join(sorted(part.strip() for part in match[0][1:-1].split(","))) + "}"
