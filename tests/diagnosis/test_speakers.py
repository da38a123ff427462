"""Who raised an error, and that the words of I/O are not taken for those of the program."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.chain import PrintedError
from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.speakers import Speaker, raiser, speaker
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge

SITE = "/opt/venv/lib/python3.11/site-packages"
OWN = "/app/train.py"
JSON = "/usr/lib/python3.11/json/decoder.py"


@pytest.mark.parametrize(
    ("paths", "who"),
    [
        ([OWN], Speaker.OWN),
        ([OWN, f"{SITE}/requests/models.py"], Speaker.IO),
        # What a library that talks to others asked for and could not read is its error.
        ([OWN, f"{SITE}/requests/models.py", JSON], Speaker.IO),
        ([OWN, f"{SITE}/datasets/load.py", f"{SITE}/fsspec/core.py", JSON], Speaker.IO),
        ([OWN, JSON], Speaker.LIBRARY),
        # It called back into the user's own code, or ran it.
        ([f"{SITE}/aiohttp/client.py", OWN], Speaker.OWN),
        ([f"{SITE}/grpc/_server.py", OWN, f"{SITE}/jax/core.py"], Speaker.LIBRARY),
        ([f"{SITE}/ray/_private/worker.py"], Speaker.LIBRARY),
        ([f"{SITE}/google/api_core/retry.py"], Speaker.IO),
        ([f"{SITE}/google/protobuf/message.py"], Speaker.LIBRARY),
        (["/usr/lib/python3.11/http/client.py"], Speaker.IO),
        ([f"{SITE}/sqlite3.py"], Speaker.IO),
        ([], Speaker.UNKNOWN),
    ],
)
def test_who_raised_an_error_of_any_type(paths: list[str], who: Speaker) -> None:
    assert speaker("ValueError", raiser(paths)) is who


def test_a_type_of_an_io_library_is_its_word_and_so_is_one_derived_from_it() -> None:
    assert speaker("paramiko.ssh_exception.SSHException", OWN) is Speaker.IO
    bases = ("requests.exceptions.RequestException", "builtins.OSError")
    assert PrintedError("app.ApiError", "", "", bases, raised_in=OWN).speaker is Speaker.IO
    assert speaker("google.protobuf.message.DecodeError", OWN) is Speaker.OWN
    assert speaker("ray.exceptions.RayTaskError(ValueError)", OWN) is Speaker.OWN


def failure(line: str, path: str) -> Failure:
    output = (
        f'Traceback (most recent call last):\n  File "{OWN}", line 3, in <module>\n    main()\n'
        f'  File "{path}", line 7, in read\n    f()\n{line}\n'
    )
    found = judge(Evidence((RankEvidence(WorkerExit(0, code=1), output=output),)), Success(step=9))
    assert found is not None
    return found


@pytest.mark.parametrize(
    "line",
    [
        "AssertionError: pending must be empty",
        "RuntimeError: unknown state: the header is invalid, expected 3 but got 4",
        "Exception: shape mismatch",
        "ValueError: index out of range",
    ],
)
def test_a_mere_word_of_an_io_library_is_not_fatal_and_is_compared(line: str) -> None:
    own = failure(line, OWN)
    io = failure(line, f"{SITE}/urllib3/connection.py")
    assert own.verdict is Verdict.FATAL
    assert (io.verdict, io.compared) == (Verdict.RESTART, True)


def test_a_rule_that_knows_a_fatal_by_words_alone_names_its_speakers() -> None:
    for rule in RULES:
        by_words = rule.patterns and not rule.codes and set(rule.types) <= {"BaseException"}
        if rule.verdict is Verdict.FATAL and by_words:
            assert rule.speakers


def test_a_code_decides_before_the_words_around_it() -> None:
    busy = failure("wandb.errors.UsageError: unknown error: <Response [520]>", OWN)
    assert (busy.verdict, busy.compared) == (Verdict.RESTART, False)
    missing = failure("requests.exceptions.HTTPError: 404 Client Error: timed out: gone", OWN)
    assert missing.is_guess


@pytest.mark.parametrize(
    "line",
    [
        "requests.exceptions.ContentDecodingError: ('Received response with content-encoding: gzip,"
        " but failed to decode it.', error('Error -3: incorrect header check'))",
        "OSError: Consistency check failed: file should be of size 9 but has size 3 (a.bin)",
        "RuntimeError: Data processing error: File reconstruction error: CAS Client Error",
        "google.resumable_media.common.DataCorruption: Checksum mismatch while downloading:",
    ],
)  # fmt: skip
def test_bytes_that_broke_in_transit_are_not_damaged_data(line: str) -> None:
    assert failure(line, OWN).verdict is Verdict.RESTART


@pytest.mark.parametrize(
    "line",
    ["zlib.error: Error -3 while decompressing data: incorrect header check",
     "_pickle.UnpicklingError: pickle data was truncated",
     "RuntimeError: shard-7.tfrecord: corrupted record at 0"],
)  # fmt: skip
def test_the_same_words_of_a_file_at_rest_are_damaged_data_as_far_as_one_can_guess(
    line: str,
) -> None:
    assert failure(line, OWN).is_guess


@pytest.mark.parametrize(
    "line",
    ["malloc(): corrupted top size", "double free or corruption (!prev)",
     "corrupted size vs. prev_size", "sequence too long: the text was truncated"],
)  # fmt: skip
def test_a_line_that_is_no_error_of_reading_is_not_damaged_data(line: str) -> None:
    end = RankEvidence(WorkerExit(0, signal="SIGABRT"), output=f"step 7\n{line}\nAborted\n")
    found = judge(Evidence((end,)), Success(step=9))
    assert found is not None
    assert found.verdict is Verdict.RESTART
