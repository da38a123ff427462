"""Who a worker is, through its environment; and durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.quantities import parse_duration
from supervisor.protocol import environment
from supervisor.protocol.environment import WorkerIdentity, without_supervisor_variables
from supervisor.protocol.failure_history import FailureHistory

counts = st.integers(min_value=0, max_value=10**6)
identities = st.builds(
    WorkerIdentity,
    job=st.text(min_size=1),
    attempt=counts,
    rank=counts,
    world_size=counts,
    num_devices=st.none() | st.integers(min_value=1),
)


@given(identities)
def test_an_identity_is_read_back(identity: WorkerIdentity) -> None:
    variables = identity.to_environment()
    assert WorkerIdentity.from_environment({"PATH": "/bin", **variables}) == identity
    assert variables[environment.PROTOCOL] == "1"
    assert all(name.startswith("SUPERVISE_") for name in variables)


@given(st.builds(FailureHistory, counts, st.floats(0, 1e9)))
def test_a_history_of_failures_is_read_back(history: FailureHistory) -> None:
    assert FailureHistory.from_environment(history.to_environment()) == history
    assert bool(history.to_environment()) == (history != FailureHistory())


def test_without_a_supervisor_there_is_none() -> None:
    assert WorkerIdentity.from_environment({"PATH": "/bin"}) is None


@given(identities)
def test_what_an_outer_supervisor_left_is_scrubbed(identity: WorkerIdentity) -> None:
    outer = {**identity.to_environment(), "SUPERVISE_NEW": "1", environment.FAULTS: "{}"}
    kept = {"PATH": "/bin", "JAX_PLATFORMS": "cpu", "MY_SUPERVISE_X": "1"}
    assert without_supervisor_variables({**outer, **kept}) == kept


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("5m", 300.0),
        ("1.5h", 5400.0),
        ("2d", 172800.0),
        ("250ms", 0.25),
        ("0s", 0.0),
        (" 3 s ", 3.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "m", "-5m", "5 minutes", "1h30m", ".5h", "5M", "1e3s", "5m\nx"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as"):
        parse_duration(text)
