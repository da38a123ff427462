"""The objects of a bucket, on emulators of both services, with real faults between."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from botocore.loaders import JSONFileLoader
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from supervisor.adapters.stores.bucket import bucket
from supervisor.ports import ConflictError, Listing, Objects, UnavailableError
from supervisor.protocol.location import Uri
from supervisor.protocol.reading import UnreadableError
from tests.emulators import PAGE, Emulator
from tests.faulty_store import (
    EXPIRED,
    FORBIDDEN,
    LOST_ANSWER,
    NO_BUCKET,
    RESET,
    SILENCE,
    Answer,
    Fault,
    FaultyStore,
    Plan,
    Request,
    answered,
    answered_s3,
    slow,
)
from tests.forked import forked

JSON = (("Content-Type", "application/json"),)
_NEEDED = {"gs": ("gcs", "google.auth.transport.requests"), "s3": ("s3", "botocore.session")}


@pytest.fixture
def objects(place: Uri) -> Objects:
    return bucket(place)


def service_account(token_uri: str) -> str:
    """The key of a service account."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    account = {
        "type": "service_account",
        "project_id": "p",
        "client_email": "sa@p",
        "private_key": key.decode(),
        "token_uri": token_uri,
    }
    return json.dumps(account)


def always(fault: Fault) -> Plan:
    return lambda asked: fault


def first(count: int, fault: Fault) -> Plan:
    """The first `count` requests fail."""
    return lambda asked: fault if asked.count < count else None


def all_operations(objects: Objects) -> None:
    version = objects.write("a/b", b"one", expected="")
    assert objects.read("a/b").version == version
    assert objects.read("a/b").data == b"one"
    assert objects.exists("a/b")
    assert objects.list("a") == Listing({"b": 3}, frozenset())
    objects.delete("a/b")
    assert not objects.exists("a/b")


def test_what_is_written_is_there(objects: Objects, place: Uri) -> None:
    assert objects.list("") == Listing({}, frozenset())
    contents = {
        "empty": b"",
        "journal.jsonl.parts/00000001-000000000000-000000000002": bytes(range(256)) * 9,
        "with space/and+more%20?#/ä": b"1",
        "a": b"2",
        "a/b/c": b"3",
        "a/d": b"4",
    }
    for path, data in contents.items():
        objects.write(path, data)
    for path, data in contents.items():
        assert objects.read(path).data == data
        assert objects.exists(path)
    folders = frozenset({"journal.jsonl.parts", "with space", "a"})
    assert objects.list("") == Listing({"empty": 0, "a": 1}, folders)
    assert objects.list("a") == Listing({"d": 1}, frozenset({"b"}))
    assert objects.list("with space/and+more%20?#") == Listing({"ä": 1}, frozenset())
    assert place.path in bucket(Uri(place.scheme, place.bucket)).list("").folders
    assert not objects.exists("a/b"), "a place is no object"
    objects.delete("a")
    objects.delete("a")
    assert not objects.exists("a")
    with pytest.raises(FileNotFoundError):
        objects.read("a")


def test_more_than_one_page_is_listed_whole(objects: Objects, store: FaultyStore) -> None:
    with ThreadPoolExecutor(8) as threads:
        names = [f"{number:03}" for number in range(PAGE + 1)]
        list(threads.map(lambda name: objects.write(name, b"x"), names))
    asked = len(store.requests)
    assert sorted(objects.list("").objects) == names
    assert len(store.requests) - asked == 2


def test_what_is_larger_than_it_should_be_is_not_read(objects: Objects, place: Uri) -> None:
    objects.write("a", b"x" * 3_000_000)
    assert len(objects.read("a", 3_000_000).data) == 3_000_000
    with pytest.raises(UnreadableError, match="has more than 2999999 bytes"):
        objects.read("a", 2_999_999)


