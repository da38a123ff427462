"""`python -P -m trainer.probe DESCRIPTOR`: do the devices compute what they should?

In a process of its own, because a broken device hangs or kills whoever uses it. On the socket
DESCRIPTOR it is asked once, by a line of JSON; until then it waits with jax imported, so that it
can be started ahead of the question:

    {"without": [...], "environment": {...}, "one_by_one": true, "skip": [2], "wrong": [3],
     "stuck": []}

what to take out of the environment and what to set in it, whether to try each device alone first
(slower, but then it is known which one hangs), the devices (by their place) to leave out, those
that are simulated to compute wrong results, and those that are simulated to let no backend come
up. It answers with lines of JSON, each all that is known by then:

    {"found": 4, "bad": {"1": "..."}, "at": 2, "compiled": true}

`at` is "start" while the backend is initialised, then the device that computes now (`compiled`: or
waits for the compiler), "all" while they do together, and null in the last line, when those that
are not bad are well. So a process that hangs or is gone has said where.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import traceback
from typing import Any, NoReturn

from supervisor.protocol import background, simulated
from supervisor.protocol.this_machine import missing_gpu


def main() -> NoReturn:
    """Wait for the question, answer it, and be gone: a normal exit may hang on a broken device."""
    code = 0
    try:
        _answer(socket.socket(fileno=int(sys.argv[1])))
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def _answer(connection: socket.socket) -> None:
    is_ahead = not select.select([connection], [], [], 0)[0]
    nice = background.enter() if is_ahead else None
    import jax

    from trainer import device_health, placement

    with connection, connection.makefile("rw") as lines:
        question = lines.readline()
        if not question:  # nobody needs it any more
            return
        if nice is not None:
            background.leave(nice)
        asked = json.loads(question)
        for name in asked["without"]:
            os.environ.pop(name, None)
        os.environ.update(asked["environment"])
        if (why_not := placement.adopt()) is not None:
            raise RuntimeError(why_not)

        def tell(**known: Any) -> None:
            lines.write(json.dumps(known) + "\n")
            lines.flush()

        if os.environ.get("JAX_PLATFORMS") == "cuda" and (why := missing_gpu()) is not None:
            raise RuntimeError(why)
        tell(found=0, bad={}, at="start", compiled=False)
        simulated.fail_if_stuck(asked["stuck"])
        devices = jax.local_devices()
        device_health.probe(devices, asked["one_by_one"], asked["skip"], asked["wrong"], tell)


if __name__ == "__main__":
    main()
