"""Strangers: what the server answers to those who are slow, many, rude or curious."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from supervisor.web.bounded_server import MAX_CONNECTIONS, MAX_REQUEST, MAX_STREAMS
from tests.web.served import Served, model_dir, served

HOST = b"Host: localhost\r\n"


def test_only_get_and_head_are_answered(tmp_path: Path) -> None:
    with served([tmp_path]) as it:
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "X" * 300):
            status, _, headers = it.get("/", method)
            assert (status, headers["allow"]) == (405, "GET, HEAD")
        (full, body, headers), (head, nothing, same) = (
            it.get("/healthz"),
            it.get("/healthz", "HEAD"),
        )
    assert (full, body) == (200, "ok\n")
    assert (head, nothing, same["content-length"]) == (200, "", headers["content-length"])


@pytest.mark.parametrize(
    "path",
    [
        *("/../../etc/passwd", "/..%2f..%2fetc/passwd", "//etc/passwd", "/job/1/../../etc/passwd"),
        *("/job/0/", "/job/2/", "/job/-1/", "/job/1", "/job/1/attempts", "/job/99999999999/events"),
        *("/live.js/..", "/metrics/", "http://evil.example/"),
    ],
)
def test_no_path_is_ever_one_of_the_file_system(tmp_path: Path, path: str) -> None:
    with served([tmp_path]) as it:
        answer = it.raw(b"GET %s HTTP/1.0\r\n%s\r\n" % (path.encode(), HOST))
    assert answer.startswith(b"HTTP/1.0 404 ")
    assert b"root:" not in answer


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "LOCALHOST", "127.0.0.1:8080"])
def test_a_name_of_this_machine_is_answered(tmp_path: Path, name: str) -> None:
    with served([tmp_path]) as it:
        assert it.get("/healthz", headers={"Host": name})[0] == 200


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:9090", "localhost.evil.example", ""]
)
def test_a_name_that_was_bent_to_this_machine_gets_nothing(tmp_path: Path, name: str) -> None:
    with served([model_dir(tmp_path / "job")]) as it:
        for path in ("/", "/metrics", "/events"):
            status, body, _ = it.get(path, headers={"Host": name})
            assert status == 421
            assert "SUCCEEDED" not in body


def test_nobody_may_embed_or_keep_a_page_or_have_it_run_other_scripts(tmp_path: Path) -> None:
    with served([tmp_path]) as it:
        for path in ("/", "/metrics", "/nothing"):
            headers = it.get(path)[2]
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe-eval" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert "access-control-allow-origin" not in headers
            assert headers["server"] == "supervise"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.0\r\n" + HOST + b"X: %s\r\n\r\n" % (b"a" * 60_000),
        b"GET / HTTP/1.0\r\n" + HOST + b"X: y\r\n" * 90_000 + b"\r\n",
        b"GET /%s HTTP/1.0\r\n" % (b"a" * MAX_REQUEST),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_what_is_no_request_ends_and_harms_nobody(tmp_path: Path, data: bytes) -> None:
    with served([tmp_path]) as it:
        assert b" 200 " not in it.raw(data)
        assert it.get("/healthz")[0] == 200


def test_who_says_nothing_or_too_little_is_cut_off(tmp_path: Path) -> None:
    with served([tmp_path], seconds_to_ask=0.5) as it:
        assert it.raw(b"") == it.raw(b"GET / HTTP/1.0\r\nHost: loc") == b""


def test_more_connections_than_there_is_room_for_are_refused_and_later_ones_are_served(
    tmp_path: Path,
) -> None:
    with served([tmp_path]) as it:
        held = [it.connection() for _ in range(MAX_CONNECTIONS)]
        over = [it.raw(b"GET /healthz HTTP/1.0\r\n" + HOST + b"\r\n") for _ in range(20)]
        for connection in held:
            connection.close()
        _wait_for_room(it)
        assert it.get("/healthz")[0] == 200
    assert all(b" 503 " in answer or not answer for answer in over)


def test_streams_leave_room_for_pages(tmp_path: Path) -> None:
    with served([tmp_path]) as it:
        held = []
        for _ in range(MAX_STREAMS):
            held.append(it.connection())
            held[-1].sendall(b"GET /events HTTP/1.0\r\n" + HOST + b"\r\n")
            assert held[-1].recv(1) == b"H"
        assert it.get("/events")[0] == 503
        assert it.get("/metrics")[0] == 200
        for connection in held:
            connection.close()
        _wait_for_room(it, b"/events")


def _wait_for_room(it: Served, path: bytes = b"/healthz") -> None:
    while True:
        with it.connection() as connection, suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(b"GET %s HTTP/1.0\r\n%s\r\n" % (path, HOST))
            if connection.recv(12) == b"HTTP/1.0 200":
                return
