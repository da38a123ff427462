"""Which names are those of steps, and which proof each of them needs."""

from __future__ import annotations

import pytest

from supervisor.protocol.checkpoint_layouts import LAYOUTS, Structure, step_of, structure_of


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("ckpt100", 100),
        ("ckpt0", 0),
        ("checkpoint100", 100),
        ("ckpt-100.pt", 100),
        ("100.pt", 100),
        ("epoch10.pt", 10),
        ("epoch=3-step=100.ckpt", 100),
        ("epoch=3-step=100-v1.ckpt", 100),
        ("epoch=3-val_loss=0.25.ckpt", 3),
        ("step_100_epoch_3.pt", 100),
        ("global_step100.pt", 100),
        ("model.05-0.33.h5", 5),
        ("weights.05-0.33.hdf5", 5),
        ("cp-0005.weights.h5", 5),
        ("ckpt.5.keras", 5),
        ("ckpt-12.index", 12),
        ("state_100.msgpack", 100),
        ("train_state_7.eqx", 7),
        ("CKPT-7.PT", None),
        ("last.pt", None),
        ("model.pt", None),
        ("model_v2.pt", None),
        ("gpt2_100.pt", None),
        ("step_1.5.pt", None),
        ("model-00001-of-00003.safetensors", None),
        ("mp_rank_00_model_states.pt", None),
        ("rng_state_0.pth", None),
        ("optimizer_100.pt", None),
        ("model-100.tmp.pt", None),
        ("model-100.pt.tmp", None),
        ("model-100.txt", None),
        ("ckpt-100.pt\n", None),
        ("ckpt-" + "1" * 19 + ".pt", None),
        ("ckpt-" + "0" * 300 + "1.pt", None),
        ("checkpoint_tmp", None),
        ("ckpt-9.orbax-checkpoint-tmp-3.pt", None),
    ],
)
def test_the_step_in_a_name(name: str, step: int | None) -> None:
    assert step_of(name) == step


@pytest.mark.parametrize("row", LAYOUTS, ids=lambda row: row.example)
def test_every_example_of_the_table_is_the_name_of_a_step(row: object) -> None:
    example = getattr(row, "example")  # noqa: B009 (the row is any value for pytest)
    name, _, rest = example.partition("/")
    assert step_of(name) in (10, 100)
    is_folder = bool(rest) or example.endswith("/")
    assert getattr(row, "structure") in (None, structure_of(name, is_folder=is_folder))  # noqa: B009


def test_only_a_marker_commits_a_folder_with_another_name() -> None:
    assert structure_of("100", is_folder=True) is None
    assert structure_of("checkpoint_100", is_folder=True) is None
    assert structure_of("checkpoint-100", is_folder=True) is Structure.TRANSFORMERS
    assert structure_of("ckpt-100.pt", is_folder=True) is None
    assert structure_of("ckpt-12.data-00000-of-00001", is_folder=False) is None
    assert structure_of("last.pt", is_folder=False) is None
