"""A secret that stands where its place belongs is not printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config.load import load_job
from supervisor.config.problems import ConfigError
from supervisor.config.secret_names import is_secret
from supervisor.preflight import check
from supervisor.prepare import prepare
from supervisor.secret_variables import with_env_files

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


@pytest.mark.parametrize("place", ["env_file: hunter2xyz01", "argv: [./hunter2xyz01/x]"])
def test_a_secret_that_also_stands_where_a_path_belongs_is_not_shown(
    tmp_path: Path, place: str
) -> None:
    argv = "" if "argv" in place else "argv: [sh], "
    path = tmp_path / "c.yaml"
    path.write_text(
        f"trainer:\n  init: {{model_dir: {tmp_path}/m, autorestart: {{max_num_restarts: 1}}}}\n"
        f"  command: {{{argv}env: {{API_TOKEN: hunter2xyz01}}, {place}}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        check(with_env_files(prepare(path, [])))
    assert "no such file" in str(caught.value)
    assert "hunter2" not in str(caught.value)
