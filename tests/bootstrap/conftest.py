"""The fixture that runs programs twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bootstrap.programs import Twice


@pytest.fixture
def twice(tmp_path: Path) -> Twice:
    directory = tmp_path / "programs"
    directory.mkdir()
    return Twice(directory)
