"""`supervise serve`: shows jobs over HTTP, to browsers and to Prometheus. It only reads."""

from __future__ import annotations

import signal
import sys
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from supervisor.cli.arguments import Commands, add_model_dirs, with_own_message
from supervisor.cli.complaints import complain
from supervisor.cli.job_view import print_line
from supervisor.cli.served_job import ServedJob
from supervisor.core.exit_codes import ExitCode
from supervisor.protocol.location import Uri
from supervisor.web.http_address import HttpAddress

_DEFAULT = "127.0.0.1:9090"
_MAX_JOBS = 64
"""Jobs of one server: each has a thread, and some fifty series in Prometheus."""
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "serve", help="show jobs over HTTP, to a browser and to Prometheus; it only reads"
    )
    parser.add_argument(
        "--http",
        type=with_own_message(HttpAddress.parse),
        default=HttpAddress.parse(_DEFAULT),
        metavar="ADDRESS",
        help="the IP address and port to listen at; without an address, on this machine alone "
        f"(default: {_DEFAULT})",
    )
    add_model_dirs(parser)


def run(options: Namespace) -> int:
    """Serve until a signal comes; returns the exit code."""
    places: list[Path | Uri] = list(dict.fromkeys(options.model_dirs))
    if len(places) > _MAX_JOBS:
        text = f"{len(places)} jobs are too many for one server: give {_MAX_JOBS} at most"
        return complain(ExitCode.USAGE, text)
    try:
        from supervisor.web.bounded_server import BoundedServer
        from supervisor.web.routes import Routes
    except ImportError as error:
        remedy = "pip install '.[http]' in a checkout"
        text = f"prometheus-client is needed, and cannot be imported ({error}): {remedy}"
        return complain(ExitCode.USAGE, text)
    from supervisor.web.watched_jobs import WatchedJobs

    address: HttpAddress = options.http
    jobs = WatchedJobs([ServedJob(place, name) for place, name in named(places)])
    try:
        server = BoundedServer(str(address.ip), address.port, Routes(jobs, time.time).answer)
    except OSError as error:
        text = f"{address} cannot be listened at: {error.strerror}; choose another one by --http"
        return complain(ExitCode.USAGE, text)
    if address.warning:
        print(f"supervise: warning: {address.warning}", file=sys.stderr, flush=True)
    stop = threading.Event()
    for number in _STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays in force
            signal.signal(number, lambda *_: stop.set())
    jobs.start()
    threading.Thread(target=server.serve_forever, name="server", daemon=True).start()
    count = f"{len(places)} job{'s' * (len(places) != 1)}"
    print_line(f"{count} shown at {server.url}")
    sys.stdout.flush()
    stop.wait()
    jobs.stop()
    server.shutdown()
    return 0


def named(places: Sequence[Path | Uri]) -> list[tuple[Path | Uri, str]]:
    """Returns each place with the name of its job: the last part of its path; of places whose last
    part is the same, all of it."""
    short = {place: _last_part(place) for place in places}
    times = Counter(short.values())
    return [(at, name if times[name] == 1 and name else str(at)) for at, name in short.items()]


def _last_part(place: Path | Uri) -> str:
    if isinstance(place, Uri):
        return place.path.rpartition("/")[2] or place.bucket
    return place.name if place.name not in ("", "..") else place.resolve().name
