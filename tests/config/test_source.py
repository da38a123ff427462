"""Reading YAML: what is a number and what a string, and that no file whatever breaks the reader."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.load import load_job
from supervisor.config.problems import ConfigError
from supervisor.config.yaml_source import parse_source
from tests.config.files import load, problems


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-7", -7),
        ("+7", 7),
        ("010", 10),
        ("09", 9),
        ("0o17", 15),
        ("0x1F", 31),
        ("1e-3", 0.001),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("-1.5e+2", -150.0),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("+.inf", math.inf),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("off", "off"),
        ("yes", "yes"),
        ("No", "No"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2001-01-01", "2001-01-01"),
        ("1e", "1e"),
        ("0b1", "0b1"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 5", "5"),
        ("!!int 5", 5),
        ("!!float 5", 5.0),
        ("<<", "<<"),
        ("=", "="),
    ],
)
def test_scalars_of_yaml_1_2(text: str, value: Any) -> None:
    read = parse_source("c.yaml", f"key: {text}\n").data["key"]
    assert read == value
    assert type(read) is type(value)


def test_not_a_number_is_one() -> None:
    assert math.isnan(parse_source("c.yaml", "[.nan]").data[0])


def test_aliases_stand_for_what_they_name() -> None:
    data = parse_source("c.yaml", "a: &x {k: [1]}\nb: *x\n").data
    assert data == {"a": {"k": [1]}, "b": {"k": [1]}}
    assert data["a"]["k"] is not data["b"]["k"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: &x {k: 1, l: 2}\nb: {<<: *x, l: 3}", {"k": 1, "l": 3}),
        ("a: &x {k: 1}\nb: {l: 3, <<: *x}", {"l": 3, "k": 1}),
        ("a: &x {k: 1}\ny: &y {k: 2, m: 4}\nb: {<<: [*x, *y]}", {"k": 1, "m": 4}),
        ("a: &x {k: 1}\ny: &y {<<: *x, m: 4}\nb: {<<: *y}", {"k": 1, "m": 4}),
        ("b: {<<: {}}", {}),
        ("b: {'<<': 1}", {"<<": 1}),
    ],
)
def test_merge_keys_bring_what_is_not_there(text: str, expected: dict[str, Any]) -> None:
    assert parse_source("c.yaml", text).data["b"] == expected


def test_a_complaint_names_the_line_that_counts() -> None:
    source = parse_source("c.yaml", "a: &x\n  k: 1\n  l: 2\nb:\n  l: 3\n  <<: *x\n")
    assert source.origin(("b", "l")) == "c.yaml:5"
    assert source.origin(("b", "k")) == "c.yaml:2"


def test_a_byte_order_mark_is_not_text() -> None:
    assert parse_source("c.yaml", "\ufefftrainer: 1").data == {"trainer": 1}


GROWING = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 30)
)


MERGING = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 30)
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "c.yaml: is empty; a config starts with `trainer:`"),
        ("# only this\n", "c.yaml: is empty"),
        ("\xff\xfe".encode("latin-1"), "c.yaml: is not UTF-8 text (byte 0)"),
        ("a: 1\nb: [1, 2", "c.yaml:2: not valid YAML:"),
        ("a: 1\n\tb: 2\n", "c.yaml:2: not valid YAML:"),
        ("--- 1\n--- 2\n", "c.yaml:2: not valid YAML:"),
        ("a: \x07", "c.yaml: not valid YAML:"),
        ("a: *nobody", "c.yaml:1: not valid YAML:"),
        ('a:\n  b: "\\UFFFFFFFF"', "c.yaml: not valid YAML:"),
        ('"\\ud800": 1', "c.yaml:1: holds a character"),
        ('a:\n  b: "x\\0"', "c.yaml:2: a.b: holds a character that no file name or argument can"),
        ("a: 1\nb: 2\na: 3", "c.yaml:3: a: is here twice"),
        ("a: {b: {c: 1, c: 2}}", "c.yaml:1: a.b.c: is here twice"),
        ("? [1]\n: 2", "c.yaml:1: a key must be text"),
        ("[" * 60 + "]" * 60, "c.yaml:1: [0]: nested too deeply"),
        ("[" * 20_000, "c.yaml: nested too deeply"),
        ("a: &a [*a]", "c.yaml:1: a: nested too deeply"),
        (GROWING, "more than 100000 values"),
        (MERGING, "more than 100000 values"),
        ("a: &a {<<: *a}", "c.yaml:1: a: nested too deeply"),
        ("a: {<<: 1}", "c.yaml:1: a: `<<` merges mappings: give an alias of one"),
        ("a: &x {k: 1}\nb: {<<: [*x, 2]}", "c.yaml:2: b: `<<` merges mappings"),
        (
            'a: "step (\\d+)"',
            "character 'd'; in double quotes a \\ begins an escape, in 'single quo",
        ),
        ("a: !secret x", "a config cannot have the tag !secret; text that begins with ! needs"),
        ("#" * (1 << 20) + "#", "c.yaml: larger than 1048576 bytes"),
        (
            "a: !!python/object/apply:os.system [ls]",
            "the tag tag:yaml.org,2002:python/object/apply:os.system;",
        ),
        (
            "a: !!python/name:os.system ''",
            "cannot have the tag tag:yaml.org,2002:python/name:os.system;",
        ),
        ("a: !!set {x}", "the tag tag:yaml.org,2002:set;"),
        ("a: !mine 3", "c.yaml:1: a: a config cannot have the tag !mine"),
        ("a: !!binary aGk=", "the tag tag:yaml.org,2002:binary;"),
        ("a: !!timestamp 2001-01-01", "the tag tag:yaml.org,2002:timestamp;"),
        ("a: !!int abc", 'c.yaml:1: a: is not of type int (value "abc")'),
        ("a: !!bool maybe", "c.yaml:1: a: is not of type bool"),
        ("a: !!float [1]", "the tag tag:yaml.org,2002:float;"),
        ("a: " + "9" * 5000, "c.yaml:1: a: is an integer of more"),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_not_a_config_is_refused(text: str | bytes, expected: str) -> None:
    (found,) = problems(text)
    assert expected in found
    assert len(found) < 300


@pytest.mark.parametrize("kind", ["missing", "directory", "loop"])
def test_what_cannot_be_read_is_told(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    if kind == "directory":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    expected = {"missing": "no such file", "directory": "Is a directory", "loop": "symbolic links"}
    with pytest.raises(ConfigError) as caught:
        load_job(path)
    assert str(path) in str(caught.value)
    assert expected[kind] in str(caught.value)


def test_a_tag_runs_nothing(tmp_path: Path) -> None:
    there = tmp_path / "ran"
    assert problems(f"a: !!python/object/apply:os.mkdir ['{there}']")
    assert not there.exists()


@pytest.mark.parametrize("text", [GROWING, MERGING])
def test_growing_aliases_take_little_time(text: str) -> None:
    start = time.process_time()
    problems(text)
    assert time.process_time() - start < 5


FRAGMENTS = """\
trainer: init: model_dir: autorestart: max_num_restarts: 3 fit: {} command: - [ ] { } & * ! | > ? :
&a *a !!int !!map 'x " \\U99999999 \\x 0o 08 -.inf %YAML 1.9 --- ... # , \u2028 \x07 \ufeff << ~"""

fragments = st.sampled_from([*FRAGMENTS.split(" "), "\n", "\n  ", "\t", " "])


@given(st.one_of(st.text(), st.lists(fragments, max_size=30).map(" ".join)))
def test_any_text_loads_or_is_refused(text: str) -> None:
    with suppress(ConfigError):
        data = parse_source("c.yaml", text).data
        assert isinstance(data, dict | list | str | int | float | None)


@given(st.binary())
def test_any_file_loads_or_is_refused(content: bytes) -> None:
    assert problems(content)  # nobody guesses a whole valid config


def test_the_file_is_named_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^nowhere/c\.yaml: no such file$"):
        load_job(Path("nowhere/c.yaml"))


def test_the_smallest_config_loads() -> None:
    text = "trainer: {init: {model_dir: a, autorestart: {max_num_restarts: 0}}, command: [a]}"
    assert load(text).phases[0].init.autorestart.max_num_restarts == 0
