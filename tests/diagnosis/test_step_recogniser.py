"""Steps that nobody tells: which lines are taken for them, and which never."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.diagnosis.step_lines import LONGEST, may_tell, read_line
from supervisor.diagnosis.step_recogniser import (
    EVEN,
    MAX_DROPS,
    MIN_SPAN,
    UNEVEN,
    StepRecogniser,
)
from tests.diagnosis.step_logs import LOGS

CORPUS = Path(__file__).parents[1] / "corpus"
SAID = re.compile(r"(?i)\b(?:step|iter)[ =:]+(\d+)(?![\d.]*[a-z\d])")
SAVES = re.compile(r"(?i)checkpoint|saving|saved|save|restor|resum|Traceback|Error|File ")


def read(
    lines: Iterable[str], now: StepRecogniser | None = None, *, seconds: float = 1.0
) -> StepRecogniser:
    now = now if now is not None else StepRecogniser()
    for number, line in enumerate(lines):
        if may_tell(line.encode()):
            now = now.after(line, number * seconds)
    return now


def steps(numbers: Iterable[int], form: str = "step {}") -> list[str]:
    return [form.format(number) for number in numbers]


@pytest.mark.parametrize("name", LOGS)
def test_the_step_that_a_person_reads_or_none(name: str) -> None:
    log = LOGS[name]
    now = read(log.lines)
    assert now.step == log.step, now
    if log.step is not None:
        assert now.drops == 0


def test_the_logs_of_the_corpus() -> None:
    """Right in all that show five steps or more at even distances, none in the others."""
    right = other = 0
    for path in sorted(CORPUS.glob("*.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            lines = row["stderr"].split("\n")
            said = [
                int(m[1]) for line in lines if not SAVES.search(line) for m in SAID.finditer(line)
            ]
            now = read(lines)
            if now.step is not None:
                # The message of the failure may name the step that was not completed.
                assert now.step in (max(said), max(said) - 1), (row["id"], now.example)
                right += 1
            else:
                assert len(set(said)) <= UNEVEN, row["id"]
                other += 1
    assert (right, other) == (41, 709)


def test_it_is_taken_once_it_has_risen_evenly_and_for_a_while() -> None:
    lines = steps(range(3, 4 + EVEN))
    assert read(lines[:-1]).step is None
    now = read(lines)
    assert (now.step, now.first, now.example) == (3 + EVEN, 3, lines[-1])
    assert read(lines, seconds=0.01).step is None, "a table is printed at once"


def test_uneven_rises_must_be_many() -> None:
    numbers = [n * n for n in range(UNEVEN + 1)]
    assert read(steps(numbers[:-1])).step is None
    assert read(steps(numbers)).step == numbers[-1]


def test_a_number_that_falls_is_dropped_for_good() -> None:
    first = read(steps(range(10)))
    again = read(steps([0, 1, 2, *range(3, 40)]), first)
    assert first.step == 9
    assert (again.taken, again.step, again.loss, again.drops) == (None, None, None, 1)


def test_another_form_takes_its_place_but_not_for_ever() -> None:
    lines: list[str] = []
    for form in ("step {} a", "step {} b", "step {} c", "step {} d"):
        lines += steps([*range(8), 0], form)
    now = read(lines)
    assert (now.drops, now.step) == (MAX_DROPS, None)


def test_what_is_known_from_an_earlier_attempt_is_taken_at_first_sight_from_a_lower_step() -> None:
    before = read(steps(range(30), "step {} loss 0.5"))
    assert before.taken is not None
    known = StepRecogniser(frozenset({before.taken}))
    now = read(["step 12 loss 0.25"], known)
    assert (now.step, now.first, now.loss) == (12, 12, 0.25)
    assert read(["eval step 12 loss 0.25"], known).step is None
    assert read(["step 12 loss 0.25", "step 3 loss 0.25"], known).step is None


def test_a_bar_without_a_name_needs_a_loss_meanwhile() -> None:
    bar = " {0}%|█  | {0}/100 [00:10<00:12,  2.00it/s]"
    bars = steps(range(1, 10), bar)
    assert read([*bars]).step is None
    assert read(["{'loss': 0.3}", *bars]).step is None, "of something before"
    assert read([*bars[:4], "{'loss': 0.3, 'epoch': 0.1}", *bars[4:]]).step == 9


def test_what_a_bar_begins_with_is_no_step_of_the_attempt() -> None:
    """The Trainer of Hugging Face draws 0 and goes on at the step after the restored one; others
    draw the restored one."""
    bar = "train: {0}%|█  | {0}/100 [00:10<00:12,  2.00it/s]"
    before = read(steps(range(30), bar))
    assert (before.step, before.first) == (29, 1)
    assert before.taken is not None
    known = StepRecogniser(frozenset({before.taken}))
    for begins in (0, 20):
        drawn = read(steps([begins], bar), known)
        assert (drawn.step, drawn.first) == (None, None)
        moved = drawn.after(bar.format(21), 9.0)
        assert (moved.step, moved.first) == (21, 21)


@given(st.lists(st.integers(0, 60), max_size=60), st.sampled_from([1.0, 100.0]))
def test_random_numbers_are_no_steps(numbers: list[int], seconds: float) -> None:
    """Nothing is taken after a fall, however the numbers go on."""
    now = StepRecogniser()
    fell, highest, late = False, -1, -1
    for at, number in enumerate(numbers):
        now = now.after(f"step {number}", at * seconds)
        fell |= number < highest and number != late
        if number > highest:
            highest, late = number, highest
        assert not (fell and now.step is not None)
        assert now.step in (None, highest)


@given(st.lists(st.text(max_size=40) | st.binary(max_size=40).map(lambda b: b.decode("latin-1"))))
def test_noise_is_no_step(texts: Sequence[str]) -> None:
    now = StepRecogniser()
    for at, text in enumerate(texts):
        now = now.after(text, float(at))
    assert len(now.candidates) <= 33


@given(
    st.lists(
        st.sampled_from(
            ["step ", "iter", "[", "]", "1", "12/90", " ", "%|", "|", "loss", "=", "Epoch"]
        ),
        max_size=400,
    )
)
def test_any_line_is_read(parts: list[str]) -> None:
    line = read_line("".join(parts), 3)
    assert all(seen.step >= 0 for seen in line.sightings)


def test_many_forms_are_not_kept() -> None:
    lines = [f"{chr(97 + n % 26)}{chr(97 + n // 26)} step {n}" for n in range(500)]
    assert len(read(lines).candidates) <= 33


def test_the_form_that_is_taken_is_kept_among_many() -> None:
    """Also if it was seen before all others."""
    taken = read(steps(range(9), "step {} loss 0.5"))
    others = [f"{chr(97 + n % 26)}{chr(97 + n // 26)} step {n}" for n in range(200)]
    now = read(["step 9 loss 0.5"], read(others, taken))
    assert (now.taken, now.step, now.every) == (taken.taken, 9, 1)
    again = read(["step 3 loss 0.5"], read(others, taken))
    assert (again.step, again.drops) == (None, 1), "it is known that it fell"


def test_a_step_beside_an_epoch_must_go_on_in_the_next_one() -> None:
    within = steps(range(40), "epoch 2 step {} loss 0.5")
    assert read(within).step is None
    on = read(steps(range(40, 43), "epoch 3 step {} loss 0.5"), read(within))
    assert (on.step, on.first) == (42, 0)
    again = read(steps(range(3), "epoch 3 step {} loss 0.5"), read(within))
    assert again.step is None


def test_a_bar_whose_name_is_of_something_else_is_none() -> None:
    for name in ("Processing train data: ", "train epoch 3: ", "Reading training files: "):
        bar = name + "{0}%|█  | {0}/100 [00:10<00:12,  2.00it/s]"
        assert read(["loss 0.3", *steps(range(1, 20), bar)]).step is None


def test_the_rises_must_take_a_second() -> None:
    lines = steps(range(1 + EVEN))
    assert read(lines, seconds=MIN_SPAN / EVEN).step == EVEN
    assert read(lines, seconds=0.9 * MIN_SPAN / EVEN).step is None
    assert MIN_SPAN == 1.0, "as the reference says"


def test_a_loss_right_before_a_bar_is_one_meanwhile() -> None:
    """Both may be in one read, and so have one time."""
    bar = " {0}%|█  | {0}/100 [00:10<00:12,  2.00it/s]"
    now = StepRecogniser().after("{'loss': 0.3}", 0.0)
    assert read(steps(range(1, 10), bar), now).step == 9


def test_long_lines_are_not_read() -> None:
    assert may_tell(b"step 3")
    assert not may_tell(b"step 3" + b" " * LONGEST)
    assert not may_tell(b" " * 600 + b"step 3")
    assert not may_tell(b"downloading 3 of 4")


def test_colours_are_no_part_of_a_form() -> None:
    lines = [f"\x1b[3{n % 8}mstep\x1b[0m \x1b[1m{n}\x1b[0m loss 0.1" for n in range(9)]
    now = read(lines)
    assert (now.step, now.example) == (8, "step 4 loss 0.1")
