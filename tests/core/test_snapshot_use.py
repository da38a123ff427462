"""What lets an attempt resume from memory, as a table over every rule there is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.liveness import Silence
from supervisor.core.snapshot_use import SOUND, SnapshotUse, distrust, refusal
from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.verdicts import hang_failure
from supervisor.protocol.messages import Stage
from tests.core.history import RETRY, History, policy

FIRST = SnapshotUse(offered=False, declined=False, committed=False)
OFFERED = SnapshotUse(offered=True, declined=False, committed=False)


@pytest.mark.parametrize("rule", [*(rule.name for rule in RULES), "launch", "of my own"])
def test_only_a_kill_and_a_preemption_leave_a_state_to_trust(rule: str) -> None:
    allowed = rule in ("sigkill", "sigkill-or-memory", "host-oom-kill", "sigterm", "hangup")
    assert (not distrust(replace(RETRY, rule=rule))) == allowed


def test_every_trusted_rule_is_one() -> None:
    names = {rule.name for rule in RULES}
    assert names | {"hang"} >= SOUND
    assert not any(rule.about_text for rule in RULES if rule.name in SOUND)


def test_a_hang_leaves_a_state_to_trust() -> None:
    silence = Silence(1, Stage.TRAINING, 70.0)
    assert not distrust(hang_failure(RETRY, silence.stage, silence.seconds))


@pytest.mark.parametrize(
    ("failure", "use", "why"),
    [
        (None, FIRST, "nothing tells how the last attempt ended"),
        (RETRY, FIRST, None),
        (RETRY, OFFERED, "the last attempt had them and failed before a new checkpoint"),
        (RETRY, replace(OFFERED, declined=True), None),
        (RETRY, replace(OFFERED, committed=True), None),
        (
            replace(RETRY, rule="not-finite", cause="NaN or Inf in the training"),
            replace(OFFERED, committed=True),
            "after this failure (NaN or Inf in the training) the state in memory is not trusted",
        ),
    ],
)
def test_a_snapshot_is_tried_once(
    failure: Failure | None, use: SnapshotUse, why: str | None
) -> None:
    assert refusal(distrust(failure), use) == why


def test_resuming_above_what_is_committed_is_no_progress() -> None:
    """Step 12 is only in memory: it neither refills the budget nor is it the highest step."""
    history = History(policy(restarts=2))
    history.starts()
    history.fails(committed=10)
    for _ in range(2):
        assert history.finish is None
        history.fails(committed=10, snapshot=12)
    assert history.finish is not None
    assert history.state.budget.highest == 10
    assert history.state.budget.restarts == 2
