"""What a page about slices takes for granted: a cloud, a bucket, and a job that runs on a slice.

Pages name these functions as they name those of `behind_the_scenes`.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from urllib.parse import quote

from supervisor.adapters.platforms.queued_resources import BASE_VARIABLE
from tests.docs.behind_the_scenes import bucket, store_without_the_bucket
from tests.docs.session import Session
from tests.running import eventually

_LOG = "provision.log"
_STATUS = {"v": 1, "status": "RUNNING", "exit_code": None, "attempt": 1, "step": 200}


def cloud_without_a_slice(session: Session) -> None:
    store_without_the_bucket(session)
    bucket(session)
    session.env[BASE_VARIABLE] = session.until_the_end.enter_context(session.cloud.serving())


def slice_that_is_asked_for(session: Session) -> None:
    _wait_for_last_line(session, "is asked for")
    assert eventually(lambda: session.cloud.resources)


def slice_that_runs_the_job(session: Session) -> None:
    """The loop looks only every 30 s, so another one takes its place."""
    _stop_loop(session)
    (name,) = session.cloud.resources
    session.cloud.become(name, "ACTIVE")
    _write_object(session, "runs/demo/status.json", json.dumps(_STATUS).encode())
    session.run(f"nohup supervise provision trainer.yaml >> {_LOG} 2>&1 & echo $! > provision.pid")
    _wait_for_last_line(session, "the job says")


def loop_that_has_ended(session: Session) -> None:
    _wait_for_last_line(session, "told to stop")


def _stop_loop(session: Session) -> None:
    os.kill(int((session.cwd / "provision.pid").read_text()), signal.SIGTERM)
    loop_that_has_ended(session)


def _wait_for_last_line(session: Session, text: str) -> None:
    log = session.cwd / _LOG

    def is_there() -> bool:
        return log.exists() and text in (log.read_text().splitlines() or [""])[-1]

    assert eventually(is_there), log.read_text()


def _write_object(session: Session, name: str, data: bytes) -> None:
    url = f"{session.env['STORAGE_EMULATOR_HOST']}/upload/storage/v1/b/my-bucket/o"
    query = f"uploadType=media&name={quote(name, safe='')}"
    kind = {"Content-Type": "text/plain"}
    urllib.request.urlopen(urllib.request.Request(f"{url}?{query}", data, kind)).close()
