"""A sign of success in a bucket that nobody here could look for is a mistake in the config."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from supervisor.config.problems import ConfigError
from supervisor.prepare import prepare
from tests.config.files import COMMAND

_SIGN = "{argv: [python, train.py], success: {file: 'gs://b/done'}}"


@pytest.mark.parametrize("is_installed", [True, False])
def test_what_it_takes_to_look_for_it_must_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(COMMAND.replace("[python, train.py]", _SIGN))
    if is_installed:
        pytest.importorskip("google.auth", reason="NOT TESTED: needs the extra gcs")
        prepare(file, [])
        return
    monkeypatch.setitem(sys.modules, "google.auth.transport.requests", None)
    with pytest.raises(ConfigError) as caught:
        prepare(file, [])
    (problem,) = caught.value.problems
    assert "c.yaml:6: trainer.command.success.file: cannot be looked for" in str(problem)
    assert "pip install '.[gcs]'" in str(problem)
