"""Saves one small step with the real library of each layout; for an environment that has them.

python real_writers.py FOLDER [NAME ...]

Each layout gets a folder of its own below FOLDER, named after the function. It imports nothing of
this project: `test_real_libraries` runs it, and the folder `golden` has some of what it wrote.
"""

# mypy: ignore-errors
from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path


def torch_save(folder: Path) -> None:
    import torch

    torch.save({"w": torch.arange(6.0), "step": 100}, folder / "ckpt-100.pt")


def torch_dcp(folder: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    dcp.save({"w": torch.arange(6.0)}, checkpoint_id=folder / "step-100")


def lightning(folder: Path) -> None:
    import lightning.pytorch as pl
    import torch

    class Tiny(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return self.layer(batch).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    saving = pl.callbacks.ModelCheckpoint(dirpath=folder, save_top_k=-1)
    trainer = pl.Trainer(
        max_steps=100,
        max_epochs=4,
        callbacks=[saving],
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Tiny(), torch.utils.data.DataLoader(torch.zeros(25, 2)))


def transformers(folder: Path) -> None:
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    config = BertConfig(
        vocab_size=4,
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=4,
        max_position_embeddings=4,
    )
    one = {"input_ids": torch.zeros(2, dtype=torch.long), "labels": torch.tensor(0)}
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=100, save_steps=100, report_to=[], use_cpu=True
    )
    Trainer(BertForSequenceClassification(config), arguments, train_dataset=[one] * 8).train()


def safetensors(folder: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"w": np.arange(6.0)}, folder / "model-100.safetensors", {"format": "np"})


def keras(folder: Path) -> None:
    model = _keras_model()
    model.save(folder / "model.100.keras")


def keras_weights(folder: Path) -> None:
    _keras_model().save_weights(folder / "ckpt-100.weights.h5")


def _keras_model() -> object:
    import keras

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def hdf5(folder: Path) -> None:
    import h5py
    import numpy as np

    with h5py.File(folder / "model_100.hdf5", "w", libver="latest") as file:
        file["w"] = np.arange(6.0)


def equinox(folder: Path) -> None:
    import equinox as eqx
    import jax

    model = eqx.nn.MLP(2, 1, 2, 1, key=jax.random.key(0))
    eqx.tree_serialise_leaves(folder / "model-100.eqx", model)


def flax_msgpack(folder: Path) -> None:
    import jax.numpy as jnp
    from flax import serialization

    state = {"w": jnp.arange(6.0), "b": jnp.zeros(2, jnp.bfloat16), "step": 100}
    (folder / "state_100.msgpack").write_bytes(serialization.to_bytes(state))


def flax_legacy(folder: Path) -> None:
    import flax
    import jax.numpy as jnp
    from flax.training import checkpoints

    flax.config.update("flax_use_orbax_checkpointing", False)
    checkpoints.save_checkpoint(str(folder), {"w": jnp.arange(6.0)}, 100)


def clu(folder: Path) -> None:
    import flax
    import tensorflow as tf
    from clu import checkpoint

    @flax.struct.dataclass
    class State:
        step: int

    saving = checkpoint.Checkpoint(str(folder), {"it": tf.Variable(1)}, checkpoint_name="ckpt")
    for step in range(10):
        saving.save(State(step))


def numpy_files(folder: Path) -> None:
    import numpy as np

    np.savez(folder / "params_100.npz", w=np.arange(6.0), b=np.zeros(2))
    np.save(folder / "params_100.npy", np.arange(6.0))


def pickled(folder: Path) -> None:
    import numpy as np

    with (folder / "state_100.pkl").open("wb") as file:
        pickle.dump({"w": np.arange(6.0), "step": 100}, file)


def orbax_standard(folder: Path) -> None:
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "ckpt100", {"w": jnp.arange(6.0)})


def orbax_nested(folder: Path) -> None:
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "100" / "state", {"w": jnp.arange(6.0)})


def orbax_v1(folder: Path) -> None:
    import jax.numpy as jnp
    from orbax.checkpoint import v1

    v1.save_pytree(folder / "ckpt100", {"w": jnp.arange(6.0)})


WRITERS: dict[str, Callable[[Path], None]] = {
    one.__name__: one
    for one in (
        torch_save,
        torch_dcp,
        lightning,
        transformers,
        safetensors,
        keras,
        keras_weights,
        hdf5,
        equinox,
        flax_msgpack,
        flax_legacy,
        clu,
        numpy_files,
        pickled,
        orbax_standard,
        orbax_nested,
        orbax_v1,
    )
}


if __name__ == "__main__":
    for name in sys.argv[2:] or WRITERS:
        place = Path(sys.argv[1]).absolute() / name
        place.mkdir(parents=True)
        WRITERS[name](place)
