"""Which command lines run a Python program, and where the bootstrap goes in them."""

from __future__ import annotations

import sys

import pytest

from supervisor.engines.python_program import START, bootstrapped


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("python train.py -c x", "python START train.py -c x"),
        ("python3 -u train.py", "python3 -u START train.py"),
        ("/opt/bin/python3.11 -m package.train a", "/opt/bin/python3.11 START -m package.train a"),
        ("python3.13t -c code a", "python3.13t START -c code a"),
        ("python -W error -X dev -OO -I t.py", "python -W error -X dev -OO -I START t.py"),
        ("python -Werror -Xdev -m t", "python -Werror -Xdev START -m t"),
        ("python -uW ignore t.py", "python -uW ignore START t.py"),
        ("python -um t -u", "python -u START -m t -u"),
        ("python -mt", "python START -mt"),
        (
            "python --check-hash-based-pycs always t.py",
            "python --check-hash-based-pycs always START t.py",
        ),
        (f"{sys.executable} t.py", f"{sys.executable} START t.py"),
        # --- other programs
        ("bash python train.py", "bash python train.py"),
        ("pythonista train.py", "pythonista train.py"),
        ("torchrun train.py", "torchrun train.py"),
    ],
)
def test_where_it_goes(argv: str, expected: str) -> None:
    assert bootstrapped(argv.split()) == (expected.replace("START", START).split(), None)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ("python", "it comes from standard input"),
        ("python -u", "it comes from standard input"),
        ("python - x", "option - is not one"),
        ("python -i t.py", "option -i is not one"),
        ("python -xu t.py", "option -xu is not one"),
        ("python --version", "option --version is not one"),
        ("python -- t.py", "option -- is not one"),
    ],
)
def test_what_runs_as_it_is(argv: str, why: str) -> None:
    found, why_not = bootstrapped(argv.split())
    assert found == argv.split()
    assert why_not is not None
    assert why in why_not
