"""The check of our trainer's sections: what it refuses, what it fills in, which rungs it finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.training.check import CheckedSections, check
from supervisor.config.training.layout import rung
from supervisor.config.training.resolved import InitConfig, parse
from supervisor.config.training.sections import LoopConfig
from tests.training.configs import Mapping, tiny


def _with(path: str, value: Any) -> Mapping:
    mapping = tiny(Path("/tmp/checkpoints"))
    *parents, last = path.split(".")
    section = mapping["trainer"]
    for parent in parents:
        section = section[parent]
    section[last] = value
    return mapping


def _checked(mapping: Mapping, *counts: int) -> CheckedSections:
    return check(mapping["trainer"], counts)


def test_the_first_record_of_each_file_is_looked_at(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"ids": [1, 299, 300]}\n')
    mapping = _with("fit.train_dataloader", {"paths": str(data), "sequence_length": 2})
    ((where, message),) = _checked(mapping).problems
    assert where[-2:] == ("train_dataloader", "paths")
    assert "data.jsonl:1: no text in the field 'text'; set text_field" in message
    mapping["trainer"]["fit"]["train_dataloader"]["tokens_field"] = "ids"
    mapping["trainer"]["init"]["model"]["vocab_size"] = 300
    ((_, message),) = _checked(mapping).problems
    assert "data.jsonl:1: token id 300 at position 2" in message
    mapping["trainer"]["init"]["model"]["vocab_size"] = 301
    assert not _checked(mapping).problems


@pytest.mark.parametrize(
    ("content", "changes", "told"),
    [
        ("", {}, "there is no record in {}: add some"),
        ("", {"tokens_field": "ids"}, "there is no record in {}: add some"),
        (
            "",
            {"completion_field": "a", "packing": "examples"},
            "there is no record in {}: add some",
        ),
        ('{"ids": [1, 2]}\n' * 8, {"tokens_field": "ids"}, "16 tokens of data do not fill"),
        ('{"q": "2+2=", "a": "4"}\n', {"prompt_field": "q", "completion_field": "a"}, "6 tokens"),
        (
            '{"text": "seven"}\n{"text": "eight"}\n',
            {},
            "12 tokens of data do not fill one sequence of sequence_length 16, which needs 17: add "
            "data to {}, or set a smaller sequence_length",
        ),
    ],
)
@pytest.mark.parametrize("key", ["train_dataloader", "validation.dataloader"])
def test_too_little_data_is_found_before_the_job_starts(
    tmp_path: Path, key: str, content: str, changes: Mapping, told: str
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(content)
    mapping = _with(f"fit.{key}", {"paths": str(data), "sequence_length": 16, **changes})
    ((where, message),) = _checked(mapping).problems
    assert where == ("fit", *key.split("."), "paths")
    assert told.format(data) in message
    assert not check(mapping["trainer"], data_may_grow=True).problems
    data.write_text(content + '{"text": "a", "ids": [1], "q": "", "a": "yes", "b": "no"}\n' * 17)
    assert not _checked(mapping).problems


def test_a_folder_is_no_data(tmp_path: Path) -> None:
    ((where, message),) = _problems("fit.train_dataloader.paths", str(tmp_path))
    assert where == "fit.train_dataloader.paths"
    assert message.startswith(f'is a folder: name its files, for example by the glob "{tmp_path}/*')


def test_a_vocabulary_below_the_tokenizers_is_for_data_without_text(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"ids": [1, 2, 3]}\n')
    mapping = _with("init.model.vocab_size", 8)
    mapping["trainer"]["fit"] = {
        "train_dataloader": {"paths": str(data), "tokens_field": "ids", "sequence_length": 2}
    }
    assert not _checked(mapping).problems


def _problems(path: str, value: Any) -> list[tuple[str, str]]:
    found = _checked(_with(path, value)).problems
    return [(".".join(map(str, where)), message) for where, message in found]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("init.model.num_layers", 0, "greater than 0"),
        ("init.model.num_layers", True, "valid integer"),
        ("init.model.num_heads", 16, "hidden_size 16 must be a multiple of 2 x num_heads"),
        ("init.model.num_kv_heads", 3, "must divide num_heads, 4"),
        ("init.model.vocab_size", 100, "at least 257"),
        ("init.model.dropout", 1.0, "less than 1"),
        ("init.optimizer.name", "adamm", "must be one of adamw, lion, adafactor, sgd"),
        ("init.optimizer.learning_rate", float("nan"), "finite"),
        ("init.optimizer.warmup_steps", 18, "must not exceed loop.max_steps, 17"),
        ("init.checkpoint.every", "5 parsecs", "not a duration"),
        ("init.checkpoint.every", "automatic", "not a duration"),
        ("init.checkpoint.every", 0, "neither auto nor a number of steps nor a duration"),
        ("init.checkpoint.directory", "checkpoints", "absolute"),
        ("init.seed", -1, "greater than or equal to 0"),
        ("fit.train_dataloader.paths", "no/such/*.txt", "matches no file"),
        ("fit.validation.dataloader.paths", "stdlib/no_such.py", "matches no file"),
        ("start_from", {"directory": "/x", "load": "some"}, "'params' or 'all'"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(path: str, value: Any, message: str) -> None:
    ((where, told),) = _problems(path, value)
    assert where.removesuffix(".load") == path
    assert message in told


def test_a_prompt_needs_a_completion_and_neither_goes_with_token_ids(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"question": "2+2=", "answer": ""}\n')
    loader = {"paths": str(data), "prompt_field": "question", "text_field": "question"}
    ((where, message),) = _checked(_with("fit.train_dataloader", loader)).problems
    assert where[-1] == "prompt_field"
    assert message.startswith("needs completion_field")
    loader["completion_field"] = "answer"
    ((_, message),) = _checked(_with("fit.train_dataloader", loader)).problems
    assert "data.jsonl:1: the completion in the field 'answer' is empty" in message
    loader["tokens_field"] = "ids"
    problems = _checked(_with("fit.train_dataloader", loader)).problems
    assert "beside completion_field" in str(problems)


@pytest.mark.parametrize(
    ("section", "known"),
    [
        ("init.model", "num_layers"),
        ("init.optimizer", "weight_decay"),
        ("init.loop", "max_steps"),
        ("init.checkpoint", "keep"),
        ("fit", "validation"),
        ("fit.train_dataloader", "text_field"),
        ("fit.validation", "every"),
        ("fit.validation.dataloader", "text_field"),
    ],
)
def test_an_unknown_key_comes_with_the_known_ones(section: str, known: str) -> None:
    ((where, told),) = _problems(f"{section}.qqqq", 1)
    assert where == f"{section}.qqqq"
    assert told.startswith("unknown key (value 1); known here: ")
    assert known in told


@pytest.mark.parametrize("key", ["init.autorestart", "init.model_dir", "faults"])
def test_the_supervisors_keys_are_its_own_business(key: str) -> None:
    assert _problems(key, {"max_num_restarts": 3}) == []


def test_a_required_key_is_missed_by_its_name() -> None:
    mapping = tiny(Path("/tmp/checkpoints"))
    del mapping["trainer"]["init"]["optimizer"]["learning_rate"]
    assert _checked(mapping).problems == [(("init", "optimizer", "learning_rate"), "is required")]


def test_an_exponent_without_a_point_is_a_number() -> None:
    """PyYAML reads 3e-4 as a string."""
    params = _checked(_with("init.optimizer.learning_rate", "3e-4")).params
    assert params["init"]["optimizer"]["learning_rate"] == 3e-4


def test_values_are_bounded_in_size() -> None:
    ((_, told),) = _problems("init.model.num_layers", "9" * 10_000)
    assert len(told) < 1000


def test_an_indivisible_batch_is_an_error_that_says_what_would_do() -> None:
    mapping = tiny(Path("/tmp/checkpoints"), global_batch_size=12)
    ((where, told),) = _checked(mapping, 8).problems
    assert where == ("init", "loop", "global_batch_size")
    assert told.startswith("is 12, which does not divide among 8 devices: use 16")
    assert "1, 2, 3, 4, 6, 12" in told


def test_what_is_resolved_has_the_defaults_and_is_stable() -> None:
    found = _checked(tiny(Path("/tmp/checkpoints")), 4, 3, 2)
    assert not found.problems
    init = found.params["init"]
    assert init["optimizer"]["b2"] == 0.95
    assert init["loop"]["micro_batch_size"] == 2
    assert check(found.params, (4, 3, 2)) == found


def test_the_ladder_leaves_out_what_does_not_divide_and_keeps_a_device_within_its_memory() -> None:
    found = _checked(tiny(Path("/tmp/checkpoints")), 4, 3, 2, 1)
    assert found.layouts == {
        3: "global_batch_size 8 does not divide among them",
        **{
            count: {
                "num_devices": count,
                "mesh": {"data": count, "fsdp": 1},
                "per_device_batch": 2,
                "accumulation": 4 // count,
            }
            for count in (4, 2, 1)
        },
    }


def _training(**loop: Any) -> InitConfig:
    loop_config = LoopConfig.model_validate({"max_steps": 1} | loop)
    return parse(tiny(Path("/tmp/checkpoints"))).init.model_copy(update={"loop": loop_config})


def test_parameters_are_sharded_as_far_as_a_smaller_rung_can() -> None:
    init = _training(global_batch_size=24, fsdp=4)
    rungs = [one for count in (8, 7, 6, 4) if (one := rung(init, count)) is not None]
    assert [(one.num_devices, one.data, one.fsdp) for one in rungs] == [
        (8, 2, 4),
        (6, 3, 2),
        (4, 1, 4),
    ]
    ((where, _),) = _checked(tiny(Path("/tmp/checkpoints"), fsdp=3), 4).problems
    assert where == ("init", "loop", "fsdp")


@given(batch=st.integers(1, 512), micro=st.integers(1, 64) | st.none(), devices=st.integers(1, 64))
def test_every_rung_computes_the_global_batch(batch: int, micro: int | None, devices: int) -> None:
    found = rung(_training(global_batch_size=batch, micro_batch_size=micro), devices)
    assert (found is None) == (batch % devices != 0)
    if found is not None:
        assert found.num_devices * found.per_device_batch * found.accumulation == batch
        assert found.per_device_batch <= (micro or batch)


def _bitwise(counts: list[int], **loop: Any) -> CheckedSections:
    mapping = tiny(Path("/tmp/checkpoints"), **loop)
    mapping["trainer"]["init"]["determinism"] = {"elastic": "bitwise"}
    return _checked(mapping, *counts)


def _turns(checked: CheckedSections) -> dict[int, tuple[int, int] | str]:
    """For each number of devices what one of them holds, and how often; or why it is no rung."""
    return {
        count: one if isinstance(one, str) else (one["per_device_batch"], one["accumulation"])
        for count, one in checked.layouts.items()
    }


def test_bitwise_keeps_the_micro_batches_of_the_full_rung() -> None:
    found = _bitwise([8, 6, 4, 3, 1], global_batch_size=24)
    assert not found.problems
    assert found.params["init"]["loop"]["micro_batch_size"] == 3
    kept = "the 8 micro-batches that determinism.elastic: bitwise keeps do not divide among them"
    alone = "determinism.elastic: bitwise needs at least two, as one is compiled differently"
    assert _turns(found) == {8: (3, 1), 6: kept, 4: (3, 2), 3: kept, 1: alone}
    assert _turns(_bitwise([1], global_batch_size=24, micro_batch_size=3)) == {1: (3, 8)}
    finer = _turns(_bitwise([8, 6, 4, 3], global_batch_size=24, micro_batch_size=1))
    assert finer == {8: (1, 3), 6: (1, 4), 4: (1, 6), 3: (1, 8)}


@pytest.mark.parametrize(
    ("counts", "loop", "message"),
    [
        ([4], {"micro_batch_size": 3}, "divide a device's share of the global batch, 2"),
        ([], {}, "must be given for determinism.elastic: bitwise"),
        ([4], {"fsdp": 2}, "must be 1 for determinism.elastic: bitwise"),
    ],
)
def test_bitwise_needs_a_micro_batch_for_every_rung_and_whole_states(
    counts: list[int], loop: dict[str, int], message: str
) -> None:
    ((where, told),) = _bitwise(counts, **loop).problems
    assert where[:2] == ("init", "loop")
    assert where[2] in (loop or {"micro_batch_size"})
    assert message in told


_ODD = [
    None,
    True,
    -1,
    10**30,
    float("inf"),
    "",
    "**x",
    "/",
    "\0",
    "stdlib//x",
    [],
    [None],
    {"a": 1},
]


@pytest.mark.parametrize("value", _ODD, ids=repr)
def test_the_check_has_a_bounded_answer_to_anything(value: Any) -> None:
    keys = [
        "init",
        "init.model.num_layers",
        "init.optimizer",
        "init.optimizer.name",
        "init.loop.micro_batch_size",
        "init.checkpoint.every",
        "init.checkpoint.directory",
        "fit.train_dataloader.paths",
        "fit.validation",
        "start_from",
    ]
    for key in keys:
        found = _checked(_with(key, value), 4)
        assert sum(len(told) for _, told in found.problems) < 8000


def test_adapters_must_be_somewhere_and_start_from_weights_alone() -> None:
    ((where, message),) = _problems("init.lora", {"rank": 2, "pattern": "blocks.[34]"})
    assert where == "init.lora.pattern"
    assert 'is found in no linear layer\'s path (value "blocks.[34]"); there are bl' in message
    ((where, message),) = _problems("init.lora", {"rank": 2, "pattern": "*"})
    assert where == "init.lora.pattern"
    assert "is not a regular expression of Python: nothing to repeat" in message
    ((where, message),) = _problems("init.lora", {"rank": 1 << 40})
    assert where == "init.lora.rank"
    assert "must not exceed init.model.hidden_size, " in message
    mapping = _with("init.lora", {"rank": 2})
    mapping["trainer"]["start_from"] = {"directory": "/x", "load": "all"}
    ((where_, message),) = _checked(mapping).problems
    assert where_ == ("start_from", "load")
    assert message.startswith(
        "is all, but the optimizer of another phase does not fit the adapters"
    )


@pytest.mark.parametrize(
    ("changes", "key", "told"),
    [
        ({"rejected_field": None}, "chosen_field", "needs rejected_field: a pair has both"),
        ({"chosen_field": None}, "rejected_field", "needs chosen_field: a pair has both"),
        ({"completion_field": "good"}, "completion_field", "is given beside chosen_field"),
        ({"tokens_field": "ids"}, "tokens_field", "is given beside chosen_field"),
        ({"rejected_field": "good"}, "paths", "hold the same text, so neither is to be preferred"),
    ],
)
def test_a_pair_has_both_completions(
    tmp_path: Path, changes: dict[str, str | None], key: str, told: str
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"good": "4", "bad": "5"}\n')
    loader = {"paths": str(data), "chosen_field": "good", "rejected_field": "bad"}
    assert not _checked(_with("fit.train_dataloader", loader)).problems
    ((where, message),) = _checked(_with("fit.train_dataloader", loader | changes)).problems
    assert where[-1] == key
    assert told in message


def test_what_needs_a_reference_needs_pairs_to_train_on(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"good": "4", "bad": "5"}\n')
    loader = {"paths": str(data), "chosen_field": "good", "rejected_field": "bad"}
    ((where, _),) = _checked(_with("fit.validation.dataloader", loader)).problems
    assert where == ("fit", "validation", "dataloader", "chosen_field")
    ((where, _),) = _checked(_with("init.dpo", {"beta": 0.2})).problems
    assert where == ("init", "dpo")


GRPO = {"reward": "tests.training.rewarding:of_ascii", "completion_length": 4, "group_size": 2}


@pytest.mark.parametrize(
    ("changes", "key", "told"),
    [
        (
            {"init.grpo": GRPO | {"group_size": 3}},
            "group_size",
            "must divide loop.global_batch_size",
        ),
        ({"init.grpo": GRPO | {"group_size": 1}}, "group_size", "greater than or equal to 2"),
        (
            {"init.grpo": GRPO | {"reward": "of_ascii"}},
            "reward",
            "is not of the form module:function",
        ),
        ({"init.grpo": GRPO | {"top_p": 0}}, "top_p", "greater than 0"),
        ({"init.grpo": GRPO | {"importance": "word"}}, "importance", "sequence_token"),
        (
            {"init.grpo": GRPO | {"reward": "nowhere_at_all.deep:f"}},
            "reward",
            "names the module 'nowhere_at_all', which is neither installed nor in ",
        ),
        (
            {"init.grpo": GRPO | {"completion_length": 8}},
            "sequence_length",
            "is 8, but must be more",
        ),
        ({"init.grpo": None}, "prompt_field", "or init.grpo, which makes completions"),
        (
            {"fit.train_dataloader.prompt_field": None},
            "prompt_field",
            "must be given for init.grpo",
        ),
        ({"fit.train_dataloader.completion_field": "a"}, "completion_field", "beside init.grpo"),
        (
            {"fit.train_dataloader.tokens_field": "a"},
            "tokens_field",
            "is given beside prompt_field",
        ),
        (
            {"fit.train_dataloader.prompt_field": "b"},
            "paths",
            "no text in the field 'b'; set prompt",
        ),
        (
            {"init.grpo": GRPO | {"rollout": {"devices": 3}}},
            "devices",
            "is 3, but must divide loop.global_batch_size, 8: these devices share",
        ),
    ],
)
def test_rewards_need_prompts_alone_and_whole_groups(
    tmp_path: Path, changes: dict[str, Any], key: str, told: str
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"ask": "2+2=", "a": "4"}\n')
    loader = {"paths": str(data), "sequence_length": 8, "prompt_field": "ask"}

    def problems(changes: dict[str, Any]) -> Any:
        mapping = _with("fit.train_dataloader", dict(loader))
        mapping["trainer"]["init"]["grpo"] = GRPO
        mapping["trainer"]["init"]["loop"]["global_batch_size"] = 8
        for path, value in changes.items():
            *sections, last = path.split(".")
            section = mapping["trainer"]
            for name in sections:
                section = section[name]
            if value is None:
                del section[last]
            else:
                section[last] = value
        return _checked(mapping).problems

    assert not problems({})
    ((where, message), *_) = problems(changes)
    assert where[-1] == key
    assert told in message


def _apart(tmp_path: Path, devices: int, *counts: int, **init: Any) -> CheckedSections:
    """The check of 16 completions a step, which `devices` of the devices only make."""
    data = tmp_path / "data.jsonl"
    data.write_text('{"ask": "2+2="}\n')
    loader = {"paths": str(data), "sequence_length": 8, "prompt_field": "ask"}
    mapping = _with("fit.train_dataloader", loader)
    mapping["trainer"]["init"] |= {"grpo": GRPO | {"rollout": {"devices": devices}}, **init}
    mapping["trainer"]["init"]["loop"]["global_batch_size"] = 16
    return _checked(mapping, *counts)


def test_devices_that_make_completions_are_no_part_of_the_mesh_that_trains(tmp_path: Path) -> None:
    found = _apart(tmp_path, 2, 6, 5, 4, 3, 2, 1)
    assert not found.problems
    assert found.params["init"]["loop"]["micro_batch_size"] == 4
    none_left = "init.grpo.rollout takes 2, and none is left to train"
    uneven = "global_batch_size 16 does not divide among them"
    assert _turns(found) == {
        6: (4, 1),
        5: uneven,
        4: (4, 2),
        3: (4, 4),
        2: none_left,
        1: none_left,
    }
    layout = found.layouts[6]
    assert not isinstance(layout, str)
    assert (layout["mesh"], layout["rollout_devices"]) == ({"data": 4, "fsdp": 1}, 2)
    bitwise = _apart(tmp_path, 2, 6, 4, 3, determinism={"elastic": "bitwise"})
    alone = "determinism.elastic: bitwise needs at least two, as one is compiled differently"
    assert _turns(bitwise) == {6: (4, 1), 4: (4, 2), 3: alone}


@pytest.mark.parametrize(
    ("devices", "count", "init", "told"),
    [
        (2, 2, {}, "is 2, but must be less than the number of devices, 2: the others train"),
        (1, 4, {}, "does not divide among 3 devices beside the 1 of init.grpo.rollout"),
        (
            8,
            12,
            {"determinism": {"elastic": "bitwise"}},
            "is 8, but must divide loop.global_batch_size / micro_batch_size, 4",
        ),
    ],
)
def test_devices_for_completions_that_cannot_be_used_are_named(
    tmp_path: Path, devices: int, count: int, init: dict[str, Any], told: str
) -> None:
    ((_, message),) = _apart(tmp_path, devices, count, **init).problems
    assert told in message


def test_chats_are_prompts_beside_grpo(tmp_path: Path) -> None:
    folder = Path(__file__).parents[1] / "training" / "pretrained" / "llama"
    data = tmp_path / "chats.jsonl"
    mapping = _with(
        "fit.train_dataloader",
        {"paths": str(data), "sequence_length": 8, "messages_field": "messages"},
    )
    mapping["trainer"]["init"] |= {"grpo": GRPO, "tokenizer": str(folder)}
    mapping["trainer"]["init"]["model"]["vocab_size"] = 384
    question, answer = ({"role": role, "content": "a"} for role in ("user", "assistant"))
    for chat, told in (
        ([question], None),
        ([question, answer], None),
        ([answer], "chats.jsonl:1: all messages in the field 'messages' have the role 'assistant'"),
        ([], "chats.jsonl:1: no messages in the field 'messages'"),
    ):
        data.write_text(json.dumps({"messages": chat}) + "\n")
        found = [message for _, message in _checked(mapping).problems]
        assert len(found) == (told is not None)
        assert all(str(told) in message for message in found)


EVALUATES = "without fit.train_dataloader the phase only evaluates"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("init.optimizer", {"name": "sgd", "learning_rate": 0.1}),
        ("init.loop.max_steps", 5),
        ("init.lora", {"rank": 2}),
        ("init.grpo", GRPO),
        ("init.checkpoint.keep_best", True),
        ("init.checkpoint.snapshot", {"every": 2}),
        ("fit.validation.every", 5),
        ("fit.validation.dataloader.chosen_field", "good"),
    ],
)
def test_what_is_for_training_contradicts_a_phase_that_only_evaluates(key: str, value: Any) -> None:
    mapping = tiny("/tmp/checkpoints")
    trainer = mapping["trainer"]
    del trainer["init"]["optimizer"], trainer["init"]["loop"]["max_steps"]
    del trainer["fit"]["train_dataloader"], trainer["fit"]["validation"]["every"]
    assert not check(trainer).problems
    *way, last = key.split(".")
    section = trainer
    for name in way:
        section = section[name]
    section[last] = value
    told = [message for where, message in check(trainer).problems if where == tuple(key.split("."))]
    assert any(EVALUATES in message for message in told)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def f(p, c, **_):\n    return [1.0]\n", None),
        ("async def g(): ...\nfrom judge import score as f\n", None),
        ("import f.deep\n", None),
        ("e, (f, *_) = 1, (print, 2)\n", None),
        ("f: object = print\n", None),
        ("class f: ...\n", None),
        ("try:\n    from judge import f\nexcept ImportError:\n    def f(p, c): ...\n", None),
        ("if True:\n    f = print\n", None),
        ("from judge import *\n", None),
        ("def __getattr__(name): ...\n", None),
        ("globals()['f'] = print\n", None),
        ("def g():\n    global f\n    f = print\n", None),
        ("class A:\n    def f(self): ...\n", "names 'f', which {} does not define: define it th"),
        ("def g():\n    f = 1\nf\n", "names 'f', which {} does not define"),
        ("", "names 'f', which {} does not define"),
        ("x = 1\ndef f(p, c)\n    pass\n", "no Python ({}:2: expected ':'): mend it (value"),
    ],
)
@pytest.mark.parametrize("module", ["myreward", "mine.deep.myreward"])
def test_the_source_of_a_reward_function_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, told: str | None, module: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"{module.replace('.', '/')}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "mine").mkdir(exist_ok=True)
    (tmp_path / "mine" / "__init__.py").write_text("raise RuntimeError('it is not run')\n")
    file.write_text(source)
    mapping = _with("init.grpo", GRPO | {"reward": f"{module}:f"})
    (tmp_path / "prompts.jsonl").write_text('{"ask": "2+2="}\n')
    loader = {"paths": "prompts.jsonl", "sequence_length": 8, "prompt_field": "ask"}
    mapping["trainer"]["fit"] = {"train_dataloader": loader}
    found = [message for _, message in _checked(mapping).problems]
    if told is None:
        assert found == []
    else:
        assert told.format(file) in found[0]
        assert found[0].endswith(f'(value "{module}:f")')


def test_rewards_may_be_evaluated_alone(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"ask": "2+2="}\n')
    mapping = tiny("/tmp/checkpoints")
    trainer = mapping["trainer"]
    del trainer["init"]["optimizer"], trainer["init"]["loop"]["max_steps"]
    loader = {"paths": str(data), "sequence_length": 8, "prompt_field": "ask"}
    trainer["fit"] = {"validation": {"steps": 2, "dataloader": loader}}
    trainer["init"]["grpo"] = GRPO
    assert not check(trainer).problems
    trainer["init"]["grpo"] = GRPO | {"rollout": {"devices": 1}}
    ((where, message),) = check(trainer).problems
    assert where == ("init", "grpo", "rollout")
    assert EVALUATES in message


def test_what_training_needs_is_named() -> None:
    trainer = tiny("/tmp/checkpoints")["trainer"]
    del trainer["init"]["optimizer"], trainer["init"]["loop"]["max_steps"]
    del trainer["fit"]["validation"]["every"]
    lacking = [("init", "optimizer"), ("init", "loop", "max_steps"), ("fit", "validation", "every")]
    required = "is required beside fit.train_dataloader"
    assert list(check(trainer).problems) == [(key, required) for key in lacking]
    del trainer["fit"]["train_dataloader"], trainer["fit"]["validation"]
    ((key, message), *_) = check(trainer).problems
    assert (key, message.partition(",")[0]) == (("fit",), "needs train_dataloader")


def test_silent_corruption_is_looked_for_in_bitwise_mode_alone() -> None:
    trainer = tiny("/tmp/checkpoints")["trainer"]
    trainer["init"]["sdc"] = {"every": 5}
    ((key, message),) = check(trainer).problems
    assert key == ("init", "sdc")
    assert message.startswith("needs init.determinism: {elastic: bitwise}")
    trainer["init"]["determinism"] = {"elastic": "bitwise"}
    assert check(trainer, [4]).problems == ()
    ((key, message),) = check(trainer, [1]).problems
    assert message.startswith("needs at least two devices")
