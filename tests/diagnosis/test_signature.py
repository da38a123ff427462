"""The fingerprint of a failure: the same for the same, another for another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.diagnosis.failure import Evidence, RankEvidence, WorkerExit
from supervisor.diagnosis.signature import normalised, signature
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge

FRAMES = (("/app/train.py", "main"), ("/opt/lib/site-packages/jax/_src/api.py", "jit"))


def of(message: str = "bad token 17 in '/data/a.bin'", **changes: object) -> str:
    given: dict[str, object] = {"frames": FRAMES, "stage": "TRAINING", "step": 4, **changes}
    return signature("ValueError", message, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message",
    [
        "bad token 18 in '/data/a.bin'",
        "bad token 17 in '/mnt/other/b.bin'",
        "bad  token 1.5e3 in '/data/a.bin'",
    ],
)
def test_numbers_paths_and_blanks_make_no_difference(message: str) -> None:
    assert of(message) == of()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("buffer 0x7f3a is gone", "buffer 0x11 is gone"),
        ("at 2026-11-21 08:55:30.936 it broke", "at 2027-01-02 01:02:03 it broke"),
        ("run 3f2a9c1d7e6b4a58 ended", "run 00112233445566aa ended"),
    ],
)
def test_what_differs_from_attempt_to_attempt_is_taken_out(first: str, second: str) -> None:
    assert of(first) == of(second)


@pytest.mark.parametrize(
    "other",
    [
        of("another thing"),
        of(step=5),
        of(stage="SAVING"),
        of(frames=(("/app/train.py", "evaluate"),)),
        signature("KeyError", "bad token 17 in '/data/a.bin'", FRAMES, "TRAINING", 4),
    ],
)
def test_another_error_place_stage_or_step_is_another_failure(other: str) -> None:
    assert other != of()


def test_the_frames_of_libraries_make_no_difference() -> None:
    assert of(frames=(("/app/train.py", "main"), ("/x/site-packages/jax/new.py", "f"))) == of()


@pytest.mark.parametrize(
    ("line", "compared"),
    [
        ("RuntimeError: something odd", True),
        ("ValueError: bad", True),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data'", True),
        ("TypeError: f() takes 1 positional argument but 2 were given", False),
        ("RuntimeError: Unable to initialize backend 'tpu': it did not answer", True),
        ("jax.errors.JaxRuntimeError: UNAVAILABLE: Socket closed", True),
        ("RuntimeError: Barrier timed out", True),
        ("RuntimeError: Barrier timed out: /job:jax_worker/replica:0/task:3 is missing", False),
        ("RuntimeError: Connection closed by peer [10.0.0.7]:1234", False),
        ("RuntimeError: Connection reset by peer: worker-3.jobs.svc:8476", False),
        ("RuntimeError: lost connection to rank 3", False),
        ("RuntimeError: heartbeat timeout of node host-3: it died", False),
        ("RuntimeError: failed to connect to all addresses; ipv4:10.0.0.7:8476: refused", False),
        ("pymysql.err.OperationalError: (2013, 'Lost connection to MySQL server')", False),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", False),
        ("OSError: [Errno 28] No space left on device", False),
        ("RuntimeError: TPU initialization failed: open(/dev/vfio/0): busy", False),
    ],
)
def test_only_what_does_not_pass_by_itself_is_compared(line: str, compared: bool) -> None:
    output = f'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n{line}\n'
    rank = RankEvidence(WorkerExit(0, code=1), output=output)
    failure = judge(Evidence((rank,)), Success())
    assert failure is not None
    assert failure.signature is not None
    assert failure.compared is compared


@pytest.mark.parametrize("code", [0, 1, 9, 134, 137, 139])
def test_an_exit_alone_is_not_signed(code: int) -> None:
    rank = RankEvidence(WorkerExit(0, code=code))
    failure = judge(Evidence((rank,)), Success(step=9))
    assert failure is not None
    assert failure.signature is None


@pytest.mark.parametrize(
    "parts",
    [
        ("host 10.0.0.7 is gone", "host 192.168.1.20 is gone"),
        ("no route to fe80::1ff:fe23:4567:890a", "no route to 2001:db8::8a2e:370:7334"),
        ("cannot reach [::1]:8476", "cannot reach [fe80::2]:51234"),
        ("cannot reach a.b.internal:80", "cannot reach node17.example.org:8080"),
        ("Pool(host='cdn.hf.co', port=443) timed out", "Pool(host='x', port=80) timed out"),
        ("read gs://a/b/c.txt twice", "read s3://other/d twice"),
        ("cannot open ../a/b.txt", "cannot open ~/c/d.txt"),
        ("no shard 'train-00017-of-01024'", "no shard 'train-00400-of-01024'"),
        ("pod worker-7d9f8b6c5-x2x4z was evicted", "pod worker-5c8d7e6f4-q9w8e was evicted"),
        ("request id: AbCdEfGh failed", "request id: XyZzYabc failed"),
        ("run 3f2a9c1d-7e6b-4a58-9c1d-7e6b4a589c1d", "run 00112233-4455-66aa-8899-aabbccddeeff"),
        ("in tmpab12cd9_ it broke", "in tmpzz_9kk21 it broke"),
        ("waited 12.3 s for it", "waited 4 min for it"),
        ("took 500ms", "took 1.5s"),
        ("read 512 bytes of it", "read 4.0 GiB of it"),
        ("at Sat Nov 21 09:08:25 2026 it broke", "at Mon May 4 17:00:01 2027 it broke"),
        ("since 2026-11-21T08:55:30.936Z it broke", "since 2027-01-02T01:02:03.1+02:00 it broke"),
        ("ranks [1, 2, 3] are gone", "ranks [7] are gone"),
        ("tasks /job:w/task:1, /job:w/task:2 are gone", "tasks /job:w/task:9 are gone"),
        ("keys {'bias', 'kernel'} differ", "keys {'kernel', 'bias'} differ"),
        ("{'TPU': 8.0, 'CPU': 1.0} is too much", "{'CPU': 4.0, 'TPU': 16.0} is too much"),
        ("<Foo object at 0x7f3bc3c23d80> is odd", "<Foo object at 0x7f0000000010> is odd"),
        ("pid 4711 was killed", "pid 12 was killed"),
    ],
)  # fmt: skip
def test_what_each_attempt_has_another_of_makes_no_difference(parts: tuple[str, str]) -> None:
    assert of(parts[0]) == of(parts[1])


@pytest.mark.parametrize(
    "parts",
    [
        ("module 'jax' has no attribute 'linear_util'", "module 'jax' has no attribute 'core'"),
        ("missing key 'bias'", "missing key 'kernel'"),
        ("[Errno 2] No such file or directory: '/a'", "[Errno 13] Permission denied: '/a'"),
        ("cfg.optimizer=adamz: pick one", "cfg.loss=adamz: pick one"),
        ("NOT_FOUND: gs://a/b", "PERMISSION_DENIED: gs://a/b"),
        ("UNAVAILABLE: 10.0.0.7:80: Socket closed", "UNAVAILABLE: 10.0.0.7:80: refused"),
        ("keys {'bias', 'kernel'} differ", "keys {'bias', 'scale'} differ"),
    ],
)
def test_another_message_is_another_failure(parts: tuple[str, str]) -> None:
    assert of(parts[0]) != of(parts[1])


def test_a_record_and_a_traceback_of_the_same_error_have_the_same_signature() -> None:
    told = [
        signature("builtins.ValueError", "builtins.ValueError: bad luck", FRAMES, None, None),
        signature("ValueError", "ValueError: bad luck", FRAMES, None, None),
    ]
    assert told[0] == told[1]


def test_what_follows_a_line_that_tells_it_all_makes_no_difference() -> None:
    line = "no such tokenizer in the folder of the model"
    assert of(line) == of(f"{line}\nstep reported by another thread: hello")
    assert of("it failed:\n  no tokenizer") != of("it failed:\n  no model")


@given(st.text(max_size=3000))
def test_any_text_has_a_short_signature(message: str) -> None:
    found = of(message)
    assert found == of(message)
    assert len(found) == len("ValueError-") + 12


@pytest.mark.parametrize(
    "piece", ["/", "'", '"', "{", "}", "1.", "a1", "tmp", "host=", "job id ", "<n> s", "-", "a.b:"]
)  # fmt: skip
def test_a_message_of_one_piece_again_and_again_takes_no_more_than_linear_time(piece: str) -> None:
    """Quadratic time over a hundred thousand pieces would be minutes."""
    assert normalised(piece * 100_000) == normalised(piece * 100_000)


def test_another_library_that_is_missing_is_another_failure_but_not_another_version_of_it() -> None:
    text = "%s: cannot open shared object file: No such file or directory"
    told = [normalised(text % name) for name in ("libGL.so.1", "libGL.so.2", "libcudart.so.12")]
    assert told[0] == told[1] != told[2]
