"""A changed config: what is told, and what a job that has begun refuses."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.budget import Budget
from supervisor.core.changes import Change, changes, refused
from supervisor.core.doing import Failed, Running, Succeeded, Workers
from supervisor.core.exit_codes import ExitCode
from supervisor.core.state import JobState

Config = list[dict[str, Any]]


def phase(name: str) -> dict[str, Any]:
    return {
        "trainer": {
            "name": name,
            "init": {
                "model_dir": "/runs/x",
                "seed": 0,
                "devices": {"platform": "cpu", "count": 4},
                "model": {
                    "name": "gpt",
                    "width": 64,
                    "scale": math.nan,
                    "base": "/runs/x",
                    "old": "/runs/xy",
                },
                "optimizer": {"name": "adam", "lr": 0.1},
                "determinism": {"elastic": "rounding"},
                "loop": {"max_steps": 100},
                "checkpoint": {"directory": f"/runs/x/checkpoints/{name}", "every": 10},
                "autorestart": {"max_num_restarts": 3},
            },
            "fit": {"train_dataloader": {"shuffle": True}},
            "start_from": {"directory": "/runs/x/checkpoints/before", "load": "params"},
        }
    }


CONFIG: Config = [phase("one"), phase("two"), phase("three")]


def changed(index: int, path: str, value: Any) -> Config:
    """The config with one key of a phase set; `...` removes it."""
    config = deepcopy(CONFIG)
    target = config[index]["trainer"]
    *sections, last = path.split(".")
    for part in sections:
        target = target.setdefault(part, {})
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return config


NEW = JobState(job="j")
RUNS = Running(Workers(1))
RUNNING = JobState(job="j", attempt=2, phase=1, doing=RUNS, budget=Budget(highest=40))
NO_CHECKPOINT = JobState(job="j", attempt=2, phase=1, doing=RUNS)
FAILED = replace(RUNNING, doing=Failed(ExitCode.FAILED))
SUCCEEDED = JobState(
    job="j", attempt=4, phase=2, doing=Succeeded(100, proven=True), budget=Budget(highest=100)
)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("init.seed", 1, "trainer[1].init.seed: 0 -> 1"),
        ("init.seed", False, "trainer[1].init.seed: 0 -> false"),
        ("init.model.depth", 3, "trainer[1].init.model.depth: (not set) -> 3"),
        ("init.optimizer.lr", ..., "trainer[1].init.optimizer.lr: 0.1 -> (not set)"),
        ("init.model", "none", None),
        ("fit", {"train_dataloader": [1]}, None),
        ("init.seed", "x" * 500, None),
    ],
)
def test_a_change_is_told(path: str, value: Any, told: str | None) -> None:
    (found,) = changes(CONFIG, changed(1, path, value))
    assert str(found).startswith(f"trainer[1].{path}")
    assert told is None or str(found) == told
    assert len(str(found)) < 300


ARGV = ["python", *(f"--option-{n}" for n in range(20)), "120"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (ARGV, [*ARGV[:-1], "240"], 'argv[21]: "120" -> "240"'),
        (ARGV, [*ARGV, "--more"], 'argv: ["..."] -> ["...", "--more"]'),
        (ARGV, ARGV[:1] + ARGV[2:], 'argv: ["...", "--option-0", '),
        (["x" * 90 + "1"], ["x" * 90 + "2"], f'argv[0]: "...{"x" * 20}1" -> "...{"x" * 20}2"'),
        ([{"a": [1, 2]}], [{"a": [1, 3]}], "argv[0].a[1]: 2 -> 3"),
    ],
)
def test_of_a_long_value_the_difference_is_told(old: Any, new: Any, told: str) -> None:
    then, now = (changed(0, "command", {"argv": argv}) for argv in (old, new))
    (found,) = changes(then, now)
    assert str(found).startswith(f"trainer[0].command.{told}")
    before, after = found.sides
    assert before != after
    assert str(found) == f"{found.path}: {before} -> {after}"


def test_the_key_has_the_number_of_its_phase_where_there_are_several() -> None:
    then, now = (changed(0, "init.seed", seed) for seed in (1, 2))
    (of_several,), (of_one,) = changes(then, now), changes(then[:1], now[:1])
    assert (of_several.path, of_one.path) == ("trainer[0].init.seed", "trainer.init.seed")


def test_nothing_is_told_where_nothing_changed() -> None:
    assert changes(CONFIG, deepcopy(CONFIG)) == []
    ordered, turned = [{"a": 1, "b": 2}], [{"b": 2, "a": 1}]
    assert changes(changed(1, "fit", ordered), changed(1, "fit", turned)) == []


def test_only_phases_on_both_sides_are_compared() -> None:
    assert changes(CONFIG, CONFIG[:1]) == changes(CONFIG[:1], CONFIG) == []


def test_a_moved_model_dir_is_no_change() -> None:
    moved = deepcopy(CONFIG)
    for index, name in enumerate(["one", "two", "three"]):
        trainer = moved[index]["trainer"]
        trainer["init"]["model_dir"] = trainer["init"]["model"]["base"] = "/runs/x/y"
        trainer["init"]["checkpoint"]["directory"] = f"/runs/x/y/checkpoints/{name}"
        trainer["start_from"]["directory"] = "/runs/x/y/checkpoints/before"
    assert changes(CONFIG, moved) == []
    moved[1]["trainer"]["start_from"]["directory"] = "/elsewhere"
    (found,) = changes(CONFIG, moved)
    assert found == Change(
        1, ("start_from", "directory"), "/runs/x/y/checkpoints/before", "/elsewhere"
    )


def test_a_moved_model_dir_is_no_change_of_a_list_either() -> None:
    here, there = changed(0, "command.argv", ["train", "/a"]), deepcopy(CONFIG)
    there[0]["trainer"]["command"] = {"argv": ["train", "/b/x"]}
    here[0]["trainer"]["init"]["model_dir"], there[0]["trainer"]["init"]["model_dir"] = "/a", "/b"
    told = [change for change in changes(here, there) if change.key[0] == "command"]
    assert [(change.key, change.new) for change in told] == [(("command", "argv", 1), "/b/x")]
    there[0]["trainer"]["command"] = {"argv": ["train", "/b"]}
    assert [change for change in changes(here, there) if change.key == ("command", "argv")] == []


@pytest.mark.parametrize(
    ("state", "index", "path", "value", "message"),
    [
        # --- nothing has run yet
        (NEW, 0, "init.model.width", 128, None),
        (NEW, 1, "start_from.load", "all", None),
        # --- the phase that runs: only what makes its checkpoint unusable
        (RUNNING, 1, "init.model.width", 128, "checkpoint of step 40 does not fit it; take it bac"),
        (RUNNING, 1, "init.model", ..., "checkpoint of step 40 does not fit it"),
        (RUNNING, 1, "init.optimizer.name", "sgd", "checkpoint of step 40 does not fit it"),
        (RUNNING, 1, "init.determinism.elastic", "bitwise", "checkpoint of step 40 does not fit"),
        (RUNNING, 1, "start_from.load", "all", "checkpoint of step 40 does not fit it"),
        (RUNNING, 1, "init.lora", {"rank": 2}, "checkpoint of step 40 does not fit it"),
        (RUNNING, 1, "init.checkpoint.save_frozen", False, None),
        (RUNNING, 1, "init.dpo", {"beta": 0.2}, None),
        (RUNNING, 1, "init.grpo", {"reward": "a:b"}, "checkpoint of step 40 does not fit it"),
        (RUNNING, 1, "fit.train_dataloader.sequence_length", 7, None),
        (RUNNING, 1, "fit.train_dataloader.completion_field", "answer", None),
        (RUNNING, 1, "fit.train_dataloader.chosen_field", "good", "checkpoint of step 40 does"),
        (RUNNING, 1, "init.optimizer.lr", 1.0, None),
        (RUNNING, 1, "init.seed", 1, None),
        (RUNNING, 1, "init.loop.max_steps", 50, None),
        (RUNNING, 1, "fit.train_dataloader.shuffle", False, None),
        (RUNNING, 1, "init.autorestart.max_num_restarts", 9, None),
        (FAILED, 1, "init.model.width", 128, "checkpoint of step 40 does not fit it"),
        (FAILED, 1, "init.optimizer.lr", 1.0, None),
        # --- without a checkpoint there is nothing that it must fit
        (NO_CHECKPOINT, 1, "init.model.width", 128, None),
        # --- phases that are still to come
        (RUNNING, 2, "init.model.width", 128, None),
        (RUNNING, 2, "start_from.load", "all", None),
        # --- phases that are complete: only what computes nothing
        (RUNNING, 0, "init.seed", 1, "the phase is complete and cannot be changed; take it back"),
        (RUNNING, 0, "init.model.width", 128, "the phase is complete and cannot be changed"),
        (RUNNING, 0, "name", "uno", "the phase is complete and cannot be changed"),
        (RUNNING, 0, "init.loop.max_steps", 200, "the phase is complete and cannot be changed"),
        (RUNNING, 0, "init.autorestart.max_num_restarts", 9, None),
        (RUNNING, 0, "init.devices.count", 2, None),
        (RUNNING, 0, "init.checkpoint.every", 5, None),
        (RUNNING, 0, "faults", [{"step": 1}], None),
        # --- after success the last phase may only grow
        (SUCCEEDED, 2, "init.loop.max_steps", 200, None),
        (SUCCEEDED, 2, "init.loop.max_steps", 50, "the phase is complete and cannot be changed"),
        (SUCCEEDED, 2, "init.loop.max_steps", "200", "the phase is complete and cannot be chang"),
        (
            SUCCEEDED,
            2,
            "command",
            {"success": {"step": 5}},
            "the phase is complete and cannot be changed",
        ),
        (SUCCEEDED, 2, "init.optimizer.lr", 1.0, "the phase is complete and cannot be changed"),
        (SUCCEEDED, 2, "init.seed", 1, "the phase is complete and cannot be changed"),
        (SUCCEEDED, 2, "init.devices.count", 2, None),
        (SUCCEEDED, 1, "init.loop.max_steps", 200, "the phase is complete and cannot be changed"),
    ],
)
def test_what_is_refused(
    state: JobState, index: int, path: str, value: Any, message: str | None
) -> None:
    found = list(refused(state, changes(CONFIG, changed(index, path, value)), 3, once=True))
    if message is None:
        assert found == []
    else:
        ((where, text),) = found
        assert where == index
        assert text.startswith(f"trainer[{index}].{path}")
        assert message in text


@pytest.mark.parametrize("save_frozen", [True, False])
def test_the_seed_of_a_base_that_is_not_saved_may_not_change(save_frozen: bool) -> None:
    before = changed(1, "init.lora", {"rank": 2, "alpha": 2.0})
    del before[1]["trainer"]["start_from"]
    before[1]["trainer"]["init"]["checkpoint"]["save_frozen"] = save_frozen
    after = deepcopy(before)
    after[1]["trainer"]["init"]["seed"] = 1
    found = list(refused(RUNNING, changes(before, after), 3, once=True))
    assert len(found) == (0 if save_frozen else 1)
    after[1]["trainer"]["init"]["lora"]["rank"] = 3
    texts = [text for _, text in refused(RUNNING, changes(before, after), 3, once=True)]
    assert any(text.startswith("trainer[1].init.lora.rank: 2 -> 3: the check") for text in texts)


@pytest.mark.parametrize(
    ("path", "value", "is_refused"),
    [
        ("init.grpo.beta", 0.2, False),
        ("init.grpo.beta", 0, True),
        ("init.grpo.num_iterations", 3, False),
        ("init.loop.global_batch_size", 64, True),
        ("fit.train_dataloader.sequence_length", 64, True),
    ],
)
def test_checkpoints_with_completions_fit_no_other_batch(
    path: str, value: Any, is_refused: bool
) -> None:
    before = changed(1, "init.grpo", {"reward": "a:b", "beta": 0.1, "num_iterations": 2})
    after = deepcopy(before)
    *sections, last = path.split(".")
    for config, set_ in ((before, 32), (after, value)):
        target = config[1]["trainer"]
        for part in sections:
            target = target.setdefault(part, {})
        target[last] = target.get(last, set_) if config is before else set_
    texts = [text for _, text in refused(RUNNING, changes(before, after), 3, once=True)]
    assert [path in text for text in texts] == ([True] if is_refused else [])


def test_a_phase_that_is_to_go_further_may_change_as_one_that_runs() -> None:
    """The number of steps is often an argument too."""
    now = changed(2, "init.loop.max_steps", 200)
    now[2]["trainer"]["init"]["optimizer"]["lr"] = 1.0
    assert not list(refused(SUCCEEDED, changes(CONFIG, now), 3, once=True))
    now[0]["trainer"]["init"]["seed"] = 7
    (message,) = (text for _, text in refused(SUCCEEDED, changes(CONFIG, now), 3, once=True))
    assert message.startswith("trainer[0].init.seed")
    now = changed(1, "init.loop.max_steps", 200)
    now[2]["trainer"]["init"]["optimizer"]["lr"] = 1.0
    assert len(list(refused(SUCCEEDED, changes(CONFIG, now), 3, once=True))) == 2


@pytest.mark.parametrize(("elastic", "is_refused"), [("bitwise", True), ("rounding", False)])
@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("micro_batch_size", (8, 4)),
        ("remat", ("none", "blocks")),
        ("scan_layers", (False, True)),
    ],
)
def test_what_decides_the_bits_stays_where_they_are_to_stay(
    elastic: str, is_refused: bool, key: str, values: tuple[Any, Any]
) -> None:
    then = changed(1, "init.determinism.elastic", elastic)
    now = deepcopy(then)
    for configs, value in zip((then, now), values, strict=True):
        configs[1]["trainer"]["init"]["loop"][key] = value
    found = list(refused(RUNNING, changes(then, now), 3, once=True))
    assert bool(found) is is_refused
    for _, text in found:
        assert text.startswith(f"trainer[1].init.loop.{key}: ")
        assert "checkpoint of step 40 does not fit it" in text


@pytest.mark.parametrize(
    ("state", "num_phases", "allowed"),
    [
        (RUNNING, 3, True),
        (RUNNING, 2, True),
        (RUNNING, 1, False),
        (NEW, 1, True),
        (SUCCEEDED, 2, False),
    ],
)
def test_the_phase_of_the_job_cannot_be_taken_away(
    state: JobState, num_phases: int, allowed: bool
) -> None:
    found = list(refused(state, changes(CONFIG, CONFIG[:num_phases]), num_phases, once=True))
    assert (found == []) is allowed
    assert all(f"only {num_phases} phases left" in text for _, text in found)
    assert all(where == num_phases - 1 for where, _ in found)


def test_a_pretrained_model_may_be_moved() -> None:
    then, now = (changed(1, "init.model.pretrained", place) for place in ("/a", "/b"))
    then[0]["trainer"]["init"]["model"] = {"pretrained": "/a"}
    now[0]["trainer"]["init"]["model"] = {"pretrained": "/b"}
    found = changes(then, now)
    assert [change.phase for change in found] == [0, 1]
    assert not list(refused(RUNNING, found, 3, once=True))


def test_what_older_versions_did_not_resolve_is_no_change() -> None:
    """A job goes on after an upgrade, also one that has completed a phase."""
    for phase in (0, 1):
        now = changed(phase, "init.model.head_size", 16)
        assert not list(refused(RUNNING, changes(CONFIG, now), 3, once=True))
        then = changed(phase, "init.model.head_size", 8)
        assert list(refused(RUNNING, changes(then, now), 3, once=True))


def test_every_refused_change_is_told() -> None:
    config = changed(0, "init.seed", 1)
    config[1] = changed(1, "init.model.width", 1)[1]
    assert [index for index, _ in refused(RUNNING, changes(CONFIG, config), 3, once=True)] == [0, 1]


@pytest.mark.parametrize(("proven", "once"), [(True, False), (False, True)])
def test_what_has_succeeded_for_good_is_not_changed(proven: bool, once: bool) -> None:
    state = replace(SUCCEEDED, doing=Succeeded(100, proven=proven))
    assert list(refused(state, changes(CONFIG, changed(0, "fit", "new")), 3, once=once))


def test_no_phase_is_complete_where_the_job_begins_anew() -> None:
    state = replace(SUCCEEDED, doing=Succeeded(None, proven=False))
    assert not list(refused(state, changes(CONFIG, changed(0, "fit", "new")), 3, once=False))
