"""How long to wait before a restart: nothing before the first, then exponentially longer."""

from __future__ import annotations

import zlib

from supervisor.core.policy import RestartPolicy
from supervisor.host.retry import Pauses


def backoff_delay(failures: int, policy: RestartPolicy, *, salt: str) -> float:
    """Seconds to wait after the `failures`-th failure in a row without progress (1 is the first).

    The jitter comes from `salt` (job and attempt), not from a random source: many jobs that died
    together still spread out, and a replayed journal gives the same delay.
    """
    if failures <= 1:
        return 0.0
    delay = Pauses(policy.backoff_first, policy.backoff_max).before(failures - 1)
    fraction = zlib.crc32(salt.encode()) / 0xFFFFFFFF
    return delay * (1.0 + policy.backoff_jitter * (2.0 * fraction - 1.0))
