"""Writes the tables of the docs from the benchmarks' results, so that nobody types a number.

    python -m benchmarks.tables

A table is between `<!-- benchmark: NAME -->` and `<!-- end -->` in one of `PAGES`, and comes from
`benchmarks/results/NAME.json`. Without that file, a line says that it is not measured yet. The
table `summary`, which is in the README, compares the contestants of several benchmarks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contest import ROOT

RESULTS = ROOT / "benchmarks" / "results"
ALL_TABLES = ROOT / "docs" / "benchmarks.md"
PAGES = (
    ROOT / "README.md",
    ALL_TABLES,
    *(
        ROOT / "docs" / "explanation" / f"{name}.md"
        for name in ("checkpoints", "determinism", "fast-restarts")
    ),
)
"""The pages that have tables."""
SUMMARY = "summary"
_MARKED = re.compile(r"(<!-- benchmark: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_NOT_MEASURED = "Not measured yet."


@dataclass(frozen=True)
class Table:
    """The layout of one table: which figures of a benchmark it shows.

    A cell is a template of figures: in `{0_ms}`, `0` stands for the row's name. If a cell has
    several templates, the first one whose figures all exist is used. A last column is added: the
    least number of measurements behind a figure of the row.
    """

    head: tuple[str, ...]
    rows: Mapping[str, str]
    """The title of each row, by the name with which its figures begin."""
    cells: tuple[str | tuple[str, ...], ...]
    unit_counted: str
    """What the last column counts, in the plural."""
    samples_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For rows without samples of their own: the samples that they are computed from; (): the row
    is a single measurement."""
    min_count: int = 1
    """Least number of measurements in each row: with fewer, the table is not published."""


_SPREAD = "{0_ms} ({0_least_ms} to {0_most_ms})"
_SECONDS = "{0_s} ({0_least_s} to {0_most_s})"
_INTERVAL = "{0} ({0_low} to {0_high})"
_PEERS = {
    "bash": "bash `until`",
    "torchrun": "torchrun",
    "supervisord": "supervisord",
    "ft_launcher": "NVRx `ft_launcher`",
}

_BASH_WITH_CACHE = "bash `until`, with the compilation cache"
_BASH_DEFAULTS = "bash `until`, as it comes: no compilation cache"
_DEFAULTS = "supervise, as it comes"

