"""Names the version of the decision core that writes a record.

Only records of this very version must follow from its rules. The release number is not enough to
identify it: in a checkout, somebody may change the rules under the same number.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from supervisor import __version__

_HERE = Path(__file__).parents[1]
_DECIDES = (
    "core/*.py",
    "history/*.py",
    "diagnosis/**/*.py",
    "protocol/*.py",
    "files/*.py",
    "host/guard_socket.py",
    "host/notice.py",
    "host/retry.py",
    "config/judgement.py",
    "config/patterns.py",
    "ports.py",
)
"""All modules that a step and its encoding import. A test compares the list with the imports."""


def code_that_decides() -> list[Path]:
    """Returns the files that the fingerprint is made of."""
    return sorted(path for pattern in _DECIDES for path in _HERE.glob(pattern))


@cache
def writer() -> str:
    """Returns this version: its release, and a fingerprint of the code that decides."""
    digest = hashlib.sha256()
    for path in code_that_decides():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_HERE)} {len(content)}\n".encode() + content)
    return f"{__version__}+{digest.hexdigest()[:8]}"
