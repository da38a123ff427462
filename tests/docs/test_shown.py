"""What is shown of an output is compared strictly, but for what is of one run."""

from __future__ import annotations

import pytest

from tests.docs.shown import Position, Unlike, compare

STARTS = "2026-11-23 09:44:26.536+00:00 [attempt 1] running as pid 508; output in rank0.log"
ENDS = "2026-11-23 09:44:31.002+00:00 [main] DRAINED, exit code 75: stopped"


def is_shown(shown: str, *actual: str, whole: bool = True, steps_vary: bool = False) -> bool:
    start = None if whole else Position()
    try:
        compare(shown.splitlines(), actual, start, whole=whole, steps_vary=steps_vary)
    except Unlike:
        return False
    return True


@pytest.mark.parametrize(
    ("shown", "actual"),
    [
        ("a\nb", ["a", "b"]),
        ("...\nb", ["a", "a", "b"]),
        ("a\n...", ["a"]),
        ("it says ...", ["it says much"]),
        ("[attempt 1] running as pid 7; output in rank0.log", [STARTS]),
        ("... [main] DRAINED, exit code 75: stopped", [ENDS]),
        ("it took 0.55 s", ["it took 12.00 s"]),
        ("job d28ab64cfd18 in /data", ["job 000000000000 in /data"]),
        ("supervise 0.2.0+...", ["supervise 0.2.1+00000000"]),
        ("step 1\n[main] DRAINED, exit code 75: stopped\nstep 2", ["step 1", "step 2", ENDS]),
    ],
)
def test_what_may_differ(shown: str, actual: list[str]) -> None:
    assert is_shown(shown, *actual)


@pytest.mark.parametrize(
    ("shown", "actual"),
    [
        ("a", ["b"]),
        ("a", ["a", "b"]),
        ("b", ["a", "b"]),
        ("a\nb", ["a"]),
        ("a\nb", ["b", "a"]),
        ("a\nc", ["a", "b", "c"]),
        ("...\nb\n...\na", ["a", "b"]),
        ("[main] STOPPED, exit code 79: stopped", [ENDS]),
        ("[attempt 2] running as pid 7; output in rank0.log", [STARTS]),
        ("[main] DRAINED, exit code 75: stopped\n[attempt 1] ...", [STARTS, ENDS]),
        ("step 5", ["step 6"]),
        ("it took 3 s", ["it took 4 s"]),
    ],
)
def test_what_may_not(shown: str, actual: list[str]) -> None:
    assert not is_shown(shown, *actual)


def test_steps_that_vary() -> None:
    assert is_shown("step 5 total 15", "step 6 total 21", steps_vary=True)
    assert is_shown("step 1\nstep 2", "step 1", "step 2", "step 3", steps_vary=True)
    assert is_shown("lost: 3 steps", "lost: 1 step", steps_vary=True)
    assert is_shown("a", "[attempt 1] checkpoint of step 9 is committed", "a", steps_vary=True)
    assert not is_shown("step 5", "a", steps_vary=True)
    assert not is_shown("first step 0.50; exit code 5", "first step 0.61; exit code 6")


def test_a_part_of_an_output() -> None:
    assert is_shown("b", "a", "b", "c", whole=False)
    assert not is_shown("c\nb", "a", "b", "c", whole=False)
    lines = ["a", "[main] x", "b", "[main] y"]
    end = compare(["[main] x", "b"], lines, Position(), whole=False, steps_vary=False)
    assert end == Position(ours=1, others=2)
    with pytest.raises(Unlike):
        compare(["[main] x"], lines, end, whole=False, steps_vary=False)
