"""`python -P -m trainer.probe DESCRIPTOR`: do the devices compute correct results?

This runs in a process of its own, because a broken device can hang or kill the process that uses
it. It gets one question on the socket DESCRIPTOR, a line of JSON. Until then it waits with jax
imported, so that it can be started before the question comes:

    {"without": [...], "environment": {...}, "one_by_one": true, "skip": [2], "wrong": [3],
     "stuck": []}

`without` names the variables to remove from the environment, `environment` has those to set.
`one_by_one` tries each device alone first: that is slower, but shows which device hangs. The rest
are indices of devices: `skip` leaves them out, `wrong` simulates that they compute wrong results,
`stuck` simulates that they prevent the backend from being initialised. It answers with lines of
JSON; each has all that is known so far:

    {"found": 4, "bad": {"1": "..."}, "at": 2, "compiled": true}

`at` is "start" while the backend is initialised, then the index of the device that computes now,
then "all" while they compute together, and null in the last line: then all devices that are not in
`bad` are healthy. Beside a device or "all", `compiled` is false while the program is still being
compiled. So if this process hangs or dies, the last line says where.
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
    """Wait for the question, answer it, and exit at once: a normal exit may hang on a broken
    device."""
    code = 0
    try:
        _answer(socket.socket(fileno=int(sys.argv[1])))
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def _answer(connection: socket.socket) -> None:
    is_ahead = not select.select([connection], [], [], 0)[0]
    nice = background.lower_priority() if is_ahead else None
    import jax

    from trainer.device_health import check_devices
    from trainer.visible_devices import use_visible_devices

    with connection, connection.makefile("rw") as lines:
        question = lines.readline()
        if not question:  # the supervisor does not need the answer any more
            return
        if nice is not None:
            background.restore_priority(nice)
        asked = json.loads(question)
        for name in asked["without"]:
            os.environ.pop(name, None)
        os.environ.update(asked["environment"])
        if (why_not := use_visible_devices()) is not None:
            raise RuntimeError(why_not)

        def tell(**known: Any) -> None:
            lines.write(json.dumps(known) + "\n")
            lines.flush()

        if os.environ.get("JAX_PLATFORMS") == "cuda" and (why := missing_gpu()) is not None:
            raise RuntimeError(why)
        tell(found=0, bad={}, at="start", compiled=False)
        simulated.fail_if_stuck(asked["stuck"])
        devices = jax.local_devices()
        check_devices(devices, asked["one_by_one"], asked["skip"], asked["wrong"], tell)


if __name__ == "__main__":
    main()
