"""The best checkpoint survives kills at every moment of a save, and a damaged one is none."""

# mypy: allow-untyped-calls
from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import pytest

from tests.running import PATIENCE
from tests.training.notices import Notices
from tests.training.test_foreign import state_of
from tests.training.test_verified import flip
from trainer.checkpoint import CheckpointSaver
from trainer.checkpoint_steps import Keep, RenamedSteps
from trainer.marked_steps import MarkedSteps

LOSSES = {1: 3.0, 2: 1.0, 3: 2.0}
"""The validation loss by step: 2 is the best."""
WRITES = 8
"""Writes of the ledger while these steps are saved, at least."""
KINDS: dict[str, type[RenamedSteps | MarkedSteps]] = {
    "renamed": RenamedSteps,
    "marked": MarkedSteps,
}


class Job:
    """Saves as the trainer does, each step with its loss."""

    def __init__(
        self, directory: Path, kind: type[RenamedSteps | MarkedSteps], keep: int = 1
    ) -> None:
        self.directory = directory
        self.kind = kind
        self.keep = Keep(newest=keep, best=True)
        self.said = Notices()

    def opened(self) -> CheckpointSaver:
        return CheckpointSaver(self.kind(self.directory), self.keep, {}, self.said)

    def run(self, losses: Mapping[int, float | None]) -> None:
        """Go on after the newest step, as after a restart."""
        checkpoints = self.opened()
        newest = checkpoints.newest_verified() or 0
        for step, loss in losses.items():
            if step > newest:
                checkpoints.save(state_of(step), step, {"next": step}, loss)
                checkpoints.committed(wait=True)
                checkpoints.wait_for_manifest()
        checkpoints.close()

    @property
    def steps(self) -> set[str]:
        return {
            path.name
            for path in self.directory.iterdir()
            if path.name.isdecimal() and (path / "commit_success.txt").exists()
        }


def save_until_killed(directory: Path, kind: str, number: int) -> None:
    """Save all steps; SIGKILL comes just before the ledger is written for the time `number`."""
    replace, written = Path.replace, count(1)

    def counting(path: Path, target: Path) -> Path:
        if "ledger" in path.name and next(written) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(path, target)

    Path.replace = counting  # type: ignore[method-assign, assignment]
    Job(directory, KINDS[kind]).run(LOSSES)


def kill_at_every_write(directory: Path, kind: str) -> None:
    """Have each write of the ledger met by a kill, in a process and a folder of its own. They are
    forked from this one, which has imported everything and has no threads."""
    for number in count(1):
        pid = os.fork()
        if not pid:
            save_until_killed(directory / f"{number}", kind, number)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != -signal.SIGKILL:
            break


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERVISE_JOB", "0123456789ab")


@pytest.mark.parametrize("kind", KINDS)
def test_killed_before_any_write_of_the_ledger_the_best_is_kept(tmp_path: Path, kind: str) -> None:
    arguments = [str(tmp_path), kind]
    kills = (
        "import sys; from pathlib import Path; from tests.training import test_keep_best as test; "
        "test.kill_at_every_write(Path(sys.argv[1]), sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", kills, *arguments], check=True, timeout=PATIENCE)
    kept = dict[int, set[str]]()
    for number in range(1, len(list(tmp_path.iterdir())) + 1):
        job = Job(tmp_path / f"{number}", KINDS[kind])
        job.run({**LOSSES, 4: None})
        assert not job.said
        kept[number] = job.steps
    assert len(kept) > WRITES
    wrong = {number: steps for number, steps in kept.items() if steps != {"2", "4"}}
    assert not wrong, f"the write before which it was killed, and what was kept: {wrong}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_best_is_forgotten_and_the_next_best_counts(tmp_path: Path, kind: str) -> None:
    job = Job(tmp_path / "checkpoints", KINDS[kind], keep=2)
    job.run({1: 2.0, 2: 1.0})
    flip(job.directory / "2")
    job.run({})
    assert job.steps == {"1"}
    job.run({3: 4.0, 4: 3.0, 5: 5.0})
    assert job.steps == {"1", "4", "5"}
    job.run({6: 1.5, 7: None, 8: None, 9: None})  # a loss that 2 had beaten
    assert job.steps == {"6", "8", "9"}


def test_a_best_that_somebody_removed_is_forgotten(tmp_path: Path) -> None:
    job = Job(tmp_path / "checkpoints", RenamedSteps, keep=2)
    job.run({1: 2.0, 2: 1.0})
    (job.directory / "2").rename(tmp_path / "taken")
    job.run({3: 4.0, 4: 3.0, 5: 5.0})
    assert job.steps == {"1", "4", "5"}


def test_a_step_that_is_saved_again_has_its_new_loss_alone(tmp_path: Path) -> None:
    """A step that was set aside is trained and saved again, and is not validated any more."""
    job = Job(tmp_path / "checkpoints", RenamedSteps, keep=2)
    job.run({1: 2.0, 2: 1.0})
    flip(job.directory / "2")
    job.run({2: None, 3: None, 4: None})
    assert job.steps == {"1", "3", "4"}
