"""One rank of a job on several hosts, without jax: `toy_rank.py FOLDER STEPS [SECONDS]`.

Each rank takes steps, and writes which it took; rank 0 commits every tenth, and the last one before
it is told to stop. So whoever reads the files sees whether ranks of two attempts were ever at work
at once. Each step changes a state that only the steps before it explain, and a commit holds it: a
step that was done twice or left out shows at the end. A step takes some time, until a file `hurry`
is in FOLDER.
"""

from __future__ import annotations

import os
import sys
import time
from hashlib import sha256
from pathlib import Path

EVERY = 10
PACE = 0.05
HURRY = "hurry"
_STATE = "state"


def state_after(step: int, state: str) -> str:
    """The state after a step that begins with `state`."""
    return sha256(f"{step} {state}".encode()).hexdigest()


def undisturbed(last: int) -> str:
    """The state after all steps of a run without a fault."""
    state = ""
    for step in range(1, last + 1):
        state = state_after(step, state)
    return state


def state_in(folder: Path, step: int) -> str:
    """The state of a committed step; that of step 0 is empty."""
    return (folder / str(step) / _STATE).read_text() if step else ""


def newest(folder: Path) -> int:
    """The newest committed step; 0: none is."""
    names = [path.parent.name for path in folder.glob("*/commit_success.txt")]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def commit(folder: Path, step: int, state: str, attempt: str) -> None:
    """Commit a step as Orbax does on a shared disk."""
    unfinished = folder / f"{step}.orbax-checkpoint-tmp-{attempt}"
    unfinished.mkdir(parents=True)
    (unfinished / _STATE).write_text(state)
    (unfinished / "commit_success.txt").touch()
    unfinished.rename(folder / str(step))


def main() -> None:
    """Take the steps that are left."""
    import supervise_worker  # type: ignore[import-not-found]  # only workers have it

    model_dir, last = Path(sys.argv[1]), int(sys.argv[2])
    pace = float(sys.argv[3]) if sys.argv[3:] else PACE
    rank, attempt = os.environ["JAX_PROCESS_ID"], os.environ["SUPERVISE_ATTEMPT"]
    checkpoints = model_dir / "checkpoints"
    done = newest(checkpoints)
    state = state_in(checkpoints, done)
    with (model_dir / f"taken-{rank}").open("a", buffering=1) as taken:
        for step in range(done + 1, last + 1):
            if not (model_dir / HURRY).exists():
                time.sleep(pace)
            state = state_after(step, state)
            taken.write(f"{attempt} {step} {time.time()}\n")
            supervise_worker.step(step)
            stops = supervise_worker.should_stop()
            if rank == "0" and (stops or step % EVERY == 0):
                commit(checkpoints, step, state, attempt)
                supervise_worker.saved(step)
            if stops:
                return


if __name__ == "__main__":
    main()
