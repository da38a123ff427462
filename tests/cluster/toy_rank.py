"""One rank of a job on several hosts, without jax: `toy_rank.py FOLDER STEPS [SECONDS]`.

Each rank takes steps, and writes which it took; rank 0 commits every tenth, and the last one before
it is told to stop. So whoever reads the files sees whether ranks of two attempts were ever at work
at once.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import supervise_worker  # type: ignore[import-not-found]

EVERY = 10
PACE = 0.05


def newest(folder: Path) -> int:
    """The newest committed step; 0: none is."""
    found = [int(path.parent.name) for path in folder.glob("*/commit_success.txt")]
    return max(found, default=0)


def commit(folder: Path, step: int) -> None:
    """Commit a step as Orbax does on a shared disk."""
    unfinished = folder / f"{step}.orbax-checkpoint-tmp-1"
    unfinished.mkdir(parents=True)
    (unfinished / "commit_success.txt").touch()
    unfinished.rename(folder / str(step))


def main() -> None:
    """Take the steps that are left."""
    model_dir, last = Path(sys.argv[1]), int(sys.argv[2])
    pace = float(sys.argv[3]) if sys.argv[3:] else PACE
    rank, attempt = os.environ["JAX_PROCESS_ID"], os.environ["SUPERVISE_ATTEMPT"]
    checkpoints = model_dir / "checkpoints"
    done = newest(checkpoints)
    with (model_dir / f"taken-{rank}").open("a", buffering=1) as taken:
        for step in range(done + 1, last + 1):
            time.sleep(pace)
            taken.write(f"{attempt} {step} {time.time()}\n")
            supervise_worker.step(step)
            stops = supervise_worker.should_stop()
            if rank == "0" and (stops or step % EVERY == 0):
                commit(checkpoints, step)
                supervise_worker.saved(step)
            if stops:
                return


if __name__ == "__main__":
    main()
