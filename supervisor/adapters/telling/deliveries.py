"""Delivers a message to people: posts it to a webhook, or starts a command that gets it.

Both may be broken or hostile, and both are bounded in time and bytes. An error says what was wrong,
and never names the URL: whoever knows it can write to the channel.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Literal
from urllib.parse import urlsplit

from supervisor.host.aside import Aside
from supervisor.host.guard_socket import Started
from supervisor.host.retry import PassesError
from supervisor.host.waiting import has_ended
from supervisor.ports import ProcessStarter
from supervisor.protocol.messages import printable
from supervisor.protocol.shortening import keep_end

Body = Mapping[str, Any]
"""A message, as JSON."""

_POST_TIMEOUT = 10.0
_COMMAND_TIMEOUT = 30.0
_KILL_TIMEOUT = 2.0
_MAX_TEXT = 3000
"""Characters; Slack shows no more in one block."""
_MAX_SAID = 300
"""Characters of a command's output that people are shown."""
_CHUNK = 1 << 16
_MAY_PASS = (408, 425, 429)
"""Statuses below 500 after which another try may succeed."""


def as_slack(body: Body) -> dict[str, str]:
    """Returns the body as Slack takes it, and what is compatible with it."""
    title, *rest = str(body["text"]).splitlines()
    text = "\n".join((f"*{_escaped(title)}*", *map(_escaped, rest)))
    return {"text": text[:_MAX_TEXT]}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class WebhookDelivery:
    """Posts messages to one URL. TLS certificates are verified, and no redirect is followed."""

    def __init__(
        self, url: str, form: Literal["slack", "json"], timeout: float = _POST_TIMEOUT
    ) -> None:
        self._url = url
        self._form = form
        self._timeout = timeout
        self._place = Aside("the webhook", timeout)

    def __call__(self, body: Body) -> None:
        """Post one message.

        Raises:
            PassesError: it was not taken, and another try may succeed.
            OSError: it was not taken.
        """
        data = json.dumps(as_slack(body) if self._form == "slack" else body).encode()
        try:
            status = self._place.ask(lambda: _posted(self._url, data))
        except TimeoutError as error:
            raise PassesError(OSError(f"no answer within {self._timeout:g} s")) from error
        except Exception as error:
            raise PassesError(OSError(_why(error, self._url))) from None
        if 200 <= status < 300:
            return
        failed = OSError(f"it answers {status}" + (" (a redirect)" if 300 <= status < 400 else ""))
        if status >= 500 or status in _MAY_PASS:
            raise PassesError(failed)
        raise failed


def _posted(url: str, data: bytes) -> int:
    """Post `data` to `url`; returns the status of the answer."""
    import http.client  # slow to import, so only where there is a webhook
    import urllib.error
    import urllib.request

    class AsAnswers(urllib.request.HTTPRedirectHandler):
        """Follows no redirect: it would lead the message elsewhere."""

        def redirect_request(self, *arguments: object) -> None:
            return None

    headers = {"Content-Type": "application/json", "User-Agent": "supervise"}
    request = urllib.request.Request(url, data, headers, method="POST")
    try:
        with urllib.request.build_opener(AsAnswers).open(request, timeout=_POST_TIMEOUT) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except http.client.HTTPException as error:
        raise OSError(f"no valid HTTP answer ({type(error).__name__})") from error


def _why(error: Exception, url: str) -> str:
    """Returns the reason of a failed request. Its text may have a part of the URL: not this one."""
    if not isinstance(error, OSError):
        return type(error).__name__
    text = str(getattr(error, "reason", None) or error)
    found = urlsplit(url)
    for part in (url, found.netloc, found.path, found.query, found.hostname or ""):
        if len(part) > 1:
            text = text.replace(part, "[redacted]")
    return printable(f"{type(error).__name__}: {text}")[:_MAX_SAID]


class CommandDelivery:
    """Starts a command for each message, as a process of the job: the guard kills it with the
    others. It gets the message as JSON on standard input, and a few variables."""

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        starter: ProcessStarter,
        redact: Callable[[str], str],
        timeout: float = _COMMAND_TIMEOUT,
    ) -> None:
        """`redact` removes secrets from what the command prints, of which an error has the end."""
        self._argv = list(argv)
        self._environ = dict(environ)
        self._starter = starter
        self._redact = redact
        self._timeout = timeout

    def __call__(self, body: Body) -> None:
        """Deliver one message.

        Raises:
            PassesError: the command could not be started, failed, or took too long.
        """
        reads, writes = os.pipe()
        given = os.memfd_create("notification")
        try:
            os.write(given, json.dumps(body).encode())
            # The guard gives a process no standard input; a memory file is opened by its path.
            argv = ["/bin/sh", "-c", f'exec "$@" < /proc/self/fd/{given}', "sh", *self._argv]
            try:
                command = self._starter.start(
                    argv, self._environ | variables(body), writes, writes, (given,)
                )
            except OSError as error:
                raise PassesError(OSError(f"it cannot be started: {error.strerror}")) from error
            os.close(writes)
            writes = -1
            self._wait(command, reads)
        finally:
            for descriptor in (reads, given, *([writes] if writes >= 0 else [])):
                os.close(descriptor)

    def _wait(self, command: Started, output: int) -> None:
        """Wait for the end of the command, and raise a `PassesError` if it is no good one."""
        try:
            said, in_time = _followed(command.pidfd, output, self._timeout)
            if not in_time:
                with suppress(ProcessLookupError):  # it lives, so the group is its own
                    os.killpg(command.pid, signal.SIGKILL)
                has_ended(command.pidfd, _KILL_TIMEOUT)
            code = self._exit_code(command)
        finally:
            os.close(command.pidfd)
        if not in_time:
            raise PassesError(OSError(f"it took more than {self._timeout:g} s, and was killed"))
        if code != 0:
            last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
            why = keep_end(printable(self._redact(last)), _MAX_SAID)
            text = f"it ended with exit code {code}" if code >= 0 else f"signal {-code} ended it"
            raise PassesError(OSError(f"{text}: {why}" if why else text))

    def _exit_code(self, command: Started) -> int:
        try:
            while has_ended(command.pidfd):
                if (code := self._starter.exit_code(command)) is not None:  # it waits a moment
                    return code
        except ChildProcessError:
            pass
        return -signal.SIGKILL


def variables(body: Body) -> dict[str, str]:
    """Returns the variables that a command gets beside the message, shortened."""
    names = {"ON": ",".join(body["on"]), "TITLE": body["title"], "LOG": body["log"] or ""}
    return {f"SUPERVISE_NOTIFY_{name}": text[:_MAX_TEXT] for name, text in names.items()}


def _followed(pidfd: int, output: int, seconds: float) -> tuple[bytes, bool]:
    """Read the output of a process until it ends; returns the end of the output, and whether the
    process ended within `seconds`."""
    end, said = time.monotonic() + seconds, b""
    os.set_blocking(output, False)
    with closing(select.epoll()) as poll:
        poll.register(pidfd, select.EPOLLIN)
        poll.register(output, select.EPOLLIN)
        while (left := end - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in poll.poll(left)}
            if output in ready:
                with suppress(BlockingIOError):
                    chunk = os.read(output, _CHUNK)
                    said = (said + chunk)[-_CHUNK:]
                    if not chunk:
                        poll.unregister(output)
            elif pidfd in ready:
                return said, True
    return said, False
