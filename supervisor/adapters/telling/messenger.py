"""Notifies people of what happens to the job (`init.notify`), and never makes the job wait.

Each receiver has a thread of its own, so that a broken one delays no other. What comes while the
thread is busy, or after several messages within a minute, waits and becomes one message, which says
how many it stands for. So there is no queue that could grow, and no flood.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from supervisor.core.allowance import Allowance
from supervisor.files.segments import RUN_LOG
from supervisor.host.notice import Notice, Tell
from supervisor.host.outlet import FLUSH_PATIENCE
from supervisor.host.retry import Pauses, Retry
from supervisor.narrative.notification import Notification, Notifications
from supervisor.narrative.rendered import RenderedTransition
from supervisor.protocol.messages import printable

FORMAT = 1
_AT_ONCE, _PER_MINUTE = 6.0, 6.0
_TRIES = Retry(Pauses(1.0, 8.0), tries=4)
_TITLES = 5
"""The titles that a message has of those that it stands for: the newest."""
_LOOK = 1.0

Body = Mapping[str, Any]
Deliver = Callable[[Body], None]
"""Delivers a message. It may block for a bounded time. Raises an OSError, or a `PassesError` if
another try may succeed."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """Who is notified, and of what."""

    name: str
    """The receiver in messages: the key of the config, without a secret."""
    kinds: frozenset[str]
    deliver: Deliver
    problem: str = ""
    """Why nothing can be delivered; empty: it can."""


class Messenger:
    """See `observers.LineObserver`."""

    def __init__(
        self,
        receivers: Sequence[Receiver],
        place: str,
        host: str,
        redact: Callable[[str], str],
        tell: Tell,
    ) -> None:
        """`place` is where the job is, for people. `tell` gets a notice about a receiver that
        cannot be reached, in any thread."""
        self._place = place
        self._host = host
        self._redact = redact
        self._notifications = Notifications()
        self._posts = [_Post(receiver, tell) for receiver in receivers]

    def observe(self, told: RenderedTransition) -> None:
        """See `observers.LineObserver`."""
        notification = self._notifications.take(told.lines)
        if notification is None:
            return
        body = self._body(told, notification)
        for post in self._posts:
            post.put(body)

    def close(self, patience: float = FLUSH_PATIENCE) -> str | None:
        """Deliver what waits, for at most `patience` seconds; returns what was not delivered, for
        people (None: nothing)."""
        end = time.monotonic() + patience
        for post in self._posts:
            post.shut()
        left = [post.name for post in self._posts if not post.ended(end - time.monotonic())]
        return f"the last message did not reach {', '.join(left)}" if left else None

    def _body(self, told: RenderedTransition, notification: Notification) -> Body:
        state = told.after
        log = f"{self._place}/{state.directory}/{RUN_LOG}" if state.directory is not None else None
        title, details = self._clean(notification.title), self._clean(list(notification.details))
        head = f"{state.job} on {self._host}: {title}"
        return {
            "v": FORMAT,
            "time": told.wall.timestamp(),
            "job": state.job,
            "host": self._host,
            "model_dir": self._place,
            "log": log,
            "on": list(notification.kinds),
            "attempt": state.attempt,
            **self._clean(notification.keys),
            "title": title,
            "details": details,
            "text": "\n".join((head, *details, *([f"log: {log}"] if log is not None else []))),
        }

    def _clean(self, value: Any) -> Any:
        """Returns `value` without secrets and control characters."""
        if isinstance(value, str):
            return printable(self._redact(value))
        if isinstance(value, dict):
            return {key: self._clean(each) for key, each in value.items()}
        return [self._clean(each) for each in value] if isinstance(value, list) else value


class _Post:
    """What waits for one receiver, and the thread that delivers it."""

    def __init__(self, receiver: Receiver, tell: Tell) -> None:
        self.name = receiver.name
        self._receiver = receiver
        self._tell = tell
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._allowance = Allowance(_AT_ONCE, _PER_MINUTE / 60)
        self._last: Body | None = None
        """The newest message that waits; None: none does."""
        self._counts: Counter[str] = Counter()
        self._number = 0
        """How many messages wait: `_last` stands for all of them."""
        self._titles: deque[str] = deque(maxlen=_TITLES)
        self._is_failing = False
        self._is_undelivered = False
        self._thread: threading.Thread | None = None
        if receiver.problem:
            self._failed(receiver.problem)

    def put(self, body: Body) -> None:
        """Have the message delivered, if the receiver wants it. Never waits."""
        if self._receiver.kinds.isdisjoint(body["on"]):
            return
        with self._changed:
            self._last = body
            self._number += 1
            self._counts.update(body["on"])
            self._titles.append(body["title"])
            self._changed.notify_all()
        self._begin()

    def shut(self) -> None:
        """Accept the end: deliver what waits without further pauses."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()

    def ended(self, patience: float) -> bool:
        """Whether all messages are delivered, or are within `patience` seconds."""
        if self._thread is None:
            return self._last is None
        self._thread.join(max(0.0, patience))
        return not self._thread.is_alive() and not self._is_undelivered

    def _begin(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name="messenger", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads are allowed now; the next message tries
            self._failed(error)
            return
        self._thread = thread

    def _run(self) -> None:
        while (body := self._next()) is not None:
            try:
                self._deliver(body)
            except Exception as error:
                self._is_undelivered = True
                self._failed(error)
            else:
                self._is_failing = self._is_undelivered = False

    def _deliver(self, body: Body) -> None:
        """Deliver a message, with all tries; raises what the last one raises."""
        if self._receiver.problem:
            raise OSError(self._receiver.problem)
        _TRIES.call(lambda _: self._receiver.deliver(body), sleep=self._pause)

    def _pause(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def _next(self) -> Body | None:
        """Wait until a message may be sent, and return it; None: closed, and nothing waits."""
        with self._changed:
            while True:
                if self._closing.is_set() or (self._last is not None and self._is_allowed()):
                    return self._taken()
                self._changed.wait(_LOOK if self._last is not None else None)

    def _is_allowed(self) -> bool:
        allowed, self._allowance = self._allowance.take(time.monotonic())
        return allowed

    def _taken(self) -> Body | None:
        body, number = self._last, self._number
        counts, titles = dict(self._counts), list(self._titles)
        self._last, self._number = None, 0
        self._counts.clear()
        self._titles.clear()
        return body if body is None or number == 1 else _digest(body, number, counts, titles)

    def _failed(self, error: Exception | str) -> None:
        if self._is_failing:
            return
        self._is_failing = True
        text = f"a message does not reach {self.name}: {error}; the job goes on"
        self._tell(Notice("notification-failed", text, key=self.name, reason=str(error)))


def _digest(
    last: Body, number: int, counts: Mapping[str, int], titles: Sequence[str]
) -> dict[str, Any]:
    """Returns one message for several, of which `last` is the newest."""
    kinds = ", ".join(f"{times} {kind}" for kind, times in counts.items())
    title = f"{number} messages ({kinds}); the last: {last['title']}"
    before = [f"before: {each}" for each in titles[:-1]]
    head, *rest = str(last["text"]).splitlines()
    head = head.replace(last["title"], title)
    return {
        **last,
        "on": list(counts),
        "number": number,
        "counts": counts,
        "title": title,
        "details": [*last["details"], *before],
        "text": "\n".join(
            (head, *rest[: len(last["details"])], *before, *rest[len(last["details"]) :])
        ),
    }
