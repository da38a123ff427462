"""How long a restart must wait after a failure: a second, independent implementation of the
design."""

from __future__ import annotations

from supervisor.core.budget import Charge
from supervisor.core.decisions import Decision, Wait
from supervisor.core.policy import RestartPolicy


def waits_as_it_should(
    decision: Decision | None, failures: int, charge: Charge, policy: RestartPolicy
) -> bool:
    """True if the wait has the right length for this number of failures in a row: none after the
    first, and after each later one twice the wait before."""
    delay = decision.seconds if isinstance(decision, Wait) else 0.0
    nominal = 0.0
    if failures > 1:
        nominal = min(policy.backoff_first * 2.0 ** (failures - 2), policy.backoff_max)
    jitter = policy.backoff_jitter * nominal
    least = policy.corroboration if charge is Charge.PREEMPTIONS else 0.0
    return max(nominal - jitter, least) <= delay <= max(nominal + jitter, least)
