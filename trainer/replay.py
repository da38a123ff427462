"""`python -P -m trainer.replay PARAMS.yaml CHECKPOINTS BEGIN STEP [--pdb]`: runs the steps from
BEGIN to STEP again, as an attempt ran them, and looks into the last of them, or into the first that
gives NaN or Inf.

It restores step BEGIN in CHECKPOINTS (0: what the phase starts from), takes the same batches
with the same seeds, and computes the same compiled step on the same number of devices. It writes
nothing but standard output: an object for each step, as in metrics.jsonl, and at last one for STEP,
with gradient norms, activations and the sequences of its batch. `--pdb` stops before STEP, and at
any exception, in the debugger.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import bdb
import json
import os
import pdb  # noqa: T100  # `--pdb`
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np
import yaml
from jax.sharding import NamedSharding, PartitionSpec

from supervisor.config.training.layout import rung
from supervisor.config.training.resolved import TrainerConfig, parse
from supervisor.protocol.adjustments import Adjustments
from trainer import deterministic_reduction, distributed
from trainer.batch_sharder import BatchSharder
from trainer.checkpoint import restore
from trainer.data import Batch, places_of_batch, tokenizer_of, training_data
from trainer.executables import Executables
from trainer.first_state import first_state
from trainer.held_state import CompiledStep
from trainer.log import WorkerLog
from trainer.manifest import DamagedError, read_manifest
from trainer.mesh import make_mesh
from trainer.metrics import numbers
from trainer.not_finite import in_words, not_finite
from trainer.objective import model_inputs, token_ids, unlearned, without_filling
from trainer.objective_choice import objective_of
from trainer.rollout_mesh import RolloutMesh
from trainer.rollouts import Rollouts, compiled_sample
from trainer.step import (
    dropout_keys,
    jit_loss_and_gradients,
    jit_step_of_leaves,
    reference_logits,
    row_keys,
)
from trainer.tokenizer import Tokenizer
from trainer.train_state import TrainState, TrainStateSpec

_UNREADABLE = os.EX_IOERR
"""The exit code where the checkpoint cannot be read, so that `supervise replay` knows."""
_NAMES = {np.inf: "Inf", -np.inf: "-Inf"}
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
        init, loader = config.init, config.fit.decisive
        executables = Executables(None, {}, WorkerLog())
        found = rung(init, jax.device_count(), adjustments.accumulation)
        if found is None:
            raise ValueError(f"{jax.device_count()} devices are no rung of this config")
        self._tokenizer = tokenizer_of(init) if loader.tokens_field is None else None
        self._skipped = adjustments.skip_steps
        self._sharder = BatchSharder(make_mesh(found), found)
        self.spec = TrainStateSpec.of(init, self._sharder.mesh, objective_of(init, loader))
        self._data = data = training_data(config)
        self._batches, self._rollouts = data.batches, None
        self._config, self._checkpoints, self._begin = config, checkpoints, begin
        self._position: Any = None
        """The position in the data of the batch that was taken last; None: before all of them."""
        self._start = self._batches.get_state()
        mesh = RolloutMesh.of(self.spec, self._sharder, adjustments.accumulation)
        sample = compiled_sample(loader, mesh, executables, "rollout")
        if init.grpo is not None and sample is not None and data.prompts is not None:
            sample.result()
            self._rollouts = Rollouts(init.grpo, self.spec, mesh, sample, data.prompts)
        self._train_step = CompiledStep.of(self.spec, jit_step_of_leaves(self.spec))
        self.rewind()

    def rewind(self) -> None:
        """Go back to the first step."""
        self.step, self._position = self._begin, None
        self.state = self._restored(self._config, self._checkpoints)
        if self._rollouts is not None:
            self._rollouts.rewind()

    def next_batch(self) -> Batch:
        """Return the batch of the next step: it is taken by that."""
        if self._rollouts is None:
            return self._taken()
        if self._rollouts.due(self.step):
            with redirect_stdout(sys.stderr):  # what the user's function prints is not ours to tell
                self.state = self._rollouts.made(self.state, self.step, self._taken())
        return self._rollouts.batch(self.state)

    def _taken(self) -> Batch:
        self._position = self._batches.get_state()
        batch: Batch = next(self._batches)
        return batch

    def records(self) -> list[list[str]]:
        """Return the places of the records of each example of the batch that was taken last, as
        `file:line`; empty: none was taken."""
        if self._position is None:
            return []
        return places_of_batch(self._config, self._data, self._position)

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
        by layer, the extremes of the activations, and each sequence with its loss and what else the
        objective measures."""
        tokens = self._sharder.put(batch)
        _, gradients = jit_loss_and_gradients(self.spec)(self.state, tokens)
        extremes, measured = self._forward(tokens)
        records = self.records()
        sequences = [
            {
                "sequence": number,
                **({"records": records[number]} if records else {}),
                **{name: float(of_each[number]) for name, of_each in measured.items()},
                "text": self._shown(example),
            }
            for number, example in enumerate(batch)
        ]
        return {
            "step": self.step + 1,
            "gradient_norms": dict(_norms_by_layer(gradients)),
            "activations": extremes,
            "sequences": sequences,
        }

    def _forward(
        self, tokens: jax.Array
    ) -> tuple[dict[str, dict[str, float]], dict[str, np.ndarray]]:
        spec, state = self.spec, self.state
        order: dict[str, None] = {}  # jax sorts the keys of what it returns

        def forward(tokens: jax.Array, number: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
            micro, size = tokens[number], tokens.shape[1]
            index = jnp.arange(size) + number * size
            model = spec.model(state.params, state.frozen)
            keys = row_keys(spec, dropout_keys(spec, state.step, index))
            found, logits = {}, micro
            inputs, documents = model_inputs(spec.objective, micro), spec.objective.documents(micro)
            for name, logits in model.activations(inputs, keys, documents):
                order[name] = None
                bad = jnp.sum(~jnp.isfinite(logits))
                found[name] = {"min": logits.min(), "max": logits.max(), "not_finite": bad}
            reference = reference_logits(spec, state.frozen, micro)
            losses, measured = spec.objective.losses(logits, reference, micro)
            losses = losses.reshape(len(micro), -1)
            learned = (losses != 0).sum(axis=-1)
            loss = losses.sum(axis=-1) / jnp.maximum(learned, 1)
            return found, {"loss": loss, **measured}

        everywhere = NamedSharding(spec.mesh, PartitionSpec())
        compiled = jax.jit(forward, out_shardings=everywhere)
        parts = [jax.device_get(compiled(tokens, number)) for number in range(len(tokens))]
        extremes = {
            name: {
                "min": float(np.min([found[name]["min"] for found, _ in parts])),
                "max": float(np.max([found[name]["max"] for found, _ in parts])),
                "not_finite": int(sum(found[name]["not_finite"] for found, _ in parts)),
            }
            for name in order
        }
        return extremes, {
            name: np.concatenate([measured[name] for _, measured in parts])
            for name in ("loss", *spec.objective.metrics)
        }

    def _shown(self, example: np.ndarray) -> str:
        rows = self.spec.objective.sequences(example[None])
        if self._tokenizer is not None:
            given = [without_filling(row, self._tokenizer.end) for row in rows]
            return " | ".join(marked(row, self._tokenizer) for row in given)
        return " ".join(map(str, token_ids(rows).ravel()[:_SHOWN_TOKENS]))

    def _restored(self, config: TrainerConfig, checkpoints: Path) -> TrainState:
        if self.step:
            path = checkpoints / str(self.step)
            if (manifest := read_manifest(path)) is not None:
                manifest.verify(path)
            state, position = restore(
                checkpoints, self.step, self.spec.abstract, lambda: self._first(config).frozen
            )
            self._batches.set_state(position)
            if self._rollouts is not None and not self._rollouts.due(self.step):
                # the batch of completions that the checkpoint has is of the prompts before
                self._position = {**position, "next_index": position["next_index"] - 1}
            return state
        self._batches.set_state(self._start)
        return self._first(config)

    def _first(self, config: TrainerConfig) -> TrainState:
        # weights that are not finite are what people want to look into
        return first_state(config.start_from, self.spec, lambda *_: None, checks=False)


def marked(row: np.ndarray, tokenizer: Tokenizer) -> str:
    """Return the text of a sequence, without the end of a document that it begins with. Where not
    all of it is learned, what is learned stands between guillemets."""
    if row.size and row[0] == unlearned(tokenizer.end):
        row = row[1:]
    if not (row < 0).any():
        return tokenizer.text(row)
    parts = np.split(row, np.flatnonzero(np.diff(row < 0)) + 1)
    texts = ((part[0] >= 0, tokenizer.text(token_ids(part))) for part in parts)
    return "".join(f"«{text}»" if is_learned else text for is_learned, text in texts)


def _norms_by_layer(gradients: Any) -> Iterator[tuple[str, float]]:
    """Yields each layer's name and the norm of its gradients, in the order of the model."""
    squares: defaultdict[str, float] = defaultdict(float)
    for path, leaf in jax.tree_util.tree_flatten_with_path(gradients)[0]:
        parts = [str(getattr(key, "key", getattr(key, "name", key))) for key in path]
        name = ".".join(parts[: 2 if parts[0] == "blocks" else 1])
        squares[name] += float(jnp.sum(jnp.square(leaf.astype(jnp.float32))))
    for name, square in squares.items():
        yield name, square**0.5


def _run(
    config: TrainerConfig, checkpoints: Path, begin: int, last: int, told: TextIO, *, debugs: bool
) -> None:
    deterministic_reduction.same_threads(config.init)
    with redirect_stdout(sys.stderr):  # the log of the trainer is none of what we tell
        distributed.initialize()
        replay = Replay(config, checkpoints, begin, Adjustments.from_environment())
    wanted = last
    while replay.step < last - 1:
        measured = replay.advance(replay.next_batch())
        if all(map(np.isfinite, measured.values())):
            _tell(measured, told)
            continue
        last = replay.step  # the steps after it only inherit what is wrong in it
        replay.rewind()
        while replay.step < last - 1:
            replay.advance(replay.next_batch())
    batch = replay.next_batch()
    inside = replay.inside(batch)
    inside["held_before"] = in_words(not_finite(replay.state))
    if last != wanted:
        inside["instead_of"] = wanted
    if debugs:
        print(
            f"before step {last}: replay.state, batch, replay.advance(batch), replay.inside(batch)"
        )
        breakpoint()  # noqa: T100  # that is what --pdb is for
    _tell(replay.advance(batch), told)
    inside["held_after"] = in_words(not_finite(replay.state))
    _tell(inside, told)
    distributed.shut_down()


def _tell(measured: dict[str, Any], told: TextIO) -> None:
    if distributed.is_first():
        print(json.dumps(_finite_only(measured), allow_nan=False), file=told, flush=True)


def _taken_stdout() -> TextIO:
    """Return what was standard output: from now on that is standard error, also for the libraries
    in C++, which write to the descriptor."""
    taken = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return taken


def _finite_only(value: Any) -> Any:
    """Returns `value` with the name of each NaN and Inf, which JSON does not have."""
    match value:
        case dict():
            return {key: _finite_only(each) for key, each in value.items()}
        case list():
            return [_finite_only(each) for each in value]
        case float() if not np.isfinite(value):
            return _NAMES.get(value, "NaN")
    return value


def main() -> None:
    """Replay what the arguments say."""
    params, checkpoints, begin, last, *options = sys.argv[1:]
    config = parse(yaml.safe_load(Path(params).read_text(encoding="utf-8")))
    debugs = "--pdb" in options
    try:
        told = sys.stdout if debugs else _taken_stdout()
        _run(config, Path(checkpoints), int(begin), int(last), told, debugs=debugs)
    except bdb.BdbQuit:
        return
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