def test_a_write_replaces_only_what_it_expects(objects: Objects) -> None:
    one = objects.write("x", b"one", expected="")
    with pytest.raises(ConflictError):
        objects.write("x", b"again", expected="")
    two = objects.write("x", b"two", expected=one)
    assert two != one
    with pytest.raises(ConflictError):
        objects.write("x", b"three", expected=one)
    assert objects.read("x").data == b"two"
    objects.delete("x")
    with pytest.raises(ConflictError):
        objects.write("x", b"four", expected=two)
    assert not objects.exists("x")


def test_of_many_at_once_one_is_first(place: Uri) -> None:
    shared = bucket(place)

    def create(number: int) -> int:
        objects = shared if number % 2 else bucket(place)
        try:
            objects.write("x", f"{number}".encode(), expected="")
        except ConflictError:
            return 0
        return 1

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(create, range(16))) == 1


@pytest.mark.parametrize(
    "fault",
    [
        answered(429, "rateLimitExceeded"),
        answered_s3(503, "SlowDown", "Please reduce your request rate."),
        answered(500),
        RESET,
    ],
    ids=["429", "503", "500", "reset"],
)
def test_what_passes_is_tried_again(place: Uri, store: FaultyStore, fault: Fault) -> None:
    failed: set[str] = set()

    def plan(asked: Request) -> Fault | None:
        """Each operation fails the first time."""
        operation = f"{asked.method} {asked.target.partition('?')[0]}"
        is_new = operation not in failed
        failed.add(operation)
        return fault if is_new else None

    store.plan = plan
    all_operations(bucket(place))
    assert len(failed) >= 3


def test_expired_credentials_are_looked_for_again(objects: Objects, store: FaultyStore) -> None:
    all_operations(objects)
    store.plan = first(len(store.requests) + 1, EXPIRED[store.upstream.scheme])
    all_operations(objects)


@pytest.mark.parametrize("fault", [answered(503), SILENCE, RESET], ids=["503", "silence", "reset"])
def test_what_lasts_is_told_within_the_bound(place: Uri, store: FaultyStore, fault: Fault) -> None:
    store.plan = always(fault)
    objects = bucket(place, bound=1.0)
    with pytest.raises(UnavailableError, match=str(place / "x")):
        objects.read("x")
    with pytest.raises(UnavailableError):
        objects.write("x", b"")


@pytest.mark.parametrize("size", [1000, 0], ids=["body", "headers"])
def test_an_answer_that_drips_is_given_up_within_the_bound(
    place: Uri, store: FaultyStore, size: int
) -> None:
    """Each byte comes before the client's own timeout, and the last one never."""
    store.plan = always(Fault(answer=Answer(200, b"x" * size), drips=0.1))
    with pytest.raises(UnavailableError, match=str(place / "x")):
        bucket(place, bound=1.0).read("x")


def test_a_slow_answer_is_waited_for(objects: Objects, store: FaultyStore) -> None:
    store.plan = always(slow(0.1))
    objects.write("x", b"1")
    assert len(store.requests) == 1


def test_a_lost_answer(objects: Objects, store: FaultyStore) -> None:
    """A write is done once or twice; whose the conflict is that it has with itself, can be read."""
    store.plan = first(1, LOST_ANSWER)
    objects.write("x", b"any")
    store.plan = first(len(store.requests) + 1, LOST_ANSWER)
    with pytest.raises(ConflictError):
        objects.write("y", b"ours", expected="")
    assert objects.read("y").data == b"ours"


def test_what_a_person_must_mend_is_told_at_once(objects: Objects, store: FaultyStore) -> None:
    scheme = store.upstream.scheme
    refusals = {
        "create the bucket": NO_BUCKET[scheme],
        "403 .*sa@p .*; let these credentials": FORBIDDEN[scheme],
    }
    for words, fault in refusals.items():
        count = len(store.requests)
        store.plan = always(fault)
        with pytest.raises(OSError, match=words) as raised:
            objects.read("x")
        assert not isinstance(raised.value, UnavailableError | FileNotFoundError | ConflictError)
        assert len(store.requests) == count + 1


