"""Webhooks and commands that get messages may be broken or hostile."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.adapters.telling.deliveries import CommandDelivery, WebhookDelivery, as_slack
from supervisor.host.retry import PassesError
from tests.running import PATIENCE, eventually

BODY: dict[str, Any] = {
    "on": ["failure", "restart"],
    "title": "attempt 1: failed",
    "log": "/runs/mine/run.log",
    "text": "job1 on host1: failed <&>\nwhat to do: look",
}
SECRET = "/services/T0/verysecret"


class Hook:
    """A server that answers every POST with this status, and remembers what it got."""

    def __init__(self, status: int) -> None:
        got: list[tuple[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                got.append((self.path, json.loads(data)))
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self.got = got
        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}{SECRET}"


@contextmanager
def hook(status: int = 200) -> Iterator[Hook]:
    one = Hook(status)
    thread = threading.Thread(target=one.server.serve_forever, args=(0.01,))
    thread.start()
    yield one
    one.server.shutdown()
    thread.join()
    one.server.server_close()


def test_a_webhook_gets_what_slack_takes_or_all_of_it() -> None:
    with hook() as one:
        WebhookDelivery(one.url, "slack")(BODY)
        WebhookDelivery(one.url, "json")(BODY)
    assert one.got == [(SECRET, as_slack(BODY)), (SECRET, BODY)]
    assert as_slack(BODY) == {
        "text": "*job1 on host1: failed &lt;&amp;&gt;*\nwhat to do: look",
    }


@pytest.mark.parametrize(("status", "may_pass"), [(500, True), (429, True), (404, False)])
def test_what_may_pass_is_told_apart(status: int, may_pass: bool) -> None:
    with hook(status) as one, pytest.raises((OSError, PassesError)) as told:
        WebhookDelivery(one.url, "slack")(BODY)
    assert isinstance(told.value, PassesError) is may_pass
    assert str(told.value) == f"it answers {status}"


@pytest.mark.parametrize("status", [301, 302, 307])
def test_no_redirect_is_followed(status: int) -> None:
    with hook(status) as one, pytest.raises(OSError, match="a redirect"):
        WebhookDelivery(one.url, "slack")(BODY)
    assert len(one.got) == 1


def test_one_that_never_answers_takes_only_its_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}{SECRET}"
        with pytest.raises(PassesError, match=r"no answer within 0\.2 s"):
            WebhookDelivery(url, "slack", timeout=0.2)(BODY)


@pytest.mark.parametrize(
    "url",
    [
        f"http://127.0.0.1:1{SECRET}",
        f"https://127.0.0.1:1{SECRET}",
        f"http://no-such-host.invalid{SECRET}",
        f"http://user:verysecret@127.0.0.1:1{SECRET}",
        f"http://127.0.0.1:verysecret{SECRET}",
        "http://127.0.0.1:1/a b/verysecret",
    ],
)
def test_an_error_never_has_a_part_of_the_url(url: str) -> None:
    with pytest.raises(PassesError) as told:
        WebhookDelivery(url, "slack", timeout=PATIENCE)(BODY)
    assert "secret" not in str(told.value)
    assert "127.0.0.1" not in str(told.value)
    assert "no-such-host" not in str(told.value)


def test_a_self_signed_server_gets_nothing(tmp_path: Path) -> None:
    """A server that is no TLS server at all: nothing is sent in the clear."""
    with hook() as one, pytest.raises(PassesError):
        WebhookDelivery(one.url.replace("http:", "https:"), "slack")(BODY)
    assert one.got == []


@pytest.fixture
def deliver() -> Iterator[Callable[..., None]]:
    guard = GuardClient(print)
    path = {"PATH": os.environ["PATH"]}

    def run(*argv: str, timeout: float = PATIENCE) -> None:
        CommandDelivery(argv, path, guard, lambda text: text.replace("hunter2", "***"), timeout)(
            BODY
        )

    yield run
    while guard.kill():
        pass
    guard.dismiss()


def test_a_command_gets_the_message_on_standard_input_and_in_variables(
    deliver: Callable[..., None], tmp_path: Path
) -> None:
    body, names = tmp_path / "body", tmp_path / "names"
    deliver("sh", "-c", 'cat > "$1"; env | grep ^SUPERVISE_NOTIFY | sort > "$2"', "sh", body, names)
    assert json.loads(body.read_bytes()) == BODY
    assert names.read_text().splitlines() == [
        "SUPERVISE_NOTIFY_LOG=/runs/mine/run.log",
        "SUPERVISE_NOTIFY_ON=failure,restart",
        "SUPERVISE_NOTIFY_TITLE=attempt 1: failed",
    ]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (
            ("sh", "-c", "echo a; echo no hunter2 >&2; exit 3"),
            "it ended with exit code 3: no ***",
        ),
        (("sh", "-c", "kill -TERM $$"), "signal 15 ended it"),
        (("no-such-program-here",), "it ended with exit code 127: .*no-such-program-here"),
    ],
)
def test_a_command_that_fails_is_told_with_its_last_line(
    deliver: Callable[..., None], argv: tuple[str, ...], told: str
) -> None:
    with pytest.raises(PassesError, match=told.replace("***", r"\*\*\*")):
        deliver(*argv)


def test_a_command_that_floods_its_output_ends_well(deliver: Callable[..., None]) -> None:
    deliver("sh", "-c", "head -c 3000000 /dev/zero")


def test_a_command_that_takes_too_long_is_killed_with_its_children(
    deliver: Callable[..., None], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    script = 'sleep 3600 & echo $! > "$1.new"; echo $$ >> "$1.new"; mv "$1.new" "$1"; wait'

    while not pids.exists():  # on a loaded machine it may be killed before
        with pytest.raises(PassesError, match="it took more than 1 s, and was killed"):
            deliver("sh", "-c", script, "sh", str(pids), timeout=1.0)
    for pid in map(int, pids.read_text().split()):
        assert eventually(lambda: not Path(f"/proc/{pid}").exists())  # noqa: B023 (asked at once)
