"""Which folders a program makes at each of its starts."""

from __future__ import annotations

import pytest

from supervisor.core.start_folders import are_of_two_starts, is_of_one_start


@pytest.mark.parametrize(
    ("one", "other", "is_dated"),
    [
        ("runs/2026-11-29_01-04-21/ckpt", "runs/2026-11-29_01-04-23/ckpt", True),
        ("outputs/2026-11-29/23-59-58/ckpt", "outputs/2026-11-30/00-00-03/ckpt", True),
        ("runs/Nov29_01-04-21_vm", "runs/Nov29_01-04-23_vm", True),
        ("wandb/run-20261129_010421-a1b2c3d4/files", "wandb/run-20261129_010423-x9/files", True),
        ("runs/1796000000123456789/ckpt", "runs/1796000001123456789/ckpt", True),
        ("logs/version_0/checkpoints", "logs/version_1/checkpoints", False),
        ("runs/train/exp/weights", "runs/train/exp2/weights", False),
        ("mlruns/0/0a1b2c3d4e5f/artifacts", "mlruns/0/f5e4d3c2b1a0/artifacts", False),
    ],
)
def test_folders_of_two_starts(one: str, other: str, *, is_dated: bool) -> None:
    assert are_of_two_starts(one, other)
    assert is_of_one_start(one) is is_dated


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("out/actor", "out/critic"),
        ("out/last", "out/best"),
        ("cv/fold_1/ckpt", "cv/fold_2/ckpt"),
        ("out/epoch_1", "out/epoch_2"),
        ("out/task1/ckpt", "out/task2/ckpt"),
        ("out/run", "out/train"),
        ("out/version_1/last", "out/version_2/best"),
        ("out/version_1", "out/version_1/checkpoints"),
        ("out/version_1", "out/version_1"),
    ],
)
def test_folders_that_no_start_makes(one: str, other: str) -> None:
    assert not are_of_two_starts(one, other)
    assert not is_of_one_start(one)
