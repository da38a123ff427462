"""Stands in for Ray's command: a head that listens, members that wait, drained by SIGTERM.

It is copied to the folder of a Python as `ray`. Each start writes a line into `starts` beside it.
While a file `fails` is there, each start fails; while `locks-up` is there, it does not end by
itself. A member needs the token of the head, as Ray's do.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
arguments = dict(word.partition("=")[::2] for word in sys.argv[2:])
address = "127.0.0.1:" + arguments["--port"] if "--head" in arguments else arguments["--address"]
host, _, port = address.rpartition(":")
token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()
assert os.environ["RAY_worker_niceness"] == "0", "the workers would be slow"  # noqa: SIM112
drain = os.environ["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]


def say(what: str) -> None:
    told = {"what": what, "pid": os.getpid(), "head": "--head" in arguments, "drain": drain}
    told["config"] = os.environ["SUPERVISE_GANG_CONFIG"]
    with (HERE / "starts").open("a") as file:
        file.write(json.dumps(told) + "\n")


def stopped(*_: object) -> None:
    say("stopped")
    raylet.terminate()
    sys.exit(1)


if (HERE / "fails").exists():
    sys.exit("the port is in use")
if "--head" in arguments:
    server = socket.create_server((host, int(port)))
    (HERE / "token").write_text(token)
elif token != (HERE / "token").read_text():
    sys.exit("the token is wrong")
raylet = subprocess.Popen([HERE / "raylet", "3600"], start_new_session=True)
signal.signal(signal.SIGTERM, stopped)
say("started")
while True:  # like Ray, it outlives a raylet that was stopped
    time.sleep(0.05)
    if raylet.poll() not in (None, -signal.SIGTERM):
        if (HERE / "locks-up").exists():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.pause()
        sys.exit(1)
