"""The program that a command line is about, whatever launches it."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.config.named_program import assignments, named_program, with_shell_words


@pytest.mark.parametrize(
    ("command", "name", "arguments"),
    [
        ("python train.py --lr 1", "train.py", "--lr 1"),
        ("python3.12 -u -X dev -W error train.py a.py", "train.py", "a.py"),
        (".venv/bin/python src/train.py", "src/train.py", ""),
        ("python train", "train", ""),
        ("python -m pkg.train cfg.py", "pkg.train", "cfg.py"),
        ("python -um pkg.train cfg.py", "pkg.train", "cfg.py"),
        ("python -mpkg x", "pkg", "x"),
        ("python -c 'import x' 1", "python", "1"),
        ("python", "python", ""),
        ("python -m", "python", "-m"),
        ("env A=1 B=2 nice -n 5 python train.py x", "train.py", "x"),
        ("numactl -m 0 python train.py x", "train.py", "x"),
        ("srun -n 4 python train.py x", "train.py", "x"),
        ("uv run train.py x", "train.py", "x"),
        ("uv run --with jax python -u train.py x", "train.py", "x"),
        ("uv run -m pkg.train x", "pkg.train", "x"),
        ("torchrun --nproc-per-node 2 train.py x", "train.py", "x"),
        ("accelerate launch --config_file a.yaml train.py x", "train.py", "x"),
        ("torchrun --standalone -m pkg x", "pkg", "x"),
        ("bash train.sh x", "train.sh", "x"),
        ("bash -o pipefail train.sh x", "train.sh", "x"),
        ("bash -lc 'cd x && python -u train.py 1' y", "train.py", "y"),
        ("bash -c './train.sh | tee log'", "./train.sh", ""),
        ("""bash -c 'it is "not closed'""", "bash", ""),
        ("bash -c ''", "bash", ""),
        ("bash -x", "bash", "-x"),
        ("./train.sh --with other.py", "train.sh", "--with other.py"),
        ("torchrun --help", "torchrun", "--help"),
        ("env A=1", "env", "A=1"),
    ],
)
def test_the_program_and_its_arguments(command: str, name: str, arguments: str) -> None:
    argv = shlex.split(command)
    found = named_program(argv)
    assert (found.name, argv[found.index + 1 :]) == (name, shlex.split(arguments))


def test_variables_that_env_sets_are_found() -> None:
    assert assignments(["env", "A=1", "B=/b/c", "python", "x=3"]) == ["A=1", "B=/b/c"]
    assert assignments(["python", "x=3"]) == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("sh -c 'cd x;python train.py \"a b\" --out=y' z", "cd x ; python train.py 'a b' --out=y"),
        ("env A=1 bash -lc 'train.py out>log#1'", "train.py out '>' log#1"),
        ("sh train.sh x", ""),
        ("sh -x", ""),
        ("""sh -c 'it is "not closed'""", ""),
        ("python -c 'import x'", ""),
    ],
)
def test_the_words_of_a_shells_text_are_behind_those_of_the_command(
    command: str, words: str
) -> None:
    argv = shlex.split(command)
    assert with_shell_words(argv) == [*argv, *shlex.split(words)]


LAUNCHERS = ["python", "env", "bash", "torchrun", "uv", "run"]
OTHERS = ["train.py", "A=1", "x", "-c", "-m", "-mx", "-u", "-W", "-o", "--", "''"]
WORDS = st.sampled_from([*LAUNCHERS, *OTHERS])


@given(st.lists(WORDS, min_size=1, max_size=8))
@example(["python", "-m", "-m"])
def test_any_words_have_a_program_among_them(argv: list[str]) -> None:
    found = named_program(argv)
    assert 0 <= found.index < len(argv)
    assert found.name
    assert with_shell_words(argv)[: len(argv)] == argv
