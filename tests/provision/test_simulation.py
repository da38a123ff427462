"""Many histories of a cloud, a job and loops that are killed: one slice at a time, and an end."""

from __future__ import annotations

from collections import Counter

from supervisor.provision.intent import LoopPolicy
from tests.provision.world import play

SEEDS = 300


def test_there_is_never_more_than_one_slice_and_always_an_end() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        try:
            done = play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        world = done.world
        assert world.given == {}, f"seed {seed}: a slice is left"
        # What ends a job that never spoke is a string of machines that do not boot.
        assert done.end.exit_code == world.code or "in a row" in done.end.reason, f"seed {seed}"
        seen["replaced"] += world.created > 1
        seen["killed or joined"] += done.loops > 1
        seen["smaller"] += any("v5e-4" in line for line in world.said)
        seen["gave up"] += "in a row" in done.end.reason
        if "cannot be used" in done.end.reason:
            seen["unusable"] += 1
            steps = list(world.refused.values())[-LoopPolicy("", ()).max_unusable :]
            assert len(steps) == 3, f"seed {seed}"
            assert len(set(steps)) == 1, f"seed {seed}: a checkpoint between, and it gave up"
            assert done.end.exit_code == 70, f"seed {seed}"
        seen[str(world.code)] += 1
    missing = {
        "replaced",
        "killed or joined",
        "smaller",
        "gave up",
        "unusable",
        "0",
        "70",
        "78",
    } - set(+seen)
    assert not missing, f"these histories are too tame: {seen}"


def test_a_history_follows_from_its_seed() -> None:
    assert play(7).world.said == play(7).world.said
