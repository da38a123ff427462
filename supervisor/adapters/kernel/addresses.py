"""Ports of this host that nobody uses: each attempt's workers meet at another one.

Between the moment that a port is found and the one that a worker binds it, somebody else may take
it. Then the attempt fails of `Failed to start RPC server`, and the next one has another port.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_ports(count: int) -> tuple[int, ...]:
    """So many different ports that are free now.

    Raises:
        OSError: there are not so many.
    """
    with ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return tuple(server.getsockname()[1] for server in servers)
