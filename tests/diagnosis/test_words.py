"""Words in which libraries report absent and busy devices, full disks and halted ones, and words of
passing troubles that look like a refusal. The source of a library's own text is beside it."""

from __future__ import annotations

import pytest

from supervisor.config.judgement import Remedy
from supervisor.diagnosis.failure import Evidence, RankEvidence, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.rules import DISK_FULL
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from tests.diagnosis.test_certain import LIBRARY, failure, raised

TPU = "RuntimeError: Unable to initialize backend 'tpu': "
JAX = "jax.errors.JaxRuntimeError: "
PIN = " (set JAX_PLATFORMS='' to automatically choose an available backend)"

ABSENT = [
    TPU + "INTERNAL: Failed to open libtpu.so: libtpu.so: cannot open shared object file: No such "
    "file or directory" + PIN,  # alphafold3 #656
    TPU + "NOT_FOUND: No ba16c7433 device found." + PIN,  # jax #13260
    TPU + "INVALID_ARGUMENT: TpuPlatform is not available.",  # alphafold #25
    TPU + "module 'jaxlib.xla_extension' has no attribute 'get_tpu_client'",  # alphafold #498
    TPU + "UNIMPLEMENTED: this plugin cannot",
    "RuntimeError: Unable to initialize backend 'rocm': NOT_FOUND: Could not find registered "
    'platform with name: "rocm". Available platform names are: Interpreter Host CUDA',
    "RuntimeError: Unable to initialize backend 'tpu_driver': NOT_FOUND: Unable to find driver in "
    "registry given worker: ",
    TPU + "UNKNOWN: TPU initialization failed: open(/dev/vfio/0): Permission denied",
    TPU + "UNKNOWN: TPU initialization failed: open(/dev/accel0): No such file or directory",
]
BUSY = [
    TPU + "UNKNOWN: TPU initialization failed: open(/dev/vfio/0): Device or resource busy",
    TPU + "ABORTED: The TPU is already in use by another process probably owned by another user. "
    'Run "$ sudo lsof -w /dev/accel0" to figure out which process is using the TPU.',
    TPU + "UNAVAILABLE: No accelerator found on this host",
    TPU + "UNKNOWN: TPU initialization failed: Invalid --2a886c8_slice_builder_worker_addresses "
    "specified. Expected 4 worker addresses, got 1.",
    TPU + "INTERNAL: MetadataServer Query failed for agent-worker-number: 503",  # libtpu 0.0.52
    TPU + "NOT_FOUND: TPU metadata is unavailable",
    "RuntimeError: Unable to initialize backend 'tpu': ABORTED: The TPU is already in use or the "
    'lock file is stale. Run "$ sudo lsof -w /dev/vfio/0" to figure out which process is using the '
    "TPU. If no process is listed, a stale lock file might exist.",  # openxla tpu_initialize_util
    TPU + "ABORTED: Internal error when accessing libtpu multi-process lockfile. Run "
    '"$ sudo rm /tmp/libtpu_lockfile".',  # libtpu 0.0.42.1
]
DEVICES_FAILED = [
    "RuntimeError: Unable to initialize backend 'cuda': FAILED_PRECONDITION: "
    "No visible GPU devices.",
    "RuntimeError: Unable to initialize backend 'cuda': INTERNAL: no supported devices found for "
    "platform CUDA",
    "pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch.",
    "pynvml.NVMLError_Unknown: Unknown Error",
    "RuntimeError: Failed to initialize NVML: Driver/library version mismatch",
]
SEMAPHORE = (
    "INTERNAL: Core halted unexpectedly: INTERNAL: Accelerator device halted prematurely, perhaps "
    "due to an on-device check-failure. Node 0 halted unexpectedly at tag:pc "
    "TensorCoreSequencer:20:0xa (from TensorCoreSequencer:20:0x13a): Semaphore (scratch argument "
    "3) has a nonzero value upon exit from a Mosaic kernel. Make sure every DMA is awaited, and "
    "every semaphore signal is paired with a wait. HLO: RPA-bq_16-bkvp_16-p_64.4; HLO computation: "
    "main.1119_spmd"
)
"""vllm-project/tpu-inference #412."""
CONTINUATOR = JAX + "FAILED_PRECONDITION: The program continuator has halted unexpectedly."
"""pytorch/xla #8459."""
HALTED = [
    JAX + "INTERNAL: Accelerator device halted prematurely, perhaps due to an on-device "
    "check-failure. Node 0 halted unexpectedly at tag:pc TensorCoreSequencer:1:0x1e7",
    JAX + "INTERNAL: Core halted unexpectedly: No error message available as no compiler metadata "
    "was provided.",  # jax #9642
    JAX + "INTERNAL: Core halted unexpectedly: ",  # tensorflow/tpu #785
    JAX + "INTERNAL: Core halted unexpectedly: INTERNAL: Accelerator device halted prematurely, "
    "perhaps due to an on-device check-failure. Node 0 halted unexpectedly at tag:pc "
    "TensorCoreSequencer:887:0x6f1 (from TensorCoreSequencer:887:0x3b91): no debugging message "
    "found for this tag:pc. HLO: fusion.1; HLO computation: SyncTensorsGraph.55205_spmd",
    # the one above: pytorch/xla #7138
    JAX + "INTERNAL: Fatal error occurred during TPU execution. This indicates an infrastructure "
    "failure (hardware/network/power), a compiler bug, or a Pallas/Mosaic kernel bug.",
    JAX + "INTERNAL: E0200: RuntimeUnexpectedCoreHalt: core 3",
]
BROKEN = [
    "RuntimeError: CUDA error: uncorrectable ECC error encountered\nCompile with "
    "`TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    "RuntimeError: Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error",
    JAX + "INTERNAL: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure",
]
GPU_LIBRARY = [
    JAX + "FAILED_PRECONDITION: DNN library initialization failed. Look at the errors above for "
    "more details.",  # jax #15361
    JAX + "INTERNAL: Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR",  # jax #22626
]
SHORT_WRITES = [
    "OSError: 40140800 requested and 0 written",  # numpy
    "OSError: problem writing element 524288 to file",  # numpy
    "RuntimeError: [enforce fail at inline_container.cc:445] . PytorchStreamWriter failed writing "
    "file data/176: file write failed",
    "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 64 vs 0",
    "OSError: Can't write data (file write failed: time = Tue Dec  1 08:28:02 2020, filename = "
    "'x.h5', file descriptor = 5, bytes actually written = 18446744073709551615, offset = 5828608)",
    "RuntimeError: Can't decrement id ref count (Unable to extend file properly)",
    "RuntimeError: short write: 4096 of 65536",
    "OSError: wrote only 100 of 4096 bytes",
    "ValueError: could not write 65536 bytes to shard 7",
    "Exception: wrote 17 bytes of 64 to index",
]
PASSING = [
    "RuntimeError: lease for run7 already exists, held by host-3 (expires in 42 s)",
    "RuntimeError: Unknown error 523",
    "RuntimeError: invalid packet length 17 from 10.0.0.2",
    "RuntimeError: expected 8 devices but found 7",
    "RuntimeError: Barrier 'save' failed: some workers did not join: expected 4, got 3",
    JAX + "INVALID_ARGUMENT: The worker with task 3 was restarted",
    "RuntimeError: inconsistent view of the group: a member left",
    "RuntimeError: the queue is empty",
    "OSError: file should be of size 4976 but has size 1073",
    JAX + "FAILED_PRECONDITION: the stream is in an error state",
    JAX + "UNKNOWN: compilation failed: the socket was closed",
    JAX + "INTERNAL: ptxas exited with non-zero error code 137, output: ",
    "RuntimeError: Failed to compile the kernel: the compiler was killed by signal 9",
    "RuntimeError: failed to parse the reply of the metadata service",
    JAX + "ALREADY_EXISTS: Config key cluster/7 already exists.",
]


