"""Compiling ahead of time takes the config and the devices, and nothing else of the job."""

from __future__ import annotations

import subprocess
import sys

from .harness import MakeTrainer


def test_all_steps_are_kept_and_no_data_is_read(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(num_devices=2)
    unreadable = trainer.folder / "data.jsonl"
    unreadable.write_text("whoever reads this fails")
    trainer.mapping["trainer"]["fit"]["train_dataloader"]["paths"] = str(unreadable)
    executables = trainer.folder / "executables"
    trainer.extra["SUPERVISE_EXECUTABLES"] = str(executables)
    trainer.extra["JAX_COMPILATION_CACHE_DIR"] = str(trainer.folder / "cache")
    params = trainer._command()[-1]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "trainer.prefetch", params],
        **trainer._options(()),
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    kept = sorted(path.name.partition("-rank0")[0] for path in executables.iterdir())
    assert kept == ["evaluation-step", "train-step"]
    assert not trainer.checkpoints.exists()
