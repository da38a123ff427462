"""A bucket of Amazon S3 on this host: moto's server, one request at a time.

Moto checks a precondition and then writes: of two requests at once, both might pass the check.

s3_emulator.py BUCKET prints its port, and ends when its standard input ends.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from moto.s3.models import s3_backends
from werkzeug.serving import make_server


def one_at_a_time(application: Any) -> Any:
    """Return the application, changed to complete each answer before it begins the next request."""
    lock = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        with lock:
            return [b"".join(application(environ, start_response))]

    return serve


def main(bucket: str) -> None:
    """Serve until standard input ends."""
    s3_backends["123456789012"]["aws"].create_bucket(bucket, "us-east-1")
    application = one_at_a_time(DomainDispatcherApplication(create_backend_app))
    server = make_server(
        "127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
