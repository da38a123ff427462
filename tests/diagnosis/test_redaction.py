"""What must not be written, and what must stay as it is."""

from __future__ import annotations

import json
import re
import shlex
import tracemalloc
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.problems import Problem
from supervisor.config.secret_names import flags
from supervisor.diagnosis.redaction import Redactor, flags_in, own_sections
from supervisor.diagnosis.secret_forms import REDACTED

TOKENS = ["hf_" + "aB3" * 11, "AKIA" + "ABCD1234" * 2]


def test_secrets_are_known_by_their_value() -> None:
    redactor = Redactor(
        {
            "MY_SERVICE_TOKEN": "correct-horse",
            "DB_PASSWORD": "correct-horse-battery",
            "SHORT_KEY": "yes",
            "TLS_KEY": "/etc/ssl/server.pem",
            "HOME": "innocent-value",
        }
    )
    said = "correct-horse-battery, correct-horse; yes, /etc/ssl/server.pem, innocent-value"
    assert redactor.text(said) == (
        "[redacted], [redacted]; yes, /etc/ssl/server.pem, innocent-value"
    )


def test_a_commands_secrets_are_not_in_its_params() -> None:
    command = {
        "argv": ["python", "t.py", "--api-key", "a", "--auth-token=b", "--lr", "1e-3"],
        "env": {"HF_TOKEN": "c", "TF_CPP_MIN_LOG_LEVEL": "1"},
        "success": {"step": 7},
    }
    params = {"trainer": {"init": {"model_dir": "/m", "seed": 3}, "command": command}}
    clean = Redactor().params(params)
    assert clean["trainer"]["command"] == {
        "argv": [
            "python",
            "t.py",
            "--api-key",
            REDACTED,
            f"--auth-token={REDACTED}",
            "--lr",
            "1e-3",
        ],
        "env": {"HF_TOKEN": REDACTED, "TF_CPP_MIN_LOG_LEVEL": "1"},
        "success": {"step": 7},
    }
    assert clean["trainer"]["init"] == params["trainer"]["init"]
    assert command["env"] == {"HF_TOKEN": "c", "TF_CPP_MIN_LOG_LEVEL": "1"}, "the plan keeps them"
    assert Redactor().params(clean) == clean


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--password=correct horse", "--lr=1e-3"], ["--password=[redacted]", "--lr=1e-3"]),
        (["x-the-value-x"], ["x-[redacted]-x"]),
        (["--note", "the-value"], ["--note", "[redacted]"]),
    ],
)
def test_what_is_shown_of_an_argv(argv: list[str], shown: list[str]) -> None:
    params = {"trainer": {"init": {}, "command": {"argv": argv}}}
    clean = Redactor({"A_TOKEN": "the-value", "B_TOKEN": "8 chars!"}).params(params)
    assert clean["trainer"]["command"] == {"argv": shown}


def test_a_value_of_eight_characters_is_known_a_shorter_one_is_not() -> None:
    redactor = Redactor({"A_TOKEN": "12345678", "B_TOKEN": "abcdefg"})
    assert redactor.text("12345678 abcdefg") == f"{REDACTED} abcdefg"


def test_what_our_trainer_reads_keeps_its_meaning() -> None:
    """Values that a name or another place would make secrets of: only tokens themselves go."""
    redactor = Redactor({"A_TOKEN": "training-data"})
    init = {"eos_token": "</s>", "api_key": "q", "path": "/training-data", "t": [7, TOKENS[0]]}
    clean: dict[str, Any] = redactor.params({"trainer": {"init": init, "fit": {}}})
    assert clean["trainer"]["init"] == {**init, "t": [7, REDACTED]}


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        ([], {}),
        (["train", "x=1"], {}),
        (["--a=1", "b"], {"--a": "1"}),
        (["--a", "1", "b"], {"--a": "1"}),
        (["--a", "-b", "--c"], {"--a": "", "-b": "", "--c": ""}),
        (["--a=1=2"], {"--a": "1=2"}),
    ],
)
def test_flags_and_their_values(argv: list[str], found: dict[str, str]) -> None:
    assert flags(argv) == found


@given(st.text(max_size=300), st.sampled_from(TOKENS))
def test_redaction_is_total_and_done_once(text: str, token: str) -> None:
    redactor = Redactor({"X_SECRET": text})
    clean = redactor.text(f"{text} {token}")
    assert token not in clean
    assert redactor.text(clean) == clean or text in REDACTED


def test_a_known_value_is_found_as_json_and_urls_hold_it() -> None:
    value = 'pa"ss\\wo/rd?'
    redactor = Redactor(known=[value])
    for text in (value, json.dumps({"x": value}), f"https://h/{quote(value, safe='')}"):
        assert value not in redactor.text(text)
        assert REDACTED in redactor.text(text)


def test_a_problem_is_told_without_the_secrets_that_are_known() -> None:
    problem = Problem("c.yaml:3", "trainer.init.seed", 'is no text (value "correct-horse")')
    told = Redactor({"MY_TOKEN": "correct-horse"}).problem(problem)
    assert told == 'c.yaml:3: trainer.init.seed: is no text (value "[redacted]")'


