"""Secret Manager over HTTP: what is asked, what may pass, and what a person has to mend."""

from __future__ import annotations

import pytest

from supervisor.adapters.platforms.secret_manager import SecretError, SecretManager
from tests.secret_store import SecretStore, dripping

VERSION = "projects/p/secrets/db/versions/latest"


def value(store: SecretStore, pauses: list[float] | None = None) -> str:
    waited: list[float] = [] if pauses is None else pauses
    with store.serving() as environ:
        return SecretManager(environ, waited.append).value(VERSION)


@pytest.mark.parametrize("data", [b"the-value", b"the-value\n", b"the-value\r\n"])
def test_a_value_is_what_stands_there(data: bytes) -> None:
    assert value(SecretStore({VERSION: data})) == "the-value"


def test_the_token_is_asked_for_once() -> None:
    store = SecretStore({VERSION: b"a"})
    with store.serving() as environ:
        manager = SecretManager(environ)
        assert [manager.value(VERSION) for _ in range(2)] == ["a", "a"]
    assert [path.rpartition("/")[2] for path in store.requests] == [
        "token",
        "latest:access",
        "latest:access",
    ]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_tried_again(status: int) -> None:
    pauses: list[float] = []
    assert value(SecretStore({VERSION: b"a"}, faults=[status, None, status, status]), pauses) == "a"
    assert pauses == [0.5, 0.5, 1.0]


def test_what_does_not_pass_is_told_as_such() -> None:
    with pytest.raises(OSError, match="answers with HTTP 503"):
        value(SecretStore({VERSION: b"a"}, faults=[503] * 4))
    unreachable = {"GCE_METADATA_HOST": "127.0.0.1:1"}
    with pytest.raises(OSError, match=r"127\.0\.0\.1:1 does not answer"):
        SecretManager(unreachable, lambda seconds: None).value(VERSION)


@pytest.mark.parametrize(
    ("store", "told"),
    [
        (SecretStore(), f"HTTP 404: Secret [{VERSION}] not found"),
        (SecretStore({VERSION: b"a"}, faults=[None, 403]), "HTTP 403: as the test wants it"),
        (SecretStore({VERSION: b"\xff"}), "is not text in UTF-8"),
        (SecretStore({VERSION: b"a\0b"}), "holds a NUL"),
        (SecretStore({VERSION: b"a"}, has_account=False), "has this machine a service account?"),
        (SecretStore({VERSION: b"a"}, genuine=False), "is not a metadata server"),
        (SecretStore({VERSION: b"a"}, token="the-token\n-of-it"), "answers is no token"),
        (SecretStore({VERSION: b"a"}, token="the-tok\u20ac"), "answers is no token"),
    ],
)
def test_what_a_person_has_to_mend(store: SecretStore, told: str) -> None:
    with pytest.raises(SecretError) as caught:
        value(store)
    assert told in str(caught.value)
    assert "the-tok" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    ["localhost:8080", "secretmanager.googleapis.com", "", "http://", "http://a:b", "http://["],
)
def test_an_address_that_is_none_is_told(address: str) -> None:
    environ = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": address}
    with pytest.raises(SecretError, match="OVERRIDES_SECRETMANAGER is not a valid address"):
        SecretManager(environ).value(VERSION)


def test_a_metadata_server_without_an_address_is_told() -> None:
    with pytest.raises(SecretError, match="nonnumeric port"):
        SecretManager({"GCE_METADATA_HOST": "metadata:x"}).value(VERSION)


@pytest.mark.parametrize("sent", ["token", "secret"])
def test_a_server_that_drips_is_given_up(sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, and the end never."""
    monkeypatch.setattr("supervisor.adapters.platforms.secret_manager._TIMEOUT", 0.5)
    pauses: list[float] = []
    with dripping() as host, SecretStore({VERSION: b"a"}).serving() as environ:
        if sent == "token":
            environ["GCE_METADATA_HOST"] = host
        else:
            environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"] = f"http://{host}/"
        with pytest.raises(OSError, match=r"does not answer: no whole answer within 0\.5 s"):
            SecretManager(environ, pauses.append).value(VERSION)
    assert pauses[-3:] == [0.5, 1.0, 2.0]
