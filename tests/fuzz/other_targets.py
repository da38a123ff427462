"""Formats besides a job's own state: those that the trainer reads, the guard's record, and
secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from supervisor.adapters.platforms.secret_manager import SecretError, SecretManager
from supervisor.adapters.processes.leftovers import (
    UntrustedRecordError,
    environment_names_run,
    read_record,
)
from supervisor.adapters.stores.env_file import read_env_file
from supervisor.checkpoints import step_manifest
from supervisor.checkpoints.step_check import check_newest
from supervisor.config.training.pretrained import PretrainedError, read_shape
from supervisor.config.training.safetensors import read_headers
from supervisor.host import tree
from supervisor.host.identity import Identity
from supervisor.host.process_record import NAME, RecordOrigin, folder
from supervisor.protocol import environment
from supervisor.protocol.committed import MARKER
from tests.fuzz.target import Target, in_file
from trainer.fence import Fence, FencedError
from trainer.ledger import Ledger
from trainer.manifest import MANIFEST, DamagedError, read_manifest, write_manifest
from trainer.safetensors_writer import Written, write_weights
from trainer.slots import DamagedRecordError, Slots

_MODEL = Path(__file__).parents[1] / "training" / "pretrained" / "llama"


def other_targets(place: Path, host: str, answer: Callable[[bytes], None]) -> Iterator[Target]:
    """Yield these formats, with files below `place`. `host` answers with what was passed to
    `answer`."""
    yield _record(place / "guarded")
    variables = place / "variables"
    yield in_file(
        "env_file",
        b"A=1\nB='two words'\n",
        variables,
        lambda: _variables(variables),
        OSError,
        ValueError,
    )
    yield _ledger(place / "trained")
    yield _manifest(place / "trained" / "7")
    yield _step_manifest(place / "verified")
    yield _fence(place / "owner.json")
    yield Target("snapshot", _snapshot(), _resumed)
    yield from _pretrained(place / "pretrained")
    yield _secret(host, answer)


def _pretrained(model: Path) -> Iterator[Target]:
    """The files of a pretrained model: its shape, and the header of its weights."""
    config, weights = model / "config.json", model / "weights" / "model.safetensors"
    sample = (_MODEL / "config.json").read_bytes()
    yield in_file(
        "config.json", sample, config, lambda: read_shape(model), PretrainedError, OSError
    )
    tensors = {
        name: Written("F32", shape, partial(np.ones, shape))
        for name, shape in (("model.norm.weight", (4,)), ("lm_head.weight", (2, 3)))
    }
    weights.parent.mkdir(parents=True)
    write_weights(weights.parent, tensors, {"F32": np.float32}, 1 << 20)
    yield in_file(
        "safetensors",
        weights.read_bytes(),
        weights,
        lambda: read_headers(weights.parent),
        PretrainedError,
        OSError,
    )


def _record(model_dir: Path) -> Target:
    model_dir.mkdir()
    origin = RecordOrigin("0" * 12, "1" * 32, Identity.of_this_process(), folder(model_dir))
    sample = origin.to_bytes() + b'{"session": 5, "started": 7}\n'

    def look() -> object:
        found = read_record(model_dir)
        seen = tree.stat(os.getpid())
        who = partial(environment_names_run, origin.run)
        return found is not None and seen is not None and found.proves(os.getpid(), seen, who)

    return in_file(
        "record of sessions", sample, model_dir / NAME, look, UntrustedRecordError, OSError
    )


def _variables(path: Path) -> object:
    if not path.is_symlink() and path.is_file():
        path.chmod(0o600)
    return read_env_file(path)


def _ledger(directory: Path) -> Target:
    body = {"saving": None, "committed": {"7": 17_000}, "evicting": ["5"], "told": ["2023"]}
    ledger = Ledger(directory, {environment.JOB: "abc"})

    def look() -> object:
        return ledger.load(), ledger.owns(7, directory / "7")

    name = directory / "supervise_ledger_abc.json"
    return in_file("ledger", json.dumps(body).encode(), name, look, OSError)


def _manifest(step: Path) -> Target:
    step.mkdir(parents=True, exist_ok=True)
    (step / "data").write_bytes(b"content")
    write_manifest(step, {"model": "small"}, {"step": 7})
    sample = (step / MANIFEST).read_bytes()

    def look() -> None:
        manifest = read_manifest(step)
        assert manifest is None or manifest.files is not None

    file = step / MANIFEST
    return in_file("manifest", sample, file, look, DamagedError, OSError)


def _step_manifest(model_dir: Path) -> Target:
    directory = model_dir / "checkpoints"
    (directory / "7").mkdir(parents=True)
    for name in ("data", MARKER):
        (directory / "7" / name).write_bytes(b"content")
    file = step_manifest.manifest_file(step_manifest.manifest_folder(model_dir, directory), "7")
    manifest = step_manifest.make_manifest(directory / "7")
    assert manifest is not None
    step_manifest.write_manifest(file, manifest, below=model_dir)

    def look() -> object:
        """Whatever the manifest says, the step is as it was."""
        checked = check_newest(directory, model_dir, lambda: False)
        assert checked.newest == 7, [each.reason for each in checked.damaged]
        return checked

    return in_file("manifest of a step", file.read_bytes(), file, look)


def _fence(owner: Path) -> Target:
    fence = Fence("0" * 32, str(owner))
    sample = json.dumps({"token": "0" * 32, "epoch": 3}).encode()
    return in_file("owner, for the trainer", sample, owner, lambda: fence.check("x"), FencedError)


_PIECE = b"x" * 1000


def _snapshot() -> bytes:
    memory = os.memfd_create("fuzz")
    Slots(memory, [len(_PIECE)]).write(1, {"step": 7}, [memoryview(_PIECE)])
    data = os.pread(memory, 2000, 0)
    os.close(memory)
    return data


def _resumed(data: bytes) -> object:
    memory = os.memfd_create("fuzz")
    try:
        os.pwrite(memory, data, 0)
        slots = Slots(memory, [len(_PIECE)])
        header = slots.newest()
        return header is not None and list(slots.read(header, [len(_PIECE)]))
    except DamagedRecordError:
        return None
    finally:
        os.close(memory)


def _secret(host: str, answer: Callable[[bytes], None]) -> Target:
    body = b'{"access_token": "t", "payload": {"data": "dmFsdWU="}}'
    head = b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: %d\r\n\r\n" % len(body)
    names = {
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": f"http://{host}/",
        "GCE_METADATA_HOST": host,
    }

    def look(data: bytes) -> object:
        answer(data)
        manager = SecretManager(names, lambda seconds: None)
        return manager.value("projects/p/secrets/s/versions/1")

    return Target("secret manager", head + body, look, (SecretError, OSError))
