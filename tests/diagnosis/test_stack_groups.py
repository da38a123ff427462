"""The stacks of all ranks: who stands where, and who stands elsewhere."""

from __future__ import annotations

import faulthandler
import tempfile
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.diagnosis.frames import Frame
from supervisor.diagnosis.stack_groups import (
    grouped,
    in_words,
    main_stack,
    odd_ranks,
    ranges,
    standing_place,
)

OTHER = 'Thread 0x00007f01 (most recent call first):\n  File "/lib/watch.py", line 3 in run\n\n'
CRASH = f"Fatal Python error: Segmentation fault\n\n{OTHER}"


def dump(*calls: tuple[str, int, str], head: str = "Current thread") -> str:
    """What faulthandler writes; the innermost call comes first."""
    lines = [f'  File "{path}", line {line} in {name}\n' for path, line, name in calls]
    return f"{OTHER}{head} 0x00007f02 (most recent call first):\n{''.join(lines)}"


WAITS = dump(("/site-packages/jax/_src/array.py", 9, "_value"), ("/home/me/train.py", 81, "step"))
LOADS = dump(("/home/me/data.py", 12, "__next__"), ("/home/me/train.py", 80, "step"))


def test_the_rank_that_stands_elsewhere_is_named() -> None:
    groups = grouped({rank: LOADS if rank == 3 else WAITS for rank in range(64)})
    assert odd_ranks(groups) == (3,)
    assert in_words(groups) == (
        "the ranks do not stand at one place: ranks 0-2, 4-63 (63) at /home/me/train.py:81 in "
        "step, which waits in /site-packages/jax/_src/array.py:9 in _value; rank 3 at "
        "/home/me/data.py:12 in __next__. Look at rank 3 first"
    )


def test_where_all_stand_at_one_place_nobody_is_odd() -> None:
    groups = grouped({0: LOADS, 1: LOADS})
    assert odd_ranks(groups) == ()
    assert in_words(groups) == "all 2 ranks stand at /home/me/data.py:12 in __next__"


def test_without_a_majority_nobody_is_odd() -> None:
    groups = grouped({0: WAITS, 1: LOADS})
    assert odd_ranks(groups) == ()
    assert not in_words(groups).endswith("first")


def test_one_looks_first_where_a_rank_stands_elsewhere_else_where_most_do() -> None:
    odd = {rank: LOADS if rank == 3 else WAITS for rank in range(64)}
    assert standing_place(grouped(odd)) == "/home/me/data.py:12 in __next__"
    assert standing_place(grouped({0: WAITS})).startswith("/home/me/train.py:81 in step, which")
    assert standing_place(grouped({0: "nonsense"})) == ""


def test_of_many_places_the_largest_are_named() -> None:
    groups = grouped({rank: dump(("/home/me/a.py", rank, "f")) for rank in range(9)})
    assert in_words(groups).endswith("; and 5 more places")


@pytest.mark.parametrize("text", ["", "nonsense", CRASH, CRASH + WAITS, OTHER[:20]])
def test_what_is_no_dump_shows_nothing(text: str) -> None:
    assert main_stack(text) == ()


def test_a_dump_of_py_spy_shows_the_python_calls_of_its_main_thread() -> None:
    text = (
        "Process 7: python3 train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
        'Thread 8 (idle): "Thread-1"\n    wait (/usr/lib/python3.11/threading.py:327)\n'
        "Thread 7 (active+gil)\n    do_poll (poll.c:3)\n    0x7f (libc.so.6)\n"
        "    Reader.next (/home/me/my (new) data.py:12)\n    <module> (<string>:1)\n"
        'Thread 9 (idle): "Thread-2"\n    get (/usr/lib/python3.11/queue.py:171)\n'
    )
    inner = Frame("/home/me/my (new) data.py", "12", "Reader.next")
    assert main_stack(text) == (Frame("<string>", "1", "<module>"), inner)
    assert main_stack("Error: Failed to find python version from target process\n") == ()


def test_the_last_of_several_dumps_counts() -> None:
    assert main_stack(WAITS + LOADS) == main_stack(LOADS)


def test_a_real_dump_shows_the_main_thread_among_others() -> None:
    waits = threading.Event()
    threading.Thread(target=waits.wait, daemon=True).start()
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        waits.set()
        file.seek(0)
        innermost = main_stack(file.read())[-1]
    assert innermost.path == __file__
    assert innermost.function == "test_a_real_dump_shows_the_main_thread_among_others"


@given(st.dictionaries(st.integers(0, 30), st.sampled_from([WAITS, LOADS, "", CRASH])))
def test_each_rank_with_a_stack_is_in_one_group(dumps: dict[int, str]) -> None:
    groups = grouped(dumps)
    ranks = [rank for group in groups for rank in group.ranks]
    assert sorted(ranks) == sorted(rank for rank in dumps if dumps[rank] in (WAITS, LOADS))
    sizes = [len(group.ranks) for group in groups]
    assert sizes == sorted(sizes, reverse=True)
    assert not groups or in_words(groups)


@given(st.sets(st.integers(0, 40)))
def test_ranges_name_just_these(ranks: set[int]) -> None:
    found = set[int]()
    for part in filter(None, ranges(sorted(ranks)).split(", ")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    assert found == ranks