def texts_with(value: str) -> Iterator[str]:
    """What programs print when something has gone wrong with it."""
    for said in (value, f"it's {value}", f'"{value}"'):
        error: Exception = KeyError(said)
        yield from (str(error), repr(error), ascii(error), repr(said.encode()), f"{[said]}")
        yield f"{ValueError(repr(error))!r}"
        yield f"{ValueError(f'login failed with {said!r}')!r}"
    yield f"+ login {shlex.quote(value)}"
    yield f"https://h/?q={quote_plus(value)}"
    yield json.dumps({"x": value}, ensure_ascii=False)


@pytest.mark.parametrize(
    "value",
    ["corr'ect\"hor\\se", "it's-a-secret", 'say "friend" here', "pässwörter", "tab\tand\nline!",
     "back\\slash\\", "äö'ü\"ß\\x"],
)  # fmt: skip
def test_a_known_value_is_found_as_python_shows_it(value: str) -> None:
    redactor = Redactor({"Q_PASSWORD": value})
    for text in texts_with(value):
        clean = redactor.text(text)
        assert REDACTED in clean, text
        left = re.sub(
            r"ValueError|KeyError|login failed with|https://h/.q=|login|it.?.?.?s", "", clean
        )
        assert not re.search("secret|corr|friend|sswo|line|slash|ß", left), clean


def test_a_value_that_is_no_text_is_known() -> None:
    assert (
        Redactor({"A_TOKEN": "latin-\udce4-1-token"}).text("x latin-\udce4-1-token")
        == f"x {REDACTED}"
    )


def test_a_key_file_in_a_variable_costs_little_memory() -> None:
    key = json.dumps({"private_key": "-----BEGIN\n" + "aB3/'\"\\\n" * 400})
    tracemalloc.start()
    Redactor({"SERVICE_CREDENTIALS": key})
    assert tracemalloc.get_traced_memory()[1] < 12 << 20
    tracemalloc.stop()


def test_our_own_sections_are_cleaned_like_any_text() -> None:
    init = {
        "autorestart": {"preemption": {"command": ["watch", "--password=a", "--token", "b c"]}},
        "provision": {"lock": "https://u:p@h/x"},
        "checkpoint": {"directory": "/data/password=1"},
    }
    clean = Redactor().params({"trainer": {"init": init}})["trainer"]["init"]
    assert clean["autorestart"]["preemption"]["command"] == [
        "watch", f"--password={REDACTED}", "--token", REDACTED,
    ]  # fmt: skip
    assert clean["provision"]["lock"] == f"https://{REDACTED}@h/x"
    assert clean["checkpoint"] == init["checkpoint"], "the trainer reads it from there"


def test_a_secret_in_the_message_of_a_drill_is_replaced() -> None:
    faults = [{"exception": "OSError", "message": "gave up on db://user:hunter2-hunter2@host"}]
    clean = Redactor().params({"trainer": {"init": {}, "fit": {}, "faults": faults}})
    assert "hunter2" not in str(clean)
    known = Redactor({"DB_PASS": "hunter2 hunter2"})
    faults = [{"exception": "OSError", "message": "wrong: hunter2 hunter2"}]
    clean = known.params({"trainer": {"init": {}, "fit": {}, "faults": faults}})
    assert clean["trainer"]["faults"] == [{"exception": "OSError", "message": "wrong: [redacted]"}]


def test_every_list_of_words_may_be_an_argv() -> None:
    config = {"preemption": {"command": ["watch", "--token", "abc"]}, "rules": [{"type": ["-x"]}]}
    assert list(flags_in(config)) == [{"--token": "abc"}, {"-x": ""}]
    params = {"trainer": {"init": {"autorestart": config, "model_dir": "/m"}}}
    assert own_sections(params) == {"autorestart": config}


LONG = "".join(chr(ord("a") + (n * n + n // 26) % 26) for n in range(5000))


def test_a_long_value_is_known_by_its_beginning_where_it_is_cut() -> None:
    redactor = Redactor({"DB_PASSWORD": LONG})
    assert redactor.text(f"it is {LONG} here") == f"it is {REDACTED} here"
    for kept in (4000, 513, 500):
        assert redactor.text(f"it is {LONG[:kept]}\nand more") == f"it is {REDACTED}\nand more"


@given(
    st.text("ABCDEFGHIJK", min_size=1, max_size=20),
    st.sampled_from(["\r", "\n", "\r\n", "\x0b", "\x85", " \r "]),
    st.text("LMNOPQRSTUV", min_size=1, max_size=20),
)
def test_of_a_value_with_a_line_end_no_half_is_shown(head: str, end: str, tail: str) -> None:
    """The output is read line by line, and a line of it may be all that is told."""
    value = head + end + tail
    redactor = Redactor({"MY_TOKEN": value})
    if len(value) < 8:
        return
    assert redactor.text(f"0: {value} 1") == f"0: {REDACTED} 1"
    for line in f"0: {value} 1".splitlines():
        clean = redactor.text(line)
        assert len(head) < 4 or head not in clean
        assert len(tail) < 4 or tail not in clean


def test_a_value_from_a_file_of_windows_is_known() -> None:
    assert Redactor({"A_TOKEN": "s3cret-value\r"}).text("no s3cret-value!") == f"no {REDACTED}!"


def test_a_short_line_of_a_value_is_a_word_elsewhere() -> None:
    redactor = Redactor({"A_TOKEN": "data\rs3cret-value"})
    assert redactor.text("data is there: data") == f"data is there: {REDACTED}"
