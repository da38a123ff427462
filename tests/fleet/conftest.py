"""The Ray that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fleet.ray_nodes import TOKEN, RayNodes, ray_nodes


@pytest.fixture(scope="session")
def _ray() -> Iterator[RayNodes]:
    with ray_nodes() as nodes:
        for _ in range(3):
            nodes.start()
        yield nodes


@pytest.fixture
def ray(_ray: RayNodes, monkeypatch: pytest.MonkeyPatch) -> RayNodes:
    """A head and two more nodes; this process has the token."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    return _ray