TABLES = {
    "recovery": Table(
        ("kill -9 -> next optimizer step", "seconds: median (least to most)", "steps lost"),
        {
            "ready_snapshot": "supervise, standby `ready`, snapshots",
            "ready_orbax": "supervise, standby `ready`",
            "imports_snapshot": "supervise, standby `imports`, snapshots",
            "imports_orbax": "supervise, standby `imports`",
            "off_orbax": "supervise, no standby",
            "defaults": _DEFAULTS,
            **{name: f"{what}, with the compilation cache" for name, what in _PEERS.items()},
            "bash_defaults": _BASH_DEFAULTS,
        },
        (_SECONDS, "{0_lost_steps}"),
        "kills",
    ),
    "orbax_recovery": Table(
        ("kill -9 of an Orbax script -> next step", "seconds: median (least to most)", "of bash"),
        {
            "imports": "supervise, standby `imports`",
            "off": "supervise, no standby",
            "defaults": _DEFAULTS,
            "bash": _BASH_WITH_CACHE,
            "bash_defaults": _BASH_DEFAULTS,
            "loaded_imports": "beside busy processes: supervise, standby `imports`",
            "loaded_off": "beside busy processes: supervise, no standby",
            "loaded_defaults": f"beside busy processes: {_DEFAULTS}",
            "loaded_bash": f"beside busy processes: {_BASH_WITH_CACHE}",
            "loaded_bash_defaults": f"beside busy processes: {_BASH_DEFAULTS}",
        },
        (_SECONDS, "{0_over_bash}"),
        "kills",
    ),
    "core_scale": Table(
        ("10,000 hosts of which half are lost at once", "ms: median (least to most), or bytes"),
        {
            "most_step_64_rungs": "the longest decision, 64 rungs",
            "most_step_2000_rungs": "the same, 2,000 rungs",
            "journal_bytes_per_host_64_rungs": "journal for each host, 64 rungs",
            "journal_bytes_per_host_2000_rungs": "the same, 2,000 rungs",
        },
        ((_SPREAD, "{0}"),),
        "jobs",
        samples_of={
            "journal_bytes_per_host_64_rungs": (),
            "journal_bytes_per_host_2000_rungs": (),
        },
    ),
    "leader_scale": Table(
        ("one supervisor with simulated agents", "CPU: median (least to most)"),
        {
            "busy_500": "while 500 agents train, percent of one core",
            "busy_2000": "the same, 2,000 agents",
            "question_2000": "a question of an agent and its answer, microseconds",
            "kill_500": "a rank fails -> 500 agents are told to kill, ms",
            "kill_2000": "the same, 2,000 agents",
            "restart_500": "the whole restart of 500 hosts, seconds",
            "restart_2000": "the same, 2,000 hosts",
        },
        (
            (
                "{0_percent} ({0_least_percent} to {0_most_percent})",
                "{0_us} ({0_least_us} to {0_most_us})",
                _SPREAD,
                _SECONDS,
            ),
        ),
        "jobs",
    ),
    "many_agents": Table(
        ("one supervisor with real agents", "median (least to most)"),
        {
            "ready_50": "from none until 50 agents can start ranks, seconds",
            "told_50": "messages of 50 agents while they train, each second",
            "leader_50": "the supervisor meanwhile, percent of one core",
            "helper_50": "its Ray helper meanwhile, percent of one core",
            "answered_50": "most messages to 50 agents and back, each second",
            "kill_10": "`kill -9` of a rank -> the last rank of 10 hosts is gone, seconds",
            "kill_50": "the same, 50 hosts",
            "gone_50": "`kill -9` of a rank -> all 50 hosts have confirmed the end, seconds",
            "again_50": "`kill -9` of a rank -> the next attempt runs on 50 hosts, seconds",
            "leader_pss_50": "the supervisor's process, MB (PSS)",
            "helper_pss_50": "its Ray helper, MB (PSS)",
        },
        ((_SECONDS, "{0_s}", "{0_per_s}", "{0_percent}", "{0_mb}"),),
        "kills",
        samples_of=dict.fromkeys(
            (
                *("ready_50", "told_50", "leader_50", "helper_50", "answered_50"),
                *("leader_pss_50", "helper_pss_50"),
            ),
            (),
        ),
    ),
    "many_hosts": Table(
        ("four hosts, as namespaces of one machine", "median (least to most), or ratio"),
        {
            "kill_hosts": "`kill -9` of a rank on one of four hosts -> next step, seconds",
            "kill_one_host": "the same with four workers on one host, without Ray",
            "kill_over_one_host": "four hosts over one",
            "kill_jax_trainer": "`kill -9` of a rank -> next step under Ray Train, seconds",
            "jax_trainer_over_ours": "Ray Train over ours",
            "vanished": "a host vanishes, a spare takes over -> next step, seconds",
            "beyond_fence": "the same beyond `lost_after` and a kill on four hosts, seconds",
            "supervised_over_bare": "steps per second, supervised over bare",
            "agent_pss": "agent and guard on a host, MB (PSS)",
            "agent_whole": "the same with what they share with other processes counted whole",
            "relay_pss": "the Ray actor that carries their messages, MB (PSS)",
        },
        ((_SECONDS, "{0_mb} ({0_least_mb} to {0_most_mb})", _INTERVAL, "{0}"),),
        "measurements",
        samples_of={
            "kill_over_one_host": ("kill_hosts_s", "kill_one_host_s"),
            "jax_trainer_over_ours": ("kill_jax_trainer_s", "kill_hosts_s"),
        },
    ),
    "floor": Table(
        (
            "death of a trivial child -> the next one's first line",
            "ms: median (least to most), or ratio",
        ),
        {
            "subprocess": "a bare Python loop",
            "supervise": "supervise",
            "standby": "supervise, with a standby",
            **_PEERS,
            "circus": "circus, looking every 0.1 s",
            "supervise_over_subprocess": "supervise over a bare Python loop",
        },
        ((_SPREAD, "{0}"),),
        "deaths",
        samples_of={"supervise_over_subprocess": ("supervise_ms", "subprocess_ms")},
    ),
    "overhead": Table(
        ("while nothing happens", "median, or ratio (95 % interval)"),
        {
            "steps_ratio": "steps per second, supervised over bare",
            "supervisor_cpu_percent": "supervisor and guard, percent of one core",
            "supervisor_cpu_each_step_percent": "the same where the trainer prints each step",
            "supervisor_pss_mb": "supervisor and guard, MB (PSS)",
            "defaults_over_bare": "as it comes: steps per second, supervised over bare",
            "defaults_at_start_over_bare": "the same while standby and other rungs are prepared",
            "defaults_cpu_percent": "as it comes: all but the trainer, percent of one core",
            "defaults_at_start_cpu_percent": "the same while standby and other rungs are prepared",
            "defaults_pss_mb": "as it comes: all but the trainer, MB (PSS)",
            "supervised_over_bare": "no standby, no prefetch: steps per second over bare",
            "supervised_cpu_percent": "the same: supervisor and guard, percent of one core",
            "supervised_each_step_cpu_percent": "the same where the trainer prints each step",
            "supervised_pss_mb": "the same: supervisor and guard, MB (PSS)",
            "unsent_progress_call_us": "a progress call that is not sent, microseconds",
            "unsent_step_by_module_us": "the same by `supervise_worker.step`",
        },
        ((_INTERVAL, "{0}"),),
        "windows",
        samples_of={"steps_ratio": ("bare_steps_per_s", "supervised_steps_per_s")},
    ),
    "goodput": Table(
        (
            "a failure every",
            "10 s: useful steps per hour",
            "over bash `until` (95 % interval)",
            "30 s: useful steps per hour",
            "over bash `until` (95 % interval)",
        ),
        {
            "supervise_snapshot": "supervise, snapshots",
            "supervise": "supervise",
            "defaults": _DEFAULTS,
            **_PEERS,
        },
        tuple(
            cell.format(mean)
            for mean in ("mtbf_10s", "mtbf_30s")
            for cell in (
                "{{0_{0}_steps_per_hour}}",
                "{{0_over_bash_{0}}} ({{0_over_bash_{0}_low}} to {{0_over_bash_{0}_high}})",
            )
        ),
        "windows",
        min_count=10,
    ),
    "elastic": Table(
        ("fewer devices", "median (least to most), or ratio"),
        {
            "same_rung": "restart on the same rung, seconds",
            "smaller": "restart on a smaller rung, compile prefetched",
            "smaller_cold": "the same without prefetch",
            "smaller_over_same_rung": "smaller over same rung",
            "prefetched_over_cold": "with prefetch over without",
            "same_rung_standby": "restart on the same rung, with a standby",
            "smaller_standby": "restart on a smaller rung, with a standby of the larger one",
            "lost_device": "the same from the loss of the device",
            "prefetch": "a prefetch beside the training, seconds",
            "while_prefetching_over_alone": "steps per second while prefetching over without",
            "group_down": "one of 4 workers killed -> none left, seconds",
            "group_next_step": "-> the next group's first step",
            "storm_changes": "devices lost and returned in a storm",
            "storm_rung_changes": "changes of the rung in it",
            "storm_bit_identical": "1: parameters at its end as of an undisturbed run",
        },
        ((_SECONDS, _INTERVAL, "{0}"),),
        "measurements",
        samples_of={
            "smaller_over_same_rung": ("smaller_s", "same_rung_s"),
            "prefetched_over_cold": ("smaller_s", "smaller_cold_s"),
            "while_prefetching_over_alone": (
                "while_prefetching_steps_per_s",
                "alone_steps_per_s",
            ),
            **{f"storm_{what}": () for what in ("changes", "rung_changes", "bit_identical")},
        },
    ),
    "empty_disk": Table(
        ("start on an empty disk -> next optimizer step", "seconds: median (least to most)"),
        {
            "with_cache": "with the compilation cache from the bucket",
            "without_cache": "without it",
        },
        (_SECONDS,),
        "starts",
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
        "steps",
    ),
    "corruption_check": Table(
        ("4 simulated devices, `elastic: bitwise`", "ms: median (least to most), or as it says"),
        {
            "step": "an ordinary step",
            "check": "a step that is checked",
            "check_over_step": "the second over the first, in pairs (95% interval)",
            "percent_at_500": "percent of the training time at `every: 500`",
        },
        ((_SPREAD, _INTERVAL, "{0}"),),
        "pairs",
        samples_of={"percent_at_500": ("check_over_step",)},
    ),
    "fine_tuning": Table(
        ("a tiny Llama on one CPU device", "our trainer", "Tunix's `PeftTrainer`", "ours over it"),
        {
            f"{kind}_{what}": f"{named}: {text}"
            for kind, named in {"full": "all weights", "lora": "LoRA"}.items()
            for what, text in {
                "rate": "tokens a second",
                "start": "start -> first step, with caches, seconds",
                "cold": "the same without, seconds",
                "resume": "start after a kill -> next step, seconds",
                "memory": "peak memory, MB",
            }.items()
        },
        (
            ("{0_ours_tokens_per_s}", "{0_ours_s}", "{0_ours_mb}"),
            ("{0_tunix_tokens_per_s}", "{0_tunix_s}", "{0_tunix_mb}"),
            "{0_over_tunix}",
        ),
        "rounds",
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
        "times each",
    ),
}


