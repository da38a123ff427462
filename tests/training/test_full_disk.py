"""A disk that becomes full while our trainer saves: told at once, as what it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from supervisor.diagnosis.failure import Evidence, RankEvidence, WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from tests.running import PATIENCE, may_mount
from trainer.checkpoint import newest_step
from trainer.manifest import read_manifest

from .harness import MakeTrainer

_SCRIPT = """
mount -t tmpfs -o size=300k none "$1" || exit 99
"$2" -P -m trainer "$3"
code=$?
cp -a "$1" "$1.after"
exit $code
"""
"""Room for one checkpoint, and a part of another one."""


@pytest.mark.skipif(not may_mount(), reason="only root can mount a file system")
def test_a_save_that_finds_no_room_is_told_before_the_next_one(make_trainer: MakeTrainer) -> None:
    """Steps are slow from the save on, so that the loop has the time to look."""
    trainer = make_trainer(max_inflight_computations=1)
    disk = trainer.folder / "disk"
    disk.mkdir()
    checkpoint = trainer.mapping["trainer"]["init"]["checkpoint"]
    checkpoint["directory"] = str(disk / "checkpoints")
    trainer.write_params()
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", _SCRIPT, "sh", disk, sys.executable, trainer.params],
        env=trainer.environment({"step": 10, "slow_input": 0.3}),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    record = trainer.failure()
    assert record.step in range(10, 14), "the next save would be that of step 15"
    failure = judge(Evidence((RankEvidence(WorkerExit(0, code=1), record),)), Success())
    assert failure is not None
    assert failure.rule == "disk-full"
    kept = disk.with_name("disk.after") / "checkpoints"
    assert newest_step(kept) == 5
    manifest = read_manifest(kept / "5")
    assert manifest is not None
    manifest.verify(kept / "5")
