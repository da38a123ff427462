"""What a phase comes down to: program, environment, checkpoints, success."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.config.feasible_rungs import FeasibleRungs, RungLayout
from supervisor.config.places import local_state_directory
from supervisor.config.plan import PhasePlan, plan_phases
from supervisor.config.problems import ConfigError
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.diagnosis.success import Success
from supervisor.prepare import prepare
from supervisor.protocol.messages import Stage
from tests.config.files import COMMAND, FIT, PHASES, load, with_command, with_init

RESOLVED: dict[str, Any] = {"init": {"loop": {"max_steps": 9}}, "fit": {"x": 1}}
"""What our trainer's schema answers for a phase with `fit`."""
LADDER = FeasibleRungs((RungLayout(4), RungLayout(2)))


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plans(config: str) -> tuple[PhasePlan, ...]:
    job = load(config)
    sections = [RESOLVED if phase.fit is not None else {} for phase in job.phases]
    return plan_phases(job, sections, [LADDER] * len(job.phases))


def with_directories(*directories: str) -> str:
    config = PHASES
    for number, directory in enumerate(directories):
        config = config.replace(
            f"max_num_restarts: {number + 1}}}}}",
            f"max_num_restarts: {number + 1}}}, checkpoint: {{directory: '{directory}'}}}}",
        )
    return config


@pytest.mark.parametrize(
    ("config", "directories"),
    [
        (FIT, ["runs/x/checkpoints"]),
        (COMMAND, ["runs/x/checkpoints"]),
        (PHASES, ["runs/x/checkpoints/first", "runs/x/checkpoints/second"]),
        (
            PHASES.replace("    name: first\n", ""),
            ["runs/x/checkpoints/phase1", "runs/x/checkpoints/second"],
        ),
        (with_init("checkpoint: {directory: elsewhere}"), ["elsewhere"]),
        (with_init("checkpoint: {directory: '{model_dir}/a/b'}"), ["runs/x/a/b"]),
        (with_init("checkpoint: {directory: '{{model_dir}}/a'}"), ["{model_dir}/a"]),
        (with_directories("{model_dir}/one"), ["runs/x/one", "runs/x/checkpoints/second"]),
        (with_directories("one", "two"), ["one", "two"]),
    ],
)
def test_where_checkpoints_are(config: str, directories: list[str], tmp_path: Path) -> None:
    found = plans(config)
    assert [plan.checkpoint_dir for plan in found] == [tmp_path / path for path in directories]
    shown = [plan.params["trainer"]["init"]["checkpoint"]["directory"] for plan in found]
    assert shown == [str(tmp_path / path) for path in directories]


