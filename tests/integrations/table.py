"""Writes the tables of docs/reference/programs.md, so that nobody types what a test has to prove.

    python -m tests.integrations.table

The table of levels has a cell only where a test holds what it says, and links to it. The table of
programs comes from `results`, which `make test-integrations` writes.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from supervisor.core.exit_codes import ExitCode
from tests.integrations.programs import PROGRAMS, ROOT

PAGE = ROOT / "docs" / "reference" / "programs.md"
RESULTS = Path(__file__).parent / "results"
_MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

LEVELS = (
    "0: `supervise run --`",
    "1: a key or two",
    "2: `supervise_worker`",
    "3: our trainer",
)
Cell = tuple[str, str]
"""What a program gets, and the test that fails without it."""
GAINS: Mapping[str, Mapping[int, Cell]] = {
    "after a kill": {
        0: (
            "goes on from its newest checkpoint",
            "tests/integrations/test_programs.py:"
            "test_a_program_killed_ten_times_ends_where_an_undisturbed_run_ends",
        ),
        3: (
            "same bits, wherever it is killed",
            "tests/end_to_end/test_training.py:test_killed_at_any_step_it_ends_with_the_same_bits",
        ),
    },
    "checkpoints": {
        0: (
            "of a [known layout](layouts.md): found",
            "tests/processes/test_checkpoints_found.py:"
            "test_a_program_that_progresses_is_restarted_as_often_as_it_takes",
        ),
        1: (
            "any names: `checkpoint.pattern`",
            "tests/processes/test_layouts.py:test_a_job_that_is_killed_after_every_save_goes_on",
        ),
        3: (
            "verified before a restore",
            "tests/training/test_verified.py:test_after_a_flipped_bit_it_ends_with_the_same_bits",
        ),
    },
    "checkpoints, below a shell": {
        0: (
            "found too, as [launch forms](../how-to/launch-forms.md) says",
            "tests/processes/test_below_a_shell.py:test_quick_saves_below_a_shell_are_seen",
        ),
    },
    "steps": {
        0: (
            "recognised in usual lines, and shown",
            "tests/processes/test_recognised_steps.py:test_steps_are_recognised_also_in_lumps",
        ),
        1: (
            "from any line: `progress.pattern`",
            "tests/processes/test_hangs.py:test_steps_read_from_the_output_are_a_sign_of_life",
        ),
        2: (
            "`step(n, loss=...)`",
            "tests/processes/test_supervise_worker.py:"
            "test_a_drained_loop_saves_and_goes_on_in_the_next_run",
        ),
    },
    "a hang": {
        0: (
            "not noticed",
            "tests/processes/test_recognised_steps.py:"
            "test_silence_after_recognised_steps_is_no_hang",
        ),
        1: (
            "noticed, with `progress.pattern`",
            "tests/processes/test_hangs.py:test_steps_read_from_the_output_are_a_sign_of_life",
        ),
        2: (
            "noticed, without a pattern",
            "tests/processes/test_hangs.py:test_a_hang_is_found_out_and_restarted",
        ),
    },
    "success": {
        0: (
            "exit code 0, or `--success-step N`",
            "tests/processes/test_run_a_command.py:test_the_options_are_used",
        ),
        3: (
            "the last step of the config",
            "tests/end_to_end/test_training.py:"
            "test_exit_0_before_the_target_step_is_charged_and_restarted",
        ),
    },
    "SIGTERM": {
        0: (
            "the program's own handler saves; the same command goes on",
            "tests/processes/test_stopping.py:test_a_stop_lets_the_trainer_save",
        ),
        1: (
            "Orbax saves: `save_on_sigterm`",
            "tests/bootstrap/test_save_on_sigterm.py:"
            "test_a_drain_saves_and_the_same_command_resumes_to_the_same_bits",
        ),
        2: (
            "`should_stop()`: save, and exit with 0",
            "tests/processes/test_supervise_worker.py:"
            "test_a_drained_loop_saves_and_goes_on_in_the_next_run",
        ),
        3: (
            "saved after the step",
            "tests/end_to_end/test_training.py:test_a_stopped_job_saves_and_goes_on_where_it_was",
        ),
    },
    "standby": {
        0: (
            "has made the program's imports",
            "tests/processes/test_standby.py:"
            "test_each_attempt_goes_on_in_the_standby_of_the_one_before",
        ),
        3: (
            "has also compiled the step",
            "tests/end_to_end/test_standby.py:"
            "test_a_ready_standby_goes_on_from_memory_with_the_same_bits",
        ),
    },
    "snapshots in memory": {
        3: (
            "used after a kill",
            "tests/end_to_end/test_snapshots.py:"
            "test_used_after_a_kill_once_and_not_after_an_exception",
        ),
    },
    "fewer devices": {
        1: (
            "goes on and grows back, with `{num_devices}` in the command or `elastic: true`",
            "tests/processes/test_shrunk_tpu.py:"
            "test_from_eight_chips_to_four_and_back_at_a_checkpoint_while_it_trains",
        ),
        3: (
            "the same global batch, by itself",
            "tests/end_to_end/test_ladder.py:"
            "test_down_and_up_the_ladder_it_ends_with_the_bits_of_an_undisturbed_run",
        ),
    },
    "NaN in a step": {
        3: (
            "ends at the last good checkpoint if it comes again",
            "tests/end_to_end/test_policies.py:"
            "test_a_step_that_gives_nan_twice_ends_the_job_at_the_last_good_checkpoint",
        ),
    },
}
"""What each level gives that those before it do not."""


def levels() -> Iterator[str]:
    """Yield the lines of the table of levels."""
    yield from _head(["", *LEVELS])
    for gain, cells in GAINS.items():
        yield _row([gain, *(_cell(cells.get(level)) for level in range(len(LEVELS)))])


def programs(results: Path = RESULTS) -> Iterator[str]:
    """Yield the lines of the table of programs, in the order of their rows. `results` is the folder
    with what was seen."""
    yield from _head(
        ["program", "libraries", "checkpoints", "steps are read from", "standby", "result"]
    )
    for program in PROGRAMS:
        path = results / f"{program.path.stem}.json"
        if path.exists():
            yield _row(_seen(json.loads(path.read_text(encoding="utf-8"))))
        else:
            yield _row([_link(program.name, program.script), "", "", "", "", "not seen yet"])


def _seen(result: Mapping[str, Any]) -> Iterator[str]:
    python = f"Python {result['python']}, " if result["libraries"] else ""
    options = f"; needs `{shlex.join(result['options'])}`" if result["options"] else ""
    steps = result["steps_from"]
    yield _link(result["name"], result["script"])
    yield python + ", ".join(result["libraries"]) if result["libraries"] else "none"
    yield f"`{result['checkpoints']}`{options}"
    yield {None: "nothing", "reports": "reports"}.get(steps, f"`{_escaped(str(steps))}`")
    yield _standby(result["standby"])
    yield "; ".join((_bits(result), *_sigterm(result["sigterm"])))


def _link(name: str, script: str) -> str:
    return f"[{name}](../../examples/programs/{script})"


def _standby(kinds: Sequence[str] | None) -> str:
    if kinds is None:
        return ""
    return ", ".join(f"`{kind}`" for kind in kinds) or "none"


def _bits(result: Mapping[str, Any]) -> str:
    if result["same_bits"]:
        return "same bits"
    return f"last step; other bits, because {result['why_not_deterministic']}"


def _sigterm(seen: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs from what the page says of all programs."""
    if seen["saved"]:
        yield "SIGTERM saves"
    if seen["exit_code"] != ExitCode.DRAINED:
        yield f"SIGTERM ends it with exit code {seen['exit_code']}"


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    text, test = cell
    return f"{text} ([test](../../{test.partition(':')[0]}))"


def _head(names: Sequence[str]) -> Iterator[str]:
    yield _row(names)
    yield _row(["---"] * len(names))


def _row(cells: Iterator[str] | Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def page() -> str:
    """Return the page with its tables as they should be."""
    tables = {"levels": levels, "programs": programs}

    def filled(found: re.Match[str]) -> str:
        return "".join([found[1], *(f"{line}\n" for line in tables[found[2]]()), found[3]])

    return _MARKED.sub(filled, PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
