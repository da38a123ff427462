"""Makes the signature of a failure: it is equal if the same thing went wrong at another attempt.

The parts of the message that differ between attempts (hosts, ports, paths, numbers, ids, times,
sizes) are left out, but structured codes (statuses, error numbers, reasons) stay. The parts of text
in braces are sorted, because each process prints a set in another order. Only the frames of the
user's own code count, without line numbers: an added comment or another version of a library makes
no new failure.

No expression here nests repetitions, and only the head of a message is read: the time is bounded
for any message.
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
"""Words: a line with this many identifies a failure by itself, and the next line may be another
thread's."""
_MAX_WORDS = 60
_FRAMES = 3
_QUOTED = re.compile(r"(?<!\w)(?:'[^'\n]{1,300}'|\"[^\"\n]{1,300}\"|`[^`\n]{1,300}`)(?!\w)")
_BRACES = re.compile(r"\{[^{}]{0,1000}\}")
_KEYED = re.compile(
    r"(?i)\b((?:host|hostname|node|address|addr|server|peer|endpoint|user|bucket|project|pod|ip)=|"
    r"(?:request|trace|correlation|session|job|run|upload|span)[-_ ]?id ?[=:] ?)"
    r"(?:'[^'\n]{0,300}'|\"[^\"\n]{0,300}\"|[^\s'\",;)]+)"
)
"""The value behind the name of something that differs between attempts."""
_TIME = re.compile(
    r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},? (?=\d|[A-Z][a-z]{2} )|"
    r"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6} (?=\d)|\b[AP]M\b"
)
_PATH = re.compile(r"(?:\b[a-z][a-z0-9+]{0,15}:/|(?<!\w)~?\.{0,2}/|/)[^\s'\"`,;)\]}>]*")
_TOKEN = re.compile(r"[^\s'\"`,;()<>{}\[\]=|]+")
_LIBRARY = re.compile(r"(lib[A-Za-z_]{1,40})\.so(?:\.\d+)*:?")
"""A shared library, without its version. Another one that is missing is another failure."""
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
"""A generated name of several words, such as docker's `jovial_euler`."""
_ENCODED = re.compile(r"(?<![\w/.+-])[A-Za-z0-9+/_-]{16,}={0,2}(?![\w/.])")
_TEMPORARY = re.compile(r"tmp[a-z0-9_]{8}|\btmp\.[A-Za-z0-9]{6,}|\b(?:psm|wnsm)_[0-9a-f]{8}")
"""Names that tempfile, mktemp(1) and multiprocessing.shared_memory make."""
_NETWORK = (
    "com", "org", "net", "io", "ai", "co", "dev", "cloud", "app", "edu", "gov", "internal",
    "local", "localdomain", "lan", "corp", "svc", "test", "example", "goog",
)  # fmt: skip
"""The last parts of host names."""
_PLACEHOLDERS = re.compile(r"(?:<(?:n|id|path)>)+")
"""Placeholders, which all count as equal: an id that is all digits at one attempt, and so a number,
may have letters at the next."""
_WORD = re.compile(r"<\w*>|[^\W\d]+")


def signature(
    kind: str,
    message: str,
    frames: Iterable[tuple[str, str]],
    stage: str | None,
    step: int | None,
    codes: Iterable[str] = (),
) -> str:
    """Returns a short name of the failure: its type, then a hash of all that identifies it."""
    name = kind.rpartition(".")[2]
    own = [_place(path, function) for path, function in frames if is_surely_own(path)]
    said = normalised(message.removeprefix(kind) if kind else message)
    parts = (name, said, *sorted(codes), *own[-_FRAMES:], stage or "", str(step))
    digest = hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:12]
    return f"{name or 'status'}-{digest}"


def _place(path: str, function: str) -> str:
    """Returns a frame without folder, line, and the number in the name of a copied file."""
    return f"{_DIGITS.sub('', path.rpartition('/')[2])}:{function}"


def normalised(message: str) -> str:
    """Returns the first words of `message`, without the parts that differ between attempts."""
    words: list[str] = []
    for line in _first_lines(message):
        found = _WORD.findall(_PLACEHOLDERS.sub("<>", _stable(line)))
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
    """Returns `text` with a placeholder for each part that differs between attempts."""
    text = _NAMED.sub(r"\1<id>", _KEYED.sub(r"\1<id>", _TIME.sub("", text)))
    text = _ENCODED.sub(lambda match: "<id>" if is_encoded(match[0]) else match[0], text)
    text = _QUOTED.sub(_quoted, text)
    text = _UNIT.sub("", _TOKEN.sub(_token, _PATH.sub("<path>", text)))
    return _BRACES.sub(_sorted, text)


def _quoted(match: re.Match[str]) -> str:
    """Returns a quoted name as it is if it can be a word of the program, else a placeholder.

    A text with blanks is no name: its words are replaced one by one.
    """
    name = match[0][1:-1]
    if " " in name:
        return match[0]
    varies = _DIGITS.search(name) or "/" in name or _varies(name)
    return "<id>" if varies else match[0]


def _token(match: re.Match[str]) -> str:
    """Returns a word, which ends at blanks and punctuation, or the placeholder for it."""
    token = match[0]
    if _NUMBER.fullmatch(token.rstrip(".:")):
        return "<n>"
    library = _LIBRARY.fullmatch(token)
    if library is not None and not _varies(library[1]):
        return library[1]
    if _varies(token):
        return "<id>"
    found = len(_DIGITS.findall(token))
    if not found:
        return token
    plain = token.strip(".:!?-").replace("_", "")
    if found > 1 or not plain.isalnum() or (plain[0].isdigit() or not plain[-1].isdigit()):
        return "<id>"
    return _DIGITS.sub("<n>", token)


def _varies(name: str) -> bool:
    """True if the name differs between attempts: a host's, a temporary file's, or a random one."""
    return bool(_TEMPORARY.search(name)) or _is_host(name) or is_random(name)


def _is_host(name: str) -> bool:
    head, dot, last = name.rstrip(".:").rpartition(".")
    return bool(dot and head) and last.lower() in _NETWORK


def _sorted(match: re.Match[str]) -> str:
    return "{" + ",".join(sorted(part.strip() for part in match[0][1:-1].split(","))) + "}"