@pytest.mark.parametrize("line", ABSENT)
def test_what_is_absent_is_a_guess_that_it_stays_so(line: str) -> None:
    found = failure(raised(line, LIBRARY))
    assert (found.verdict, found.rule, found.certain) == (Verdict.FATAL, "backend-missing", False)


@pytest.mark.parametrize(
    ("library", "rule"),
    [
        ("libGL.so.1", "shared-library"),
        ("libcurl.so.4", "shared-library"),
        ("libnuma.so.1", "shared-library"),
        ("libhiredis.so.1", "shared-library"),
        ("libcudart.so.12", "backend-missing"),
        ("libnvinfer.so.8", "backend-missing"),
        ("libtpu.so", "backend-missing"),
    ],
)
def test_only_a_missing_library_of_a_device_is_a_missing_backend(library: str, rule: str) -> None:
    line = f"ImportError: {library}: cannot open shared object file: No such file or directory"
    found = failure(raised(line, LIBRARY))
    assert (found.verdict, found.rule, found.certain) == (Verdict.FATAL, rule, False)
    assert line in found.root_cause
    assert ("jaxlib" in found.advice) is (rule == "backend-missing")


@pytest.mark.parametrize(
    "text", ["Input/output error", "Stale file handle", "Too many open files in system"]
)
def test_a_library_that_cannot_be_read_now_is_not_missing(text: str) -> None:
    found = failure(
        raised(f"ImportError: libGL.so.1: cannot open shared object file: {text}", LIBRARY)
    )
    assert found.verdict is not Verdict.FATAL


