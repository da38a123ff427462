"""Writes configs for these tests, and reads back what is wrong with them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from textwrap import dedent

from supervisor.config.load import Job, load_job
from supervisor.config.problems import ConfigError

COMMAND = """\
trainer:
  init:
    model_dir: runs/x
    autorestart:
      max_num_restarts: 3
  command: [python, train.py]
"""
"""The smallest config of a command: a test changes one thing in it."""

TRAINING = (
    "model_dir: runs/x, model: {hidden_size: 16, num_layers: 1, num_heads: 4}, optimizer: {name: "
    "sgd, learning_rate: 0.1}, loop: {max_steps: 9, global_batch_size: 8}"
)
"""What `init` needs for our trainer."""
DATA = "{train_dataloader: {paths: stdlib}}"
"""What `fit` needs."""

FIT = COMMAND.replace("model_dir: runs/x", f"<<: {{{TRAINING}}}").replace(
    "  command: [python, train.py]\n", f"  fit: {DATA}\n"
)
"""The smallest config of our trainer, with the same lines."""

PHASES = f"""\
trainer:
- trainer:
    name: first
    init: {{{TRAINING}, autorestart: {{max_num_restarts: 1}}}}
    fit: {DATA}
- trainer:
    name: second
    init: {{{TRAINING}, autorestart: {{max_num_restarts: 2}}}}
    fit: {DATA}
"""


def load(text: str | bytes, *overrides: str) -> Job:
    """The job that `text` configures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.yaml"
        path.write_bytes(text if isinstance(text, bytes) else dedent(text).encode())
        return load_job(path, overrides)


def problems(text: str | bytes, *overrides: str) -> list[str]:
    """What is wrong with it, without the folder's name; empty: nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.yaml"
        path.write_bytes(text if isinstance(text, bytes) else dedent(text).encode())
        try:
            load_job(path, overrides)
        except ConfigError as error:
            told = [str(problem) for problem in error.problems]
            return [text.replace(f"{folder}/", "") for text in told]
    return []


def with_command(lines: str) -> str:
    """A config with `lines` (relative to `command:`) in place of the short form."""
    body = "".join(f"    {line}\n" for line in dedent(lines).strip().splitlines())
    return COMMAND.replace("  command: [python, train.py]\n", f"  command:\n{body}")


def with_init(lines: str, base: str = COMMAND) -> str:
    """A config with `lines` more under `init`."""
    body = "".join(f"    {line}\n" for line in dedent(lines).strip().splitlines())
    return base.replace("    autorestart:\n", body + "    autorestart:\n")


def with_restart(lines: str, base: str = COMMAND) -> str:
    """A config with `lines` in place of what is under `autorestart`."""
    body = "".join(f"      {line}\n" for line in dedent(lines).strip().splitlines())
    return base.replace("      max_num_restarts: 3\n", body)
