"""Which FATAL verdicts are certain, and which are guesses, and why."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.failure import Evidence, Failure, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.speakers import Speaker
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge

OWN = "/app/train.py"
LIBRARY = "/opt/venv/lib/python3.11/site-packages/flax/core.py"
IO = "/opt/venv/lib/python3.11/site-packages/gcsfs/core.py"
STANDARD_IO = "/usr/lib/python3.11/http/client.py"


def failure(output: str) -> Failure:
    found = judge(Evidence((RankEvidence(WorkerExit(0, code=1), output=output),)), Success(step=9))
    assert found is not None
    return found


def raised(line: str, path: str) -> str:
    return (
        "Traceback (most recent call last):\n"
        f'  File "{OWN}", line 3, in <module>\n    main()\n'
        f'  File "{path}", line 7, in read\n    f()\n'
        f"{line}\n"
    )


CERTAIN = {
    # errors of code, and what the user's own code asserts
    "unparsable", "own-error", "missing-module", "tracing", "check", "chex", "own-assertion",
    # compile, shapes, ranks that run different programs, checkpoint structure
    "jax-shapes", "compile", "compiler-abort", "shapes", "programs-differ", "checkpoint-structure",
    # what our own trainer raises of its config, its checkpoints, and a function of the user's
    "devices-differ", "foreign-checkpoint", "unmarked-checkpoint", "unusable-reward", "bad-data",
    "weights-not-finite",
}  # fmt: skip
"""The rules that may end a job at once; another one is certain only where a person has said so."""


def test_no_other_rule_is_certain_and_none_of_what_io_says() -> None:
    certain = [rule for rule in RULES if rule.certain]
    assert {rule.name for rule in certain} == CERTAIN
    assert all(rule.speakers != (Speaker.IO,) for rule in certain)


@pytest.mark.parametrize(
    "line",
    [
        "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
        "AttributeError: 'Batch' object has no attribute 'tokens'",
        "NameError: name 'batch' is not defined",
        "AssertionError: 3 != 4",
    ],
)
def test_an_error_of_code_is_certain_where_the_own_code_raised_it(line: str) -> None:
    own = failure(raised(line, OWN))
    assert (own.verdict, own.certain, own.is_guess) == (Verdict.FATAL, True, False)
    assert own.grounds.startswith("certain: ")
    for path in (LIBRARY, IO, STANDARD_IO):
        foreign = failure(raised(line, path))
        assert foreign.verdict is not Verdict.FATAL or foreign.is_guess


def test_a_type_of_an_io_library_is_not_the_own_codes_wherever_it_was_raised() -> None:
    assert not failure(raised("gcsfs.retry.AttributeError: no", OWN)).certain


@pytest.mark.parametrize(
    "line",
    [
        "SyntaxError: invalid syntax",
        "ModuleNotFoundError: No module named 'flex'",
        "jax.errors.TracerBoolConversionError: Attempted boolean conversion of traced array",
        "jax.errors.JaxRuntimeError: INTERNAL: Mosaic failed to compile TPU kernel",
        "ValueError: Incompatible shapes for broadcasting: (2,) and (3,)",
        "checkify.JaxRuntimeError: index out of bounds",
    ],
)
def test_what_cannot_be_parsed_compiled_or_traced_is_certain_wherever_it_is_found(
    line: str,
) -> None:
    assert failure(raised(line, LIBRARY)).certain


def test_other_fatal_verdicts_are_guesses_and_say_why() -> None:
    missing = failure(raised("FileNotFoundError: [Errno 2] No such file: '/data'", OWN))
    assert missing.is_guess
    assert missing.grounds.startswith("a guess: ")


def test_what_was_only_printed_is_a_guess() -> None:
    logged = failure(
        "ERROR: SyntaxError: invalid syntax\nIncompatible shapes for add: (2,) and (3,)\n"
    )
    assert logged.is_guess
    assert "one of the last lines" in logged.grounds


def test_no_grounds_are_told_where_it_is_not_fatal() -> None:
    again = failure(raised("ConnectionResetError: [Errno 104] Connection reset by peer", OWN))
    assert (again.verdict, again.grounds) == (Verdict.RESTART, "")


@pytest.mark.parametrize(
    "path",
    [
        "/opt/conda/lib/python3.10/asyncio/tasks.py",
        "/home/u/.pyenv/versions/3.11.8/lib/python3.11/json/decoder.py",
        "/usr/lib64/python3.12/pickle.py",
        "/usr/lib/python3/dist-packages/yaml/reader.py",
        "/usr/share/launcher/main.py",
        "/opt/jax/jax/_src/core.py",
        "/opt/launcher/run.py",
        "/home/u/src/flax/flax/linen/module.py",
        "python/ray/_raylet.pyx",
        "/ray/python/ray/_private/worker.py",
        "jaxlib/xla_extension.pyx",
        "numpy/random/mtrand.pyx",
        "bazel-out/k8-opt/bin/train.runfiles/_main/lib/data.py",
        "third_party/py/absl/app.py",
        "/tmp/ipykernel_4711/1234.py",
        "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_1/train.py",
        "/tmp/torchinductor_root/ab/cab.py",
        "/root/.triton/cache/ab/kernel.py",
        "/tmp/__autograph_generated_file1x.py",
        "<string>",
        "<unknown>",
        "<frozen importlib._bootstrap>",
        "<ipython-input-3-abc>",
    ],
)
@pytest.mark.parametrize("line", ["TypeError: no", "AssertionError: 3 != 4"])
def test_what_may_be_a_librarys_or_generated_is_not_the_own_code(path: str, line: str) -> None:
    assert failure(raised(line, path)).is_guess


@pytest.mark.parametrize(
    "path",
    ["train.py", "./lib/data.py", "/app/lib/data.py", "/home/u/lm/train.py", "/usr/src/app/run.py",
     "/workspace/model/layers.py", "/content/train.py", "/tmp/run/train.py", "/mnt/code/bin/train"],
)  # fmt: skip
def test_own_code_is_where_people_keep_it(path: str) -> None:
    assert failure(raised("TypeError: no", path)).certain


@pytest.mark.parametrize(
    "line",
    [
        # A library has not all of its parts: half installed, or on a mount that is gone.
        "ImportError: cannot import name 'gelu' from 'layers' (unknown location)",
        "ImportError: libfoo.so.3: cannot read file data: Input/output error",
        "ImportError: Install s3fs to access S3",
        "importlib.metadata.PackageNotFoundError: No package metadata was found for flax",
        # A step that failed has deleted what was donated to it.
        "RuntimeError: Array has been deleted with shape=float32[8].",
        # Half a file has another shape; half a download another size.
        "ValueError: cannot reshape array of size 17 into shape (4,2)",
        "ValueError: could not broadcast input array from shape (3,) into shape (4,)",
        "OSError: size mismatch: expected size 4096 but got 512",
        "ValueError: Number of devices 7 must be >= the product of mesh_shape (8,)",
        # A compiler may be killed, or find no memory.
        "jax.errors.JaxRuntimeError: INTERNAL: ptxas exited with non-zero error code 9",
        "RuntimeError: Compilation failed: the compiler was killed",
        "ValueError: failed to parse the reply",
        # A folder may not be mounted yet.
        "ValueError: No checkpoint found in /mnt/ckpt",
        "KeyError: 'missing key params in checkpoint'",
        # A peer that was started again shows up so.
        "RuntimeError: unexpected peer shows up in the launch group with a different launch id",
        # What did not come back is None.
        "TypeError: 'NoneType' object is not subscriptable",
        "AttributeError: 'NoneType' object has no attribute 'group'",
        "NotImplementedError: seek",
        "RecursionError: maximum recursion depth exceeded",
    ],
)  # fmt: skip
def test_what_trouble_that_passes_is_reported_as_is_never_certain(line: str) -> None:
    assert not failure(raised(line, OWN)).is_certain


def test_what_eval_cannot_parse_is_data() -> None:
    literal = raised('  File "<unknown>", line 1\n    {"a": \n    ^\nSyntaxError: invalid', OWN)
    assert failure(literal).is_guess
    module = raised('  File "/app/data.py", line 1\n    {"a": \n    ^\nSyntaxError: invalid', OWN)
    assert failure(module).certain


def test_an_assertion_of_chex_is_the_programs_own() -> None:
    chex = "/opt/venv/lib/python3.11/site-packages/chex/_src/asserts_internal.py"
    assert failure(raised("AssertionError: [Chex] Assertion assert_rank failed", chex)).certain


@pytest.mark.parametrize(
    "line",
    [
        "gateway.OOBError: the answer is out of bounds",
        "gateway.KeyReuseError: the key was used before",
        "gateway.DevicesDiffer: 4, not 8",
        "gateway.Error: structure mismatch in response from server",
        "gateway.Error: state dict keys do not match the reply",
    ],
)
def test_names_and_words_of_others_are_no_certainty(line: str) -> None:
    assert not failure(raised(line, OWN)).certain


@pytest.mark.parametrize(
    "line",
    [
        "TypeError: add got incompatible shapes for broadcasting: (3,), (4,).",
        "TypeError: dot_general requires contracting dimensions to have the same shape, got (3,) "
        "and (4,).",
        "TypeError: cannot reshape array of shape (4, 3) (size 12) into shape (4, 2) (size 8)",
        "ValueError: Incompatible types for broadcasting: input type=float32[3] and requested "
        "type=float32[4]",
        "ValueError: vmap got inconsistent sizes for array axes to be mapped:",
    ],
)
def test_a_shape_that_jax_refuses_is_certain(line: str) -> None:
    jax = "/opt/venv/lib/python3.11/site-packages/jax/_src/lax/lax.py"
    found = failure(raised(line, jax))
    assert (found.rule, found.certain, found.per_rung) == ("jax-shapes", True, True)
    assert found.where == f"{OWN}:3"
    assert not failure(raised(line, IO)).certain
    alone = failure(line)
    assert not alone.certain, "nobody knows whose it is"
    refused = "ConnectionRefusedError: [Errno 111] Connection refused"
    after = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert not failure(raised(refused, IO) + after + raised(line, jax)).certain


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: cannot reshape array of size 12 into shape (4,2)",
        "ValueError: operands could not be broadcast together with shapes (3,) (4,)",
    ],
)
def test_a_shape_that_numpy_refuses_is_a_guess(line: str) -> None:
    """Half a file has another shape, too."""
    assert failure(raised(line, OWN)).is_guess
