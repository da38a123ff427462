"""Where the exit code of a shell command is that of the reader of a pipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config.shell_pipes import pipe_that_hides_failure
from supervisor.engines.shell_script import shell_script


@pytest.mark.parametrize(
    "text",
    [
        "python train.py | tee log",
        "python train.py 2>&1 | tee -a 'my log'",
        "python train.py |& tee log; ",
        "cd /data && python train.py | grep -v warn | tee log",
        "(python train.py) | tee log",
        "{ python train.py | tee log; }",
        "for i in 1 2; do python train.py | tee log$i; done",
        "python train.py | tee >(cat > copy)\nexit $?",
    ],
)
def test_the_code_is_that_of_the_reader(text: str) -> None:
    assert pipe_that_hides_failure(["bash", "-c", text]) == "tee"
    assert pipe_that_hides_failure(["/bin/sh", "-ec", text]) == "tee"
    assert pipe_that_hides_failure(["bash", "-o", "pipefail", "-c", text]) is None
    assert pipe_that_hides_failure(["bash", "-c", f"set -o pipefail; {text}"]) is None


@pytest.mark.parametrize(
    "text",
    [
        "python train.py",
        "cat seeds | python train.py",
        "cat seeds | pypy3 train.py",
        "cat seeds | deepspeed train.py",
        "ls | wc -l; python train.py",
        "python train.py > >(tee log)",
        "python train.py --name 'a | b'",
        'python train.py --name "a | b"',
        "python train.py $(a | b)",
        "python train.py || true",
        "echo \"it's | open",
        "",
    ],
)
def test_the_code_is_that_of_the_program(text: str) -> None:
    assert pipe_that_hides_failure(["bash", "-c", text]) is None


def test_what_is_no_shell_has_no_pipe() -> None:
    assert pipe_that_hides_failure(["python", "-c", "a | b"]) is None
    assert pipe_that_hides_failure(["bash", "train.sh", "-c", "a | b"]) is None


SCRIPT = """#!/usr/bin/env bash
# runs the training | and keeps its output
export SEED=1
python -u train.py \\
    --lr 1 2>&1 | tee log.txt
"""


@pytest.mark.parametrize(
    ("argv", "reader"),
    [
        (["./go.sh"], "tee"),
        (["bash", "go.sh", "--lr", "1"], "tee"),
        (["bash", "-o", "pipefail", "go.sh"], None),
        (["python", "./go.sh"], None),
        (["./no-such-file.sh"], None),
        (["go.sh"], None),
    ],
)
def test_a_script_is_read(
    argv: list[str], reader: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "go.sh").write_text(SCRIPT)
    _, text = shell_script(argv)
    assert pipe_that_hides_failure(argv, text) == reader


@pytest.mark.parametrize(
    "script",
    [
        SCRIPT.replace("export", "set -euo pipefail; export"),
        SCRIPT + "echo done\n",
        SCRIPT.replace("#!/usr/bin/env bash", "#!/usr/bin/env python3"),
        SCRIPT.replace("| tee log.txt", "> log.txt"),
    ],
)
def test_a_script_without_such_a_pipe_at_its_end(script: str, tmp_path: Path) -> None:
    path = tmp_path / "go.sh"
    path.write_text(script)
    _, text = shell_script([str(path)])
    assert pipe_that_hides_failure([str(path)], text) is None
