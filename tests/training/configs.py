"""Tiny configs of our trainer; without jax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from supervisor.protocol.location import Uri

Mapping = dict[str, Any]


def tiny(directory: Path | Uri | str, **loop: Any) -> Mapping:
    """A config that trains in well under a second, with dropout and two key/value heads."""
    return {
        "trainer": {
            "init": {
                "model": {
                    "hidden_size": 16,
                    "num_layers": 1,
                    "num_heads": 4,
                    "num_kv_heads": 2,
                    "mlp_size": 32,
                    "dropout": 0.1,
                },
                "optimizer": {"name": "adamw", "learning_rate": 1e-2, "warmup_steps": 2},
                "loop": {"max_steps": 17, "global_batch_size": 8, "log_every": 1} | loop,
                "checkpoint": {"directory": str(directory), "every": 5, "keep": 2},
            },
            "fit": {
                "train_dataloader": {"paths": "stdlib/json/*.py", "sequence_length": 16},
                "validation": {
                    "every": 4,
                    "steps": 2,
                    "dataloader": {"paths": "stdlib/json/tool.py", "sequence_length": 16},
                },
            },
        }
    }


def restarts_at_once(number: int) -> Mapping:
    """The section `autorestart` of a job that is killed `number` times."""
    return {
        "max_num_restarts": number,
        "max_num_preemptions": number,
        "backoff": {"first": 0.05, "max": 0.2},
        "standby": "off",
        "prefetch": False,
        "repeated_failure_limit": 0,
    }
