"""Where checkpoints are looked for, and what proves whose they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.own_layout import OwnLayout
from supervisor.config.usual_names import is_of, kind_of, kinds_together
from supervisor.engines.checkpoint_search import (
    Search,
    Wanted,
    search_for,
    shared_folders,
)

HERE = Path("/home/ann/lab")
HOME = Path("/home/ann")


def search(
    *argv: str,
    env: dict[str, str] | None = None,
    own: tuple[str, ...] = (),
    model_dir: Path = HERE / "job",
    is_bootstrapped: bool = False,
    layout: OwnLayout | None = None,
) -> Search:
    known = model_dir / "checkpoints"
    words = ("python", *argv)
    wanted = Wanted(known, model_dir, words, env or {}, own, is_bootstrapped, layout, tuple, tuple)
    return search_for(wanted, HERE, (HOME, Path("/tmp")), 0.0)


@pytest.mark.parametrize(
    "argv",
    [
        ("train.py", "--workdir", "out"),
        ("train.py", "--workdir=out"),
        ("train.py", "workdir=./out"),
        ("train.py", "--workdir", "/home/ann/lab/x/../out"),
        ("train.py", "out"),
    ],
)
def test_a_folder_named_in_an_argument_is_searched(argv: tuple[str, ...]) -> None:
    assert HERE / "out" in search(*argv).roots


def test_a_folder_named_in_a_variable_of_the_config_is_searched() -> None:
    roots = search("train.py", env={"MINE": "/data/c"}, own=("MINE",)).roots
    assert Path("/data/c") in roots
    assert HERE / "out" in search("OUT=out", "sh", "train.sh").roots  # env OUT=out sh train.sh


def test_an_inherited_variable_names_no_folder_and_explains_none() -> None:
    """The `OUTPUT_DIR` of a shell may be another job's."""
    inherited = {"OUTPUT_DIR": "/other", "SAVE_PATH": "theirs"}
    found = search("--out", "runs", env=inherited)
    assert not {Path("/other"), HERE / "theirs"}.intersection(found.roots)
    assert not found.proves(HERE / "runs" / "theirs" / "checkpoints")


@pytest.mark.parametrize("word", [".", "/", "/home/ann", "/tmp", "..", "gs://bucket/out", ""])
def test_what_everybody_uses_is_not_searched(word: str) -> None:
    assert search("--workdir", word).roots == (HERE / "job", HERE / "workdir")


@given(st.lists(st.text(max_size=20), max_size=5))
def test_no_word_leads_to_a_shared_folder(words: list[str]) -> None:
    shared = shared_folders((HERE, HOME))
    roots = search(*words).roots
    assert not shared.intersection(roots)
    assert all(root.is_absolute() and ".." not in root.parts for root in roots)


@pytest.mark.parametrize(
    ("directory", "is_proven"),
    [
        ("job/out/7/any", True),
        ("runs/a/checkpoints", True),
        ("runs/checkpoints/actor", True),
        ("runs/b/checkpoints", False),
        ("other/checkpoints", False),
        ("checkpoints", False),
    ],
)
def test_the_arguments_explain_a_directory_or_do_not(directory: str, is_proven: bool) -> None:
    assert search("--out", "runs", "--name=a").proves(HERE / directory) is is_proven


def test_a_folder_that_is_named_does_not_explain_all_below_it() -> None:
    """Only model_dir does, which is the first that is searched."""
    named = search("runs")
    assert named.roots[:2] == (HERE / "job", HERE / "runs")
    assert named.proves(HERE / "runs" / "checkpoints")
    assert not named.proves(HERE / "runs" / "mystery")
    assert named.proves(HERE / "job" / "mystery")


@pytest.mark.parametrize(
    ("word", "root"),
    [
        ("/../out", "/out"),
        ("/home/../data", "/data"),
        ("../../../../../data", "/data"),
        ("/" + "a" * 4095, "/" + "a" * 4095),
    ],
)
def test_a_path_is_normal_by_its_text(word: str, root: str) -> None:
    assert Path(root) in search(word).roots


def test_a_word_that_no_path_is_as_long_as_is_not_searched() -> None:
    assert len(search("/" + "a" * 4096).roots) == 1


