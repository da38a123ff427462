"""Each rule decides about something: none is hidden behind those that come before it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.diagnosis.failure import Evidence, HostFacts, RankEvidence, Survivor, WorkerExit
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.protocol.messages import Stage

ERRORS = {
    # --- types that no outside cause is reported as
    "invalid-config-alone": "pydantic_core.ValidationError: 1 validation error for Config",
    "unparsable": "SyntaxError: invalid syntax",
    "own-error": "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
    "jax-shapes": "ValueError: Incompatible shapes for broadcasting: (2,) and (3,)",
    "missing-key": "KeyError: 'inputs'",
    # --- the world outside
    "devices-missing": "trainer.mesh.DevicesMissing: 4 devices, not 8",
    "devices-differ": "trainer.mesh.DevicesDiffer: 4 devices, not 8",
    "unusable-reward": "trainer.rewards.UnusableRewardError: exact returned 3 for 16 completions",
    "reward-not-finite": "trainer.rewards.RewardNotFiniteError: exact returned the reward nan",
    "bad-data": "supervisor.config.training.data_files.DataError: a.jsonl:7: its prompt is empty",
    "damaged-tokens": "trainer.token_store.DamagedTokensError: a.tokens: block 7 of the tokens",
    "no-usable-checkpoint": "trainer.checkpoint_steps.NoUsableCheckpointError: all 3 are damaged",
    "pretrained-model": "supervisor.config.training.pretrained.PretrainedError: /models/a: lacks x",
    "weights-not-finite": "trainer.not_finite.WeightsNotFiniteError: /m/a: the tensor x holds NaN",
    "state-not-finite": "trainer.inflight.StateNotFiniteError: step 25: its state is not saved",
    "foreign-checkpoint": "trainer.checkpoint_steps.ForeignCheckpointError: step 7 is of nobody",
    "unmarked-checkpoint": "trainer.checkpoint_steps.UnmarkedCheckpointError: step 7 has no mark",
    "checkpoint-unreadable": "trainer.checkpoint_steps.UnreadableCheckpointError: step 7",
    "fenced": "trainer.fence.FencedError: the owner is not known",
    "disk-full": "OSError: [Errno 28] No space left on device: '/run/7'",
    "resource-limit": "MemoryError",
    "rank-killed": "RuntimeError: failed (exitcode: -9) local_rank: 0 (pid: 7) of binary: python",
    "resource-limit-text": "OSError: [Errno 24] Too many open files: 'a'",
    # --- what I/O says
    "short-write": "OSError: 40140800 requested and 0 written",
    "offline": "OSError: HF_HUB_OFFLINE is set: outgoing traffic has been disabled",
    "no-such-place": "huggingface_hub.errors.RepositoryNotFoundError: no/such",
    "no-such-place-text": "OSError: 401 Client Error. Repository Not Found for url: x",
    "tracker-refused": "mlflow.exceptions.MlflowException: Changing param values is not allowed.",
    "rejected-credentials": "requests.exceptions.HTTPError: 401 Client Error: Unauthorized",
    "expired-credentials": "google.auth.exceptions.RefreshError: invalid_grant: Bad Request",
    "quota-code": "gcsfs.retry.HttpError: {'reason': 'quotaExceeded'}, 403",
    "rate-limit": "gcsfs.retry.HttpError: {'reason': 'rateLimitExceeded'}, 403",
    "quota": "RuntimeError: Quota exceeded for quota metric 'Requests'",
    "no-capacity": "RuntimeError: There is no more capacity in the zone us-east5-a",
    "server-full": "psycopg2.errors.DiskFull: could not extend file",
    "passing-code": "requests.exceptions.HTTPError: 503 Server Error: x for url: x",
    "passing-call": "grpc._channel._InactiveRpcError: status = StatusCode.UNAVAILABLE",
    "broken-transfer": "http.client.IncompleteRead: IncompleteRead(512 bytes read)",
    "broken-answer": "tornado.httpclient.HTTPClientError: truncated body",
    "broken-download": "OSError: Consistency check failed: file should be of size 7",
    "message-too-large": "grpc._channel._InactiveRpcError: status = StatusCode.RESOURCE_EXHAUSTED\n"
    "details = Received message larger than max (9 vs. 4)",
    "lost-upload": "google.api_core.exceptions.NotFound: 404 PUT https://x/upload?upload_id=7",
    "refused-code": "google.api_core.exceptions.NotFound: 404 GET https://storage/b",
    "refused-call": "grpc._channel._InactiveRpcError: status = StatusCode.NOT_FOUND",
    "refused-request": "requests.exceptions.MissingSchema: Invalid URL 'x'",
    "passing-type": "pymongo.errors.AutoReconnect: primary stepped down",
    "passing-words": "psycopg2.OperationalError: FATAL: the database system is starting up",
    "storage": "RuntimeError: the network is unreachable",
    # --- compilers, accelerators, other ranks
    "programs-differ": "jax.errors.JaxRuntimeError: INTERNAL: RuntimeProgramInputMismatch",
    "cluster-misconfigured": "ValueError: num_processes must be at least 1",
    "programs-may-differ": "RuntimeError: unexpected peer shows up in the launch group",
    "compile-reported": "jax.errors.JaxRuntimeError: INTERNAL: ptxas exited with error code 9",
    "compile": "jax.errors.JaxRuntimeError: INTERNAL: Mosaic failed to compile TPU kernel",
    "device-fault": "jax.errors.JaxRuntimeError: INTERNAL: CUDA_ERROR_LAUNCH_FAILED",
    "device-assert": "jax.errors.JaxRuntimeError: INTERNAL: observed errors are: [User]",
    "hardware": "jax.errors.JaxRuntimeError: INTERNAL: observed errors are: [Hardware]",
    "follows-a-halt": "jax.errors.JaxRuntimeError: FAILED_PRECONDITION: The program continuator "
    "has halted unexpectedly.",
    "silent-corruption": "trainer.corruption_check.SilentCorruptionError: step 500: TFRT_CPU_5 has "
    "computed wrong gradients (simulated)",
    "core-halted": "jax.errors.JaxRuntimeError: INTERNAL: Core halted unexpectedly: ",
    "gpu-library": "jax.errors.JaxRuntimeError: FAILED_PRECONDITION: DNN library initialization "
    "failed.",
    "busy-accelerator": "RuntimeError: The TPU is already in use by process with pid 7",
    "backend-missing": "RuntimeError: Unknown backend tpu",
    "port-in-use": "RuntimeError: Failed to start RPC server",
    "backend-failed": "RuntimeError: Unable to initialize backend 'tpu': it did not answer",
    "launcher-sigterm": "SignalException: Process 7 got signal: 15",
    "launcher-hangup": "SignalException: Process 7 got signal: 1",
    "lost-peer": "jax.errors.JaxRuntimeError: UNAVAILABLE: Socket closed",
    "lost-worker": "RuntimeError: DataLoader worker (pid 7) exited unexpectedly",
    # --- what the program keeps
    "corrupt-checkpoint": "ValueError: DATA_LOSS: error in OCDBT database: the manifest",
    "undecodable-data": "zlib.error: Error -3 while decompressing data: incorrect header check",
    "out-of-memory": "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: 17 bytes",
    "not-finite": "FloatingPointError: invalid value encountered in jit(step)",
    "not-finite-text": "RuntimeError: loss is nan at step 7",
    "checkpoint-structure": "ValueError: Dict key mismatch; expected keys: ['a']",
    "checkpoint-destination": "ValueError: Destination /run/7 already exists.",
    # --- the program itself
    "checkpoint-mismatch": "ValueError: Topology mismatch detected",
    "shapes-reported": "ValueError: cannot reshape array of size 17 into shape (4,2)",
    "shapes": "ValueError: Received incompatible devices for jitted computation",
    "data-range": "IndexError: token id 50300 exceeds the vocabulary",
    "no-such-object": "OSError: Can't load tokenizer for 'gpt99'",
    "check-your-connection": "OSError: We couldn't connect to 'https://huggingface.co'",
    "data-loss": "jax.errors.JaxRuntimeError: DATA_LOSS: a transfer",
    "unavailable": "jax.errors.JaxRuntimeError: UNAVAILABLE: not now",
    "invalid": "jax.errors.JaxRuntimeError: INVALID_ARGUMENT: the layout",
    # --- what it is set up with, native code
    "versions-differ": "ImportError: DLL was built against numpy 1, but 2 is there",
    "accelerator-absent": "RuntimeError: No CUDA GPUs are available",
    # --- types of exceptions
    "interrupted": "KeyboardInterrupt",
    "tracing": "jax.errors.TracerBoolConversionError: Attempted boolean conversion",
    "own-assertion": "AssertionError: two is not three",
    "check": "checkify.FailedCheckError: two is not three",
    "not-implemented": "NotImplementedError: sharded rng",
    "missing-module": "ModuleNotFoundError: No module named 'flex'",
    "broken-program": "ImportError: cannot import name 'a' from 'b' (unknown location)",
    "timeout": "queue.ReadTimeout: 30 s",
    "connection": "ConnectionError: the link of rank 1 is down",
    "no-standard-input": "EOFError: EOF when reading a line",
    "pipe": "EOFError",
    "lost-actor": "ray.exceptions.ActorDiedError: the trainer",
    "unschedulable": "ray.exceptions.TaskUnschedulableError: no node has 8 TPUs",
    "io-error": "grpc._channel._MultiThreadedRendezvous: status = StatusCode.UNKNOWN",
    "expired-login": "google.auth.exceptions.DefaultCredentialsError: none",
    "file-exists": "FileExistsError: [Errno 17] File exists: '/run/7'",
    "missing-file": "FileNotFoundError: [Errno 2] No such file or directory: '/data'",
    "file-exists-text": "RuntimeError: mkdir: cannot create directory: File exists",
    "missing-file-text": "RuntimeError: open failed: No such file or directory",
    "program-error": "ValueError: bad luck",
    "suspected-connection": "RuntimeError: it failed; please try again later",
    "stated-requirement": "RuntimeError: the batch size must be a multiple of 8",
    "plain-error": "RuntimeError: bad luck",
    "exception": "_queue.Empty",
}  # fmt: skip
"""The last line of a traceback, by the rule that decides about it."""

LINES = {
    "program-missing": "/usr/bin/python3: No module named trainr",
    "package-missing": "ERROR: No matching distribution found for jaxx",
    "compiler-abort-reported": "LLVM ERROR: Cannot select: 0x55d0",
    "usage": "train.py: error: unrecognized arguments: --lr",
    "ended-by-scheduler": "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-21T08:55:30 "
    "DUE TO PREEMPTION ***",
    "shared-library": "/app/train: error while loading shared libraries: libfoo.so.2: cannot open "
    "shared object file: No such file or directory",
    "symbol-missing": "/app/train: symbol lookup error: /app/train: undefined symbol: run",
    "openmp-twice": "OMP: Error #15: Initializing libiomp5.so, but found libomp.so already "
    "initialized.",
    "container-refused": 'docker: Error response from daemon: could not select device driver "nv"',
    "submission-refused": "sbatch: error: Batch job submission failed: Invalid account",
    "build-failed": "ninja: build stopped: subcommand failed.",
    "archive-damaged": "tar: Error is not recoverable: exiting now",
    "refused-instruction-told": "Illegal instruction (core dumped)",
}
"""The last line of an output without a traceback."""

KILLED = RankEvidence(WorkerExit(0, signal="SIGKILL"))


def silent(
    *, code: int | None = None, signal: str | None = None, told_to_stop: bool = False
) -> Evidence:
    """A rank that ended without a word."""
    return Evidence((RankEvidence(WorkerExit(0, code, signal, told_to_stop)),))


ENDS = {
    "guard-lost": Evidence((KILLED,), host=HostFacts(guard_lost=True)),
    "host-oom-kill": Evidence((KILLED,), host=HostFacts(oom_kills=1)),
    "sigkill": Evidence((KILLED,), host=HostFacts(oom_kills=0)),
    "sigkill-or-memory": Evidence((KILLED,)),
    "sigterm": silent(signal="SIGTERM"),
    "hangup": silent(signal="SIGHUP"),
    "limit-signal": silent(signal="SIGXCPU"),
    "bus-error": silent(signal="SIGBUS"),
    "refused-instruction": silent(signal="SIGILL"),
    "crash": silent(signal="SIGSEGV"),
    "abort": silent(signal="SIGABRT"),
    "not-executable": silent(code=127),
    "ended-on-sigterm": silent(code=0, told_to_stop=True),
    "background": replace(silent(code=0), survivors=(Survivor(7, "sleep"),)),
    "no-step-told": silent(code=0),
    "early-exit": replace(silent(code=0), step=3),
    "unknown": silent(code=1),
}
"""Ends without a word."""


def printed(*errors: str, place: str = 'train.py", line 7, in <module>') -> str:
    """What Python prints of errors, each of which was raised while the one before was handled."""
    between = "\nDuring handling of the above exception, another exception occurred:\n\n"
    head = f'Traceback (most recent call last):\n  File "/app/{place}\n'
    return between.join(f"{head}{error}\n" for error in errors)


def ended(output: str, stage: Stage | None = None, *, told_to_stop: bool = False) -> Evidence:
    """A rank that ended with this output."""
    end = WorkerExit(0, code=1, told_to_stop=told_to_stop)
    return Evidence((RankEvidence(end, output=output, stage=stage),))


RESTORE = 'checkpoint.py", line 7, in restore'
LIBRARY = 'site-packages/gateway/client.py", line 7, in ask'
CHECK = "F1121 09:17:01.7 7 x.cc:1] Check failed: a == b (5 vs. 4)\n    @ 0x7f00  absl::Flush()\n"
CONDITIONS = {
    "killed-told": replace(
        ended("./run.sh: line 7:  4711 Killed                  python train.py\n"),
        host=HostFacts(oom_kills=0),
    ),
    "disk-full-silently": replace(
        ended(printed("OSError: write failed")), host=HostFacts(free_disk=0)
    ),
    "compile-call": ended(
        printed(
            "jax.errors.JaxRuntimeError: INTERNAL: x", place='c.py", line 7, in backend_compile'
        )
    ),
    "compiler-abort": ended(f"{CHECK}    @ 0x7f01  xla::cpu::CpuCompiler::RunBackend()\n"),
    "compiler-crash": ended(
        "*** SIGSEGV received by PID 7 (TID 7) on cpu 1 from PID 7; stack trace: ***\n"
        "    @ 0x7f01       1328  TpuCompiler_RunHloPasses\n"
    ),
    "native-check": ended(CHECK),
    "transfer-abort": ended(f"{CHECK}    @ 0x7f01  xla::gpu::CollectiveThunk::Execute()\n"),
    "program-error-alone": ended(printed("TypeError: unhashable type: 'list'", place=LIBRARY)),
    "broken-program-alone": ended(
        printed('  File "<unknown>", line 1\nSyntaxError: invalid syntax', place=LIBRARY)
    ),
    "chex": ended(
        printed("AssertionError: [Chex] x", place='chex/_src/asserts.py", line 7, in assert_rank')
    ),
    "assertion": ended(printed("AssertionError", place=LIBRARY)),
    "undecodable-while-restoring": ended(printed("ValueError: truncated file"), Stage.RESTORING),
    "undecodable-in-a-restore": ended(printed("ValueError: truncated file", place=RESTORE)),
    "unreadable-while-restoring": ended(
        printed("struct.error: unpack requires a buffer of 4 bytes"), Stage.RESTORING
    ),
    "unreadable-in-a-restore": ended(
        printed("struct.error: unpack requires a buffer of 4 bytes", place=RESTORE)
    ),
    "incomplete-checkpoint": ended(
        printed(
            'ValueError: Error opening "zarr" driver: Metadata at x does not exist', place=RESTORE
        )
    ),
    "invalid-config": ended(printed("KeyError: 'lr'", "app.ConfigError: lr")),
    "backend-unseen": ended(
        printed("AssertionError", place='jax/_src/xla_bridge.py", line 857, in backends')
    ),
    "follows-a-loss": Evidence(
        (
            *ended(printed("RuntimeError: op.preamble.length <= op.nbytes. 24 vs 16")).ranks,
            RankEvidence(WorkerExit(1, signal="SIGABRT", told_to_stop=True)),
        )
    ),
    "code-error-on-sigterm": ended(printed("TypeError: no"), told_to_stop=True),
    "exception-on-sigterm": ended(printed("RuntimeError: stop"), told_to_stop=True),
}
"""Errors about which a rule decides on account of something else that is known."""


EXAMPLES = (
    {name: ended(printed(line)) for name, line in ERRORS.items()}
    | {name: ended(line) for name, line in LINES.items()}
    | ENDS
    | CONDITIONS
)


VICTIMS = (
    "passing-call",
    "transfer-abort",
    "follows-a-halt",
    "lost-peer",
    "lost-worker",
    "unavailable",
    "pipe",
    "lost-actor",
)
"""Rules about what one rank suffers when another one fails."""
CULPRITS = (
    "guard-lost",
    "host-oom-kill",
    "limit-signal",
    "bus-error",
    "crash",
    "ended-on-sigterm",
)
"""Rules about ends that are the root cause of what another rank suffers, without a word."""
ALONE = (
    "invalid-config-alone",
    "unparsable",
    "broken-program-alone",
    "own-error",
    "jax-shapes",
    "program-error-alone",
    "no-standard-input",
    "missing-key",
)
"""Rules about errors that came of no other."""


def beside_another(evidence: Evidence, output: str) -> Evidence:
    """The same with a second rank, which ended with this output."""
    other = RankEvidence(WorkerExit(1, code=1), output=output)
    return replace(evidence, ranks=(*evidence.ranks, other))


def after_another(evidence: Evidence, error: str) -> Evidence:
    """The same error, raised while another one was handled."""
    [rank] = evidence.ranks
    between = "\nDuring handling of the above exception, another exception occurred:\n\n"
    return Evidence((replace(rank, output=f"{printed(error)}{between}{rank.output}"),))


REFUSED = "ConnectionRefusedError: [Errno 111] Connection refused"
OF_VICTIMS = {
    name: beside_another(EXAMPLES[name], printed("RuntimeError: bad luck")) for name in VICTIMS
}
OF_CULPRITS = {
    name: beside_another(EXAMPLES[name], printed("RuntimeError: barrier timed out"))
    for name in CULPRITS
}
NOT_ALONE = {name: after_another(EXAMPLES[name], REFUSED) for name in ALONE} | {
    "code-error-on-sigterm": after_another(EXAMPLES["code-error-on-sigterm"], "KeyError: 7"),
    "missing-module": after_another(EXAMPLES["missing-module"], "RuntimeError: bad luck"),
}


@pytest.mark.parametrize("rule", VICTIMS)
def test_what_one_suffers_when_another_fails_is_not_the_root_cause(rule: str) -> None:
    failure = judge(OF_VICTIMS[rule], Success(step=10))
    assert failure is not None
    assert (failure.rank, failure.rule) == (1, "plain-error")


@pytest.mark.parametrize("rule", CULPRITS)
def test_what_ends_a_process_without_a_word_is_the_root_cause_of_what_others_suffer(
    rule: str,
) -> None:
    failure = judge(OF_CULPRITS[rule], Success(step=10))
    assert failure is not None
    assert (failure.rank, failure.rule) == (0, rule)


@pytest.mark.parametrize("rule", NOT_ALONE)
def test_what_was_raised_while_another_error_was_handled_is_judged_by_both(rule: str) -> None:
    failure = judge(NOT_ALONE[rule], Success(step=10))
    assert failure is not None
    assert failure.rule != rule


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_each_rule_decides_about_its_example(rule: str) -> None:
    failure = judge(EXAMPLES[rule], Success(step=10))
    assert failure is not None
    assert failure.rule == rule


def test_each_example_is_of_a_rule() -> None:
    assert set(EXAMPLES) == {rule.name for rule in RULES}


def test_our_own_trainer_that_ends_before_its_first_step_is_not_asked_for_a_pattern() -> None:
    failure = judge(silent(code=0), Success(step=10, committed=True))
    assert failure is not None
    assert failure.rule == "early-exit"