@pytest.mark.parametrize(
    "line",
    [
        "ERROR: ld.so: object 'libjemalloc.so.2' from LD_PRELOAD cannot be preloaded (cannot open "
        "shared object file): ignored.",
        "./train: /lib/libssl.so.3: no version information available (required by ./train)",
    ],
)
def test_what_the_dynamic_linker_only_warns_of_is_no_failure(line: str) -> None:
    found = failure(f"{line}\n")
    assert found.rule == "unknown"


def test_a_version_that_a_service_does_not_have_is_not_one_of_a_library() -> None:
    found = failure(raised("RuntimeError: Model version '3_1' not found in the registry", LIBRARY))
    assert found.rule not in {"symbol-missing", "backend-missing"}


@pytest.mark.parametrize("line", BUSY)
def test_what_is_busy_is_waited_for(line: str) -> None:
    found = failure(raised(line, LIBRARY))
    assert (found.verdict, found.rule) == (Verdict.RESTART, "busy-accelerator")


@pytest.mark.parametrize("line", DEVICES_FAILED)
def test_a_driver_or_devices_that_are_not_seen_are_no_fault_of_the_program(line: str) -> None:
    found = failure(raised(line, LIBRARY))
    assert (found.verdict, found.rule) == (Verdict.RESTART, "backend-failed")


@pytest.mark.parametrize("line", HALTED)
def test_of_a_halted_core_nobody_knows_whether_the_host_or_a_kernel_is_to_blame(line: str) -> None:
    found = failure(raised(line, LIBRARY))
    assert (found.verdict, found.rule, found.hardware) == (Verdict.RESTART, "core-halted", True)
    assert found.compared, "that of a kernel comes back"
    assert "have the host replaced" in found.advice
    assert "Pallas (Mosaic) kernel" in found.advice


@pytest.mark.parametrize("line", BROKEN)
def test_what_is_broken_points_at_the_hardware(line: str) -> None:
    found = failure(raised(line, LIBRARY))
    named = "ECC" in line or "device handle" in line
    rule = "hardware" if named else "device-fault"
    assert (found.verdict, found.rule, found.hardware) == (Verdict.RESTART, rule, True)
    assert found.compared is not named


def test_a_kernel_that_mosaic_finds_wrong_is_one_of_the_program() -> None:
    found = failure(raised(JAX + SEMAPHORE, LIBRARY))
    assert (found.verdict, found.rule, found.certain) == (Verdict.FATAL, "device-assert", False)


def test_what_follows_a_halt_is_a_victim_and_points_at_the_hardware() -> None:
    found = failure(raised(CONTINUATOR, LIBRARY))
    assert (found.verdict, found.rule, found.hardware) == (Verdict.RESTART, "follows-a-halt", True)


@pytest.mark.parametrize(
    ("first", "rule"),
    [(SEMAPHORE, "device-assert"), ("INTERNAL: Core halted unexpectedly: ", "core-halted")],
)
def test_of_ranks_the_one_with_the_first_halt_is_the_root_cause(first: str, rule: str) -> None:
    outputs = [CONTINUATOR, JAX + first, CONTINUATOR]
    ranks = tuple(
        RankEvidence(WorkerExit(rank, code=1), output=raised(line, LIBRARY))
        for rank, line in enumerate(outputs)
    )
    found = judge(Evidence(ranks), Success(step=9))
    assert found is not None
    assert (found.rule, found.rank) == (rule, 1)


