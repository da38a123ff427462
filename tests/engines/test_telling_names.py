"""Which numbers are steps, where no config says that steps are there."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.engines.telling_names import may_be_a_step
from supervisor.protocol.checkpoint_layouts import LAYOUTS, Layout, step_of

NOW = datetime(2026, 11, 23, tzinfo=UTC).timestamp()
OUT = Path("/home/ann/out")


def is_step(place: str, *, is_marked: bool = False) -> bool:
    path = OUT / place
    step = step_of(path.name)
    assert step is not None
    return may_be_a_step(path, step, is_marked=is_marked, now=NOW)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda row: row.example)
def test_every_layout_is_found(layout: Layout) -> None:
    assert is_step(layout.example.partition("/")[0], is_marked=layout.structure is None)


@pytest.mark.parametrize("place", ["cache/0399.npy", "0399.npz", "shards/12", "data_12"])
def test_a_number_alone_is_no_step_unless_the_program_commits_it(place: str) -> None:
    assert not is_step(place)
    assert is_step(place, is_marked=True)


@pytest.mark.parametrize(
    "place",
    [
        *("cache/step_0001.npy", "step_0001.npy", "cache/step_0001.npz", "shards/epoch-3.pkl"),
        *("data/train/step_5.npz", "batch_step_7.npz", "out/tokenized/iter_9.pkl"),
    ],
)
def test_what_speaks_of_data_is_no_step_if_its_name_only_tells_what_it_counts(place: str) -> None:
    assert not is_step(place)
    assert is_step(place, is_marked=True)


@pytest.mark.parametrize(
    "place",
    [
        *("step_1.npz", "epoch-3.pkl", "params_1.npy", "data/model_5.npz", "cache/ckpt-1.pkl"),
        *("database/step_1.pkl", "data/checkpoints/step_1.npy"),
    ],
)
def test_what_says_that_it_is_a_checkpoint_is_one(place: str) -> None:
    assert is_step(place)


@pytest.mark.parametrize("place", ["checkpoints/12.npz", "ckpts/actor/12.pkl", "saved/12"])
def test_the_folder_may_say_that_its_numbers_are_steps(place: str) -> None:
    assert is_step(place)


@given(
    st.floats(-365 * 86400.0, 365 * 86400.0),
    st.sampled_from([1, 1_000, 1_000_000]),
    st.booleans(),
)
def test_a_unix_time_is_no_step(ago: float, unit: int, is_marked: bool) -> None:
    assert not is_step(f"params_{int((NOW - ago) * unit)}.npz", is_marked=is_marked)


@given(
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 6, 1)),
    st.sampled_from(["%Y%m%d", "%Y%m%d%H%M", "%Y%m%d%H%M%S"]),
)
def test_a_date_is_no_step(at: datetime, clock: str) -> None:
    assert not is_step(f"ckpt_{at.strftime(clock)}.pt")


@given(st.integers(0, 1_500_000_000).filter(lambda step: not re.match("202[5-7]", str(step))))
def test_a_step_of_a_long_run_is_one(step: int) -> None:
    assert is_step(f"model_{step}.pt")
