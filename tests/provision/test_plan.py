"""What is asked of the cloud, from a config; and what of a config cannot be provisioned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.config.problems import ConfigError
from supervisor.config.yaml_source import parse_source, to_yaml
from supervisor.prepare import prepare
from supervisor.provision.boot import File
from supervisor.provision.cloud_plan import Plan, make_plan

WHERE = {"project": "my-project", "zone": "us-west4-a", "runtime_version": "v2-alpha-tpuv5-lite"}


WHEEL, LOCK = File("supervise_jax-0-py3-none-any.whl", b"wheel"), File("lock", b"lock")


def config(**init: Any) -> dict[str, Any]:
    """A job that can be provisioned."""
    return {
        "trainer": {
            "init": {
                "model_dir": "gs://bucket/runs/Demo_1",
                "devices": {"platform": "tpu", "type": "v5e-8"},
                "autorestart": {"max_num_restarts": 3},
                "provision": WHERE,
                **init,
            },
            "command": {"argv": ["python", "train.py"], "elastic": True},
        }
    }


def plan(tmp_path: Path, data: dict[str, Any], *overrides: str) -> Plan:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(data))
    prepared = prepare(path, overrides)
    return make_plan(prepared, prepared.redactor({}), WHEEL, LOCK)


def problems(tmp_path: Path, data: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, data)
    return [f"{problem.key}: {problem.message}" for problem in caught.value.problems]


def test_what_is_asked_for(tmp_path: Path) -> None:
    more = {"network": "mine", "service_account": "sa@my-project.iam.gserviceaccount.com"}
    made = plan(tmp_path, config(provision=WHERE | more))
    body = made.body(3, 4)
    (spec,) = body["tpu"]["nodeSpec"]
    assert spec["node"]["metadata"].keys() == {"startup-script"}
    script = spec["node"].pop("metadata")["startup-script"]
    assert all(file.sha256 in script for file in (WHEEL, LOCK, made.machine.config))
    assert made.parent == "projects/my-project/locations/us-west4-a"
    assert body == {
        "tpu": {
            "nodeSpec": [
                {
                    "parent": made.parent,
                    "nodeId": f"{made.name}-3",
                    "node": {
                        "acceleratorType": "v5litepod-4",
                        "runtimeVersion": "v2-alpha-tpuv5-lite",
                        "networkConfig": {"enableExternalIps": True, "network": "mine"},
                        "serviceAccount": {"email": "sa@my-project.iam.gserviceaccount.com"},
                    },
                }
            ]
        },
        "spot": {},
    }
    assert made.name.startswith("supervise-demo-1-")
    assert made.policy.rungs == (8, 4, 1), "two chips are no slice of their own"
    assert made.policy.smaller_after == 1800
    assert "spot" not in plan(tmp_path, config(provision=WHERE | {"spot": False})).body(1, 8)


def test_one_name_for_one_model_dir(tmp_path: Path) -> None:
    one = plan(tmp_path, config())
    assert plan(tmp_path, config(), "trainer.init.autorestart.max_num_restarts=4").name == one.name
    assert plan(tmp_path, config(model_dir="gs://other/runs/Demo_1")).name != one.name


def test_whatever_reaches_the_slice_makes_another_config_of_it(tmp_path: Path) -> None:
    one = plan(tmp_path, config()).policy.config
    assert plan(tmp_path, config()).policy.config == one
    for changed in (
        "trainer.init.autorestart.max_num_restarts=4",
        "trainer.init.provision.spot=false",
    ):
        assert plan(tmp_path, config(), changed).policy.config != one


def test_the_slice_gets_the_config_with_its_overrides(tmp_path: Path) -> None:
    made = plan(tmp_path, config(), "trainer.init.autorestart.max_num_restarts=9")
    assert yaml.safe_load(made.machine.config.data)["trainer"]["init"]["autorestart"] == {
        "max_num_restarts": 9
    }


TPU = {"platform": "tpu", "type": "v5e-8"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"provision": None}, "trainer.init.provision: is required by `supervise provision`: {pr"),
        ({"model_dir": "runs/x"}, "trainer.init.model_dir: must be in a bucket (gs://BUCKET/PATH)"),
        ({"model_dir": "s3://b/x"}, "trainer.init.model_dir: must be in a bucket (gs://BUCKET/PA"),
        (
            {"autorestart": {"max_num_restarts": 3, "preemption": {"notice": "2m"}}},
            "trainer.init.autorestart.preemption.notice: is not for a Spot slice",
        ),
        ({"devices": None}, "trainer.init.devices: must name the slice to ask for: {platform: tp"),
        ({"devices": {"platform": "tpu", "count": 8}}, "trainer.init.devices: must name the slice"),
        ({"devices": TPU | {"type": "v5e-2"}}, "devices.type: is v5e-2, which the cloud does not"),
        (
            {"devices": TPU | {"type": "v5e-16"}},
            "devices.type: is v5e-16, or several: only a slice",
        ),
        ({"devices": TPU | {"slices": 2}}, "devices.type: is v5e-8, or several: only a slice of"),
        ({"devices": TPU | {"type": "tpu7x-8"}}, "let a managed instance group of Compute"),
    ],
)
def test_what_cannot_be_provisioned(tmp_path: Path, changed: dict[str, Any], expected: str) -> None:
    (told,) = problems(tmp_path, config(**changed))
    assert expected in told


def test_a_slice_that_is_not_spot_may_give_notice(tmp_path: Path) -> None:
    notice = "trainer.init.autorestart.preemption.notice=2m"
    assert plan(tmp_path, config(), notice, "trainer.init.provision.spot=false")


def test_mapped_exit_codes_are_refused(tmp_path: Path) -> None:
    (told,) = problems(tmp_path, config() | {"exit_codes": "xpk"})
    assert told.startswith("exit_codes: is for other service managers")


def test_phases_run_on_one_slice(tmp_path: Path) -> None:
    other = config(devices={"platform": "tpu", "type": "v5e-4"})
    (told,) = problems(tmp_path, {"trainer": [config(), other]})
    assert "must be the same in all phases" in told


@pytest.mark.parametrize(
    ("command", "key"),
    [
        ({"env": {"HF_TOKEN": "0123456789abcdef"}}, "trainer.command.env.HF_TOKEN"),
        ({"env": {"DB_PASS": "0123456789abcdef"}}, "trainer.command.env.DB_PASS"),
        ({"env": {"X": "AccountKey=0123456789"}}, "trainer.command.env.X"),
        ({"env": {"X": "git+https://0123456789@host/x"}}, "trainer.command.env.X"),
        ({"env": {"X": "https://h/x?X-Goog-Signature=0123456789"}}, "trainer.command.env.X"),
        ({"argv": ["python", "t.py", "--api-key", "0123456789abc"]}, "trainer.command.argv[3]"),
        ({"argv": ["python", "t.py", "hf_0123456789abcdef0123"]}, "trainer.command.argv[2]"),
    ],
)
def test_what_looks_like_a_secret_is_refused(
    tmp_path: Path, command: dict[str, Any], key: str
) -> None:
    data = config()
    data["trainer"]["command"] |= command
    (told,) = problems(tmp_path, data)
    assert told.startswith(f"{key}: holds a secret")
    assert "0123456789" not in told


def test_nor_do_those_that_stand_elsewhere(tmp_path: Path) -> None:
    lock = "https://me:0123456789@example.org/lock.txt"
    (told,) = problems(tmp_path, config(provision=WHERE | {"lock": lock}))
    assert "holds a secret" in told
    assert "0123456789" not in told


def test_no_value_of_the_config_reaches_the_metadata(tmp_path: Path) -> None:
    """Whatever its name: the metadata holds names and digests, and nothing that is not on the
    list."""
    data = config()
    data["trainer"]["command"] |= {
        "env": {"UNLISTED_NAME": "unlisted-value"},
        "argv": ["python", "unlisted-program.py"],
        "success": {"pattern": "unlisted-pattern"},
    }
    made = plan(tmp_path, data)
    (spec,) = made.body(1, 8)["tpu"]["nodeSpec"]
    assert spec["node"]["metadata"].keys() == {"startup-script"}
    assert "unlisted" not in json.dumps(made.body(1, 8)).lower()
    assert b"unlisted-value" in made.machine.config.data
    large = config()
    large["trainer"]["command"]["argv"] += ["x" * 1000] * 300
    assert len(json.dumps(plan(tmp_path, large).body(1, 8))) < 16_000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("project", "My Project"),
        ("zone", "us-west4"),
        ("runtime_version", "a b"),
        ("service_account", "me"),
        ("smaller_after", "soon"),
        ("user", "no such; name"),
        ("package", "supervise-jax"),
        ("region", "x"),
    ],
)
def test_the_section_is_checked_like_all_others(tmp_path: Path, key: str, value: str) -> None:
    told = problems(tmp_path, config(provision=WHERE | {key: value}))
    assert any(f"trainer.init.provision.{key}" in line for line in told)


DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
TRICKY = ["1e-3", "off", "yes", "010", "0x1F", "~", "", "null", "true", "1_000", "=", "<<", "1:30"]


@pytest.mark.parametrize("text", TRICKY)
def test_a_config_is_written_as_it_is_read(text: str) -> None:
    data = {"a": {text: [text, {"b": text}]}}
    assert parse_source("written", to_yaml(data)).data == data


@settings(max_examples=30)
@given(st.dictionaries(st.text("abc0.:-#'\" \n", max_size=6), DATA, min_size=1))
def test_any_config_is_written_as_it_is_read(data: dict[str, Any]) -> None:
    readable = json.loads(json.dumps(data).replace("\\\\u0000", ""))
    try:
        source = parse_source("written", to_yaml(readable))
    except ConfigError:
        return  # characters that no config may hold
    assert source.data == readable
