"""Where a shell starts several programs, and does not end when one of them does."""

from __future__ import annotations

import pytest

from supervisor.config.shell_waits import waits_for_all


@pytest.mark.parametrize(
    "text",
    [
        "python train.py 0 & python train.py 1 & wait",
        "RANK=0 python3 train.py &\nRANK=1 python3 train.py &\nwait\n",
        "for i in 0 1; do\n  RANK=$i python train.py > $i.log 2>&1 &\ndone\nwait",
        "python train.py & first=$!; python train.py & wait $first $!; exit $?",
        "torchrun train.py & wait",
    ],
)
def test_it_waits_for_all(text: str) -> None:
    assert waits_for_all(["bash", "-c", text])
    assert waits_for_all(["bash", "train.sh"], f"#!/bin/bash\n{text}")
    assert not waits_for_all(["python", "-c", text])


@pytest.mark.parametrize(
    "text",
    [
        "python train.py",
        "python train.py & python train.py & wait -n",
        "python train.py & python train.py & wait -n || exit; wait -n",
        "monitor & python train.py; wait",
        "python train.py & wait; python evaluate.py",
        "# python train.py &\nwait",
        "python train.py --name 'a & b'; wait",
        "wait",
        "echo 'it is open; python train.py & wait",
        "",
    ],
)
def test_it_ends_with_a_program_or_starts_none(text: str) -> None:
    assert not waits_for_all(["bash", "train.sh"], text)
