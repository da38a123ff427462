"""What CUDA_VISIBLE_DEVICES shows of the GPUs that a job is to have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.gpus import (
    FRACTIONS,
    memory_share,
    split_names,
    two_processes_fit,
    visible_gpus_problem,
)
from tests.config.files import with_command, with_init

UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
MIG = f"MIG-{UUID}/1/2"


@pytest.mark.parametrize(
    ("text", "count", "workers"),
    [
        ("0,1", 2, 1),
        (" 0 , 1 ", 2, 2),
        ("3,1,2", 2, 1),
        (f"{UUID},1", 2, 1),
        ("GPU-8932f937", 1, 1),
        (MIG, 1, 1),
        ("MIG-a1b2c3d4-0000-0000-0000-000000000000", None, 1),
        (f"{MIG},{MIG[:-1]}3", 2, 2),
        ("0", None, 1),
    ],
)
def test_what_can_be_used(text: str, count: int | None, workers: int) -> None:
    assert visible_gpus_problem(text, count, workers) is None


@pytest.mark.parametrize(
    ("text", "count", "workers", "says"),
    [
        ("0", 2, 1, "shows 1 of the 2 GPUs"),
        (UUID, 2, 2, "lower the count to 1"),
        ("", None, 1, "hides every GPU"),
        ("-1", None, 1, "has '-1', which names no GPU"),
        ("0,1,,2", 2, 1, "has ''"),
        ("0,all", 1, 1, "has 'all'"),
        ("0;1", 1, 1, "has '0;1'"),
        ("1,1", 2, 1, "names 1 twice"),
        ("0,00", 2, 1, "one GPU twice, as 0 and as 00"),
        (f"GPU-8932F937,{UUID}", 2, 1, f"one GPU twice, as GPU-8932F937 and as {UUID}"),
        (f"{MIG},{MIG[:-1]}3", 2, 1, "give each worker its own (init.workers: 2)"),
    ],
)
def test_what_cannot_is_told_with_its_remedy(
    text: str, count: int | None, workers: int, says: str
) -> None:
    assert says in (visible_gpus_problem(text, count, workers) or "")


@given(st.lists(st.integers(0, 99), unique=True, min_size=1), st.integers(1, 12))
def test_only_a_list_that_is_too_short_is_refused_of_good_names(names: list[int], n: int) -> None:
    text = ",".join(map(str, names))
    assert split_names(text) == tuple(map(str, names))
    assert (visible_gpus_problem(text, n, 1) is None) == (len(names) >= n)


@given(st.text(max_size=20), st.integers(1, 4))
def test_any_text_has_an_answer(text: str, count: int) -> None:
    assert visible_gpus_problem(text, count, 1) or len(split_names(text)) >= count


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({}, 0.75),
        ({"CLIENT_MEM_FRACTION": ".4"}, 0.4),
        ({"PYTHON_CLIENT_MEM_FRACTION": ".4"}, 0.4),
        ({"CLIENT_MEM_FRACTION": "most"}, 0.75),
        ({"CLIENT_MEM_FRACTION": "-1"}, 0.75),
        ({"CLIENT_MEM_FRACTION": "0"}, 0.75),
        ({"CLIENT_MEM_FRACTION": "nan"}, 0.75),
        ({"CLIENT_MEM_FRACTION": "-inf"}, 0.75),
        ({"PYTHON_CLIENT_PREALLOCATE": "false"}, None),
        ({"PYTHON_CLIENT_PREALLOCATE": "true", "CLIENT_MEM_FRACTION": ".9"}, 0.9),
        ({"PYTHON_CLIENT_ALLOCATOR": "platform"}, None),
    ],
)
def test_what_xla_takes_when_a_process_begins(settings: dict[str, str], part: float | None) -> None:
    assert memory_share({f"XLA_{name}": text for name, text in settings.items()}) == part
    assert two_processes_fit(part or 0.0) == (part in (None, 0.4))


@pytest.mark.parametrize("verb", ["run", "validate"])
def test_both_names_of_the_part_of_the_memory_are_refused_as_jaxlib_would(
    verb: str, tmp_path: Path
) -> None:
    done = _supervise(verb, tmp_path, "argv: ['true']", dict.fromkeys(FRACTIONS, ".4"))
    assert done.returncode == 78, done.stdout + done.stderr
    assert "are both set: jaxlib refuses that; unset one" in done.stderr + done.stdout


def test_validate_knows_the_names_of_what_is_in_a_secret_store(tmp_path: Path) -> None:
    secret = f"argv: ['true']\nenv_secrets: {{{FRACTIONS[0]}: projects/p/secrets/s/versions/1}}"
    done = _supervise("validate", tmp_path, secret, {FRACTIONS[1]: ".4"})
    assert done.returncode == 78, done.stdout + done.stderr
    assert "are both set: jaxlib refuses that; unset one" in done.stderr


def _supervise(
    verb: str, folder: Path, command: str, environ: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    config = folder / "job.yaml"
    config.write_text(with_init("devices: {platform: gpu, count: 1}", with_command(command)))
    return subprocess.run(
        [sys.executable, "-m", "supervisor", verb, str(config)],
        cwd=folder,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=False,
    )
