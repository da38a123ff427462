"""The ladder: which numbers of devices there are, by platform, config and program."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.cli.validate import describe
from supervisor.config.feasible_rungs import (
    NOT_ELASTIC,
    FeasibleRungs,
    Layouts,
    allowed_counts,
    command_layouts,
    devices_per_accelerator,
    make_ladder,
    unusable_rungs,
)
from supervisor.config.schema import Phase
from supervisor.config.topology import parse_slice, parse_topology
from tests.config.files import load, problems, with_command, with_init, with_restart
from tests.forked import forked

ELASTIC = with_command("argv: [a]\nelastic: true")


def phase(devices: str, restart: str = "", base: str = ELASTIC) -> Phase:
    config = with_restart(
        f"max_num_restarts: 3\n{restart}", with_init(f"devices: {{{devices}}}", base)
    )
    return load(config).phases[0]


@pytest.mark.parametrize(
    ("devices", "restart", "counts"),
    [
        ("platform: cpu, count: 4", "", (4, 3, 2, 1)),
        ("platform: gpu, count: 4", "min_num_devices: 3", (4, 3)),
        ("platform: gpu, count: 8", "ladder: [8, 6, 1]", (8, 6, 1)),
        ("platform: cpu", "", ()),
        ("platform: tpu, type: v5e-8", "", (8, 4, 2, 1)),
        ("platform: tpu, type: v5e-8", "min_num_devices: 3", (8, 4)),
        ("platform: tpu, type: v5litepod-16", "", (16, 8, 4)),
        ("platform: tpu, type: v6e-1", "", (1,)),
        ("platform: tpu, type: v4-8", "", (4, 2, 1)),
        ("platform: tpu, type: v5p-32", "", (16, 8, 4)),
        ("platform: tpu, type: v5p-24", "", (12, 8, 4)),
        ("platform: tpu, type: tpu7x-16", "", (8, 4)),
        ("platform: tpu, type: tpu7x-8", "", (4, 2, 1)),
        ("platform: tpu, type: v5e-16, slices: 4", "", (64, 48, 32, 16)),
        ("platform: tpu, type: v5e-16, slices: 4", "min_num_slices: 2", (64, 48, 32)),
        ("platform: tpu, type: v5e-16, slices: 4", "min_num_devices: 17", (64, 48, 32)),
        ("platform: tpu, type: v5e-16, slices: 4", "ladder: [64, 16]", (64, 16)),
        ("platform: tpu, count: 4", "", (4, 2, 1)),
        ("platform: tpu, count: 16", "", (16,)),
    ],
)
def test_what_platform_and_config_allow(
    devices: str, restart: str, counts: tuple[int, ...]
) -> None:
    one = phase(devices, restart)
    assert allowed_counts(one) == counts
    ladder = make_ladder(one, command_layouts(one))
    assert tuple(rung.num_devices for rung in ladder.rungs) == counts


@pytest.mark.parametrize(
    ("hosts", "devices", "restart", "counts"),
    [
        (8, "platform: tpu, type: v5e-16, slices: 2", "", (32, 16)),
        (8, "platform: tpu, type: v5e-16, slices: 2", "min_num_slices: 2", (32,)),
        (6, "platform: tpu, type: v4-16, slices: 3", "ladder: [24, 8]", (24, 8)),
        (2, "platform: tpu, type: v5e-8, slices: 2", "", (16, 8)),
        (4, "platform: tpu, type: v5e-16", "", (16,)),
        (4, "platform: tpu, count: 16", "", (16,)),
        (4, "platform: gpu, count: 32", "min_num_devices: 16", (32, 24, 16)),
    ],
)
def test_several_hosts_are_used_in_whole_slices(
    hosts: int, devices: str, restart: str, counts: tuple[int, ...]
) -> None:
    on_hosts = with_init(f"hosts: {{engine: ray, count: {hosts}}}", ELASTIC)
    one = phase(devices, restart, on_hosts)
    assert allowed_counts(one) == counts
    ladder = make_ladder(one, command_layouts(one))
    assert tuple(rung.num_devices for rung in ladder.rungs) == counts
    if "tpu" in devices and counts[-1] > 1 and not restart:
        assert list(ladder.gaps) == ["only whole slices can be used"]


@pytest.mark.parametrize(
    ("accelerator_type", "topology", "smaller"),
    [
        ("v5e-8", "2x4", {4: "2x2", 2: "1x2", 1: "1x1"}),
        ("v6e-32", "4x8", {16: "4x4", 8: "2x4", 4: "2x2"}),
        ("v5p-8", "2x2x1", {2: "1x2x1", 1: "1x1x1"}),
        ("v4-16", "2x2x2", {4: "2x2x1"}),
        ("tpu7x-32", "2x2x4", {8: "2x2x2", 4: "2x2x1"}),
        ("tpu7x-2048", "8x8x16", {512: "8x8x8"}),
        ("tpu7x-18432", "16x24x24", {8192: "16x16x32", 6144: "16x16x24", 4096: "16x16x16"}),
        ("v5p-12288", "16x16x24", {4096: "16x16x16", 2048: "8x16x16"}),
    ],
)
def test_topologies(accelerator_type: str, topology: str, smaller: dict[int, str]) -> None:
    found = parse_slice(accelerator_type)
    assert found.topology == topology
    assert list(found.sizes().items())[1 : len(smaller) + 1] == list(smaller.items())


@pytest.mark.parametrize(
    ("accelerator_type", "why"),
    [
        ("v5e-3", "3 chips are neither a part of a host nor whole hosts"),
        ("v5p-6", "3 chips are neither"),
        ("v6e-10", "10 chips are neither"),
        ("v6e-2048", "a v6e pod has 256 chips"),
        ("v4-8200", "a v4 pod has 4096 chips"),
        ("tpu7x-18440", "a tpu7x pod has 9216 chips"),
    ],
)
def test_a_size_that_cannot_be_is_refused(accelerator_type: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_slice(accelerator_type)


@pytest.mark.parametrize("accelerator_type", ["tpu7x-384", "v5p-1280", "v5e-12"])
def test_a_size_in_no_table_has_no_known_topology(accelerator_type: str) -> None:
    assert parse_slice(accelerator_type).topology is None


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ("type: v5e-12", "a v5e-12, a size in no table of Google's"),
        ("type: v5e-16", "asks for 16 TPU chips, more than one host has: `supervise run` starts"),
        ("type: v5e-8, slices: 2", "on this host only; use a slice of one host (v5e-8 at most)"),
    ],
)
def test_validate_says_what_is_odd_about_a_slice(devices: str, said: str, tmp_path: Path) -> None:
    config = tmp_path / "job.yaml"
    command = with_command("argv: ['true']")
    config.write_text(with_init(f"devices: {{platform: tpu, {devices}}}", command))
    done = forked("validate", config, cwd=tmp_path)
    assert said in done.stdout
    assert done.returncode == 0


def test_several_hosts_may_have_more_chips_than_one(tmp_path: Path) -> None:
    config = tmp_path / "job.yaml"
    command = with_command("argv: ['true']")
    hosts = "hosts: {engine: ray, count: 4}"
    config.write_text(with_init(f"devices: {{platform: tpu, type: v5e-16}}\n{hosts}", command))
    done = forked("validate", config, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "more than one host has" not in done.stdout


@pytest.mark.parametrize(
    ("name", "accelerator_type", "bounds"),
    [
        ("v5e:2x4", "v5e-8", (2, 4, 1)),
        ("v5e:1x2", "v5e-2", (1, 2, 1)),
        ("v6e:4x4", "v6e-16", None),
        ("v5p:2x2x1", "v5p-8", (2, 2, 1)),
        ("tpu7x:2x2x2", "tpu7x-16", None),
        ("v5litepod:2x2", "v5e-4", (2, 2, 1)),
    ],
)
def test_a_topology_is_of_one_slice(
    name: str, accelerator_type: str, bounds: tuple[int, ...] | None
) -> None:
    found = parse_topology(name)
    assert found.type == accelerator_type
    assert found.host_bounds == bounds
    assert parse_slice(found.type) == found


def test_two_devices_of_jax_are_one_chip_of_tpu7x() -> None:
    assert devices_per_accelerator(phase("platform: tpu, type: tpu7x-8")) == 2
    assert devices_per_accelerator(phase("platform: tpu, type: v5p-8")) == 1
    assert devices_per_accelerator(phase("platform: gpu, count: 2")) == 1


# --- commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "shrinks"),
    [
        ("argv: [a]", False),
        ("argv: [a, '{attempt}', '{{num_devices}}']", False),
        ("argv: [a, '--n={num_devices}']", True),
        ("argv: [a]\nenv: {B: '{per_device_batch}'}\nglobal_batch: 8", True),
        ("argv: [a]\nelastic: true", True),
    ],
)
def test_a_command_shrinks_only_if_its_batch_cannot_change_silently(
    lines: str, shrinks: bool
) -> None:
    one = phase("platform: cpu, count: 4", base=with_command(lines))
    ladder = make_ladder(one, command_layouts(one))
    if shrinks:
        assert 2 in [rung.num_devices for rung in ladder.rungs]
    else:
        assert [rung.num_devices for rung in ladder.rungs] == [4]
        assert ladder.gaps == {NOT_ELASTIC: (3, 2, 1)}


def test_a_global_batch_is_shared_equally() -> None:
    one = phase("platform: cpu, count: 8", base=ELASTIC + "    global_batch: 8\n")
    ladder = make_ladder(one, command_layouts(one))
    shares = [(rung.num_devices, rung.layout["per_device_batch"]) for rung in ladder.rungs]
    assert shares == [(8, 1), (4, 2), (2, 4), (1, 8)]
    assert ladder.gaps == {"command.global_batch 8 does not divide among them": (7, 6, 5, 3)}


@pytest.mark.parametrize(
    ("devices", "counts", "reason"),
    [
        (
            "platform: cpu, count: 8",
            (8, 6, 4, 2),
            "each of the 4 workers needs all of its 2 devices",
        ),
        (
            "platform: tpu, type: v5p-8",
            (4, 1),
            "2 workers cannot share them: no source shows bounds for that",
        ),
    ],
)
def test_workers_are_lost_whole(devices: str, counts: tuple[int, ...], reason: str) -> None:
    one = load(with_init(f"workers: 4\ndevices: {{{devices}}}", ELASTIC)).phases[0]
    assert allowed_counts(one) == counts
    assert reason in make_ladder(one, command_layouts(one)).gaps


@given(full=st.integers(1, 64), least=st.integers(1, 64), batch=st.integers(1, 256))
def test_every_count_is_a_rung_or_has_a_reason(full: int, least: int, batch: int) -> None:
    one = phase(f"platform: gpu, count: {full}", f"min_num_devices: {min(least, full)}")
    layouts: Layouts = {
        n: {} if batch % n == 0 or n == full else "batch" for n in allowed_counts(one)
    }
    ladder = make_ladder(one, layouts)
    rungs = [rung.num_devices for rung in ladder.rungs]
    gaps = [count for counts in ladder.gaps.values() for count in counts]
    assert rungs[0] == full
    assert rungs == sorted(rungs, reverse=True)
    assert sorted(rungs + gaps) == list(range(min(least, full), full + 1))


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "restart", "message"),
    [
        (
            "platform: cpu, count: 8",
            "ladder: [4, 2]",
            "c.yaml:7: trainer.init.autorestart.ladder[0]: is 4, but the job has 8 devices: 8 "
            "comes first",
        ),
        (
            "platform: cpu, count: 8",
            "ladder: [8, 2, 4]",
            "ladder: is not in descending order (value [8, 2, 4])",
        ),
        ("platform: cpu, count: 8", "ladder: [8, 4, 4]", "is not in descending order"),
        ("platform: cpu, count: 8", "ladder: [8, 0]", "ladder[1]: input should be greater than or"),
        ("platform: cpu, count: 8", "ladder: []", "ladder: list should have at least 1 item"),
        (
            "platform: cpu",
            "ladder: [8, 4]",
            "ladder: needs init.devices with a count or a type (value [8, 4])",
        ),
        (
            "platform: cpu, count: 8",
            "min_num_devices: 4\nladder: [8, 2]",
            "ladder[1]: is 2, below the minimum of 4: take it out, or lower the minimum",
        ),
        (
            "platform: tpu, type: v5e-8",
            "ladder: [8, 6]",
            "ladder[1]: is 6: a v5e-8 cannot be used in this size; there is 8, 4, 2, 1",
        ),
        (
            "platform: tpu, type: v5e-16, slices: 2",
            "ladder: [32, 8]",
            "ladder[1]: is 8: only whole slices can be used; there is 32, 16",
        ),
        (
            "platform: cpu, count: 8",
            "min_num_slices: 1",
            "min_num_slices: is 1, but the job has no slices (init.devices.slices)",
        ),
        (
            "platform: tpu, type: v5e-16, slices: 2",
            "min_num_slices: 3",
            "min_num_slices: is 3, but the job has 2 slices",
        ),
        ("platform: cpu, slices: 2, count: 2", "", "slices needs a type"),
        (
            "platform: tpu, type: v5e-16, slices: 2, count: 16",
            "",
            "type 2 x v5e-16 has 32 chips, not 16",
        ),
        ("platform: tpu, type: tpu7x-3", "", "tpu7x is named by twice the number of chips"),
        ("platform: tpu, type: v9-8", "", "'v9-8' is not a TPU type such as v5e-8"),
    ],
)
def test_a_ladder_that_the_devices_do_not_have(devices: str, restart: str, message: str) -> None:
    config = with_init(f"devices: {{{devices}}}", ELASTIC)
    found = problems(with_restart(f"max_num_restarts: 3\n{restart}", config))
    assert any(message in one for one in found), found


def test_an_entry_that_the_program_cannot_run_on_is_named() -> None:
    one = phase("platform: cpu, count: 8", "ladder: [8, 3, 2]")
    assert list(unusable_rungs(one, {8: {}, 3: "why not", 2: {}})) == [
        (("init", "autorestart", "ladder", 1), "3 devices: why not")
    ]


# --- what validate shows --------------------------------------------------------------------------


def test_a_ladder_is_shown_as_a_table() -> None:
    one = phase("platform: tpu, type: v5e-8", "min_num_devices: 2")
    layouts = {
        count: {
            "mesh": {"data": count // 2, "fsdp": 2},
            "per_device_batch": 16,
            "accumulation": 8 // count,
        }
        for count in (8, 4)
    } | {2: "not so few"}
    assert list(describe(make_ladder(one, layouts))) == [
        "ladder:",
        "  devices  topology  mesh             per_device_batch  accumulation",
        "        8  2x4       data 4 x fsdp 2                16             1",
        "        4  2x2       data 2 x fsdp 2                16             2",
        "no rung: 7-5, 3 devices: a v5e-8 cannot be used in this size",
        "no rung: 2 devices: not so few",
    ]
    assert list(describe(FeasibleRungs())) == [
        "no ladder: init.devices does not say how many devices there are"
    ]