@pytest.mark.parametrize(
    ("config", "checkpoints"),
    [
        (COMMAND.replace("runs/x", "gs://b/x/"), "gs://b/x/checkpoints"),
        (with_init("checkpoint: {directory: '{model_dir}/a/b'}"), "gs://b/x/a/b"),
        (with_init("checkpoint: {directory: s3://other}"), "s3://other"),
    ],
)
def test_a_job_in_a_bucket(
    config: str, checkpoints: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config = config.replace("runs/x", "gs://b/x/")
    (plan,) = plans(config)
    assert str(plan.checkpoint_dir) == checkpoints
    assert str(plan.model_dir) == plan.params["trainer"]["init"]["model_dir"] == "gs://b/x"
    folder = load(config).model_dir
    assert folder.parent == tmp_path / "state" / "supervise"
    assert folder.name.startswith("x-"), "a person can tell it"
    assert load(config.replace("b/x", "b/y/x")).model_dir != folder


def test_the_state_folder_is_below_the_home_directory_unless_told(tmp_path: Path) -> None:
    below_home = local_state_directory(
        "gs://b", {"HOME": str(tmp_path), "XDG_STATE_HOME": "relative"}
    )
    assert below_home.parent == Path("~/.local/state/supervise").expanduser()
    assert below_home.name.startswith("b-")


def test_a_home_directory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    (plan,) = plans(COMMAND.replace("runs/x", "~/x"))
    assert plan.checkpoint_dir == Path("/home/me/x/checkpoints")


@pytest.mark.parametrize(
    ("devices", "count", "env"),
    [
        ("{platform: cpu, count: 4}", 4, {"JAX_PLATFORMS": "cpu"}),
        ("{platform: cpu}", None, {"JAX_PLATFORMS": "cpu"}),
        ("{platform: gpu, count: 2}", 2, {"JAX_PLATFORMS": "cuda"}),
        ("{platform: tpu, type: v5p-16}", 8, {"JAX_PLATFORMS": "tpu,cpu"}),
        ("", None, {}),
    ],
)
def test_the_platform_is_told_to_jax(devices: str, count: int | None, env: dict[str, str]) -> None:
    (plan,) = plans(with_init(f"devices: {devices}") if devices else COMMAND)
    assert plan.num_devices == count
    assert plan.env == env


def test_a_command_may_overrule_the_platform() -> None:
    config = with_init(
        "devices: {platform: cpu, count: 4}",
        with_command("argv: [a]\nenv: {JAX_PLATFORMS: 'cpu,tpu', X: '{attempt}'}"),
    )
    (plan,) = plans(config)
    assert plan.env == {"JAX_PLATFORMS": "cpu,tpu", "X": "{attempt}"}


def test_fit_runs_our_trainer_to_a_committed_step() -> None:
    (plan,) = plans(FIT)
    assert plan.argv == (sys.executable, "-P", "-m", "trainer", "{params}")
    assert (plan.success.step, plan.max_steps, plan.is_command) == (9, 9, False)
    assert not plan.success_is_default
    assert plan.params["trainer"]["fit"] == {"x": 1}
    assert plan.params["trainer"]["init"]["loop"] == {"max_steps": 9}
    assert plan.rungs == (4, 2)


@pytest.mark.parametrize(
    ("lines", "default", "step"),
    [
        ("argv: [a]", True, None),
        ("argv: [a]\nsuccess: {exit_code: 3}", False, None),
        ("argv: [a]\nsuccess: {step: 7}", False, 7),
    ],
)
def test_success_of_a_command(lines: str, default: bool, step: int | None) -> None:
    (plan,) = plans(with_command(lines))
    assert plan.success_is_default is default
    assert plan.success.step == plan.max_steps == step
    assert plan.success.exit_code == (3 if "exit_code" in lines else 0)
    assert plan.is_command


def test_progress_of_a_command() -> None:
    (plan,) = plans(with_command("argv: [a]\nprogress: {pattern: 'step (\\d+)'}"))
    assert plan.progress_pattern == r"step (\d+)"
    assert plans(COMMAND)[0].progress_pattern is None


THREE = PHASES + PHASES.split("\n", 1)[1].split("- trainer:\n", 2)[2].join(
    ["- trainer:\n", ""]
).replace("second", "third")


@pytest.mark.parametrize(
    ("start", "source", "load_what"),
    [
        ("", "second", "params"),
        ("    start_from: {phase: first}\n", "first", "params"),
        ("    start_from: {phase: first, load: all}\n", "first", "all"),
        ("    start_from: {load: all}\n", "second", "all"),
    ],
)
def test_where_a_phase_starts_from(start: str, source: str, load_what: str, tmp_path: Path) -> None:
    first, second, third = plans(THREE + start)
    assert "start_from" not in first.params["trainer"]
    assert second.params["trainer"]["start_from"]["directory"] == str(first.checkpoint_dir)
    assert third.params["trainer"]["start_from"] == {
        "directory": str(tmp_path / "runs/x/checkpoints" / source),
        "load": load_what,
    }


EVALUATES = """\
- trainer:
    name: {name}
    init: {{model_dir: runs/x, devices: {{platform: cpu, count: 1}},
      model: {{hidden_size: 16, num_layers: 1, num_heads: 4}},
      loop: {{global_batch_size: 8}},
      checkpoint: {{every: 10}}, autorestart: {{max_num_restarts: 1}}}}
    fit: {{validation: {{steps: 2, dataloader: {{paths: stdlib/json/*.py, sequence_length: 16}}}}}}
"""


def test_a_phase_starts_from_the_last_one_that_trains() -> None:
    """An evaluation makes no weights: it may stand before, between or after others."""
    first, train, one, other, again = plans(
        "trainer:\n"
        + EVALUATES.format(name="before")
        + PHASES.split("\n", 1)[1].split("- trainer:\n    name: second")[0]
        + EVALUATES.format(name="a")
        + EVALUATES.format(name="b")
        + "- trainer:\n    name: second"
        + PHASES.split("name: second")[1]
    )
    assert "start_from" not in first.params["trainer"]
    assert "start_from" not in train.params["trainer"]
    for later in (one, other, again):
        assert later.params["trainer"]["start_from"]["directory"] == str(train.checkpoint_dir)


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (
            "{phase: a}",
            'trainer.start_from.phase: only evaluates, and makes no weights (value "a")',
        ),
        ("{load: all}", "trainer.start_from: there is no phase before that trains, to start from"),
    ],
)
def test_no_phase_starts_from_one_that_makes_no_weights(start: str, told: str) -> None:
    text = "trainer:\n" + ("" if "load" in start else PHASES.split("\n", 1)[1])
    text += EVALUATES.format(name="a") + PHASES.split("\n", 1)[1].split("- trainer:\n")[2].join(
        ["- trainer:\n", f"    start_from: {start}\n"]
    ).replace("second", "last")
    with pytest.raises(ConfigError) as error:
        plans(text)
    assert told in str(error.value)


