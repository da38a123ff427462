"""The same failure as it would be told by another attempt: on other hosts, in other folders."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from tests.corpus.cases import Case

_STATED = re.compile(
    r"\[Errno -?\d+\]|, \d{3}\b|os_error_code='\d+'|HTTP\D{0,12}\d{3}|\bE\d{4}\b|python3\.\d+|"
    r"\b[IWEF]\d{4} |"
    r"(?i:status|code|error|exit|signal|response)\W{0,4}-?\d+|\(\d{3}\)|\b[45]\d\d [A-Z]|\[\d{3}\]|"
    r"CURL error\[\d+\]|\b(?:float|u?int|bf|complex|v|s|F|Traced<)\d+|grpc_status\W{0,3}\d+|x86_64|"
    r"\b[A-Za-z]+\d+[A-Za-z]\w*|-\d+ ?$|\b[a-z]{3,20}\d\.(?=\w)"
)
"""Numbers that say what is wrong."""
_ADDRESS = re.compile(r"\b(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})\b")
_HEX = re.compile(r"\b0x[0-9a-f]+\b")
_NUMBER = re.compile(r"\d+")
_PLACES = {
    "/app/": "/srv/jobs/a7/",
    "/data/": "/mnt/other/set/",
    "/opt/venv/": "/home/u/env/",
    "gs://acme": "gs://umbrella",
    "/tmp/": "/var/tmp/x/",
    "acme": "umbrella",
    "huggingface.co": "mirror.example.org",
    "googleapis.com": "storage.internal",
    "localhost": "node17.cluster.local",
}


def elsewhere(case: Case, seed: int) -> Case:
    """`case` with other hosts, ports, paths and numbers."""
    chance = random.Random(f"{case.id} {seed}")
    output = case.output
    for place, other in _PLACES.items():
        output = output.replace(place, other)
    output = _ADDRESS.sub(
        lambda _: f"10.{chance.randrange(2, 250)}.7.{chance.randrange(250)}", output
    )
    output = _HEX.sub(lambda _: hex(chance.randrange(1 << 20, 1 << 44)), output)
    pieces, at = [], 0
    for kept in _STATED.finditer(output):
        pieces += [_renumbered(output[at : kept.start()], chance), kept[0]]
        at = kept.end()
    pieces.append(_renumbered(output[at:], chance))
    return replace(case, output="".join(pieces))


def _renumbered(text: str, chance: random.Random) -> str:
    """`text` with other numbers of about the same size; 0 and 1 stay, as they are often words."""

    def other(match: re.Match[str]) -> str:
        digits = len(match[0])
        if match[0].lstrip("0") in ("", "1"):
            return match[0]
        low = max(2, 10 ** (digits - 1))
        return str(chance.randrange(low, 10 * low if digits > 1 else 10)).zfill(digits)

    return _NUMBER.sub(other, text)
