"""What must not be written, and what must stay as it is."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.redaction import REDACTED, Redactor, flags

TOKENS = [
    "hf_" + "aB3" * 11,
    "ghp_" + "x1Y2" * 9,
    "github_pat_" + "a_B1" * 8,
    "AKIA" + "ABCD1234" * 2,
    "ya29." + "a0-_." * 6,
    "sk-proj-" + "abc123" * 6,
    "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\\nMIIEabc\\n-----END PRIVATE KEY-----",
]


@pytest.mark.parametrize("token", TOKENS)
def test_well_known_tokens_go_wherever_they_stand(token: str) -> None:
    text = Redactor().text(f"401 for url with '{token}', giving up")
    assert text == f"401 for url with '{REDACTED}', giving up"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("WANDB_API_KEY=abc123 python", "WANDB_API_KEY=[redacted] python"),
        ("{'AWS_SECRET_ACCESS_KEY': 'abc'}", "{'AWS_SECRET_ACCESS_KEY': '[redacted]'}"),
        ("train.py --api-key=abc --x=1", "train.py --api-key=[redacted] --x=1"),
        ("train.py --password abc --x=1", "train.py --password [redacted] --x=1"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer [redacted]"),
        ("https://me:pass@host/path", "https://me:[redacted]@host/path"),
    ],
)
def test_what_stands_behind_a_name_that_says_so_goes(text: str, clean: str) -> None:
    assert Redactor().text(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'model.layers.0'",
        "builtins.ValueError: token 17 is not in the vocabulary",
        "train.py --max-tokens 512 --tokenizer sentencepiece --eos_token_id=2",
        "grpc://10.0.0.2:8476 is unavailable: key mismatch",
        "asked to stop by SIGTERM; sk-learn, hf_hub and the ghp_ prefix are no secrets",
        "gs://bucket/path@v2: no such object",
    ],
)
def test_innocent_text_stays(text: str) -> None:
    assert Redactor().text(text) == text


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


@pytest.mark.parametrize(
    "unit", ["-", "-----BEGIN ", "A", "a", "a.", "eyJ-", "a://:", "--token ", "sk-", "_KEY=", "\n"]
)
def test_no_text_takes_long(unit: str) -> None:
    text = unit * (65536 // len(unit))
    start = time.process_time()
    Redactor({"A_KEY": "12345678"}).text(text)
    assert time.process_time() - start < 1.0
