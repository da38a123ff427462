"""Every format that the supervisor reads and somebody else may have written: a sample and a reader.

A reader goes the whole way from the bytes to what a person is told. A value that can be parsed but
not shown, replayed or judged is as bad as one that cannot be parsed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from supervisor.adapters.platforms.gce_metadata import GceEvent
from supervisor.adapters.platforms.preemption import AnnouncementFile, shown
from supervisor.adapters.processes.output import read_evidence
from supervisor.adapters.processes.progress import ProgressPipe
from supervisor.adapters.stores import lease_places
from supervisor.adapters.stores.checkpoint_watcher import newest_committed
from supervisor.adapters.stores.compile_cache import CompileCache
from supervisor.adapters.stores.fetch import epoch_after, fetch
from supervisor.adapters.stores.journal import FileJournal, JournalError
from supervisor.adapters.stores.lease import owner_of
from supervisor.adapters.stores.lock import OWNER, living_owner
from supervisor.adapters.stores.log_input import digest_of
from supervisor.adapters.stores.requests import ClearQuarantine, take_requests
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.adapters.telling.summary import Summary
from supervisor.cli.explained import OwnRules, explanation_body, explanation_lines
from supervisor.cli.status import show_status
from supervisor.config.problems import ConfigError
from supervisor.config.yaml_source import parse_value
from supervisor.core.events import SupervisorStarted
from supervisor.core.machine import step
from supervisor.diagnosis.explanation import explain
from supervisor.diagnosis.failure import Evidence, RankEvidence, WorkerExit
from supervisor.diagnosis.log_lines import processes
from supervisor.diagnosis.redaction import Redactor
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import judge
from supervisor.files.segments import JOURNAL, SUFFIX, Segment
from supervisor.host.identity import Identity
from supervisor.narrative.rendered import render_history
from supervisor.ports import AnnouncementSource
from supervisor.prepare import prepare
from supervisor.protocol import committed, simulated
from supervisor.protocol.failure_record import (
    FailureRecord,
    parse_failure_record,
    record_of,
    save_record,
)
from supervisor.protocol.messages import ProtocolError, StageMessage, StepMessage, decode, encode
from supervisor.protocol.messages import Stage as WorkerStage
from supervisor.protocol.reading import UnreadableError
from supervisor.provision import boot, intent
from tests.adapters.test_hostile_worker import PLAN
from tests.adapters.test_journal import POLICY, STORY, tell
from tests.corpus.shapes import SHAPES
from tests.fuzz.mutations import TOKENS, mutated
from tests.fuzz.other_targets import other_targets
from tests.fuzz.target import Target, in_file
from tests.memory_objects import MemoryObjects


@contextmanager
def targets(folder: Path) -> Iterator[list[Target]]:
    """Yield all formats, with files below `folder`."""
    with _answering() as (host, answer):
        job = [*_in_files(folder), *_in_memory(folder), *_of_servers(folder, host, answer)]
        yield [*job, *other_targets(folder, host, answer)]


def _in_files(folder: Path) -> Iterator[Target]:
    job = folder / "job"
    job.mkdir()
    tell(job, *STORY)
    journal = (job / JOURNAL).read_bytes()
    yield in_file("journal", journal, job / JOURNAL, lambda: _resumed(job), JournalError)
    shown = folder / "shown"
    yield in_file(
        "journal, shown", journal, shown / JOURNAL, lambda: _shown(shown), JournalError, ValueError
    )
    request = folder / "asked" / "requests" / "1.clear-quarantine.json"
    asked = folder / "asked"
    yield in_file("request", b'["5", "host2"]', request, lambda: _printed(_taken(asked)))
    owned = folder / "owned"
    owner = {**Identity.of_this_process().to_json(), "token": "0" * 32, "epoch": 3, "since": "now"}
    sample = json.dumps(owner).encode()
    yield in_file("owner", sample, owned / OWNER, lambda: _printed([str(living_owner(owned))]))
    leased = folder / "leased"
    place = lease_places.LeaseFile(LocalStorage(leased), 0.0)
    yield in_file(
        "lease",
        _lease(),
        leased / lease_places.LEASE,
        lambda: _printed([_owner(place.read().data)]),
    )
    for name, marker in (("1", "_CHECKPOINT_METADATA"), ("step-1", "metadata.json")):
        root = folder / f"checkpoints of {marker}"
        metadata = json.dumps({"commit_timestamp_nsecs": 17_000, "custom": {"a": [1]}}).encode()

        def checkpoints(root: Path = root) -> object:
            _printed(list(committed.unreadable_markers(root)))
            return newest_committed(root), committed.committed_at(root / "1")

        yield in_file(marker, metadata, root / name / marker, checkpoints)
    devices = folder / "simulated.json"
    yield in_file(
        "simulated devices",
        b'{"lost": ["3"], "wrong": ["5"]}',
        devices,
        lambda: simulated.read(devices),
        OSError,
        ValueError,
    )
    announced = folder / "announced"
    yield in_file(
        "announcement",
        b"maintenance at noon\n",
        announced,
        lambda: _announced(AnnouncementFile(announced)),
        OSError,
    )
    log = folder / "rank0.log"
    yield in_file("output", _LOG, log, lambda: _judged(output=read_evidence(log)))
    config = folder / "trainer.yaml"

    def prepared(data: bytes) -> object:  # a person's own file; it may be a pipe
        config.write_bytes(data)
        return prepare(config, [])

    yield Target("config", _CONFIG, prepared, (ConfigError,))
    yield from _cache(folder / "cache")


def _in_memory(folder: Path) -> Iterator[Target]:
    yield Target("failure record", _record(), _judged_record, (UnreadableError,))
    yield Target("message", encode(StageMessage(WorkerStage.TRAINING, 7)), decode, (ProtocolError,))
    lines = encode(StepMessage(7, {"loss": 1.5})) + encode(StageMessage(WorkerStage.SAVING))
    yield Target("progress pipe", lines * 3, _piped)
    yield Target("lease in a bucket", _lease(), lambda data: _printed([_owner(data)]))
    state = intent.ProvisionState("me", "config", intent.ProvisionStage.ENDED, 2, 4, exit_code=70)
    yield Target("provision.json", intent.encode(state), intent.decode, (ValueError,))
    report = b"failed installing\nline\nanother\n"
    yield Target("report", report, lambda data: boot.parse_report(data.decode("utf-8", "replace")))
    yield Target("--set", b"{a: [1, 0x1f, 1e-3], b: 5m}", _scalar, (ConfigError,))
    log = folder / "classified.log"

    def classified(data: bytes) -> object:
        log.write_bytes(data)
        return _explained(output=digest_of(str(log)))

    yield Target("log to classify", _LOG, classified)
    for name in ("compose", "levels", "docker-json", "gcp-json", "progress-bars"):
        sample = SHAPES[name](_LOG)
        yield Target(
            f"log of {name}", sample, lambda data: processes(data.decode(errors="replace"))
        )


def _of_servers(folder: Path, host: str, answer: Callable[[bytes], None]) -> Iterator[Target]:
    metadata = (
        b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nETag: 7a\r\nContent-Length: 4\r\n\r\nTRUE"
    )
    server = GceEvent(host, "instance/preempted")

    def look(data: bytes) -> None:
        answer(data)
        _announced(server)

    yield Target("metadata server", metadata, look, (OSError,))
    yield Target("bucket", _OBJECT, lambda data: _fetched(folder / "fetched", data), (OSError,))


# --- the ways ------------------------------------------------------------------------------------


def _announced(source: AnnouncementSource) -> None:
    """Check the text that a person gets for an announcement."""
    announcement = source.look()
    if announcement is not None:
        _printed([shown(announcement.text, str)])


def _printed(texts: list[str]) -> None:
    for text in texts:
        assert text.isprintable(), f"would move a cursor: {text[:200]!r}"


def _resumed(job: Path) -> object:
    """Read the journal as a supervisor does that starts in `job`."""
    storage = LocalStorage(job)
    history = FileJournal(storage).read()
    Summary(storage, [PLAN], POLICY, _ignore).replay(render_history(history.transitions, POLICY))
    return step(history.state, SupervisorStarted(0.0, "job", POLICY, 5), POLICY)


def _shown(job: Path) -> None:
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")):
        show_status(job)


def _taken(model_dir: Path) -> list[str]:
    told: list[str] = []
    heard = list(take_requests(model_dir, told.append, Identity.of_this_process()))
    cleared = (each.units for each in heard if isinstance(each, ClearQuarantine))
    return [*told, *(unit for units in cleared for unit in units)]


def _owner(data: bytes) -> str:
    return str(owner_of(data))


def _lease() -> bytes:
    owner = Identity.of_this_process().to_json()
    return json.dumps({"token": "0" * 32, "epoch": 3, "count": 7, "owner": owner}).encode()


def _record() -> bytes:
    try:
        raise ValueError("no such shape") from KeyError("x")
    except ValueError as error:
        told = record_of(error, rank=1, stage=WorkerStage.COMPILING, step=4)
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"fuzz-record-{os.getpid()}"
    save_record(told, str(path))
    try:
        return path.read_bytes()
    finally:
        path.unlink()


def _judged_record(data: bytes) -> object:
    return _judged(record=parse_failure_record(data))


def _judged(output: str = "", record: FailureRecord | None = None) -> object:
    rank = RankEvidence(WorkerExit(0, code=1), record, output)
    failure = judge(Evidence((rank,)), Success())
    assert failure is not None
    redact = Redactor({"TOKEN": "secret-value"}).text
    for text in (failure.root_cause, failure.traceback):
        redact(text).encode()
    return json.dumps(failure.cause)


def _explained(output: str) -> object:
    redact = Redactor({"TOKEN": "secret-value"}).text
    found = explain(
        Evidence((RankEvidence(WorkerExit(0, code=1), output=output),)), Success(), RULES, redact
    )
    assert found is not None
    _printed([*explanation_lines(found, ["rank0.log"], OwnRules())])
    return json.dumps(explanation_body(found, OwnRules()))


def _piped(data: bytes) -> object:
    messages: list[object] = []
    pipe = ProgressPipe(messages.append, lambda why: _printed([why]))
    os.write(pipe.write_end, data[: 1 << 16])
    pipe.close_write_end()
    while pipe.read():
        pass
    pipe.close()
    return messages


def _scalar(data: bytes) -> object:
    return parse_value(data.decode("utf-8", "replace"), ())


def _cache(folder: Path) -> Iterator[Target]:
    """Yield the compilation cache's formats: its list of checksums, and an entry that a worker
    wrote."""
    folder.mkdir()
    packed = zlib.compress(b"program" * 100)
    sums = folder / "SHA256SUMS"
    entry = folder / "live" / "jit_step-abc-cache"

    def settled() -> None:
        cache = CompileCache(folder, _ignore)
        cache.environment({})
        cache.finish_attempt()

    line = b"a" * 64 + b"  jit_step-abc-cache\n"
    yield in_file("SHA256SUMS", line * 3, sums, settled)
    yield in_file("compiled program", packed, entry, settled)
    frame = b"\x28\xb5\x2f\xfd\x20\x05\x29\x00\x00hello"
    yield in_file("compiled program, zstd", frame, entry, settled)


def _fetched(folder: Path, data: bytes) -> object:
    """Fetch a bucket whose objects have the content `data`, and names of all kinds."""
    rng = Random(data)
    folder.mkdir(exist_ok=True)
    objects = MemoryObjects()
    journal = b'{"v": 1}\n' * rng.randrange(3)
    pieces = [Segment(rng.randrange(3), 0, len(journal) or 1), Segment(1, 4, 9)]
    names = [f"{JOURNAL}{SUFFIX}/{piece.name}" for piece in pieces]
    names += ["20260101_000000_restartable/params.yaml", "drills/1", "compile_cache/x-cache"]
    if data != _OBJECT:
        hostile = ("drills/{}", "{}_restartable/x", JOURNAL + SUFFIX + "/{}")
        names += [form.format(_name(rng)) for form in hostile]
    for name in names:
        objects.write(name, rng.choice((journal, data)))
    fetch(objects, folder, "aside", lambda text: _printed([text]))
    return epoch_after(objects)


def _name(rng: Random) -> str:
    name = mutated(rng.choice(TOKENS), rng)[:300].decode("utf-8", "replace")
    return name.replace("/", "") or "x"


@contextmanager
def _answering() -> Iterator[tuple[str, Callable[[bytes], None]]]:
    """Run a server on this host; yields its address, and a function that sets the bytes of its
    answers."""
    answers = [b""]
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(1.0)
                connection.recv(65536)
                connection.sendall(answers[0])

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", lambda data: answers.__setitem__(0, data)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _ignore(text: str) -> None:
    assert text == text.strip()


_OBJECT = b"valid"
_LOG = b"""I1121 08:55:30.936021 1405 trainer.py:65] step 12
Traceback (most recent call last):
  File "/app/train.py", line 141, in <module>
    main()
jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/app/train.py", line 9, in main
ValueError: bad record 7
F1121 08:55:31.000000 1405 xla.cc:12] Check failed: a == b (1 vs. 2)
"""
_CONFIG = b"""trainer:
  init:
    model_dir: runs/x
    devices: {platform: cpu, count: 4}
    autorestart:
      max_num_restarts: 3
      grace_period: 5s
      backoff: {first: 1, max: 10}
      deadlines: {TRAINING: 60}
      rules:
      - {name: flaky, type: '*Error', regex: bad, verdict: RESTART, cause: x, reason: y, advice: z}
      - regex: bad
        verdict: FATAL
        certain: false
        examples: [bad, {text: a, stage: SAVING, exit_code: 3, decides: false, expect: RESTART}]
  command:
    argv: [python, train.py, "--dir={model_dir}"]
    env: {A: "1"}
    success: {exit_code: 0, step: 9}
    progress: {pattern: 'step (\\d+)'}
"""
