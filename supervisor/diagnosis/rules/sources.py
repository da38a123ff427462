"""The source of each rule's words: what prints them, and cases in tests/corpus that contain them.

A library's types and words are named by its source file. "Cases" are failures that were staged,
provoked or met (`tests/corpus/*.jsonl`); `python -m tests.corpus_report --all` prints the rule of
each. docs/reference/verdicts.md says how often each rule was right.
"""

from __future__ import annotations

_PYTHON = "Python's own exceptions (docs.python.org/3/library/exceptions.html)"
_ERRNO = "errno(3) and strerror(3) of Linux"
_SIGNALS = "signal(7) of Linux"
_GCS = "cloud.google.com/storage/docs/json_api/v1/status-codes"
_GRPC = "grpc.io/docs/guides/status-codes"
_TABLES = "see the comments in rules/tables.py"
_STATUS = "abseil.io/docs/cpp/guides/status-codes"
_OURS = "facts that the supervisor has about its own attempt"

SOURCES = {
    "invalid-config-alone": "types of pydantic, absl, PyYAML, toml; cases pydantic, toml, yaml",
    "unparsable": f"{_PYTHON}; cases imp-syntax, indent, composed-13",
    "broken-program-alone": f"{_PYTHON}: what eval and ast.literal_eval cannot parse",
    "own-error": f"{_PYTHON}; cases axisname, badtype, circ, grad, scan, attr-jax",
    "jax-shapes": "jax _src/lax/lax.py, lax/convolution.py, lax/slicing.py, api.py, "
    "numpy/array_methods.py; opt_einsum contract.py; cases add, dot, vmap",
    "program-error-alone": f"{_PYTHON}; cases attr, optax-schedule-type",
    "no-standard-input": "input() of Python: EOF when reading a line",
    "missing-key": f"{_PYTHON}; cases keyenv, composed-04",
    "devices-missing": "trainer/mesh.py",
    "devices-differ": "trainer/mesh.py",
    "unusable-reward": "trainer/rewards.py",
    "reward-not-finite": "trainer/rewards.py",
    "bad-data": "supervisor/config/training/data_files.py",
    "damaged-tokens": "trainer/token_store.py",
    "no-usable-checkpoint": "trainer/checkpoint_steps.py",
    "pretrained-model": "supervisor/config/training/pretrained.py",
    "weights-not-finite": "trainer/not_finite.py",
    "state-not-finite": "trainer/inflight.py",
    "foreign-checkpoint": "trainer/checkpoint_steps.py",
    "unmarked-checkpoint": "trainer/checkpoint_steps.py",
    "checkpoint-unreadable": "trainer/checkpoint_steps.py",
    "fenced": "trainer/fence.py",
    "ended-by-scheduler": "Slurm's slurmd/slurmstepd/req.c; submitit's job_environment.py",
    "disk-full": f"{_ERRNO}: ENOSPC, EDQUOT; cases full, shm-missing",
    "disk-full-silently": "statvfs(3) of model_dir, beside an error about writing",
    "short-write": "numpy ctors.c and convert.c, torch inline_container.cc, HDF5 H5FDsec2.c, "
    "Go's io.ErrShortWrite, GNU tar",
    "resource-limit": f"{_PYTHON}: MemoryError; Ray's types; cases aslim, npmem",
    "killed-told": "bash and dash: strsignal(3); GNU make job.c; Go's os/exec",
    "rank-killed": "torch distributed/elastic/multiprocessing: api.py, errors/__init__.py; "
    "Python's subprocess and multiprocessing",
    "resource-limit-text": f"{_ERRNO}, setrlimit(2), XLA's env.cc, NCCL's shm.cc; "
    "cases emfile, fsize, composed-18, composed-35",
    "offline": "huggingface_hub utils/_http.py and file_download.py",
    "no-such-place": "huggingface_hub errors.py; case hf-repo-401",
    "no-such-place-text": "huggingface_hub utils/_http.py",
    "tracker-refused": "wandb sdk/wandb_config.py, W&B's server, mlflow store/tracking; "
    "wandb #1192, SimpleTuner #108; cases mlflow-param-conflict, wandb-value-changed",
    "rejected-credentials": f"{_TABLES}; case gcs-401-restore",
    "expired-credentials": f"google.auth, botocore, RFC 6749 and 6750, {_GCS}; "
    "case gauth-invalid-grant",
    "quota-code": f"{_GCS}; {_TABLES}; case gcs-403-quota",
    "rate-limit": f"{_GCS}; {_TABLES}",
    "quota": _GCS,
    "no-capacity": "the replies of the TPU, Compute Engine and EC2 APIs to a request for machines",
    "server-full": f"database error codes; {_TABLES}",
    "passing-code": f"RFC 9110, {_GCS}; cases gcs-500-restore, gauth-token-503, hf-429, refused",
    "passing-call": _GRPC,
    "broken-transfer": "requests, urllib3, google-resumable-media; cases expected-bytes, "
    "gcs-checksum-mismatch",
    "broken-answer": "http.client, aiohttp, h11",
    "broken-download": "huggingface_hub, hf_xet, torch.hub; cases hf-xet-body, hf-consistency",
    "refused-code": f"RFC 9110, {_TABLES}; cases gcspy-404, gcs-bucket-404, s3-nobucket",
    "refused-call": _GRPC,
    "refused-request": "requests, botocore and wandb on a request that cannot be sent; "
    "case wandb-usage",
    "message-too-large": "gRPC's max_receive_message_length; case io-grpc-too-large",
    "lost-upload": "cloud.google.com/storage/docs/resumable-uploads",
    "passing-type": "redis-py, PyMongo, huggingface_hub; case hf-localentry",
    "passing-words": "redis-py, PyMongo, paramiko, etcd; cases ssh-kex, etcd-noleader, sockto",
    "storage": f"{_ERRNO}, libcurl, requests; cases dns, mp-init-missing-peer-h0",
    "follows-a-loss": "gloo transport/tcp/pair.cc, a rank killed in an all-reduce; libtpu, "
    "torch and Megascale as in programs-differ",
    "programs-differ": "jax _src/dispatch.py, gloo transport/tcp/pair.cc, jaxlib "
    "(RuntimeProgramInputMismatch), openxla.org/xla: Megascale errors; cases differput, differgloo",
    "programs-may-differ": "libtpu's launch groups, as logs of levanter and marin show them",
    "cluster-misconfigured": "jax _src/distributed.py, jaxlib's coordination service; "
    "cases distaddr, disttwice, proc-id",
    "compile": "libtpu's compiler (error codes of the E1000s), jax _src/pallas/mosaic; "
    "cases tpu-pallas-unimplemented, tpu-mosaic-int4, hbm-compile, mosaic-unaligned",
    "compiler-abort": "XLA's and LLVM's own stacks: Reactant.jl #1097, marin #1921; "
    "cases abort-spmd, abort-dataflow",
    "compiler-crash": "Abseil's failure_signal_handler.cc; jax #9642",
    "compiler-abort-reported": "openxla #47370, LLVM's report_fatal_error",
    "compile-reported": "XLA's compilers and ptxas; case triton-smem",
    "device-assert": "libtpu's core dumps, Mosaic's check at a kernel's exit, CUDA_ERROR_ASSERT",
    "hardware": "libtpu, CUDA driver API (CUresult), NVIDIA's Xid catalog",
    "device-fault": "CUDA driver API (CUresult), torch, NVIDIA's Xid catalog; case cuda-unknown",
    "follows-a-halt": "libtpu 0.0.42.1; pytorch/xla #8459",
    "silent-corruption": "trainer/corruption_check.py",
    "core-halted": "libtpu 0.0.42.1, openxla.org/xla/errors/error_0200; jax #9642 and #19118, "
    "vllm-project/tpu-inference #3405; case tpu-unknown-core",
    "backend-missing": "jax _src/xla_bridge.py, ld.so, CUDA driver API; cases so, unkbackend",
    "busy-accelerator": f"libtpu, {_ERRNO}; case tpu-metadata",
    "gpu-library": "xla stream_executor/cuda/cuda_dnn.cc; jax #15361 and #22626",
    "port-in-use": f"{_ERRNO}: EADDRINUSE; jaxlib (Failed to start RPC server); case addr",
    "backend-failed": "jax _src/xla_bridge.py, NVML, cuDNN and cuBLAS statuses; "
    "case nvml-driver-mismatch",
    "backend-unseen": "jax 0.10.2 _src/xla_bridge.py: backends() with JAX_PLATFORMS=cuda",
    "launcher-sigterm": "torch.distributed.elastic: SignalException",
    "launcher-hangup": "torch.distributed.elastic: SignalException, _terminate_process_handler",
    "lost-peer": "jaxlib's coordination service, gloo, NCCL; cases mp-coord-sigkill-h1, "
    "mp-idle-kill-h0, mp-gloo-reset-h0",
    "transfer-abort": "XLA's own stacks in collectives and transfers",
    "lost-worker": "grain, multiprocessing, Ray; cases grain-worker-segv, pool, ray-actor-sigkill",
    "compile-call": "frames of jax _src/compiler.py; case composed-38",
    "corrupt-checkpoint": "tensorstore's OCDBT and Zarr drivers, Orbax; cases ckpt-ocdbt-bitflip, "
    "ckpt-manifest-empty, orbtrunc",
    "undecodable-while-restoring": "msgpack, zipfile, pickle; cases msgpack, npz, pickle",
    "undecodable-in-a-restore": "msgpack; case msgpack_nostage",
    "unreadable-while-restoring": "json; case orbmeta",
    "unreadable-in-a-restore": "json, struct",
    "incomplete-checkpoint": "tensorstore's Zarr driver",
    "undecodable-data": "gzip, pickle, zlib; cases gzipdata, pickledata",
    "out-of-memory": "XLA's allocators, CUDA driver API; cases oom, oom-cpu-runtime, composed-26",
    "not-finite": "jax_debug_nans, jax_debug_infs, optax; cases nandebug, infdebug",
    "not-finite-text": "chex, checkify and programs' own checks; cases nan-abort, checkifynan",
    "checkpoint-structure": "flax/serialization.py, orbax/checkpoint, jax.tree; "
    "cases orbshape, orbtree, ckpt-legacy-structure, optax-tree",
    "checkpoint-mismatch": "orbax/checkpoint, torch load_state_dict and default_planner.py; "
    "case orbexists",
    "checkpoint-destination": "orbax/checkpoint",
    "check": "jax _src/checkify.py; cases checkify-oob, checkifyuser",
    "chex": "chex/_src/asserts_internal.py; cases chexrank, chexclose",
    "shapes": "jax _src/named_sharding.py, api_util.py, lax/lax.py, shard_map.py, array.py; "
    "cases axis, devmix, shmapdiv, static, callback-shape",
    "shapes-reported": "numpy, jax _src/array.py, mesh_utils.py; cases donated, meshprod, rtreq",
    "data-range": "checks of programs and data loaders; cases data-token-range, grain-index",
    "no-such-object": "tensorstore's drivers, transformers; cases tsmissing, tok-missing",
    "check-your-connection": "transformers utils/hub.py",
    "data-loss": _STATUS,
    "unavailable": _STATUS,
    "invalid": _STATUS,
    "program-missing": "python, execve(2) and shells; cases composed-10, composed-11",
    "package-missing": "pip, uv",
    "usage": "argparse, absl flags, click, Hydra; cases argparse, absl, xlaflag, composed-07",
    "shared-library": "glibc elf/dl-load.c, musl ldso/dynlink.c; cases imp-lib-missing-so, "
    "libgl-missing",
    "symbol-missing": "glibc elf/dl-lookup.c and elf/dl-version.c, musl ldso/dynlink.c; "
    "cases glibc-old, extension-of-another-torch",
    "versions-differ": "XLA's cuda_dnn.cc, h5py, torch; jax #15361, jaxlib-feedstock #329",
    "openmp-twice": "LLVM openmp/runtime/src/i18n/en_US.txt: DuplicateLibrary; case openmp-twice",
    "accelerator-absent": "torch/cuda/__init__.py, c10/cuda/CUDAFunctions.cpp",
    "container-refused": "docker, runc, libnvidia-container, the kubelet; for-win #11309",
    "submission-refused": "Slurm's common/slurm_errno.c; kubectl; Open MPI's help texts",
    "build-failed": "pip, setuptools, ninja and GCC",
    "archive-damaged": "GNU tar and gzip; case wrapper-tar-truncated",
    "native-check": "glog and Abseil; marin #3693, pytorch/xla #8591, transformers #12771",
    "refused-instruction-told": "bash and dash: strsignal(3)",
    "interrupted": f"{_PYTHON}; case kbd",
    "tracing": "jax _src/errors.py, sharding.py, core.py, flax/errors.py; cases bool, int, leak, "
    "trace-np-array, nnx-tracelevel",
    "not-implemented": f"{_PYTHON}; case notimpl",
    "own-assertion": f"{_PYTHON}; cases plain-assert, callbackassert, composed-01",
    "assertion": f"{_PYTHON}; case cudaenv",
    "invalid-config": "types of pydantic, OmegaConf, absl, PyYAML, raised of another error",
    "missing-module": f"{_PYTHON}; cases imp-missing-module, importname, ray-actor-init-exc",
    "broken-program": f"{_PYTHON}; importlib.metadata, setuptools",
    "timeout": "types of concurrent.futures, queue, requests, Ray; case mpto",
    "connection": f"{_PYTHON}; types of requests, aiohttp, httpx; case composed-25",
    "unschedulable": "Ray; case ray-resources",
    "pipe": f"{_PYTHON}; multiprocessing, concurrent.futures",
    "lost-actor": "types of ray.exceptions",
    "expired-login": "types of google.auth, botocore, huggingface_hub",
    "file-exists": _PYTHON,
    "missing-file": f"{_PYTHON}; cases cfg-data-missing, perm, orbro",
    "file-exists-text": f"{_ERRNO}: EEXIST",
    "missing-file-text": f"{_ERRNO}; case disk-rofs",
    "program-error": f"{_PYTHON}; types of flax, optax, haiku; cases flax-param-shape, flax-rng",
    "stated-requirement": "checks of programs; cases arrec, rtmiss, rtunk",
    "plain-error": f"{_PYTHON}; cases ulimit-user, io-registry-409",
    "suspected-connection": "transformers utils/hub.py; huggingface_hub file_download.py",
    "code-error-on-sigterm": "SIGTERM, of which the worker's bootstrap tells",
    "exception-on-sigterm": "SIGTERM, of which the worker's bootstrap tells",
    "io-error": "types of the libraries in speakers.py; cases io-urllib-junk, io-sqlite-open",
    "exception": "any exception; cases queue, composed-39",
    "guard-lost": _OURS,
    "host-oom-kill": "memory.events of cgroup v2 (docs.kernel.org/admin-guide/cgroup-v2.html)",
    "sigterm": f"{_SIGNALS}; cases sigterm, composed-02",
    "sigkill": f"{_SIGNALS}, memory.events of cgroup v2",
    "sigkill-or-memory": f"{_SIGNALS}; cases sig-kill-plain, oom-kill-cgroup",
    "hangup": f"{_SIGNALS}; case sig-hup",
    "limit-signal": f"{_SIGNALS}, setrlimit(2)",
    "bus-error": f"{_SIGNALS}: SIGBUS, mmap(2)",
    "refused-instruction": f"{_SIGNALS}: SIGILL, SIGFPE",
    "crash": f"{_SIGNALS}; cases segv, composed-05",
    "abort": f"{_SIGNALS}; case abrt",
    "not-executable": "POSIX shells: 126 and 127; case composed-09",
    "ended-on-sigterm": _OURS,
    "background": _OURS,
    "no-step-told": _OURS,
    "early-exit": _OURS,
    "unknown": "any end",
}
"""The source by the rule's name. Rules from the config have none."""