@pytest.mark.parametrize("line", GPU_LIBRARY)
def test_a_gpu_library_without_memory_is_waited_for(line: str) -> None:
    found = failure(raised(line, LIBRARY))
    assert (found.verdict, found.rule) == (Verdict.RESTART, "gpu-library")
    assert found.remedy is Remedy.WAIT


@pytest.mark.parametrize("line", SHORT_WRITES)
@pytest.mark.parametrize("stage", ["train", "checkpoint"])
def test_a_short_write_is_a_full_disk(line: str, stage: str) -> None:
    found = failure(raised(line, f"/opt/venv/lib/python3.11/site-packages/x/{stage}.py"))
    assert (found.verdict, found.cause) == (Verdict.POLICY, "disk full")
    assert found.rule != DISK_FULL


def test_a_short_write_with_its_errno_is_a_full_disk_without_doubt() -> None:
    line = "OSError: Can't write data (file write failed, file descriptor = 5, errno = 28, x)"
    assert failure(raised(line, LIBRARY)).rule == DISK_FULL


@pytest.mark.parametrize("line", PASSING)
def test_words_of_passing_troubles_end_nothing(line: str) -> None:
    assert failure(raised(line, LIBRARY)).verdict is Verdict.RESTART


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("The connection to the server 10.0.0.1:6443 was refused - did you specify", "storage"),
        ("wget: unable to resolve host address 'data.example.org'", "storage"),
        ("docker: Error response from daemon: toomanyrequests: You have reached", "storage"),
        ("run.sh: line 3: RUN_DIR: unbound variable", "usage"),
        ("Error: Cannot find module '/app/index.js'", "program-missing"),
        ("remote: Repository not found.", "no-such-object"),
        ("docker: Error response from daemon: pull access denied for acme/train", "no-such-object"),
        ("CommandException: No URLs matched: gs://acme/data/*.bin", "no-such-object"),
        ("ERROR: --data-dir /data/c4 does not exist", "missing-file-text"),
    ],
)
def test_the_words_of_the_tools_in_a_wrapper_script_are_known(line: str, rule: str) -> None:
    assert failure(f"{line}\n").rule == rule


@pytest.mark.parametrize("name", ["nan", "inf"])
@pytest.mark.parametrize(
    "line",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: '/home/{}/job/x'",
        "NotADirectoryError: [Errno 20] Not a directory: '/home/{}'",
        "RuntimeError: could not open shard gs://{}/job/3",
        "RuntimeError: could not open shard {}/3",
        "RuntimeError: bad header in /data/inf/{}/a.bin",
        "RuntimeError: {}.py is not there",
        "RuntimeError: {}.local does not answer",
        "RuntimeError: cannot log in to {}@login-1",
        "RuntimeError: no job {}-job",
        "RuntimeError: no quota for user '{}'",
        "RuntimeError: no bucket {}",
    ],
)
def test_a_path_or_a_name_is_no_number(line: str, name: str) -> None:
    found = failure(raised(line.format(name), LIBRARY))
    assert found.rule != "not-finite-text"


@pytest.mark.parametrize(
    "told",
    [
        "loss: nan",
        "loss=nan",
        'got {"loss": NaN}',
        "(nan, inf)",
        "grad/norm: nan",
        "loss=-inf",
        "loss: .nan",
        "NaN/Inf in the gradients",
        "the loss is nan.",
        "the loss equals jax.numpy.nan",
        "NaN-valued loss",
        "of /data/x: loss is inf",
    ],
)
def test_a_value_that_is_nan_or_inf_is_known(told: str) -> None:
    assert failure(raised(f"RuntimeError: {told}", LIBRARY)).rule == "not-finite-text"


def test_where_a_phase_starts_from_another_model_its_own_keys_are_to_be_corrected() -> None:
    told = "start_from: the checkpoint in /run/one/17 does not fit the config: hidden_size is 32"
    found = failure(raised(f"trainer.checkpoint.CheckpointMismatchError: {told}", LIBRARY))
    assert found.rule == "checkpoint-structure"
    assert "start_from, correct init.model of that phase, or start_from" in found.advice
