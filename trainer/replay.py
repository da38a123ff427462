"""`python -P -m trainer.replay PARAMS.yaml CHECKPOINTS BEGIN STEP [--pdb]`: runs the steps from
BEGIN to STEP again, as an attempt ran them, and looks into the last of them.

It restores step BEGIN in CHECKPOINTS (0: what the phase starts from), takes the same batches
with the same seeds, and computes the same compiled step on the same number of devices. It writes
nothing but standard output: an object for each step, as in metrics.jsonl, and at last one for STEP,
with gradient norms, activations and the sequences of its batch. `--pdb` stops before STEP, and at
any exception, in the debugger.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import os
import pdb  # noqa: T100  # `--pdb`
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import yaml

from supervisor.config.training.layout import rung
from supervisor.config.training.resolved import TrainerConfig, parse
from supervisor.protocol.adjustments import Adjustments
from trainer import deterministic_reduction
from trainer.batch_sharder import BatchSharder
from trainer.checkpoint import restore
from trainer.data import Batch, training_batches
from trainer.first_state import first_state
from trainer.manifest import DamagedError, read_manifest
from trainer.mesh import make_mesh
from trainer.metrics import numbers
from trainer.objective import token_ids
from trainer.objective_choice import objective_of
from trainer.step import (
    dropout_keys,
    jit_loss_and_gradients,
    jit_train_step,
    reference_logits,
    row_keys,
)
from trainer.tokenizer import decode
from trainer.train_state import TrainState, TrainStateSpec

_UNREADABLE = os.EX_IOERR
"""The exit code where the checkpoint cannot be read, so that `supervise replay` knows."""
_SHOWN_TOKENS = 64
"""Token ids of a sequence that are shown where no tokenizer of ours can make text of them."""


class Replay:
    """The training of `config` from step `begin` on, one step at a time."""

    def __init__(
        self, config: TrainerConfig, checkpoints: Path, begin: int, adjustments: Adjustments
    ) -> None:
        """Restore the state of `begin` from `checkpoints`.

        Raises:
            ValueError: the devices here are not as many as the attempt had.
            DamagedError: the files of the checkpoint are not what was committed.
        """
        init, loader = config.init, config.fit.train_dataloader
        found = rung(init, jax.device_count(), adjustments.accumulation)
        if found is None:
            raise ValueError(f"{jax.device_count()} devices are no rung of this config")
        self._text = loader.tokens_field is None
        self._skipped = adjustments.skip_steps
        self._sharder = BatchSharder(make_mesh(found), found)
        self.spec = TrainStateSpec.of(init, self._sharder.mesh, objective_of(init, loader))
        self._batches = training_batches(
            loader, init.loop.global_batch_size, init.data_shuffle_seed, init.model.vocab_size
        )
        self._train_step = jit_train_step(self.spec)
        self.step = begin
        self.state = self._restored(config, checkpoints)

    def next_batch(self) -> Batch:
        """Return the batch of the next step: it is taken by that."""
        batch: Batch = next(self._batches)
        return batch

    def advance(self, batch: Batch) -> dict[str, Any]:
        """Train one step; returns what was measured."""
        self.step += 1
        if self.step in self._skipped:
            self.state = replace(self.state, step=self.state.step + 1)
            return {"step": self.step, "skipped": True}
        self.state, metrics = self._train_step(self.state, self._sharder.put(batch))
        return {"step": self.step, **numbers(metrics)}

    def inside(self, batch: Batch) -> dict[str, Any]:
        """Return what happens inside the next step, which is not taken by that: the gradients' norm
        by layer, the extremes of the activations, and each sequence with its loss."""
        tokens = self._sharder.put(batch)
        _, gradients = jit_loss_and_gradients(self.spec)(self.state, tokens)
        extremes, losses = self._forward(tokens)
        texts = [self._shown(sequence) for sequence in batch]
        sequences = [
            {"sequence": number, "loss": float(loss), "text": text}
            for number, (loss, text) in enumerate(zip(losses, texts, strict=True))
        ]
        return {
            "step": self.step + 1,
            "gradient_norms": dict(_norms_by_layer(gradients)),
            "activations": extremes,
            "sequences": sequences,
        }

    def _forward(self, tokens: jax.Array) -> tuple[dict[str, dict[str, float]], np.ndarray]:
        spec, state = self.spec, self.state
        order: dict[str, None] = {}  # jax sorts the keys of what it returns

        def forward(micro: jax.Array, index: jax.Array) -> tuple[Any, jax.Array]:
            model = spec.model(state.params, state.frozen)
            keys = row_keys(spec, dropout_keys(spec, state.step, index))
            found, logits = {}, micro
            for name, logits in model.activations(spec.objective.inputs(micro), keys):
                order[name] = None
                bad = jnp.sum(~jnp.isfinite(logits))
                found[name] = {"min": logits.min(), "max": logits.max(), "not_finite": bad}
            reference = reference_logits(spec, state.frozen, micro)
            losses, _ = spec.objective.losses(logits, reference, micro)
            losses = losses.reshape(len(micro), -1)
            learned = (losses != 0).sum(axis=-1)
            return found, losses.sum(axis=-1) / jnp.maximum(learned, 1)

        size, compiled = tokens.shape[1], jax.jit(forward)
        parts = [
            jax.device_get(compiled(micro, jnp.arange(size) + number * size))
            for number, micro in enumerate(tokens)
        ]
        extremes = {
            name: {
                "min": float(np.min([found[name]["min"] for found, _ in parts])),
                "max": float(np.max([found[name]["max"] for found, _ in parts])),
                "not_finite": int(sum(found[name]["not_finite"] for found, _ in parts)),
            }
            for name in order
        }
        return extremes, np.concatenate([losses for _, losses in parts])

    def _shown(self, sequence: np.ndarray) -> str:
        sequence = token_ids(sequence)
        if self._text:
            rows = np.split(sequence, self.spec.objective.rows)
            return " | ".join("".join(map(decode, _documents(row))) for row in rows)
        return " ".join(map(str, sequence[:_SHOWN_TOKENS]))

    def _restored(self, config: TrainerConfig, checkpoints: Path) -> TrainState:
        if self.step:
            path = checkpoints / str(self.step)
            if (manifest := read_manifest(path)) is not None:
                manifest.verify(path)
            state, position = restore(
                checkpoints, self.step, self.spec.abstract, lambda: self._first(config).frozen
            )
            self._batches.set_state(position)
            return state
        return self._first(config)

    def _first(self, config: TrainerConfig) -> TrainState:
        return first_state(config.start_from, self.spec, lambda *_: None)


def _documents(sequence: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the parts of a sequence between the ends of documents, which `decode` stops at."""
    from supervisor.config.training.sections import END_OF_DOCUMENT

    ends = np.flatnonzero(sequence == END_OF_DOCUMENT)
    yield from np.split(sequence, ends + 1)


