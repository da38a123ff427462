"""Whether an error is what the client of an object store says.

A job that is kept in a bucket is not charged for trouble with it. The same code means other trouble
where somebody else says it: a 503 of a tracker, a database that is gone, a refused port. So who
speaks is looked for, from the error itself outwards; what only carries bytes is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from supervisor.diagnosis.chain import Chain, Raised
from supervisor.diagnosis.ownership import is_own
from supervisor.diagnosis.speakers import CARRIERS, STORES, TALKERS, package

_ADDRESS = re.compile(
    r"\b(?:gs|gcs|s3|s3a|r2|az|abfss?|oss|oci)://|\bstorage\.(?:googleapis|cloud\.google)\.com\b|"
    r"\bs3[\w.-]{0,40}\.amazonaws\.com\b|\.blob\.core\.windows\.net\b"
)
_OTHER_OF_GOOGLE = re.compile(r"google[./]cloud[./](?!storage\b|_|client\b|exceptions\b)\w")


def is_of_a_store(chain: Chain, member: Raised) -> bool:
    """Whether the client of an object store raised the error, or it names an object in one where
    nobody else is known to speak: TensorStore raises Python's own types, and shows no frames."""
    who = next(_speakers(chain, member), None)
    if who is not None:
        of_google = who == "google" and _OTHER_OF_GOOGLE.search(f"{member.type}\n{chain.path}")
        return who in STORES and not of_google
    return _ADDRESS.search(member.text) is not None


def _speakers(chain: Chain, member: Raised) -> Iterator[str]:
    """The packages that talk to others and not only carry bytes: by the types of the error, then by
    the frames that it passed through, the innermost first, down to the user's own code."""
    found = [kind.partition(".")[0] for kind in (member.type, *member.bases) if "." in kind]
    for path, _ in reversed(chain.frames):
        if is_own(path):
            break
        found.append(package(path))
    yield from (name for name in found if name in TALKERS - CARRIERS)
