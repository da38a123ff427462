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

from supervisor.web import web_pages as pages
from supervisor.web.bounded_server import Answer, Request, Stream
from supervisor.web.job_facts import JobFacts, ReportError, Unreadable
from supervisor.web.metric_families import JobMetrics
from supervisor.web.watched_jobs import Job, WatchedJobs
from supervisor.web.web_pages import HTML

_JSON = "application/json"
_SCRIPT = "text/javascript; charset=utf-8"
_OF_A_JOB = re.compile(r"/job/([1-9][0-9]{0,3})/(events|live|report\.json)?")
_HEARTBEAT = 15.0
"""Seconds after which a stream says something, so that nobody takes it for dead."""
_COME_AGAIN = {"Refresh": "5"}
"""Has a browser load the page of a report that is not there yet again after 5 s."""
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
        return self._of_a_job(number, match[2])

    def _of_a_job(self, number: int, what: str | None) -> Answer | Stream:
        job = self._jobs.jobs[number - 1]
        match what:
            case "events":
                return self._events(job.name)
            case "report.json":
                return self._report(job, number, _JSON)
            case "live":
                seen = self._jobs.seen().get(job.name)
                found = pages.live_part(seen, self._now()) if isinstance(seen, JobFacts) else ""
                return Answer(found, HTML)
        return self._report(job, number, HTML)

    def _overview(self) -> Answer:
        version, seen = self._version(None), self._jobs.seen()
        jobs = [(job.name, seen.get(job.name)) for job in self._jobs.jobs]
        return Answer(pages.overview(jobs, self._now(), version), HTML)

    def _report(self, job: Job, number: int, content_type: str) -> Answer:
        version, seen = self._version(job.name), self._jobs.seen().get(job.name)
        why = seen.why if isinstance(seen, Unreadable) else "it was not looked at yet"
        again: dict[str, str] = {}
        if isinstance(seen, JobFacts):
            try:
                made = job.report(seen.records)
            except ReportError as error:
                why, again = str(error), _COME_AGAIN
            else:
                if content_type == _JSON:
                    return Answer(made.data, _JSON)
                version = pages.Version(version.changes, str(made.records))
                return pages.live_report(made.page, number, seen, self._now(), version)
        status = HTTPStatus.SERVICE_UNAVAILABLE
        return Answer(pages.unreadable(job.name, number, why, version), HTML, status, again)

    def _version(self, name: str | None) -> pages.Version:
        changes = self._jobs.changes(name)
        seen = self._jobs.seen().get(name) if name is not None else None
        return pages.Version(changes, str(seen.records) if isinstance(seen, JobFacts) else "-")

    def _readiness(self) -> Answer:
        if self._jobs.are_all_seen:
            return Answer("ok\n")
        return Answer("some jobs were not looked at yet\n", status=HTTPStatus.SERVICE_UNAVAILABLE)

    def _events(self, name: str | None) -> Stream:
        return Stream(partial(next, self._parts(name), None))

    def _parts(self, name: str | None) -> Iterator[bytes]:
        """Yields the parts of a stream: the version, whenever it is another one."""
        told, last = None, time.monotonic()
        yield _RETRY
        while True:
            version = self._version(name)
            if version != told:
                told, last = version, time.monotonic()
                yield f"data: {version}\n\n".encode()
            elif time.monotonic() - last > _HEARTBEAT:
                last = time.monotonic()
                yield b": still here\n\n"
            elif self._jobs.wait_for_change(name, version.changes, _LOOK):
                yield b""
            else:
                return
