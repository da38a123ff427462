"""Which compiled programs may be exchanged with a bucket.

An entry of the compilation cache is native code: whoever can put one where a job looks for it can
have the job do anything. Checksums in the same bucket prove nothing. So entries go to a bucket and
come from it only where the config says whom to trust: the holders of a key that is not in the
bucket, or everybody who may write to it.

With a key each entry has an HMAC (SHA-256) over its name and its content, in one table beside the
entries. The name has JAX's hash of the program: an entry cannot stand in for another one.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

FOLDER = "compile_cache"
"""In model_dir."""
SUFFIX = "-cache"
"""Of the names of JAX's entries."""
SUMS = "SHA256SUMS"
MACS = "HMACS"
MIN_KEY = 32
"""Bytes of a key."""

_ENTRY = re.compile(rf"[^./\0][^/\0]{{0,250}}{SUFFIX}")
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_CONTEXT = b"supervise compiled program 1\0"


def is_entry(name: str) -> bool:
    """Whether a file or an object of that name is an entry."""
    return _ENTRY.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose compiled programs in the bucket are used."""

    key: bytes | None = field(default=None, repr=False)
    """Trust programs signed with this key."""
    from_bucket: bool = False
    """Trust programs of everybody who may write to the bucket."""

    @property
    def shares(self) -> bool:
        """Whether there are any, and ours go there."""
        return self.key is not None or self.from_bucket

    def sign(self, name: str, content: bytes) -> str:
        """What proves to holders of the key that the entry `name` is theirs; empty without one."""
        if self.key is None:
            return ""
        proof = hmac.new(self.key, _CONTEXT + name.encode() + b"\0", "sha256")
        proof.update(content)
        return proof.hexdigest()

    def accepts(self, name: str, content: bytes, mac: str) -> bool:
        """Whether the entry `name` may be used; `mac` is what came with it, or empty."""
        if self.key is None:
            return self.from_bucket
        return hmac.compare_digest(self.sign(name, content), mac)


def parse_macs(table: bytes) -> dict[str, str]:
    """HMACs by the names of their entries. What is no such line proves nothing, and is left out."""
    lines = (_LINE.fullmatch(line) for line in table.decode("utf-8", "replace").split("\n"))
    return {line[2]: line[1] for line in lines if line is not None}


def macs_table(macs: Mapping[str, str]) -> bytes:
    """What `parse_macs` reads."""
    return "".join(f"{mac}  {name}\n" for name, mac in sorted(macs.items())).encode()
