"""A server on this host that sends whatever it likes, and what comes of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from supervisor.adapters.platforms.gce_metadata import GceEvent
from supervisor.host import bounded_http

HEAD = b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nETag: 1\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
Sent = Callable[[], Iterator[bytes]]
BOUND = 60.0


@contextmanager
def server(pieces: Sent) -> Iterator[str]:
    """Answers one request with `pieces`, until the other side has closed."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(4096)
            try:
                for piece in pieces():
                    connection.sendall(piece)
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(BOUND)
        assert not thread.is_alive(), "the connection stays open"


def for_ever(first: bytes, then: bytes) -> Sent:
    def pieces() -> Iterator[bytes]:
        yield first
        while True:
            yield then

    return pieces


def drip(first: bytes) -> Sent:
    def pieces() -> Iterator[bytes]:
        yield first
        silence = threading.Event()
        while not silence.wait(0.02):
            yield b"x"

    return pieces


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(for_ever(CHUNKED + b"-1\r\n", b"x" * 65536), id="a chunk of all there is"),
        pytest.param(for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 99), id="continue"),
        pytest.param(for_ever(CHUNKED + b"0\r\n", b"a: b\r\n" * 1000), id="trailers"),
        pytest.param(for_ever(CHUNKED, b"1\r\nx\r\n" * 1000), id="small chunks"),
    ],
)
def test_an_answer_without_end_is_not_read(pieces: Sent) -> None:
    with (
        server(pieces) as host,
        pytest.raises(OSError, match="the answer has more than 65536 bytes"),
    ):
        bounded_http.get(host, "/", {}, seconds=BOUND, most=1 << 20)


@pytest.mark.parametrize("first", [b"", HEAD, HEAD + b"Content-Length: 4000\r\n\r\n"])
def test_an_answer_that_drips_is_an_error_once_the_time_is_over(first: bytes) -> None:
    with (
        server(drip(first)) as host,
        pytest.raises(TimeoutError, match=r"no whole answer within 0\.5 s"),
    ):
        bounded_http.get(host, "/", {}, seconds=0.5, most=4096)


@pytest.mark.parametrize("size", [b"-5", b"x", b""])
def test_a_chunk_of_no_size_is_an_error_of_the_server(size: bytes) -> None:
    with server(lambda: iter([CHUNKED + size + b"\r\nTRUE\r\n"])) as host, pytest.raises(OSError):  # noqa: PT011
        bounded_http.get(host, "/", {}, seconds=BOUND, most=4096)


@pytest.mark.parametrize("host", ["a..b", ".", "x" * 64, "\udcff", "127.0.0.1:x", "a b"])
def test_a_host_that_cannot_be_one_is_an_error_to_be_told(host: str) -> None:
    with pytest.raises(OSError, match=r"."):
        GceEvent(host, "instance/preempted").look()


def test_a_whole_answer_comes_as_it_is() -> None:
    with server(lambda: iter([HEAD + b"Content-Length: 4\r\n\r\n", b"TR", b"UE"])) as host:
        answer = bounded_http.get(host, "/", {}, seconds=BOUND, most=4096)
    assert (answer.status, answer.headers["ETag"], answer.body) == (200, "1", b"TRUE")