def test_a_program_that_reports_what_it_writes_is_not_judged_by_its_arguments() -> None:
    argv = ("train.py", "--teacher", "/runs/teacher/checkpoints")
    assert search(*argv, is_bootstrapped=True).roots == (HERE / "job",)
    assert len(search(*argv).roots) > 1
    launcher = ("-m", "torch.distributed.run", *argv)
    assert Path("/runs/teacher/checkpoints") in search(*launcher, is_bootstrapped=True).roots


@pytest.mark.parametrize("model_dir", [HERE, HOME, Path("/tmp")])
def test_a_model_dir_that_everybody_uses_proves_nothing(model_dir: Path) -> None:
    shared = search("train.py", model_dir=model_dir)
    assert not shared.proves(model_dir / "a" / "b")
    assert not shared.proves(model_dir / "checkpoints")
    assert model_dir not in shared.roots
    assert search("train.py", model_dir=model_dir / "job").proves(model_dir / "job" / "b")


def test_the_parts_of_a_path_name_steps() -> None:
    assert set(search().steps_in("/out/actor/12.orbax-checkpoint-tmp/state/d/0")) == {
        Path("/out/actor/12.orbax-checkpoint-tmp/state/d/0"),
        Path("/out/actor/12"),
    }
    assert set(search().steps_in("/out/run_1/notes.txt")) == {Path("/out/run_1")}


def test_a_layout_of_the_config_names_the_steps() -> None:
    own = search(layout=OwnLayout(r"model(\d+)x", None))
    assert set(own.steps_in("/out/model3x/4")) == {Path("/out/model3x")}


def test_the_command_line_of_a_child_program_says_where_to_look() -> None:
    child = search("launch.py", is_bootstrapped=True).also(
        ("python", "train.py", "--out", "runs", "--name=a"), HERE
    )
    assert child.proves(HERE / "runs" / "a" / "checkpoints")
    assert not child.proves(HERE / "runs" / "theirs" / "checkpoints")
    assert HERE not in child.also(("python", "train.py", "--out", "."), HERE).roots


def test_all_steps_of_a_program_have_one_kind_of_name() -> None:
    assert kind_of("step_0100") == kind_of("step_2.orbax-checkpoint-tmp") != kind_of("100")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("seed1_step5.npz", "seed1_step#.npz"),
        ("lr0.1_0005", "lr0.1_#"),
        ("sweep1_step5.npz", "sweep1_step#.npz"),
        ("nsteps4_5", "nsteps4_#"),
        ("rep2_step5.npz", "rep2_step#.npz"),
        ("run1_5", "run1_#"),
        ("epoch=3-step=100.ckpt", "epoch=#-step=#.ckpt"),
        ("step100_loss0.35.pt", "step#_loss#.#.pt"),
        ("step5_seed1.npz", "step#_seed1.npz"),
        ("step5_lr0.1.npz", "step#_lr0.1.npz"),
        ("step_5-val_loss=0.25-lr1.ckpt", "step_#-val_loss=#.#-lr1.ckpt"),
        ("weights.05-0.33.hdf5", "weights.#-#.#.hdf5"),
        ("model-100.h5", "model-#.h5"),
        ("step5_epoch2.pt", "step#_epoch#.pt"),
        ("12.orbax-checkpoint-tmp-3", "#"),
        ("no step 7x", "no step #x"),
    ],
)
def test_numbers_that_stay_the_same_for_a_run_belong_to_the_kind(name: str, kind: str) -> None:
    assert kind_of(name) == kind
    assert is_of(name, ["other", kind])
    assert not is_of(f"x{name}", [kind])


def test_a_number_that_a_program_varies_does_not_belong_to_the_kind() -> None:
    seeds = [f"seed{seed}_step#.npz" for seed in range(4)]
    assert kinds_together([*seeds, "last_#.npz"]) == ("last_#.npz", "seed#_step#.npz")
    assert kinds_together(seeds[1:]) == tuple(seeds[1:])
    assert is_of("seed9_step5.npz", kinds_together(seeds))
    assert not is_of("seed9_step5.npz", kinds_together(seeds[1:]))


def test_kinds_of_an_earlier_version_still_count() -> None:
    assert is_of("seed1_step5.npz", ["seed#_step#.npz"])
    assert is_of("c#_5.npz", [kind_of("c#_6.npz")])


def test_a_number_in_other_digits_belongs_to_the_kind() -> None:
    assert kind_of("run\u0665_step_7.pkl") == "run\u0665_step_#.pkl"
    assert not is_of("run_step_\u0665.pkl", ["run_step_#.pkl"])