def test_params_show_defaults_and_absolute_paths(tmp_path: Path) -> None:
    (plan,) = plans(FIT)
    init = plan.params["trainer"]["init"]
    assert init["model_dir"] == str(tmp_path / "runs/x")
    assert init["autorestart"] == {
        "max_num_restarts": 3,
        "max_num_preemptions": 20,
        "min_num_devices": 1,
        "wait_for_capacity": 600.0,
        "wait_for_replacement": 0.0,
        "regrow": "at_restart",
        "regrow_after": 60.0,
        "grace_period": 25.0,
        "rules": [],
        "backoff": {"first": 10.0, "max": 300.0},
        "deadlines": {},
        "preemption": {"source": "auto"},
        "prefetch": True,
    }
    assert plan.params["trainer"]["name"] == plan.name == "phase1"


def test_drills_are_handed_on() -> None:
    (plan,) = plans(FIT + "  faults: [{step: 3, signal: SIGKILL}, {step: 5, hang: true}]")
    assert [(fault.step, fault.signal, fault.hang) for fault in plan.faults] == [
        (3, "SIGKILL", False),
        (5, None, True),
    ]


def test_the_policy_of_a_config_that_says_nothing_has_the_defaults_of_the_core(
    tmp_path: Path,
) -> None:
    """They stand in the schema and in the core, which journals without a field are read with."""
    config = tmp_path / "c.yaml"
    config.write_text(COMMAND)
    policy = prepare(config, []).policy
    assert policy == RestartPolicy(policy.phases)
    (phase,) = policy.phases
    assert phase == PhasePolicy(
        phase.name,
        phase.max_num_restarts,
        phase.max_num_preemptions,
        Success(),
        finds_checkpoints=True,  # older journals, whose jobs looked in one place, mean False
    )


@pytest.mark.parametrize(
    ("deadlines", "command", "watched"),
    [
        ("{STARTING: 20m}", r"{argv: ['true'], progress: {pattern: 'step (\d+)'}}", True),
        ("{INITIALIZING: 20m}", r"{argv: ['true'], progress: {pattern: 'step (\d+)'}}", False),
        ("{STARTING: 20m}", "{argv: ['true']}", False),
    ],
)
def test_a_command_is_watched_from_its_start_if_its_first_step_is_due(
    tmp_path: Path, deadlines: str, command: str, watched: bool
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        f"""trainer:
  init: {{model_dir: run, autorestart: {{max_num_restarts: 3, deadlines: {deadlines}}}}}
  command: {command}
"""
    )
    (phase,) = prepare(config, []).policy.phases
    assert phase.reports_stages is watched


TWO_POLICIES = r"""
- trainer:
    name: first
    init:
      model_dir: run
      autorestart: {max_num_restarts: 1, max_total_restarts: 10, deadlines: {FINISHING: 20}}
    command: {argv: ['true'], success: {step: 10}}
- trainer:
    name: second
    init:
      model_dir: run
      autorestart:
        max_num_restarts: 2
        max_num_preemptions: 3
        repeated_failure_limit: 4
        deadlines: {FINISHING: 1000, STARTING: 60}
    command: {argv: ['true'], success: {step: 20}, progress: {pattern: 'step (\\d+)'}}
"""


def test_each_phase_has_its_own_policy(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("trainer:" + TWO_POLICIES)
    first, second = prepare(config, []).policy.phases
    assert first == PhasePolicy(
        "first",
        max_num_restarts=1,
        max_num_preemptions=20,
        success=Success(step=10),
        max_total_restarts=10,
        deadlines={Stage.FINISHING: 20.0},
        finds_checkpoints=True,
    )
    assert second == PhasePolicy(
        "second",
        max_num_restarts=2,
        max_num_preemptions=3,
        success=Success(step=20),
        repeated_failure_limit=4,
        deadlines={Stage.FINISHING: 1000.0, Stage.STARTING: 60.0},
        reports_stages=True,
        finds_checkpoints=True,
    )
