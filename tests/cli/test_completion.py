"""`supervise completion`: the scripts are those of the parsers, and complete in the real shells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from supervisor.cli import completion_scripts
from supervisor.cli.completion import SHELLS, script_name
from supervisor.cli.main import VERBS, main

ROOT = Path(__file__).resolve().parents[2]
IN_BASH = """\
source "$1"; shift
function="$(complete -p supervise | sed -E 's/.*-F ([^ ]+).*/\\1/')"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMPREPLY=()
"$function" supervise "${@: -1}" "${@: -2:1}"
echo "${COMPREPLY[@]}"
"""
IN_FISH = 'source $argv[1]; complete -C "$argv[2]" | string replace -r "\\t.*" ""; true'
LINES = [
    ("supervise sta", {"status"}),
    ("supervise quarantine ", {"list", "clear"}),
    ("supervise status --", {"--watch", "--json", "--exit-code", "--help"}),
    ("supervise run --log-format ", {"text", "json"}),
    ("supervise completion ", set(SHELLS)),
    ("supervise doctor trai", {"trainer.yaml"}),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a config in it."""
    (tmp_path / "trainer.yaml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(folder: Path, shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The path of a file with what the command prints."""
    assert main(["completion", shell]) == 0
    path = folder / "script"
    path.write_text(capsys.readouterr().out)
    return str(path)


def test_the_scripts_are_what_the_parsers_make() -> None:
    shipped = {path.name: path.read_text("utf-8") for path in completion_scripts.FOLDER.iterdir()}
    assert shipped == completion_scripts.scripts(), "write them: make pages"
    assert (
        "\t$(BIN)/python -m supervisor.cli.completion_scripts\n" in (ROOT / "Makefile").read_text()
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_every_verb_is_in_every_script(shell: str) -> None:
    text = (completion_scripts.FOLDER / script_name(shell)).read_text("utf-8")
    assert [verb for verb in VERBS if verb not in text] == []


@pytest.mark.parametrize(("line", "meant"), LINES)
def test_bash_completes(
    line: str, meant: set[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(place, "bash", capsys)
    argv = ["bash", "-c", IN_BASH, "bash", path, *line.split(" ")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == meant


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.parametrize(("line", "meant"), LINES)
def test_fish_completes(
    line: str, meant: set[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(place, "fish", capsys)
    argv = ["fish", "--no-config", "-c", IN_FISH, path, line]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert meant <= set(done.stdout.split())


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_reads_its_script(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script(place, "zsh", capsys)
    subprocess.run(["zsh", "-f", "-n", path], check=True)


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="64"):
        main(["completion", "tcsh"])
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
