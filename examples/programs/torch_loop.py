# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy==2.4.6", "torch==2.13.0"]
# ///
"""A plain PyTorch loop that saves with `torch.save`.

supervise run -- python examples/programs/torch_loop.py --workdir out

It writes one file a step, `out/ckpt-N.pt`, and goes on from the newest one.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

import torch

WIDTH, BATCH, KEEP = 64, 32, 3


def batch_of(step: int) -> torch.Tensor:
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))


def digest(model: torch.nn.Module) -> str:
    sha256 = hashlib.sha256()
    for _, tensor in sorted(model.state_dict().items()):
        sha256.update(tensor.numpy().tobytes())
    return sha256.hexdigest()


def step_of(path: Path) -> int:
    return int(path.stem.removeprefix("ckpt-"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=40, help="steps between two saves")
    parser.add_argument("--step-seconds", type=float, default=0.05)
    arguments = parser.parse_args()
    folder = arguments.workdir
    folder.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 1
    saved = sorted(folder.glob("ckpt-*.pt"), key=step_of)
    if saved:
        checkpoint = torch.load(saved[-1], weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        first = step_of(saved[-1]) + 1

    for step in range(first, arguments.steps + 1):
        began = time.monotonic()
        batch = batch_of(step)
        loss = torch.nn.functional.mse_loss(model(batch), batch.roll(1, dims=-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"[step {step}/{arguments.steps}] loss: {loss.item():.4f}")
        time.sleep(max(0.0, began + arguments.step_seconds - time.monotonic()))
        if step % arguments.every == 0:
            unfinished = folder / "ckpt.tmp"
            checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(checkpoint, unfinished)
            unfinished.replace(folder / f"ckpt-{step}.pt")
            for old in sorted(folder.glob("ckpt-*.pt"), key=step_of)[:-KEEP]:
                old.unlink()
    print("parameters sha256:", digest(model))


if __name__ == "__main__":
    main()