def _norms_by_layer(gradients: Any) -> Iterator[tuple[str, float]]:
    """Yields each layer's name and the norm of its gradients, in the order of the model."""
    squares: defaultdict[str, float] = defaultdict(float)
    for path, leaf in jax.tree_util.tree_flatten_with_path(gradients)[0]:
        parts = [str(getattr(key, "key", getattr(key, "name", key))) for key in path]
        name = ".".join(parts[: 2 if parts[0] == "blocks" else 1])
        squares[name] += float(jnp.sum(jnp.square(leaf.astype(jnp.float32))))
    for name, square in squares.items():
        yield name, square**0.5


def _run(config: TrainerConfig, checkpoints: Path, begin: int, last: int, *, debugs: bool) -> None:
    deterministic_reduction.same_threads(config.init)
    with redirect_stdout(sys.stderr):  # the log of the trainer is none of what we tell
        replay = Replay(config, checkpoints, begin, Adjustments.from_environment())
    while replay.step < last - 1:
        _tell(replay.advance(replay.next_batch()))
    batch = replay.next_batch()
    inside = replay.inside(batch)
    if debugs:
        print(
            f"before step {last}: replay.state, batch, replay.advance(batch), replay.inside(batch)"
        )
        breakpoint()  # noqa: T100  # that is what --pdb is for
    _tell(replay.advance(batch))
    _tell(inside)


def _tell(measured: dict[str, Any]) -> None:
    print(json.dumps(_finite_only(measured), allow_nan=False), flush=True)


def _finite_only(value: Any) -> Any:
    """Returns `value` with null for each NaN and Inf, which JSON does not have."""
    match value:
        case dict():
            return {key: _finite_only(each) for key, each in value.items()}
        case list():
            return [_finite_only(each) for each in value]
        case float() if not np.isfinite(value):
            return None
    return value


def main() -> None:
    """Replay what the arguments say."""
    params, checkpoints, begin, last, *options = sys.argv[1:]
    config = parse(yaml.safe_load(Path(params).read_text(encoding="utf-8")))
    debugs = "--pdb" in options
    try:
        _run(config, Path(checkpoints), int(begin), int(last), debugs=debugs)
    except Exception as error:
        is_gone = int(begin) > 0 and not (Path(checkpoints) / begin).exists()
        if is_gone and isinstance(error, OSError | DamagedError):
            why = "gone, as a job that runs keeps only some: run the same command again"
        elif isinstance(error, DamagedError):
            why = f"damaged: {error}"
        else:
            if debugs:
                pdb.post_mortem()
            raise
        print(f"the checkpoint of step {begin} is {why}", file=sys.stderr)
        sys.exit(_UNREADABLE)


if __name__ == "__main__":
    main()