@dataclass(frozen=True)
class SummaryRow:
    """A row of the summary: one measurement of all contestants. A cell is a median; it is empty if
    it was not measured."""

    title: str
    benchmark: str
    cell: str | tuple[str, ...]
    """As in `Table`."""
    names: Mapping[str, tuple[str, ...]]
    """The contestants by column: the names with which their figures begin. The first name that the
    benchmark has is used: older results have other names."""


def _with_peers(standby: str, alone: str) -> Mapping[str, tuple[str, ...]]:
    """Returns the names of a row in which the peers are, too."""
    return {"standby": (standby,), "alone": (alone,), **{name: (name,) for name in _PEERS}}


_SUMMARY_COLUMNS = {
    "standby": "supervise, with a standby",
    "alone": "supervise, without",
    **_PEERS,
}
_SUMMARY_ROWS = (
    SummaryRow(
        "`kill -9` of our trainer until its next step, s",
        "recovery",
        "{0_s}",
        _with_peers("ready_orbax", "off_orbax"),
    ),
    SummaryRow(
        "the same with snapshots in memory, s",
        "recovery",
        "{0_s}",
        {"standby": ("ready_snapshot",)},
    ),
    SummaryRow(
        "the same as both come: nothing set, and bash has no cache, s",
        "recovery",
        "{0_s}",
        {"standby": ("defaults",), "bash": ("bash_defaults",)},
    ),
    SummaryRow(
        "steps to do again (supervise: with snapshots)",
        "recovery",
        "{0_lost_steps}",
        {"standby": ("ready_snapshot",), **{name: (name,) for name in _PEERS}},
    ),
    SummaryRow(
        "`kill -9` of an Orbax script until its next step, s",
        "orbax_recovery",
        "{0_s}",
        _with_peers("imports", "off"),
    ),
    SummaryRow(
        "the same beside busy processes, s",
        "orbax_recovery",
        "{0_s}",
        {**_with_peers("loaded_imports", "loaded_off"), "bash": ("loaded_bash",)},
    ),
    SummaryRow(
        "death of a trivial program until its next start, ms",
        "floor",
        "{0_ms}",
        _with_peers("standby", "supervise"),
    ),
    SummaryRow(
        "steps per second over those of a bare run",
        "overhead",
        (_INTERVAL, "{0}"),
        {"standby": ("defaults_over_bare",), "alone": ("supervised_over_bare", "steps_ratio")},
    ),
    SummaryRow(
        "CPU time of supervise, % of one core",
        "overhead",
        "{0_cpu_percent}",
        {"standby": ("defaults",), "alone": ("supervised", "supervisor")},
    ),
    SummaryRow(
        "memory of supervise (PSS), MB",
        "overhead",
        "{0_pss_mb}",
        {"standby": ("defaults",), "alone": ("supervised", "supervisor")},
    ),
)


