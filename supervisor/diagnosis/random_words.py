"""Recognises random words: names that a program drew, which are different at each attempt.

Ids of containers, pods, runs and temporary files consist of random letters and digits. `signature`
recognises those that have digits in two places. This file recognises the others, by pairs of
letters that hardly ever follow one another in what people write.
"""

from __future__ import annotations

import re

_POD = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}$")
"""The suffix that Kubernetes adds to a name: rand.SafeEncodeString of k8s.io/apimachinery."""
_HEX = re.compile(r"(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,}")
"""A hash or an id, shortened as git and docker do."""
_PART = re.compile(r"[A-Za-z0-9]+")
_SWITCH = re.compile(r"(?<=[a-z])[A-Z0-9]|(?<=[A-Z])[a-z0-9]|(?<=\d)[A-Za-z]")
_SHORTEST = 8
"""Characters: a shorter word does not show that it is random."""
_RARE = """
    a:aehjoqz b:bdfghkmnpqtvwxz c:bfgjnpqvwxz d:bcghjkmpqvwxyz e:hjkz f:bcdghjkmnpqvwxz
    g:bcdfjkmpqtvwxyz h:bcdfghjklmnpqsuvwxyz i:hijkquwy j:abcdfghijklmnopqrstvwxyz
    k:bcdfghjklmnopqrtuvwxyz l:bghjkmqrvwxz m:cfghjknqrvwxyz n:bhjmqrwxyz o:ehjqxyz
    p:bcfgjkmnqvwxz q:abcdefghijklmnopqrstvwxyz r:hjqwxz s:bgjrvxz t:bgjknqvxz u:hjkquvwxyz
    v:bcdfghjklmnpqrstuvwxyz w:bcdfgjklmpqtuvwxyz x:abdfghjklmnoqrsuvwxyz
    y:abcdefghjkoqruvwxyz z:abcdfghjklmnopqrstuvwxyz
"""
"""After each letter the letters that follow it in less than 4 of 10,000 pairs, in 8,000 words of
Python's own modules."""
_SELDOM = frozenset(
    f"{row[0]}{letter}" for row in _RARE.split() for letter in row.partition(":")[2]
)
_SHARE = 0.25


def is_random(token: str) -> bool:
    """True if a part of the token is random: no person chose it."""
    if _POD.search(token.rstrip(".:!?")):
        return True
    return any(_is_random_part(part[0]) for part in _PART.finditer(token))


def is_encoded(text: str) -> bool:
    """True if a text is bytes in base64 rather than words with slashes between them."""
    return len(_SWITCH.findall(text)) * 4 >= len(text)


def _is_random_part(part: str) -> bool:
    if _HEX.fullmatch(part):
        return True
    letters = part.rstrip("0123456789").lower()
    if len(part) < _SHORTEST or not letters.isalpha() or not letters.isascii():
        return False
    pairs = [letters[at : at + 2] for at in range(len(letters) - 1)]
    return sum(pair in _SELDOM for pair in pairs) >= max(1, _SHARE * len(pairs))
