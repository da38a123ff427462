"""The table of TPU generations: whole, and a generation that lacks a part is told in words."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from supervisor.config.chips import arrangement, process_counts
from supervisor.config.generations import GENERATIONS, Arrangement, Generation
from supervisor.config.topology import SliceShape, parse_slice

NEW: dict[str, Any] = {
    **{name: getattr(GENERATIONS["v6e"], name) for name in asdict(GENERATIONS["v6e"])},
    "name": "v9e",
    "name_in_types": "v9lite",
    "device_kinds": ("TPU v9e",),
}


@pytest.mark.parametrize("left_out", NEW)
def test_no_part_of_a_new_generation_can_be_left_out(left_out: str) -> None:
    assert Generation(**NEW).name == "v9e"
    parts = {name: value for name, value in NEW.items() if name != left_out}
    with pytest.raises(TypeError, match=f"required keyword-only argument: '{left_out}'"):
        Generation(**parts)


@pytest.mark.parametrize(
    ("part", "wrong", "says"),
    [
        ("arrangements", {}, "no bounds for one process with 4 chips of a host; "),
        (
            "arrangements",
            {**NEW["arrangements"], (8, 2): Arrangement("2,1,1", "1,2,1", "nobody")},
            "bounds 2,1,1 and 1,2,1 are not 8 chips with 2 for each process",
        ),
        ("slices", {8: "2x3"}, "2x3 is no topology of 8 chips"),
        ("pod", 128, "a pod of 128 chips is smaller than its largest slice"),
        ("device_kinds", (), "no device_kind"),
    ],
)
def test_a_part_that_does_not_fit_is_told_in_words(part: str, wrong: object, says: str) -> None:
    with pytest.raises(ValueError, match=f"TPU generation v9e: .*{says}"):
        Generation(**{**NEW, part: wrong})


@pytest.mark.parametrize("name", GENERATIONS)
def test_everything_that_asks_for_a_generation_finds_it(name: str) -> None:
    known = GENERATIONS[name]
    whole = SliceShape(name, max(known.parts))
    assert parse_slice(whole.type) == parse_slice(whole.type_in_the_cloud) == whole
    for chips in known.parts:
        assert 1 in process_counts(name, chips)
        assert chips == whole.chips or arrangement(name, chips, chips) is not None
    for one in known.arrangements.values():
        assert ("jax" in one.source) or ("Ray" in one.source)
    for chips, topology in known.slices.items():
        if chips >= 64 and topology.count("x") == 2:
            assert all(int(side) % 4 == 0 for side in topology.split("x"))


def test_the_page_of_tpus_says_of_each_generation_what_the_table_does() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "tpu.md").read_text()
    for name, known in GENERATIONS.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {name} "))
        _, _, counts, host, parts, workers, _ = (cell.strip() for cell in row.split("|"))
        whole = max(known.parts)
        assert counts == ("2 for each chip" if known.type_number_per_chip == 2 else "chips")
        assert f"{whole} chips" in host
        assert ("2 devices" in host) == (known.devices_per_chip == 2)
        assert parts == ", ".join(str(n) for n in known.parts if n < whole)
        several = {n for chips in known.parts for n in process_counts(name, chips)} - {1}
        assert (workers == "no") == (not several)
        assert all(str(n) in workers for n in several)
