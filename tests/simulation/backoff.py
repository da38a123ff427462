"""How long a failure must wait for its restart: a second, independent reading of the design."""

from __future__ import annotations

from supervisor.core.budget import Charge
from supervisor.core.decisions import Decision, Wait
from supervisor.core.policy import RestartPolicy


def waits_as_it_should(
    decision: Decision | None, failures: int, charge: Charge, policy: RestartPolicy
) -> bool:
    """Whether the wait has the length that so many failures in a row ask for: the first restarts
    at once, and each later one waits twice as long as the one before."""
    delay = decision.seconds if isinstance(decision, Wait) else 0.0
    nominal = 0.0
    if failures > 1:
        nominal = min(policy.backoff_first * 2.0 ** (failures - 2), policy.backoff_max)
    jitter = policy.backoff_jitter * nominal
    least = policy.corroboration if charge is Charge.PREEMPTIONS else 0.0
    return max(nominal - jitter, least) <= delay <= max(nominal + jitter, least)
