"""A server of jobs in this process, and requests to it byte for byte."""

from __future__ import annotations

import http.client
import shutil
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from supervisor.cli.serve import named
from supervisor.cli.served_job import ServedJob
from supervisor.files.segments import JOURNAL
from supervisor.web.bounded_server import BoundedServer
from supervisor.web.routes import Routes
from supervisor.web.watched_jobs import WatchedJobs
from tests.adapters.test_golden_journals import JOURNALS
from tests.running import PATIENCE

NOW = 1_800_000_000.0
FREE = 0
"""The port that stands for any that is free."""


def model_dir(folder: Path, journal: str = "format2_restart") -> Path:
    """Make a model_dir with a journal of a real run; returns it."""
    folder.mkdir(parents=True)
    shutil.copy(JOURNALS / f"{journal}.jsonl", folder / JOURNAL)
    return folder


class Served:
    """A server that runs."""

    def __init__(self, server: BoundedServer, jobs: WatchedJobs) -> None:
        self.server = server
        self.jobs = jobs
        self.port: int = server.server_address[1]

    def get(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None
    ) -> tuple[int, str, dict[str, str]]:
        """Returns status, body and headers of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, body, {key.lower(): value for key, value in answer.getheaders()}

    def raw(self, data: bytes) -> bytes:
        """Send these bytes; returns all that comes until the server ends the connection, which it
        may do before it has read all of them."""
        came = b""
        with self.connection() as connection, suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(data)
            while chunk := connection.recv(65536):
                came += chunk
        return came

    def connection(self) -> socket.socket:
        """Returns a new connection."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def wait_until_all_are_seen(self) -> None:
        """Wait until each job was looked at."""
        while not self.jobs.are_all_seen:
            self.jobs.wait_for_change(None, self.jobs.changes(None), 0.1)


@contextmanager
def served(
    places: Sequence[Path],
    *,
    looks: bool = True,
    seconds_to_ask: float = PATIENCE,
    seconds_for_report: float = PATIENCE,
) -> Iterator[Served]:
    """Serve the jobs in these places; `looks`: whether they are looked at."""
    jobs = WatchedJobs(
        [ServedJob(place, name, seconds_for_report) for place, name in named(places)]
    )
    server = BoundedServer("127.0.0.1", FREE, Routes(jobs, lambda: NOW).answer, seconds_to_ask)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    it = Served(server, jobs)
    try:
        if looks:
            jobs.start()
            it.wait_until_all_are_seen()
        yield it
    finally:
        jobs.stop()
        server.shutdown()
        thread.join()
        server.server_close()
