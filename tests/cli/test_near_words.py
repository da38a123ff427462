"""Verbs, choices and options that are mistyped: the nearest one is told, if one is near."""

from __future__ import annotations

import pytest

from supervisor.cli.main import VERBS, main


def told(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="64"):
        main(words.split())
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("statsu x", "status"),
        ("rnu trainer.yaml", "run"),
        ("log x", "logs"),
        ("valdate trainer.yaml", "validate"),
        ("manifest slrum trainer.yaml", "slurm"),
        ("quarantine lst x", "list"),
        ("run --log-format jsno trainer.yaml", "json"),
        ("run --mode-dir x -- python train.py", "--model-dir"),
        ("run --mode-dir=x -- python train.py", "--model-dir"),
        ("status --jsn", "--json"),
        ("logs x --folow --rnk 3", "--follow, --rank"),
        ("--versoin", "--version"),
    ],
)
def test_the_nearest_word_is_told(
    words: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(words, capsys).endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize(
    "words",
    [
        "relaunch x",  # not `repair`, which changes a journal
        "status x --once",
        "run --config trainer.yaml",  # has a hint already
        "run train.py --step 5",
        "run --max-re three -- python train.py",  # an abbreviation is no mistake
        "validate",
    ],
)
def test_a_word_that_is_like_none_is_left_alone(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "did you mean" not in told(words, capsys)


@pytest.mark.parametrize("verb", VERBS)
def test_two_letters_in_the_wrong_order_are_no_riddle(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mistyped = f"{verb[0]}{verb[2]}{verb[1]}{verb[3:]}"
    assert told(mistyped, capsys).endswith(f"; did you mean {verb}?")


def test_an_option_of_a_program_is_none_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    line = told("run --onec -- python train.py --mode-dir x", capsys)
    assert line.endswith("; did you mean --once?")


@pytest.mark.parametrize(("words", "place"), [("runs/x", "runs/x"), ("", "MODEL_DIR")])
def test_a_missing_word_is_told_in_one_line(
    words: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        main(["quarantine", *words.split()])
    assert error.value.code == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"supervise quarantine: say what to do: `supervise quarantine list {place}` prints which "
        f"devices and hosts the job does not use, `supervise quarantine clear {place}` lets it use "
        "them again"
    )
