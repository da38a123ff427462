"""The config with which `supervise gang` was started on this host, for comparison with other hosts.

The launcher puts a digest of it into the environment of Ray and of the leader. The leader is told
that of each other host by its agent, which inherits the environment of Ray.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

VARIABLE = "SUPERVISE_GANG_CONFIG"


def digest_of(config: Any) -> str:
    """Returns a short text that is the same for equal configs alone: the data of the YAML file,
    with the `--set` options applied."""
    text = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
