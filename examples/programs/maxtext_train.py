# /// script
# requires-python = "==3.12.*"
# dependencies = [
#   "maxtext==0.2.5",
#   "aqtp==0.9.0",
#   "drjax==0.2.1",
#   "flax==0.12.9",
#   "grain==0.2.18",
#   "huggingface-hub==1.32.0",
#   "jax==0.11.1",
#   "jaxtyping==0.3.11",
#   "jinja2==3.1.6",
#   "ml-collections==1.1.0",
#   "numpy==2.4.6",
#   "omegaconf==2.3.1",
#   "optax==0.2.8",
#   "orbax-checkpoint==0.12.4",
#   "pathwaysutils==0.1.11",
#   "pillow==12.3.0",
#   "psutil==7.2.2",
#   "pydantic==2.13.5",
#   "qwix==0.1.8",
#   "sentencepiece==0.2.2",
#   "sympy==1.14.0",
#   "tensorboardX==2.6.5",
#   "tiktoken==0.14.0",
#   "tokamax==0.0.14",
#   "transformers==5.17.0",
# ]
# ///
"""A tiny decoder, trained by MaxText on its own synthetic data.

supervise run -- python examples/programs/maxtext_train.py --workdir out

MaxText saves to `out/tiny/checkpoints/N` by Orbax, and goes on from the newest one by itself. Its
loop has no place for a pause: the size of the batch decides how long a step takes. The libraries
are those that this run needs on a CPU, as `maxtext[tpu]` pins them; that brings 200 others.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging
from flax import nnx
from maxtext.trainers.pre_train import train
from maxtext.utils.globals import MAXTEXT_CONFIGS_DIR

TINY = (
    "base_emb_dim=64",
    "base_num_query_heads=2",
    "base_num_kv_heads=2",
    "base_mlp_dim=128",
    "base_num_decoder_layers=2",
    "head_dim=32",
    "vocab_size=256",
    "max_target_length=128",
    "per_device_batch_size=12",
)
ON_ONE_CPU = (
    "hardware=cpu",
    "skip_jax_distributed_system=True",
    "attention=dot_product",
    "dataset_type=synthetic",
    "enable_goodput_recording=False",
    "monitor_goodput=False",
    "enable_checkpoint_cloud_logger=False",
)


def digest(parameters: Any) -> str:
    sha256 = hashlib.sha256()
    for path, array in sorted(
        (jax.tree_util.keystr(path), array)
        for path, array in jax.tree_util.tree_leaves_with_path(parameters)
    ):
        sha256.update(path.encode() + np.asarray(array).tobytes())
    return sha256.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=10, help="steps between two saves")
    arguments = parser.parse_args()

    logging.set_verbosity(logging.INFO)  # as MaxText's own command has it, by absl's app.run
    config, recorder = train.initialize(
        [
            "maxtext",
            str(Path(MAXTEXT_CONFIGS_DIR) / "base.yml"),
            f"base_output_directory={arguments.workdir.absolute()}",
            "run_name=tiny",
            f"steps={arguments.steps}",
            f"checkpoint_period={arguments.every}",
            *TINY,
            *ON_ONE_CPU,
        ]
    )
    state = train.train_loop(config, recorder)
    print("parameters sha256:", digest(nnx.filter_state(state.model, nnx.Param)))


if __name__ == "__main__":
    main()
