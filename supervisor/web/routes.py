"""What each address of `supervise serve` answers. No part of an address is ever a path: it is one
of these words, or the number of a job."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from importlib.resources import files

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from supervisor.web import pages
from supervisor.web.bounded_server import Answer, Request, Stream
from supervisor.web.job_facts import JobFacts, Unreadable
from supervisor.web.metric_families import JobMetrics
from supervisor.web.watched_jobs import Job, WatchedJobs

_HTML = "text/html; charset=utf-8"
_SCRIPT = "text/javascript; charset=utf-8"
_OF_A_JOB = re.compile(r"/job/([1-9][0-9]{0,3})/(events)?")
_HEARTBEAT = 15.0
"""Seconds after which a stream says something, so that nobody takes it for dead."""
_RETRY = b"retry: 3000\n\n"
_LOOK = 1.0


class Routes:
    """Answers the requests of a server that shows jobs."""

    def __init__(self, jobs: WatchedJobs, now: Callable[[], float] = time.time) -> None:
        """`now` returns the Unix time."""
        self._jobs = jobs
        self._now = now
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(JobMetrics(jobs.seen, now))
        self._script = files("supervisor.web").joinpath("live.js").read_bytes()

    def answer(self, request: Request) -> Answer | Stream:
        """Returns what the request gets."""
        match request.path:
            case "/":
                return self._overview()
            case "/events":
                return self._events(None)
            case "/metrics":
                encode, content_type = choose_encoder(request.accept)
                return Answer(encode(self._registry), content_type)
            case "/healthz":
                return Answer("ok\n")
            case "/readyz":
                return self._readiness()
            case "/live.js":
                return Answer(self._script, _SCRIPT)
        match = _OF_A_JOB.fullmatch(request.path)
        number = int(match[1]) if match is not None else 0
        if match is None or number > len(self._jobs.jobs):
            return Answer("there is no such page\n", status=HTTPStatus.NOT_FOUND)
        job = self._jobs.jobs[number - 1]
        return self._events(job.name) if match[2] else self._job(job)

    def _overview(self) -> Answer:
        changes, seen = self._jobs.changes(None), self._jobs.seen()
        jobs = [(job.name, seen.get(job.name)) for job in self._jobs.jobs]
        return Answer(pages.overview(jobs, self._now(), changes), _HTML)

    def _job(self, job: Job) -> Answer:
        changes, seen = self._jobs.changes(job.name), self._jobs.seen().get(job.name)
        if isinstance(seen, JobFacts):
            return Answer(pages.overview([(job.name, seen)], self._now(), changes), _HTML)
        why = seen.why if isinstance(seen, Unreadable) else "it was not looked at yet"
        return Answer(pages.unreadable(job.name, why, changes), _HTML)

    def _readiness(self) -> Answer:
        if self._jobs.are_all_seen:
            return Answer("ok\n")
        return Answer("some jobs were not looked at yet\n", status=HTTPStatus.SERVICE_UNAVAILABLE)

    def _events(self, name: str | None) -> Stream:
        return Stream(partial(next, _parts(self._jobs, name), None))


def _parts(jobs: WatchedJobs, name: str | None) -> Iterator[bytes]:
    """Yields the events of a stream: the number of changes, whenever it has grown."""
    told, last = -1, time.monotonic()
    yield _RETRY
    while True:
        if (changes := jobs.changes(name)) != told:
            told, last = changes, time.monotonic()
            yield b"data: %d\n\n" % told
        elif time.monotonic() - last > _HEARTBEAT:
            last = time.monotonic()
            yield b": still here\n\n"
        elif jobs.wait_for_change(name, told, _LOOK):
            yield b""
        else:
            return
