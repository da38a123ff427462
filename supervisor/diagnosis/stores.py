"""Decides whether the client of an object store raised an error.

A job that is kept in a bucket is not charged for trouble with the bucket. The same code from
another speaker means other trouble: a 503 of a tracker, a database that is gone, a refused port. So
this file looks for the speaker, from the error itself outwards, and skips libraries that only carry
bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from supervisor.diagnosis.chain import Chain, PrintedError
from supervisor.diagnosis.ownership import is_own
from supervisor.diagnosis.speakers import CARRIERS, STORES, TALKERS, package

_ADDRESS = re.compile(
    r"\b(?:gs|gcs|s3|s3a|r2|az|abfss?|oss|oci)://|\bstorage\.(?:googleapis|cloud\.google)\.com\b|"
    r"\bs3[\w.-]{0,40}\.amazonaws\.com\b|\.blob\.core\.windows\.net\b"
)
_OTHER_OF_GOOGLE = re.compile(r"google[./]cloud[./](?!storage\b|_|client\b|exceptions\b)\w")


def is_of_a_store(chain: Chain, member: PrintedError) -> bool:
    """True if the client of an object store raised the error.

    If no speaker is known, the error must name an object in a store: TensorStore raises Python's
    own types, and shows no frames.
    """
    who = next(_speakers(chain, member), None)
    if who is not None:
        of_google = who == "google" and _OTHER_OF_GOOGLE.search(f"{member.type}\n{chain.path}")
        return who in STORES and not of_google
    return _ADDRESS.search(member.text) is not None


def _speakers(chain: Chain, member: PrintedError) -> Iterator[str]:
    """Yields the I/O libraries that do not only carry bytes.

    First those of the error's types, then those of the frames that it passed through, from the
    innermost frame to the user's own code.
    """
    found = [kind.partition(".")[0] for kind in (member.type, *member.bases) if "." in kind]
    for path, _ in reversed(chain.frames):
        if is_own(path):
            break
        found.append(package(path))
    yield from (name for name in found if name in TALKERS - CARRIERS)