def main() -> None:
    """Write all tables into their pages."""
    for page in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")


def rewritten(text: str, results: Path) -> str:
    """Returns `text` with each marked table made from the files in `results`."""

    def table(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        lines = _summary(results) if name == SUMMARY else _table(name, results)
        return begin + "".join(f"{line}\n" for line in lines) + end

    return _MARKED.sub(table, text)


def _report(name: str, results: Path) -> Mapping[str, Any] | None:
    """Returns the result of a benchmark; None if it was not measured."""
    path = results / f"{name}.json"
    if not path.exists():
        return None
    report: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def _table(name: str, results: Path) -> Iterator[str]:
    report = _report(name, results)
    if report is None:
        yield _NOT_MEASURED
    else:
        yield from _lines(TABLES[name], report)


def _summary(results: Path) -> Iterator[str]:
    """Yields the lines of the summary, without rows and columns that have no figure."""
    names = {row.benchmark for row in _SUMMARY_ROWS}
    reports = {name: found for name in names if (found := _report(name, results)) is not None}
    rows = {
        row.title: _medians(row, reports[row.benchmark]["figures"])
        for row in _SUMMARY_ROWS
        if row.benchmark in reports
    }
    columns = [
        column for column in _SUMMARY_COLUMNS if any(cells[column] for cells in rows.values())
    ]
    if not columns:
        yield _NOT_MEASURED
        return
    yield _line(("median", *(_SUMMARY_COLUMNS[column] for column in columns)))
    yield _line(("---",) * (len(columns) + 1))
    for title, cells in rows.items():
        if any(cells.values()):
            yield _line((title, *(cells[column] or "" for column in columns)))
    yield ""
    yield from sorted({_machine_line(report) for report in reports.values()})


def _medians(row: SummaryRow, figures: Mapping[str, float]) -> Mapping[str, str | None]:
    """Returns the row's cells by column; None for an empty one."""
    filled = {
        column: [_filled(row.cell, name, figures) for name in row.names.get(column, ())]
        for column in _SUMMARY_COLUMNS
    }
    return {column: next(filter(None, cells), None) for column, cells in filled.items()}


def _lines(table: Table, report: Mapping[str, Any]) -> Iterator[str]:
    rows = [row for name in table.rows if (row := _row(table, name, report)) is not None]
    fewest = min((count for _, count in rows), default=0)
    if fewest < table.min_count:
        enough = (
            f"it takes {table.min_count} {table.unit_counted} for each row, and there are {fewest}"
        )
        yield f"Not published: {enough}."
        return
    yield _line((*table.head, f"n ({table.unit_counted})"))
    yield _line(("---",) * (len(table.head) + 1))
    yield from (_line((*cells, str(count))) for cells, count in rows)
    yield ""
    yield _machine_line(report)


def _machine_line(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    jax = machine["packages"]["jax"]
    return f"({machine['cores']} cores of {machine['cpu']}, Python {machine['python']}, jax {jax}.)"


def _row(table: Table, name: str, report: Mapping[str, Any]) -> tuple[tuple[str, ...], int] | None:
    """Returns the row's cells and the number of its measurements; None if all cells are empty."""
    cells = [_filled(cell, name, report["figures"]) for cell in table.cells]
    if not any(cells):
        return None
    samples = report["samples"]
    own = [name + rest for cell in table.cells for each in _each(cell) for rest in _figures(each)]
    found = [figure for figure in table.samples_of.get(name, own) if figure in samples]
    count = min((len(samples[figure]) for figure in found), default=1)
    if not found and table.samples_of.get(name) != ():
        count = 0  # this report has no samples of these figures
    return (table.rows[name], *(cell or "" for cell in cells)), count


def _each(cell: str | tuple[str, ...]) -> tuple[str, ...]:
    return (cell,) if isinstance(cell, str) else cell


def _figures(template: str) -> list[str]:
    return re.findall(r"\{0(\w*)\}", template)


def _filled(cell: str | tuple[str, ...], name: str, figures: Mapping[str, float]) -> str | None:
    """Returns the first template whose figures all exist, filled in; None if there is no such
    template."""
    for template in _each(cell):
        if all(name + rest in figures for rest in _figures(template)):
            return re.sub(r"\{0(\w*)\}", lambda match: f"{figures[name + match[1]]:g}", template)
    return None


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
