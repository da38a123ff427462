"""Where the exit code of a shell command is that of the reader of a pipe."""

from __future__ import annotations

import pytest

from supervisor.config.shell_pipes import pipe_that_hides_failure


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
