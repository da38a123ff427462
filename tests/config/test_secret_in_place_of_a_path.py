"""A secret that stands where its place belongs is not printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config.load import load_job
from supervisor.config.problems import ConfigError
from supervisor.config.secret_names import is_secret

CONFIG = """
trainer:
  init: {model_dir: /m, autorestart: {max_num_restarts: 1}}
  command: {argv: [a], env_secrets: {WANDB: hunter2SECRETxyz01}}
"""


def test_the_value_of_env_secrets_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG)
    with pytest.raises(ConfigError) as caught:
        load_job(path, [])
    said = "".join(problem.message for problem in caught.value.problems)
    assert "[redacted]" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("name", ["BEARER", "SIGNING_CERT_PEM"])
def test_more_names_of_secrets(name: str) -> None:
    assert is_secret(name, "value")
    assert not is_secret(name, "/run/file")