def test_a_store_that_tells_no_generation(
    gcs: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "c.yaml"
    init = f"{{model_dir: {gcs.root}, autorestart: {{max_num_restarts: 0}}}}"
    config.write_text(f"trainer: {{init: {init}, command: [/bin/true]}}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with FaultyStore(gcs, always(Fault(answer=Answer(200, b"{}", JSON)))).serving() as store:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.proxied.url)
        with pytest.raises(UnreadableError, match="x comes without its generation: STORAGE_"):
            bucket(gcs.root, bound=5.0).read("x")
        for argv in (["status", str(gcs.root)], ["run", str(config)]):
            done = forked(*argv)
            assert done.returncode == 74, done.stderr
            assert "lease.json comes without its generation: STORAGE_" in done.stderr


def test_a_bucket_that_is_not_there(store: FaultyStore) -> None:
    objects = bucket(Uri(store.upstream.scheme, "nowhere") / "x")
    operations: list[Callable[[], object]] = [
        lambda: objects.read("x"),
        lambda: objects.write("x", b""),
        lambda: objects.write("x", b"", expected=""),
        lambda: objects.delete("x"),
        lambda: objects.exists("x"),
        lambda: objects.list(""),
    ]
    for operation in operations:
        with pytest.raises(OSError, match="create the bucket, or correct model_dir") as raised:
            operation()
        assert type(raised.value) is OSError


def test_a_listing_that_is_not_found_is_no_bucket(objects: Objects, store: FaultyStore) -> None:
    """A server that is no store at all answers so, if its address is wrong."""
    store.plan = always(Fault(answer=Answer(404, b"<html>")))
    with pytest.raises(OSError, match=r"404: .*; create the bucket, or correct model_") as raised:
        objects.list("")
    assert type(raised.value) is OSError


def test_tokens_that_expire_early_are_renewed(
    gcs: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With real credentials, whose tokens come from a server of ours and are good for ten uses."""
    tokens = uses = 0
    is_revoked = False

    def plan(asked: Request) -> Fault | None:
        nonlocal tokens, uses
        if asked.target == "/token":
            if is_revoked:
                return Fault(answer=Answer(400, b'{"error": "invalid_grant"}', JSON))
            tokens, uses = tokens + 1, 0
            told = {"access_token": f"token{tokens}", "expires_in": 3600, "token_type": "Bearer"}
            return Fault(answer=Answer(200, json.dumps(told).encode(), JSON))
        uses += 1
        return None if uses <= 10 else EXPIRED["gs"]

    with FaultyStore(gcs, plan).serving() as store:
        monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
        monkeypatch.setattr("supervisor.adapters.stores.bucket._GOOGLE", store.proxied.url)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        (tmp_path / "key.json").write_text(service_account(f"{store.proxied.url}/token"))
        objects = bucket(gcs.root / uuid.uuid4().hex, bound=5.0)
        for _ in range(4):
            all_operations(objects)
        assert tokens == 3
        is_revoked, uses = True, 10
        with pytest.raises(UnavailableError, match="renew the credentials"):
            objects.read("x")


def test_no_credentials(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in emulator.env:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with pytest.raises(UnavailableError, match="give this host credentials"):
        bucket(emulator.root, bound=6.0).read("x")


def test_what_is_not_installed_is_told(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    extra, package = _NEEDED[emulator.scheme]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install '\.\[{extra}\]'"):
        bucket(emulator.root)


def test_clients_share_what_is_read_of_services(
    s3: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is 12 MB each, and a supervisor has several."""
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    bucket(s3.root).exists("x")
    load, read = JSONFileLoader.load_file, []

    def counted(loader: JSONFileLoader, path: str) -> object:
        read.append(path)
        return load(loader, path)

    monkeypatch.setattr(JSONFileLoader, "load_file", counted)
    bucket(s3.root).exists("x")
    assert read == []
