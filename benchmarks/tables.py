"""Writes the README's tables from what the benchmarks have left: no number there is typed by hand.

    python -m benchmarks.tables

A table stands between `<!-- benchmark: NAME -->` and `<!-- end -->`, and is made of
`benchmarks/results/NAME.json`. One that was never measured keeps a line that says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contest import ROOT

RESULTS = ROOT / "benchmarks" / "results"
_MARKED = re.compile(r"(<!-- benchmark: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Table:
    """What of a benchmark's figures a person should see.

    A cell is a template of figures, `{0_ms}` with the row's own name for `0`.
    """

    head: tuple[str, ...]
    rows: Mapping[str, str]
    """By the name that the row's figures begin with: what it is called."""
    cells: tuple[str, ...]


_SPREAD = "{0_ms} ({0_least_ms} to {0_most_ms})"
_PEERS = {
    "bash": "bash `until`",
    "torchrun": "torchrun",
    "supervisord": "supervisord",
    "ft_launcher": "NVRx `ft_launcher`",
}

_BASH_WITH_CACHE = "bash `until`, with the compilation cache"

TABLES = {
    "recovery": Table(
        ("kill -9 -> next optimizer step", "seconds: median (least to most)", "steps lost"),
        {
            "ready_snapshot": "supervise, standby `ready`, snapshots",
            "ready_orbax": "supervise, standby `ready`",
            "imports_snapshot": "supervise, standby `imports`, snapshots",
            "imports_orbax": "supervise, standby `imports`",
            "off_orbax": "supervise, no standby",
            **{name: f"{what}, with the compilation cache" for name, what in _PEERS.items()},
        },
        ("{0_s} ({0_least_s} to {0_most_s})", "{0_lost_steps}"),
    ),
    "orbax_recovery": Table(
        ("kill -9 of an Orbax script -> next step", "seconds: median (least to most)", "of bash"),
        {
            "imports": "supervise, standby `imports`",
            "off": "supervise, no standby",
            "bash": _BASH_WITH_CACHE,
            "loaded_imports": "beside busy processes: supervise, standby `imports`",
            "loaded_off": "beside busy processes: supervise, no standby",
            "loaded_bash": f"beside busy processes: {_BASH_WITH_CACHE}",
        },
        ("{0_s} ({0_least_s} to {0_most_s})", "{0_over_bash}"),
    ),
    "floor": Table(
        ("death of a trivial child -> the next one's first line", "ms: median (least to most)"),
        {
            "subprocess": "a bare Python loop",
            "supervise": "supervise",
            "standby": "supervise, with a standby",
            **_PEERS,
            "circus": "circus, looking every 0.1 s",
        },
        (_SPREAD,),
    ),
    "overhead": Table(
        ("while nothing happens", ""),
        {
            "steps_ratio": "steps per second, supervised over bare",
            "supervisor_cpu_percent": "supervisor and guard, percent of one core",
            "supervisor_cpu_each_step_percent": "the same where the trainer prints each step",
            "supervisor_pss_mb": "supervisor and guard, MB (PSS)",
            "unsent_progress_call_us": "a progress call that is not sent, microseconds",
        },
        ("{0}",),
    ),
    "goodput": Table(
        ("useful steps per hour", "a failure every 10 s", "every 30 s"),
        {"supervise_snapshot": "supervise, snapshots", "supervise": "supervise", **_PEERS},
        ("{0_mtbf_10s_steps_per_hour}", "{0_mtbf_30s_steps_per_hour}"),
    ),
    "elastic": Table(
        ("fewer devices", ""),
        {
            "same_rung_s": "restart on the same rung, seconds",
            "smaller_s": "restart on a smaller rung, compile prefetched",
            "smaller_cold_s": "the same without prefetch",
            "smaller_over_same_rung": "smaller over same rung",
            "prefetched_over_cold": "with prefetch over without",
            "same_rung_standby_s": "restart on the same rung, with a standby",
            "smaller_standby_s": "restart on a smaller rung, with a standby of the larger one",
            "lost_device_s": "the same from the loss of the device",
            "prefetch_s": "a prefetch beside the training, seconds",
            "while_prefetching_over_alone": "steps per second while prefetching over without",
            "group_down_s": "one of 4 workers killed -> none left, seconds",
            "group_next_step_s": "-> the next group's first step",
            "storm_changes": "devices lost and returned in a storm",
            "storm_rung_changes": "changes of the rung in it",
            "storm_bit_identical": "1: parameters at its end as of an undisturbed run",
        },
        ("{0}",),
    ),
    "empty_disk": Table(
        ("start on an empty disk -> next optimizer step", "seconds: median (least to most)"),
        {
            "with_cache": "with the compilation cache from the bucket",
            "without_cache": "without it",
        },
        ("{0_s} ({0_least_s} to {0_most_s})",),
    ),
    "determinism": Table(
        (
            "`determinism.elastic`",
            "a step on 8, 4, 2 simulated devices, ms",
            "on 4, 2 parameters differ from those on 8: relative L2",
            "percent of them",
        ),
        {"rounding": "rounding", "bitwise": "bitwise"},
        (
            "{0_8_step_ms}, {0_4_step_ms}, {0_2_step_ms}",
            "{0_4_relative_l2}, {0_2_relative_l2}",
            "{0_4_differing_percent}, {0_2_differing_percent}",
        ),
    ),
    "checkpoint": Table(
        ("a state, ms", "of 60 MB", "of 200 MB", "of 1 GB"),
        {
            "save_stall_supervise": "a save stalls our trainer",
            "save_stall_orbax": "the same with plain Orbax",
            "save_stall_raw_copy": "a copy in memory",
            "restore_verified": "a verified restore",
            "restore_unverified": "the same unverified",
            "restore_orbax": "the same with plain Orbax",
            "restore_raw_copy": "a read of a file",
        },
        ("{0_60mb_ms}", "{0_200mb_ms}", "{0_1gb_ms}"),
    ),
}


def main() -> None:
    """Rewrite the README."""
    readme = ROOT / "README.md"
    readme.write_text(rewritten(readme.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")


def rewritten(text: str, results: Path) -> str:
    """`text` with each marked table as `results` have it."""

    def table(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        path = results / f"{name}.json"
        if not path.exists():
            return f"{begin}Not measured yet.\n{end}"
        report = json.loads(path.read_text(encoding="utf-8"))
        return begin + "".join(f"{line}\n" for line in _lines(TABLES[name], report)) + end

    return _MARKED.sub(table, text)


def _lines(table: Table, report: Mapping[str, Any]) -> Iterator[str]:
    yield _line(table.head)
    yield _line(("---",) * len(table.head))
    for name, called in table.rows.items():
        cells = [_filled(cell, name, report["figures"]) for cell in table.cells]
        if any(cell is not None for cell in cells):
            yield _line((called, *(cell or "" for cell in cells)))
    machine = report["machine"]
    jax = machine["packages"]["jax"]
    yield ""
    yield f"({machine['cores']} cores of {machine['cpu']}, Python {machine['python']}, jax {jax}.)"


def _filled(template: str, name: str, figures: Mapping[str, float]) -> str | None:
    """The template with its figures in it; None where one of them is missing."""
    wanted = re.findall(r"\{0(\w*)\}", template)
    if any(name + rest not in figures for rest in wanted):
        return None
    return re.sub(r"\{0(\w*)\}", lambda match: f"{figures[name + match[1]]:g}", template)


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
