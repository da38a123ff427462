"""A toy agent: it says its pid, and then what it hears, or what it is asked for."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from supervisor.engines.fleet.payload_frames import Frames, framed


def answers(payload: bytes) -> list[bytes]:
    if payload == b"exit":
        sys.exit(3)
    if payload == b"count":
        return [b"%d" % number for number in range(1000)]
    if payload == b"environment":
        return [repr(dict(os.environ)).encode()]
    if payload == b"directory":
        return [str(Path.cwd()).encode()]
    return [b"echo " + payload]


connection = socket.socket(fileno=int(sys.argv[1]))
connection.sendall(framed(b"%d" % os.getpid()))
frames = Frames()
while data := connection.recv(1 << 16):
    for asked in frames.feed(data):
        connection.sendall(b"".join(map(framed, answers(asked))))
