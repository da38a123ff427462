"""Which compiled programs may be exchanged with a bucket.

An entry of the compilation cache is native code: whoever can write one where a job reads it can run
any code in that job. Checksums in the same bucket prove nothing. So the job exchanges entries with
a bucket only if the config says whom to trust: the holders of a key that is not in the bucket, or
everybody who may write to the bucket.

With a key, each entry has an HMAC-SHA-256 over its name and its content, in one table beside the
entries. The name contains JAX's hash of the program, so no entry can replace another one.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

FOLDER = "compile_cache"
"""The directory of the cache, relative to model_dir."""
SUFFIX = "-cache"
"""The end of the names of JAX's cache entries."""
SUMS = "SHA256SUMS"
MACS = "HMACS"
MIN_KEY = 32
"""The least length of a key in bytes."""

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
        """Whether programs are read from the bucket and written to it at all."""
        return self.key is not None or self.from_bucket

    def sign(self, name: str, content: bytes) -> str:
        """Returns the HMAC of the entry `name` as hex; empty without a key."""
        if self.key is None:
            return ""
        proof = hmac.new(self.key, _CONTEXT + name.encode() + b"\0", "sha256")
        proof.update(content)
        return proof.hexdigest()

    def accepts(self, name: str, content: bytes, mac: str) -> bool:
        """Whether the entry `name` may be used; `mac` is its HMAC from the bucket, empty if it has
        none."""
        if self.key is None:
            return self.from_bucket
        return hmac.compare_digest(self.sign(name, content), mac)


def parse_macs(table: bytes) -> dict[str, str]:
    """Returns HMACs by entry name. Lines of another form are ignored."""
    lines = (_LINE.fullmatch(line) for line in table.decode("utf-8", "replace").split("\n"))
    return {line[2]: line[1] for line in lines if line is not None}


def macs_table(macs: Mapping[str, str]) -> bytes:
    """Returns the table that `parse_macs` reads."""
    return "".join(f"{mac}  {name}\n" for name, mac in sorted(macs.items())).encode()
